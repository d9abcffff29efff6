# SPDX-License-Identifier: LGPL-3.0-or-later
"""A served pool beside nfs-ganesha's FSAL_VFS on XFS on the same disk.

Both servers run all the time, but the client mounts one at a time, and each thing is measured on one
and then at once on the other. Cold: the pool's cache is full of something else, the host's was emptied
(the pool's devices bypass it). Warm: the same for the third time, by a client that has nothing cached;
the second is when the pool's cache, which keeps what it has, takes in what was read before.
"""

import os
import random

import fio
from cached import CachedPool
from figures import PER_SECOND, Figure, say
from side import CREATES, FILE_MIB, MIB, NAMES, THREADS, OurSide, Side, create, unlink
from xfs import WSYNC, XfsPool

# tests/nfs/harness; `run` has put it on the path
from harness.client import make_client
from harness.reference import ReferenceServer
from harness.server import Server

DEVICE = 3 << 29
XFS = 4 << 30
XFS_WSYNC = 1 << 30
SMALL_BYTES = 110_000
DEPTH = 16
RANDOM_DEPTH = 32
RANDOM_READS = 40_000
LISTS = 3


def make_source(place, small):
    """A directory of small files and one of many names."""
    chance = random.Random(1)
    block = chance.randbytes(2 * SMALL_BYTES)
    for part in ('small', 'names'):
        os.makedirs(os.path.join(place, part))
    for i in range(small):
        length = SMALL_BYTES // 2 + chance.randrange(SMALL_BYTES)
        start = chance.randrange(SMALL_BYTES // 2)
        with open(f'{place}/small/f{i:06}', 'wb') as file:
            file.write(block[start:start + length])
    for i in range(NAMES):
        os.close(os.open(f'{place}/names/n{i:06}', os.O_WRONLY | os.O_CREAT, 0o644))
    return place


def make_pool(workdir):
    pool = CachedPool(workdir, device_bytes=DEVICE)
    fio.fill(pool.devices, DEVICE)
    return pool


class Race:
    """Both sides, and the figures by name."""

    def __init__(self, mine, other):
        self.mine, self.other = mine, other
        self.figures = {}

    def row(self, name, what, beside='FSAL_VFS', goal=1.0, **options):
        self.figures[name] = Figure(what, beside=beside, goal=goal, **options)

    @staticmethod
    def once(side, measure, *args):
        side.forget_host()
        return measure(side, *args)

    def pair(self, name, measure):
        """measure(side), ours first."""
        (value, cost), (other_value, other_cost) = (
            self.once(side, measure) for side in (self.mine, self.other))
        self.figures[name].add(value, other_value, cost, other_cost)

    def cold_and_warm(self, name, measure):
        """measure(side), cold and then twice warm, the last of which counts."""
        found = []
        for side in (self.mine, self.other):
            side.forget()
            found.append([measure(side) for _ in range(3)])
        for i, kind in ((0, 'cold'), (-1, 'warm')):
            (value, cost), (other_value, other_cost) = found[0][i], found[1][i]
            self.figures[f'{name} {kind}'].add(value, other_value, cost, other_cost)

    def three(self, name, measure):
        """measure(side, volume): ours, the other mounted wsync, the other as it is by default."""
        value, cost = self.once(self.mine, measure, 'share')
        for volume in (*WSYNC, 'share'):
            other_value, other_cost = self.once(self.other, measure, volume)
            self.figures[f'{name} {volume}'].add(value, other_value, cost, other_cost)

    def data_rows(self, client, write, read, random, small):
        """Of one file, and of many; each as the client does it."""
        def cold_and_warm(name, what, **options):
            for kind in ('cold', 'warm'):
                self.row(f'{name} {kind}', f'{client}: {what}, {kind}', **options)

        self.row('write', f'{client}: write {FILE_MIB} MiB and {write}', goal=0.9)
        cold_and_warm('read', f'read {FILE_MIB} MiB{read}')
        cold_and_warm('random', f'read 4 KiB, {random}{RANDOM_DEPTH} at once', unit=PER_SECOND)
        cold_and_warm('small', small, goal=1.2, unit=PER_SECOND)

    def names_rows(self, client, rows):
        for name, what in rows.items():
            what = f'{client}: {what}'
            self.row(f'{name} wsync', what, 'FSAL_VFS, XFS wsync', unit=PER_SECOND)
            self.row(f'{name} share', what, 'FSAL_VFS, XFS', None, unit=PER_SECOND,
                     note='not durable there when it is answered')


def linux_rows(race, small):
    race.data_rows('Linux', 'fsync', '', 'O_DIRECT, ',
                   f'{small:,} files of 110 KB at random, {THREADS} threads')
    race.row('stat', f'Linux: list and stat a directory of {NAMES:,}', unit=PER_SECOND)
    race.names_rows('Linux', {
        'create': 'create, 1 thread', 'unlink': 'unlink, 1 thread',
        'creates': f'create, {THREADS} threads', 'unlinks': f'unlink, {THREADS} threads'})


def linux_round(race, options, order):
    race.pair('write', Side.write)
    race.cold_and_warm('read', Side.read)
    race.cold_and_warm('random', lambda side: side.random(options.seconds))
    race.cold_and_warm('small', lambda side: side.small(order))
    race.pair('stat', Side.stat)
    for name, threads in (('', 1), ('s', THREADS)):
        race.three(f'create{name}', lambda side, share: side.names(share, create, threads))
        race.three(f'unlink{name}', lambda side, share: side.names(share, unlink, threads))


def lean_rows(race, small):
    race.data_rows('lean', f'COMMIT, {DEPTH} at once', f', 1 MiB, {DEPTH} at once', '',
                   f'{small:,} files of 110 KB at random, {THREADS} at once')
    race.row('list', f'lean: list {NAMES:,} names with attributes', unit=PER_SECOND)
    race.names_rows('lean', {
        'create': f'create, {THREADS} at once', 'remove': f'remove, {THREADS} at once'})


def lean_round(race, options):
    race.pair('write', lambda side: side.lean_bytes(
        lambda: side.lean.write('share', FILE_MIB, depth=DEPTH)))
    race.cold_and_warm('read', lambda side: side.lean_bytes(
        lambda: side.lean.read('share', MIB, FILE_MIB, FILE_MIB, depth=DEPTH)))
    race.cold_and_warm('random', lambda side: side.lean_count(
        lambda: side.lean.random('share', 4096, RANDOM_READS, FILE_MIB, depth=RANDOM_DEPTH)))
    race.cold_and_warm('small', lambda side: side.lean_count(
        lambda: side.lean.files('data/small', options.small, options.small)))
    race.pair('list', lambda side: side.lean_count(lambda: side.lean.list('data/names', LISTS)))
    race.three('create', lambda side, share: side.lean_count(
        lambda: side.lean.create(share, 0, CREATES)))
    race.three('remove', lambda side, share: side.lean_count(
        lambda: side.lean.remove(share, 0, CREATES)))


def race(mine, other, options):
    linux, lean = Race(mine, other), Race(mine, other)
    order = random.Random(2).sample(range(options.small), options.small)
    linux_rows(linux, options.small)
    lean_rows(lean, options.small)
    for number in range(options.rounds):
        say(f'nfs: round {number + 1} of {options.rounds}')
        linux_round(linux, options, order)
        lean_round(lean, options)
    return [*linux.figures.values(), *lean.figures.values()]


def measure(options, workdir):
    source = make_source(os.path.join(workdir, 'source'), options.small)
    places = [os.path.join(workdir, name) for name in ('millrace', 'vfs')]
    for place in places:
        os.mkdir(place)
    with make_client() as client:
        say('nfs: a pool and its server')
        mine = OurSide(client, make_pool(places[0]), Server, source, options.build, ['share'])
        try:
            say('nfs: FSAL_VFS on XFS')
            other = Side(client, XfsPool(places[1], XFS, XFS_WSYNC), ReferenceServer, source,
                         options.build, ['share', *WSYNC])
            try:
                return race(mine, other, options)
            finally:
                other.close()
        finally:
            mine.close()

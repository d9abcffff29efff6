# SPDX-License-Identifier: LGPL-3.0-or-later
"""Instructions that the server spends on an operation, by callgrind, beside FSAL_VFS's.

The lean client asks for N operations and then for 2N; the difference is what N took, without the
session, the start, the dump. It sends one compound at a time, so that the same is asked for in the
same order each time. What is kept in counts.json is compared with by --check.
"""

import collections
import json
import os

from cached import DEFAULT, NONE, CachedPool
from counted import Counted
from figures import INSTRUCTIONS, Figure, median, say
from lean import Lean
from testbed import system
from served import SMALL_BYTES

# tests/nfs/harness; `run` has put it on the path
from harness.reference import ReferencePool, ReferenceServer
from harness.server import Server

HERE = os.path.dirname(os.path.realpath(__file__))
KEPT = os.path.join(HERE, 'counts.json')
ADDRESS = '127.0.0.1'
TOLERANCE = 0.05
DEVICE = 256 << 20
FILE_MIB = 32
FILES = 100
TOP = 25  # functions of a profile

# `cache` is the size of the pool's block cache, if it matters.
Operation = collections.namedtuple('Operation', 'name what cache n run')


def read_1m(lean, first, n):
    lean.read('share', 1 << 20, n, FILE_MIB)


def read_4k(lean, first, n):
    lean.random('share', 4096, n, FILE_MIB)


def file_110k(lean, first, n):
    lean.files('data', FILES, n)


# Each run(lean, first, n) does n of it; `first` is how many were done before.
OPERATIONS = [
    Operation('read_1m', 'READ of 1 MiB', NONE, 100, read_1m),
    Operation('read_4k', 'READ of 4 KiB', NONE, 2000, read_4k),
    Operation('file_110k', 'open, read, close of 110 KB', NONE, 1000, file_110k),
    Operation('cached_1m', 'READ of 1 MiB, in the cache', DEFAULT, 100, read_1m),
    Operation('cached_4k', 'READ of 4 KiB, in the cache', DEFAULT, 2000, read_4k),
    Operation('cached_110k', 'open, read, close of 110 KB, in the cache', DEFAULT, 1000, file_110k),
    Operation('create', 'create and close', None, 1000,
              lambda lean, first, n: lean.create('share', first, n)),
    Operation('remove', 'remove', None, 1000,
              lambda lean, first, n: lean.remove('share', first, n)),
]


class CountedServer(Counted, Server):
    pass


class UncachedPool(ReferencePool):
    def cache(self, size):
        """The host's."""


class CountedReference(Counted, ReferenceServer):
    pass


def make_source(place):
    os.mkdir(place)
    for i in range(FILES):
        with open(f'{place}/f{i:06}', 'wb') as file:
            file.write(os.urandom(SMALL_BYTES))
    return place


def fill_cache(lean):
    """Twice: what is read once is not kept for long."""
    for _ in range(2):
        lean.read('share', 1 << 20, FILE_MIB, FILE_MIB)
        lean.files('data', FILES, FILES)


def count(pool, server, lean, operation, first):
    """Instructions of one operation, and by function."""
    if operation.cache:
        pool.cache(operation.cache)
    if operation.cache == DEFAULT:
        fill_cache(lean)
    server.dump()
    operation.run(lean, first, operation.n)
    less = server.dump()
    operation.run(lean, first + operation.n, 2 * operation.n)
    more = server.dump()
    more.subtract(less)
    by_function = {name: spent / operation.n for name, spent in more.items()}
    return sum(by_function.values()), by_function


def count_all(pool, server, options, source):
    """Of each operation: the counts of all rounds, and the last profile."""
    counts, profiles = collections.defaultdict(list), {}
    pool.create()
    try:
        pool.ingest('data', source)
        server.start()
        pool.create_share('share')
        lean = Lean(options.build, ADDRESS, server.port, 1)
        lean.write('share', FILE_MIB)
        for number in range(options.rounds):
            for operation in OPERATIONS:
                first = number * 3 * operation.n
                spent, profiles[operation.name] = count(
                    pool, server, lean, operation, first)
                counts[operation.name].append(spent)
    finally:
        server.close()
        pool.close()
    return counts, profiles


def count_ours(options, workdir, source):
    CountedServer.preload = os.path.join(options.build, 'lib/bench_uring_poll.so')
    pool = CachedPool(os.path.join(workdir, 'millrace'), device_bytes=DEVICE)
    return count_all(pool, CountedServer(pool, ADDRESS), options, source)


def count_reference(options, workdir, source):
    pool = UncachedPool(os.path.join(workdir, 'vfs'))
    return count_all(pool, CountedReference(pool, ADDRESS), options, source)


def measure(options, workdir):
    source = make_source(os.path.join(workdir, 'source'))
    say('counting instructions')
    ours, _ = count_ours(options, workdir, source)
    say("counting FSAL_VFS's")
    theirs, _ = count_reference(options, workdir, source)
    figures = []
    for operation in OPERATIONS:
        figure = Figure(operation.what, unit=INSTRUCTIONS, beside='FSAL_VFS', goal=1.0, less=True)
        for mine, other in zip(ours[operation.name], theirs[operation.name]):
            figure.add(mine, other)
        figures.append(figure)
    if options.keep:
        keep(ours, theirs)
    return figures


def keep(ours, theirs):
    rows = {o.name: {'what': o.what, 'millrace': round(median(ours[o.name])),
                     'vfs': round(median(theirs[o.name]))} for o in OPERATIONS}
    with open(KEPT, 'w') as file:
        json.dump({'tolerance': TOLERANCE, 'system': system(), 'counts': rows}, file,
                  indent=1)
        file.write('\n')


def check(options, workdir):
    """The rows that differ from those kept, as text."""
    with open(KEPT) as file:
        kept = json.load(file)
    if kept['system'] != system():  # its libraries and its compiler count too
        say(f'what is kept was counted on {kept["system"]}, this is {system()}')
    source = make_source(os.path.join(workdir, 'source'))
    ours, _ = count_ours(options, workdir, source)
    wrong = []
    for name, row in kept['counts'].items():
        found = median(ours[name])
        change = found / row['millrace'] - 1
        print(f'{row["what"]}: {found:,.0f}, kept {row["millrace"]:,}: {change:+.1%}')
        if abs(change) > kept['tolerance']:
            wrong.append(f'{row["what"]}: {change:+.1%}')
    return wrong


def profile(options, workdir):
    """Prints the functions that spend most, for each operation."""
    source = make_source(os.path.join(workdir, 'source'))
    both = count_ours(options, workdir, source)[1], count_reference(options, workdir, source)[1]
    for operation in OPERATIONS:
        for name, profiles in zip(('Millrace', 'FSAL_VFS'), both):
            spent = profiles[operation.name]
            print(f'\n{operation.what}, {name}: {sum(spent.values()):,.0f}')
            for function in sorted(spent, key=spent.get, reverse=True)[:TOP]:
                print(f'{spent[function]:10,.0f}  {function[:60]}')

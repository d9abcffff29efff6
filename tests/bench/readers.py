# SPDX-License-Identifier: LGPL-3.0-or-later
"""What it takes to serve a dataset by one, two and three readers from the same drives, beside its owner: each client reads all of
it, cold, at a reader of its own. A served GiB should cost the same, whoever else reads."""

import concurrent.futures
import os

import fio
from figures import Figure, Unit, Cost, say
from lean import FILE, Lean
from side import MIB, cpu_of
from testbed import ran

# tests/nfs/harness; `run` has put it on the path
from harness.server import Pool, Server

ADDRESS = '127.0.0.1'
DEVICE = 1 << 30
FILE_MIB = 512
DEPTH = 16
MOST = 3
CPU = Unit('CPU s/GiB', 1, 2)
READ = Unit('bytes/byte', 1, 3)


class Reader(Server):
    """As on a host of its own."""

    def __init__(self, pool, number):
        super().__init__(pool, ADDRESS)
        self.name = f'reader{number}'
        self.place = os.path.join(pool.workdir, self.name)
        self.log = os.path.join(pool.workdir, f'{self.name}.log')

    def argv(self):
        argv = super().argv()
        argv[argv.index('--run-dir') + 1] = self.place
        return [*argv, '--reader', '--host', self.name]

    def socket_path(self):
        return os.path.join(self.place, 'reader', f'{self.pool.name}.sock')

    def read_bytes(self):
        """What it has had from drives."""
        with open(f'/proc/{self.pid()}/io') as file:
            return next(int(line.split()[1]) for line in file if line.startswith('read_bytes'))


def make_source(place):
    os.makedirs(place)
    with open(os.path.join(place, FILE), 'wb') as file:
        for _ in range(FILE_MIB):
            file.write(os.urandom(MIB))
    return place


def read_by(pool, count, build):
    """(bytes of drives, CPU seconds, bytes served), of COUNT readers that have just started, all at once."""
    readers = [Reader(pool, number) for number in range(count)]
    try:
        for reader in readers:
            reader.start()
        cpu, had = sum(map(cpu_of, readers)), sum(reader.read_bytes() for reader in readers)
        with concurrent.futures.ThreadPoolExecutor(count) as threads:
            served = sum(done['bytes'] for done in threads.map(
                lambda reader: Lean(build, ADDRESS, reader.port, DEPTH).read('data', MIB, FILE_MIB, FILE_MIB), readers))
        return (sum(reader.read_bytes() for reader in readers) - had, sum(map(cpu_of, readers)) - cpu, served)
    finally:
        for reader in readers:
            reader.close()


def rows():
    """By the number of readers: what a served byte takes of the drives, and of processors."""
    found = {}
    for count in range(1, MOST + 1):
        who = f'{count} reader{"s" * (count > 1)} at once'
        beside = 'one reader' if count > 1 else ''
        found[count] = (Figure(f'read from the drives for a served byte, {who}', READ, beside, 1.0 if beside else None, less=True),
                        Figure(f'processors of the readers for a served GiB, {who}', CPU, beside, 1.0 if beside else None,
                               less=True))
    return found


def add(figures, one, many):
    for figure, which, unit in zip(figures, (0, 1), (1, 1 << 30)):
        mine, other = (found[which] / found[2] * unit for found in (many, one))
        figure.add(mine, other if many is not one else None, Cost(many[1], many[2], 0))


def measure(options, workdir):
    pool = Pool(workdir, device_bytes=DEVICE)
    fio.fill(pool.devices, DEVICE)
    found = rows()
    pool.create()
    pool.ingest('data', make_source(os.path.join(workdir, 'source')))
    owner = Server(pool, ADDRESS).start()
    ran(['reader:', *Reader(pool, 1).argv()], [workdir])
    try:
        for number in range(options.rounds):
            say(f'readers: round {number + 1} of {options.rounds}')
            one = read_by(pool, 1, options.build)
            add(found[1], one, one)
            for count in range(2, MOST + 1):
                add(found[count], one, read_by(pool, count, options.build))
    finally:
        owner.close()
        pool.close()
    return [figure for pair in found.values() for figure in pair]

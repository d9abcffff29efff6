# SPDX-License-Identifier: LGPL-3.0-or-later
"""A real client on a served pool, beside nfs-ganesha's FSAL_VFS on the same disk.

Both servers run all the time, but the client mounts one at a time, and each thing is measured on one
and then at once on the other. The pool has no cache; the host's is dropped before each mount, so
that FSAL_VFS reads from the disk too.
"""

import json
import os
import random

import fio
from figures import Figure, per_second, say

# tests/nfs/harness; `run` has put it on the path
from harness.client import make_client
from harness.reference import ReferencePool, ReferenceServer
from harness.server import Pool, Server

MIB = 1 << 20
DEVICE = 1 << 30
FILE_MIB = 512
SMALL_BYTES = 110_000
NAMES = 20_000
CREATES = 2_000
THREADS = 8
PATH = '/mnt/bench'
TICKS = os.sysconf('SC_CLK_TCK')


# --- what runs on the client ------------------------------------------------------------------


def in_threads(threads, work):
    """Runs work(i) for i of `threads`; returns the seconds until all are done."""
    running = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    began = time.monotonic()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return time.monotonic() - began


def read_small(path, order, threads):
    names = [f'{path}/small/f{i:06}' for i in order]
    total = [0] * threads

    def work(i):
        for name in names[i::threads]:
            with open(name, 'rb', buffering=0) as file:
                total[i] += len(file.read())
    took = in_threads(threads, work)
    return took, sum(total)


def create(path, threads, count):
    os.mkdir(f'{path}/new')

    def work(i):
        for k in range(i, count, threads):
            os.close(os.open(f'{path}/new/{k}', os.O_WRONLY | os.O_CREAT, 0o644))
    took = in_threads(threads, work)
    shutil.rmtree(f'{path}/new')
    return took


def stat_all(path):
    began = time.monotonic()
    count = sum(1 for entry in os.scandir(f'{path}/names') if entry.stat().st_nlink == 1)
    return time.monotonic() - began, count


# --- a server ---------------------------------------------------------------------------------


class Side:
    """One pool, its server, and the client's view of it."""

    def __init__(self, client, pool, server_class, source):
        self.client = client
        self.pool = pool
        self.server = None
        try:
            pool.create()
            if isinstance(pool, Pool):
                pool.verb('pool', 'set', pool.name, 'cache.size=0')
            pool.ingest('data', source)
            self.server = server_class(pool, client.server_address)
            self.server.start()
            pool.create_share('share')
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.server:
            self.server.close()
        self.pool.close()

    def on(self, volume, work):
        """work(), with the volume mounted and nothing cached; returns (result, CPU seconds)."""
        with open('/proc/sys/vm/drop_caches', 'w') as file:
            file.write('3\n')
        self.client.mount(self.pool.export(volume), PATH, port=self.server.port)
        try:
            before = self.cpu()
            result = work()
            return result, self.cpu() - before
        finally:
            self.client.umount(PATH)

    def cpu(self):
        """Seconds of all processes of the server."""
        total = 0
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/stat') as file:
                    fields = file.read().rsplit(')', 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.server._daemon.pid:  # its session
                total += int(fields[11]) + int(fields[12])
        return total / TICKS

    # What is measured; each returns (value, CPU seconds a GiB or None)

    def fio(self, *options, fresh=False):
        def work():
            if fresh:
                self.client.run(['rm', '-f', f'{PATH}/file'])
            done = self.client.run(
                ['fio', '--name=file', f'--filename={PATH}/file', f'--size={FILE_MIB}M',
                 '--fallocate=none', '--output-format=json', *options], timeout=600, cwd='/tmp')
            return json.loads(done.stdout[done.stdout.index(b'{'):])['jobs'][0]
        job, cpu = self.on('share', work)
        part = job['write'] if job['write']['total_ios'] else job['read']
        seconds = part['runtime'] / 1e3
        return (part['io_bytes'] / seconds, part['total_ios'] / seconds,
                cpu / (part['io_bytes'] / (1 << 30)))

    def write(self):
        speed, _, cpu = self.fio('--rw=write', '--bs=1M', '--ioengine=psync', '--end_fsync=1',
                                 fresh=True)
        return speed, cpu

    def read(self):
        speed, _, cpu = self.fio('--rw=read', '--bs=1M', '--ioengine=psync')
        return speed, cpu

    def random(self, seconds):
        _, count, cpu = self.fio('--rw=randread', '--bs=4k', '--direct=1', '--ioengine=libaio',
                                 '--iodepth=32', '--norandommap', '--randrepeat=0',
                                 '--time_based', f'--runtime={seconds}')
        return count, cpu

    def small(self, order):
        (took, count), cpu = self.on('data', lambda: self.client.call(
            read_small, PATH, order, THREADS, helpers=[in_threads], timeout=600))
        return len(order) / took, cpu / (count / (1 << 30))

    def create(self, threads):
        took, _ = self.on('share', lambda: self.client.call(
            create, PATH, threads, CREATES, helpers=[in_threads], timeout=600))
        return CREATES / took, None

    def stat(self):
        (took, count), _ = self.on('data', lambda: self.client.call(stat_all, PATH, timeout=600))
        return count / took, None


# --- all of it ----------------------------------------------------------------------------------


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
    pool = Pool(workdir, device_bytes=DEVICE)
    fio.fill(pool.devices, DEVICE)
    return pool


def one_round(mine, other, figures, options, order):
    def pair(name, measure):
        (value, cpu), (other_value, other_cpu) = measure(mine), measure(other)
        figures[name].add(value, other_value, cpu, other_cpu)

    pair('write', Side.write)
    pair('read', Side.read)
    pair('random', lambda side: side.random(options.seconds))
    pair('small', lambda side: side.small(order))
    pair('create', lambda side: side.create(1))
    pair('creates', lambda side: side.create(THREADS))
    pair('stat', Side.stat)


def measure(options, workdir):
    beside = {'beside': 'FSAL_VFS'}
    figures = {
        'write': Figure(f'write {FILE_MIB} MiB and fsync', **beside),
        'read': Figure(f'read {FILE_MIB} MiB, cold', **beside),
        'random': Figure('read 4 KiB, O_DIRECT, 32 at once', show=per_second, **beside),
        'small': Figure(f'{options.small:,} files of about 110 KB in random order, {THREADS} '
                        'threads, files', show=per_second, **beside),
        'create': Figure('create, 1 thread', show=per_second, **beside),
        'creates': Figure(f'create, {THREADS} threads', show=per_second, **beside),
        'stat': Figure(f'list and stat a directory of {NAMES:,}', show=per_second, **beside),
    }
    for name in ('create', 'creates'):
        figures[name].note = 'FSAL_VFS does not make them durable'
    order = random.Random(2).sample(range(options.small), options.small)
    source = make_source(os.path.join(workdir, 'source'), options.small)
    places = [os.path.join(workdir, name) for name in ('millrace', 'vfs')]
    for place in places:
        os.mkdir(place)
    with make_client() as client:
        say('a pool and its server')
        mine = Side(client, make_pool(places[0]), Server, source)
        try:
            say('FSAL_VFS')
            other = Side(client, ReferencePool(places[1]), ReferenceServer, source)
            try:
                for number in range(options.rounds):
                    say(f'round {number + 1} of {options.rounds}')
                    one_round(mine, other, figures, options, order)
            finally:
                other.close()
        finally:
            mine.close()
    return list(figures.values())

# SPDX-License-Identifier: LGPL-3.0-or-later
"""One of the servers that are measured: its pool, what its processes spend, and its clients, a Linux one
and the lean one. Each measurement returns (value, Cost)."""

import json
import os

from figures import Cost
from lean import FILE, Lean
from testbed import ran

MIB = 1 << 20
FILE_MIB = 512
CACHE_MIB = 1536
FILLER = 'filler'
FILL_DEPTH = 16
NAMES = 20_000
CREATES = 2_000
THREADS = 8
PATH = '/mnt/bench'
TICKS = os.sysconf('SC_CLK_TCK')


# --- what runs on the Linux client --------------------------------------------------------------


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
    def work(i):
        for k in range(i, count, threads):
            os.close(os.open(f'{path}/new{k}', os.O_WRONLY | os.O_CREAT, 0o644))
    return in_threads(threads, work)


def unlink(path, threads, count):
    def work(i):
        for k in range(i, count, threads):
            os.unlink(f'{path}/new{k}')
    return in_threads(threads, work)


def stat_all(path):
    began = time.monotonic()
    count = sum(1 for entry in os.scandir(f'{path}/names') if entry.stat().st_nlink == 1)
    return time.monotonic() - began, count


# --- a server -----------------------------------------------------------------------------------

def cpu_of(server):
    """Seconds of all its processes."""
    total = 0
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/stat') as file:
                fields = file.read().rsplit(')', 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == server.pid():  # its session
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


class Side:
    def __init__(self, client, pool, server_class, source, build, shares):
        self.client = client
        self.pool = pool
        self.server = None
        try:
            pool.create()
            pool.ingest('data', source)
            self.server = server_class(pool, client.server_address)
            self.server.start()
            ran(['server:', *self.server.argv()], [pool.workdir])
            for share in shares:
                pool.create_share(share)
        except BaseException:
            self.close()
            raise
        self.lean = Lean(build, client.server_address, self.server.port, THREADS)

    def close(self):
        if self.server:
            self.server.close()
        self.pool.close()

    def forget_host(self):
        """All that the host caches."""
        with open('/proc/sys/vm/drop_caches', 'w') as file:
            file.write('3\n')

    def forget(self):
        """What the server caches of files' bytes, too."""
        self.forget_host()

    def cpu(self):
        """Seconds of all processes of the server."""
        return cpu_of(self.server)

    # The Linux client

    def mounted(self, volume, work):
        """(what work() returns, CPU seconds of the server), mounted anew: the client has nothing cached."""
        self.client.mount(self.pool.export(volume), PATH, port=self.server.port)
        try:
            before = self.cpu()
            result = work()
            return result, self.cpu() - before
        finally:
            self.client.umount(PATH)

    def fio(self, *options, fresh=False):
        def work():
            if fresh:
                self.client.run(['rm', '-f', f'{PATH}/{FILE}'])
            command = ['fio', '--name=file', f'--filename={PATH}/{FILE}', f'--size={FILE_MIB}M',
                       '--fallocate=none', '--output-format=json', *options]
            ran(['client:', *command])
            done = self.client.run(command, timeout=600, cwd='/tmp')
            return json.loads(done.stdout[done.stdout.index(b'{'):])['jobs'][0]
        job, cpu = self.mounted('share', work)
        part = job['write'] if job['write']['total_ios'] else job['read']
        return part['runtime'] / 1e3, Cost(cpu, part['io_bytes'], part['total_ios'])

    def write(self):
        seconds, cost = self.fio('--rw=write', '--bs=1M', '--ioengine=psync', '--end_fsync=1',
                                 fresh=True)
        return cost.bytes / seconds, cost

    def read(self):
        seconds, cost = self.fio('--rw=read', '--bs=1M', '--ioengine=psync')
        return cost.bytes / seconds, cost

    def random(self, seconds):
        seconds, cost = self.fio('--rw=randread', '--bs=4k', '--direct=1', '--ioengine=libaio',
                                 '--iodepth=32', '--norandommap', '--randrepeat=0', '--time_based',
                                 f'--runtime={seconds}')
        return cost.operations / seconds, cost

    def call(self, volume, function, *args):
        return self.mounted(volume, lambda: self.client.call(
            function, PATH, *args, helpers=[in_threads], timeout=600))

    def small(self, order):
        (took, count), cpu = self.call('data', read_small, order, THREADS)
        return len(order) / took, Cost(cpu, count, len(order))

    def names(self, volume, function, threads):
        took, cpu = self.call(volume, function, threads, CREATES)
        return CREATES / took, Cost(cpu, 0, CREATES)

    def stat(self):
        (took, count), cpu = self.call('data', stat_all)
        return count / took, Cost(cpu, 0, count)

    # The lean client

    def measured(self, run):
        """run() of the lean client, in bytes and operations per second."""
        before = self.cpu()
        result = run()
        cost = Cost(self.cpu() - before, result['bytes'], result['operations'])
        return cost.bytes / result['seconds'], cost.operations / result['seconds'], cost

    def lean_bytes(self, run):
        speed, _, cost = self.measured(run)
        return speed, cost

    def lean_count(self, run):
        _, count, cost = self.measured(run)
        return count, cost


class OurSide(Side):
    """Has a file that fills the block cache. A server that has been up for a while has a full one, whose
    memory was touched long ago; that of an empty one the host gives, and clears, while it is filled."""

    def __init__(self, *args):
        super().__init__(*args)
        try:
            self.pool.create_share(FILLER)
            self.lean.write(FILLER, CACHE_MIB, depth=FILL_DEPTH)
        except BaseException:
            self.close()
            raise

    def forget(self):
        super().forget()
        self.pool.forget(f'{CACHE_MIB}M')
        self.lean.read(FILLER, MIB, CACHE_MIB, CACHE_MIB, depth=FILL_DEPTH)

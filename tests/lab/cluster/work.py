# SPDX-License-Identifier: LGPL-3.0-or-later
"""What clients do while something happens to the cluster, one over each transport: they hold locks, and try to get each
other's; one of them, or both, writes and reads."""

import contextlib

from cluster import ACT_TIMEOUT, MINE, POOL, PORTS, SERVICE, SET_BYTES
from harness.appender import Appender
from harness.host import wait_until
from phases import logs_of, phases
from reader import Reader, Watcher

ALSO, SET = '/mnt/also', '/mnt/set'
MOUNT_TIMEOUT = 300


def mount_share(cluster, client, transport):
    """Twice: the second has a cache of its own."""
    for path, more in ((MINE, ''), (ALSO, ',nosharecache')):
        client.mount(f'/{SERVICE}/share', path, cluster.mount_options(transport) + more, PORTS[transport], MOUNT_TIMEOUT)


def hold(path, own, others):
    """Keeps the byte OWN of the file locked until its input ends. From the first line of input to the second it tries to
    lock each of OTHERS, and prints what came of it."""
    import select
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, own)
    print('held', flush=True)
    sys.stdin.readline()
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        for other in others:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, other)
                print('stolen', flush=True)
            except (BlockingIOError, PermissionError):
                print('refused', flush=True)
    print('enough', flush=True)
    sys.stdin.read()


class Ranges:
    """Each of CLIENTS keeps a byte of the file PATH locked, and never gets another's."""

    def __init__(self, clients, path):
        numbers = range(len(clients))
        self._holders = [client.spawn_call(hold, path, own, [other for other in numbers if other != own])
                         for own, client in enumerate(clients)]
        for holder in self._holders:
            holder.wait_for_lines(1, MOUNT_TIMEOUT)
        for holder in self._holders:
            holder.write(b'try\n')

    def check(self):
        """End it: all have tried by now, and nobody got one."""
        for holder in self._holders:
            holder.wait_for_lines(len(holder.lines()) + 2, MOUNT_TIMEOUT)
        for holder in self._holders:
            holder.write(b'enough\n')
        for holder in self._holders:
            wait_until(lambda: 'enough' in holder.lines(), MOUNT_TIMEOUT, 'no more tries')
        for holder in self._holders:
            holder.close_input()
            assert holder.wait(timeout=120).rc == 0
            said = set(holder.lines()) - {'held', 'enough', '', 'null'}
            assert said == {'refused'}, f'tries at locks of others: {said}'


class Work:
    """Of CLIENTS, by their transports, with files whose names begin with NAME. Those OVER some transports write. TELL is given the
    figures of each of these, TELL_OF an event and those of all."""

    def __init__(self, cluster, clients, over, name, tell, tell_of):
        self._cluster, self._clients, self._tell, self._tell_of, self._readers = cluster, clients, tell, tell_of, {}
        self._read_at, self._read_before = None, 0
        self._ranges = Ranges(clients.values(), f'{MINE}/{name}-ranges')
        self._writers = {}
        for transport in over:
            there = f'{name}-{transport}'
            clients[transport].run(f'mkdir {MINE}/{there}', timeout=MOUNT_TIMEOUT)
            self._writers[transport] = Appender(clients[transport], f'{MINE}/{there}', f'{ALSO}/{there}')
        self._watchers = [Watcher(client, f'{MINE}/{name}-{transport}/checkpoint') for transport in over
                          for other, client in clients.items() if other != transport]

    def read_at(self, node):
        """Those that write read a dataset as well, from the reader at NODE."""
        self._read_at, self._read_before = node, self._cluster.bytes_read(node)
        for transport in self._writers:
            client = self._clients[transport]
            client.mount(f'/{POOL}/set', SET, self._cluster.mount_options(transport), PORTS[transport], MOUNT_TIMEOUT,
                         server=self._cluster.address_of(node))
            self._readers[transport] = Reader(client, f'{SET}/data', self._cluster.digest)

    def more(self, records):
        """Wait until each writer has so many more acknowledged."""
        for writer in self._writers.values():
            writer.more(records)

    @contextlib.contextmanager
    def cut_off(self):
        """By what is done in this, each writer: until it is at work again nobody asks the nodes how far they are, as a
        question takes seconds of their processors, and a connection over ssh as many."""
        with contextlib.ExitStack() as writers:
            for writer in self._writers.values():
                writers.enter_context(writer.cut_off(ACT_TIMEOUT))
            yield

    def look(self, event):
        """Tells the figures of EVENT, which is all that has happened since the last look. It goes on."""
        gaps = {transport: writer.look() for transport, writer in self._writers.items()}
        lines = logs_of(self._cluster)
        self._tell_of(event, {transport: {'longest gap': round(gap, 2),
                                          **phases(lines, self._clients[transport], self._writers[transport])}
                              for transport, gap in gaps.items()})

    def check(self):
        """End it: nothing is lost, and no lock was. Tells seconds, by transport: of the longest gap, of what it went with
        (phases.py), and of the longest time between two readings of the dataset."""
        self._ranges.check()
        figures = {transport: {'longest gap': round(writer.check(), 2)} for transport, writer in self._writers.items()}
        lines = logs_of(self._cluster)
        for transport, writer in self._writers.items():
            figures[transport] |= phases(lines, self._clients[transport], writer)
            if transport in self._readers:
                figures[transport]['reading'] = self._check_reader(transport, writer.gap)
            self._tell(transport, figures[transport])
        for watcher in self._watchers:
            watcher.check()

    def _check_reader(self, transport, gap):
        """What it has read came from drives each time."""
        count, longest = self._readers[transport].check(gap)
        self._read_before += count * SET_BYTES
        assert self._cluster.bytes_read(self._read_at) >= self._read_before
        return round(longest, 2)

    def end(self):
        """Whatever has come of it."""
        for client in self._clients.values():
            client.kill_commands()
            client.run(f'! mountpoint -q {SET} || umount -i {SET}', timeout=MOUNT_TIMEOUT)

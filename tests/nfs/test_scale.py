# SPDX-License-Identifier: LGPL-3.0-or-later
"""Many of everything: open files, locks, clients, names. What the server needs for them is printed,
and what it keeps of threads and descriptors behind them is nothing.

The load comes from sessions by hand: a real client is one client, and slow to make.
"""

import os
import threading

import pytest

from harness.host import wait_until
from harness.protocol import (
    DENIED, WHOLE, Client, channel, creating, lock, lock_test, open_as, readdir, unlock)
from harness.wire import (
    FIFO, FILE_SYNC, GETFH, OK, PUTROOTFH, SAVEFH, close, commit, lookup, mkdir, mknod, putfh, read,
    remove, rename, write)

pytestmark = pytest.mark.millrace
OPTIONS = 'vers=4.2,proto=tcp'
OPEN_FILES, LOCKS, CLIENTS, ROUNDS = 10000, 1000, 64, 5
THREADS = 2 * 16  # twice RPC_Ioq_ThrdMax
BATCH = 32  # names that one compound makes; the server takes 100 operations
MIB = 1 << 20


def usage(site):
    """Threads, descriptors and memory (MiB) of the server."""
    place = f'/proc/{site.server.pid()}'
    with open(f'{place}/status') as file:
        lines = dict(line.split(':', 1) for line in file)
    return {'threads': int(lines['Threads']), 'descriptors': len(os.listdir(f'{place}/fd')),
            'memory': int(lines['VmRSS'].split()[0]) // 1024}


class Figures:
    """What the server had before, has with a load and after it, printed as they come. It starts
    workers when it needs them and ends them when they have long been idle: THREADS is what that,
    and the kernel's own for a disk that is slow, may come to, whatever the load is."""

    def __init__(self, site, share):
        self.site, self.seen = site, {}
        warm, root = bound(site, share)
        warm.do(putfh(root), mkdir('warm'))
        connected = usage(site)['descriptors']
        warm.close()
        wait_until(lambda: usage(site)['descriptors'] < connected, 60, 'the connection is closed')
        self.note('before')

    def note(self, when):
        self.seen[when] = usage(self.site)
        print(f'{when}: ' + ', '.join(f'{value} {name}' for name, value in self.seen[when].items()))

    def grown(self, when, what):
        return self.seen[when][what] - self.seen['before'][what]

    def check(self, when, connections=0):
        """Threads and descriptors with a load: no more than are told here."""
        self.note(when)
        assert self.grown(when, 'threads') <= THREADS
        assert self.grown(when, 'descriptors') <= connections

    def back(self):
        """Nothing is left of the load."""
        wait_until(lambda: usage(self.site)['descriptors'] <= self.seen['before']['descriptors'], 60,
                   f'descriptors as before, {self.seen["before"]}')
        self.check('after')


def bound(site, root_name):
    """A client for large compounds, and the handle of a share's root."""
    client = Client(site).ready(fore=channel(operations=100, request=2 * MIB, response=2 * MIB))
    return client, client.do(PUTROOTFH, *map(lookup, (site.pool.name, root_name)), GETFH)


def batches(numbers):
    numbers = list(numbers)
    return [numbers[at:at + BATCH] for at in range(0, len(numbers), BATCH)]


def in_batches(client, root, operation, numbers):
    """operation(number) for all, several in a compound; the results."""
    found = []
    for batch in batches(numbers):
        operations = [step for number in batch for step in (putfh(root), operation(number))]
        found += client.call(client.next(), *operations)[2::2]
    return found


def at_once(count, work):
    """work(n) in COUNT threads; the first exception of one is raised."""
    failed = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_many_open_files(site, volume):
    figures = Figures(site, volume)
    client, root = bound(site, volume)
    stateids = in_batches(client, root, lambda n: open_as(client.clientid, b'owner', **creating(f'{n}')),
                          range(OPEN_FILES))
    assert len(set(stateids)) == OPEN_FILES
    figures.check(f'{OPEN_FILES} open files', connections=1)
    for n in (0, OPEN_FILES // 2, OPEN_FILES - 1):
        file = client.do(putfh(root), lookup(f'{n}'), GETFH)
        assert client.do(putfh(file), write(stateids[n], 0, b'%d' % n, FILE_SYNC))[0] == len(f'{n}')
        assert client.do(putfh(file), read(stateids[n], 0, 10)) == (True, b'%d' % n)
    assert figures.grown(f'{OPEN_FILES} open files', 'memory') < OPEN_FILES * 16384 // MIB
    for batch in batches(range(OPEN_FILES)):
        client.call(client.next(), *[step for n in batch for step in (
            putfh(root), lookup(f'{n}'), close(stateids[n]))])
    assert client.tell(putfh(root), lookup('0'), read(stateids[0], 0, 1)) != OK
    client.close()
    figures.back()


def test_many_locks(site, volume):
    figures = Figures(site, volume)
    client, root = bound(site, volume)
    other, _ = bound(site, volume)
    opened = client.do(putfh(root), open_as(client.clientid, b'owner', **creating('file')))
    file = client.do(putfh(root), lookup('file'), GETFH)
    held = client.do(putfh(file), lock(opened, 0, 5, b'locker'))
    for batch in batches(range(1, LOCKS)):
        held = client.do(putfh(file), *[lock(bytes(4) + held[4:], 10 * n, 5) for n in batch])
    figures.check(f'{LOCKS} locks', connections=2)
    for n in range(LOCKS):
        assert other.tell(putfh(file), lock_test(10 * n + 4, 1, b'other')) == DENIED, n
        assert other.tell(putfh(file), lock_test(10 * n + 5, 5, b'other')) == OK, n
    held = client.do(putfh(file), unlock(bytes(4) + held[4:], 0, 10 * LOCKS // 2))
    assert other.tell(putfh(file), lock_test(0, 10 * LOCKS // 2, b'other')) == OK
    assert other.tell(putfh(file), lock_test(0, 10 * LOCKS // 2 + 1, b'other')) == DENIED
    client.do(putfh(file), unlock(bytes(4) + held[4:], 0, WHOLE))
    assert other.tell(putfh(file), lock_test(0, WHOLE, b'other')) == OK
    client.do(putfh(file), close(bytes(4) + opened[4:]))
    for one in (client, other):
        one.close()
    figures.back()


def test_many_clients(site, volume):
    """Each makes, writes, renames, reads and removes files of its own, all at the same time."""
    figures = Figures(site, volume)
    clients = [bound(site, volume) for _ in range(CLIENTS)]

    def live(number):
        client, root = clients[number]
        client.do(putfh(root), mkdir(f'{number}'))
        home = putfh(client.do(putfh(root), lookup(f'{number}'), GETFH))
        for step in range(ROUNDS):
            data = b'%d %d\n' % (number, step) * 3000
            mine = client.do(home, open_as(client.clientid, b'owner', **creating('new')))
            file = putfh(client.do(home, lookup('new'), GETFH))
            client.do(file, write(mine, 0, data), commit())
            client.do(home, SAVEFH, home, rename('new', f'{step}'))
            assert client.do(file, read(mine, 0, MIB)) == (True, data)
            client.do(file, close(mine))
            if step:
                client.do(home, remove(f'{step - 1}'))
        found = client.do(home, readdir())
        assert [name for _, name in found[1]] == [b'%d' % (ROUNDS - 1)] and found[2]

    at_once(CLIENTS, live)
    figures.check(f'{CLIENTS} clients', connections=CLIENTS)
    at_once(CLIENTS, lambda number: clients[number][0].close())
    figures.back()


def listed(client, directory):
    """All names of a directory, as they come."""
    names, cookie, verifier, last = [], 0, bytes(8), False
    while not last:
        verifier, entries, last = client.do(directory, readdir(cookie, verifier))
        assert entries or last
        names += [name for _, name in entries]
        cookie = entries[-1][0] if entries else cookie
    return names


def whole(names, stay):
    """Each name that stayed is there once; others are those that come and go."""
    staying = [name for name in names if name[:1] != b'c']
    assert len(staying) == len(set(staying)), 'a name was listed twice'
    missing = stay - set(staying)
    assert not missing, f'{len(missing)} names were not listed, {min(missing)!r} for one'
    assert set(staying) == stay
    return True


def node(name):
    """Makes something that needs no open and no close."""
    return mknod(name, FIFO)


def names_that_stay(path, stay):
    names = os.listdir(path)
    staying = [name for name in names if name[0] != 'c']
    return [len(staying), len(set(staying)), set(staying) == {f's{n}' for n in range(stay)}]


def test_a_directory_of_many_names(site, volume, common, pytestconfig):
    """Read by hand and by a real client while names come and go."""
    figures = Figures(site, volume)
    count = pytestconfig.getoption('--large')
    makers = [bound(site, 'common') for _ in range(4)]
    reader, root = bound(site, 'common')
    reader.do(putfh(root), mkdir('many', 0o777))
    many = reader.do(putfh(root), lookup('many'), GETFH)
    directory = putfh(many)
    at_once(4, lambda k: in_batches(makers[k][0], many, lambda n: node(f's{n}'),
                                    range(k, count, 4)))
    figures.check(f'{count} names', connections=5)
    assert figures.grown(f'{count} names', 'memory') < 64 + count * 4096 // MIB
    stay, over = {b's%d' % n for n in range(count)}, threading.Event()

    def come_and_go(k):
        client, n = makers[k][0], 0
        while not over.is_set():
            in_batches(client, many, lambda i: node(f'c{k}-{n}-{i}'), range(BATCH))
            in_batches(client, many, lambda i: remove(f'c{k}-{n}-{i}'), range(BATCH))
            n += 1

    def look(_):
        try:
            for _ in range(3):
                assert whole(listed(reader, directory), stay)
            assert common.client.call(names_that_stay, f'{common.path}/many', count, timeout=600) == \
                [count, count, True]
        finally:
            over.set()

    at_once(3, lambda k: (look if k == 2 else come_and_go)(k))
    figures.check('read', connections=5)
    assert set(listed(reader, directory)) == stay
    at_once(4, lambda k: in_batches(makers[k][0], many, lambda n: remove(f's{n}'), range(k, count, 4)))
    assert listed(reader, directory) == []
    reader.do(putfh(root), remove('many'))
    for client in (reader, *(maker for maker, _ in makers)):
        client.close()
    figures.back()

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Many of everything: open files, locks, clients, names. What the server needs for them is printed,
and what it keeps of threads and descriptors behind them is nothing.

The load comes from sessions by hand, since a real client is one client, and slow to make; that of very
many names from nfs_names (names.c), since Python is slow.
"""

import os
import random
import subprocess
import threading

import pytest

from harness.host import wait_until
from harness.mounted import Mounted
from harness.protocol import (
    DENIED, WHOLE, Client, channel, creating, lock, lock_test, open_as, readdir, unlock)
from harness.server import MILLRACE
from harness.wire import (
    FIFO, FILE_SYNC, GETFH, OK, PUTROOTFH, SAVEFH, close, commit, lookup, mkdir, mknod, putfh, read,
    remove, rename, write)

pytestmark = pytest.mark.millrace
OPTIONS = 'vers=4.2,proto=tcp'
OPEN_FILES, LOCKS, CLIENTS, ROUNDS = 10000, 1000, 64, 5
THREADS = 2 * 16  # twice RPC_Ioq_ThrdMax
BATCH = 32  # names that one compound makes; the server takes 100 operations
IN_DIRECTORY = 1000  # files of the tree
WITH_CONTENT = 20  # each such file of the tree has some
ENVIRONMENT = 4  # descriptors of a volume that is served
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
    assert figures.grown(f'{LOCKS} locks', 'memory') < 16
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
    assert figures.grown(f'{CLIENTS} clients', 'memory') < CLIENTS
    at_once(CLIENTS, lambda number: clients[number][0].close())
    figures.back()


def names(site, verb, path, *arguments):
    """What nfs_names says: of `list`, (cookie, name) as they come."""
    tool = os.path.join(os.path.dirname(MILLRACE), 'nfs_names')
    done = subprocess.run([tool, site.server.address, str(site.server.port), verb, path,
                           *map(str, arguments)], capture_output=True)
    assert done.returncode == 0, done.stderr
    return [(int(cookie), name) for cookie, name in map(bytes.split, done.stdout.splitlines())]


def node(name):
    """Makes something that needs no open and no close."""
    return mknod(name, FIFO)


def names_that_stay(path, half):
    names = os.listdir(f'{path}/many')
    staying = [name for name in names if name[0] != 'c']
    return [len(staying), len(set(staying)),
            set(staying) == {f'{letter}{n}' for letter in 'ab' for n in range(half)}]


def goes_on_at(client, directory, cookie):
    """The names of the page that begins behind a cookie, without those that come and go."""
    verifier, _, _ = client.do(directory, readdir())
    _, entries, last = client.do(directory, readdir(cookie, verifier))
    assert entries or last
    return [name for _, name in entries if name[:1] != b'c']


def test_a_directory_of_many_names(site, make_share, pytestconfig):
    """Read by nfs_names and by a real client while names come and go; then on from cookies of both,
    of names that are there and of names that are not."""
    share = make_share()
    figures = Figures(site, share.volume)
    half, path = pytestconfig.getoption('--large') // 2, f'{site.pool.export(share.volume)}/many'
    gone = half // 50
    reader, root = bound(site, share.volume)
    reader.do(putfh(root), mkdir('many'))
    many = reader.do(putfh(root), lookup('many'), GETFH)
    for letter, count in (('a', half), ('g', gone), ('b', half)):
        names(site, 'make', path, letter, count)
    figures.check(f'{2 * half} names', connections=2)
    assert figures.grown(f'{2 * half} names', 'memory') < 256 + 2 * half * 1024 // MIB
    makers = [bound(site, share.volume) for _ in range(2)]
    directory, over, seen = putfh(many), threading.Event(), []

    def come_and_go(k):
        client, n = makers[k][0], 0
        while not over.is_set():
            in_batches(client, many, lambda i: node(f'c{k}-{n}-{i}'), range(BATCH))
            in_batches(client, many, lambda i: remove(f'c{k}-{n}-{i}'), range(BATCH))
            n += 1

    def look(_):
        try:
            seen.extend(entry for entry in names(site, 'list', path) if entry[1][:1] != b'c')
            names(site, 'remove', path, 'g', gone)
            assert share.call(names_that_stay, half, timeout=900) == [2 * half, 2 * half, True]
        finally:
            over.set()

    at_once(3, lambda k: (look if k == 2 else come_and_go)(k))
    figures.check('read', connections=4)
    assert [name for _, name in seen[half:half + gone] if name[:1] != b'g'] == []
    stayed = [entry for entry in seen if entry[1][:1] != b'g']
    assert len(stayed) == 2 * half
    assert {name for _, name in stayed} == {b'%c%d' % (c, n) for c in b'ab' for n in range(half)}
    for at in range(0, 2 * half, max(1, half // 7)):
        follow = goes_on_at(reader, directory, stayed[at][0])
        assert follow and follow == [name for _, name in stayed[at + 1:at + 1 + len(follow)]], at
    for at in range(half, half + gone, max(1, gone // 7)):
        follow = goes_on_at(reader, directory, seen[at][0])
        assert follow and follow == [name for _, name in stayed[half:half + len(follow)]], at
    assert goes_on_at(reader, directory, stayed[-1][0]) == []
    for client in (reader, *(maker for maker, _ in makers)):
        client.close()
    figures.back()


@pytest.fixture
def memory(tmp_path):
    """A directory in memory: removing a million files from it takes no time."""
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'nr_inodes=0,size=50%', 'tree', tmp_path], check=True)
    yield os.fspath(tmp_path)
    subprocess.run(['umount', tmp_path], check=True)


def plant(top, count):
    """Files f000000 ..., 1,000 a directory, most of them empty; others hold their names."""
    for first in range(0, count, IN_DIRECTORY):
        home = f'{top}/d{first // IN_DIRECTORY}'
        os.mkdir(home)
        for n in range(first, first + IN_DIRECTORY):
            if n % WITH_CONTENT:
                os.mknod(f'{home}/f{n:06}', 0o644)
            else:
                with open(f'{home}/f{n:06}', 'w') as file:
                    file.write(f'f{n:06}')


def contents(path, numbers, in_directory):
    found = []
    for n in numbers:
        with open(f'{path}/d{n // in_directory}/f{n:06}') as file:
            found.append(file.read())
    return found


def test_a_tree_of_many_files(site, client, volume, memory, pytestconfig):
    """Ingested while it is served, listed whole, read in part by a real client."""
    count = pytestconfig.getoption('--large') // IN_DIRECTORY * IN_DIRECTORY
    plant(memory, count)
    figures = Figures(site, volume)
    site.pool.ingest('tree', memory)
    export = site.pool.export('tree')
    directories = [f'{export}/d{n}' for n in range(count // IN_DIRECTORY)]
    found = [name for _, name in names(site, 'list', *directories)]
    figures.check(f'{count} files', connections=1 + ENVIRONMENT)
    assert figures.grown(f'{count} files', 'memory') < 256 + count * 1024 // MIB
    assert len(found) == count
    for first in range(0, count, IN_DIRECTORY):
        assert sorted(found[first:first + IN_DIRECTORY]) == [
            b'f%06d' % n for n in range(first, first + IN_DIRECTORY)]
    tree = Mounted(client, site, 'tree').mount('vers=4.2,proto=tcp,ro')
    numbers = [n * WITH_CONTENT for n in random.Random(1).sample(range(count // WITH_CONTENT), 200)]
    assert tree.call(contents, numbers, IN_DIRECTORY) == [f'f{n:06}' for n in numbers]
    tree.close()
    site.pool.verb('dataset', 'destroy', f'{site.pool.name}/tree', '--yes')
    figures.back()

# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the patches of nfs-ganesha are for: replies that are held until they are true, here while the
pool's disk stands still or fails, and how the server starts, changes and ends."""

import errno
import os
import re
import signal
import socket
import struct
import threading
import time

import pytest

from conftest import Site
from harness.appender import Appender
from harness.disk import Disk
from harness.host import wait_until
from harness.mounted import Mounted
from harness.protocol import BADSESSION, BY_HANDLE, DENIED, RECLAIM, Client, creating, lock, open_as, reclaim_complete
from harness.remote import CommandFailed
from harness.rpc import answers_null
from harness.server import LEASE
from harness.wire import (
    ANONYMOUS, DELAY, EXIST, FILE_SYNC, GETFH, IO, MODE, NOENT, OK, PUTROOTFH, RECLAIM_COMPLETE, ROFS, SAVEFH, Call, Connection,
    Refused, Request, Session, commit, exclusive, getattr_, guarded, lookup, mkdir, open_, putfh, read,
    remove, rename, replies, setattr_, u32, unchecked, write)

pytestmark = pytest.mark.millrace

SHARE = 'share'
SESSIONS = 4
MIB = 1 << 20


@pytest.fixture(scope='module')
def disk(tmp_path_factory):
    disk = Disk(tmp_path_factory.mktemp('disk'))
    yield disk
    disk.close()


@pytest.fixture
def start(backend, tmp_path_factory):
    """start(places) makes a 4+2 pool with its devices there, serves it, and creates its share.

    Of each test's own: no client of an earlier test is missed after a restart, so that there is
    no grace period to wait for.
    """
    sites = []

    def start(places):
        sites.append(Site(backend, '127.0.0.1', tmp_path_factory.mktemp('site'), places=places))
        sites[-1].pool.create_share(SHARE, mode=0o777)
        return sites[-1]

    yield start
    for site in sites:
        site.close()


@pytest.fixture
def site(start, disk):
    return start([disk.path])


def workers(site):
    """Threads that the running server may answer requests with."""
    with open(os.path.join(site.pool.run_dir, site.pool.name, 'ganesha.conf')) as file:
        return int(re.search(r'RPC_Ioq_ThrdMax = (\d+);', file.read()).group(1))


def text(number):
    return b'%d\n' % number * 3000


class Load:
    """Sessions that each use all their slots at once: request number N belongs to file N."""

    def __init__(self, site):
        self.slots = workers(site)
        self.sessions = [Session(site, slots=self.slots) for _ in range(SESSIONS)]
        self.numbers = range(SESSIONS * self.slots)
        self.root = self.sessions[0].root(SHARE)
        self.calls = []

    def start(self, operations):
        """Send OPERATIONS(number) for all numbers."""
        self.calls = [Call(self.sessions[n // self.slots], n % self.slots, *operations(n)).send()
                      for n in self.numbers]

    def replies(self):
        """Await them all: pairs of a call and its reply."""
        for at in range(0, len(self.calls), self.slots):
            calls = self.calls[at:at + self.slots]
            yield from zip(calls, replies(calls))

    def finish(self):
        """The results of the last operations."""
        return [call.result(record) for call, record in self.replies()]

    def statuses(self):
        return [call.status(record) for call, record in self.replies()]

    def run(self, operations):
        self.start(operations)
        return self.finish()

    def make_files(self):
        self.files = self.run(lambda n: (
            putfh(self.root), open_(b'%d' % n, f'{n}', how=unchecked()),
            write(ANONYMOUS, 0, b'before', FILE_SYNC), GETFH))

    def wait_until_held(self, site):
        """Every request is one that the server has begun."""
        probe = Connection(site.server)
        wait_until(lambda: all(call.is_under_way(probe) for call in self.calls), 60,
                   'the server has begun every request')
        probe.close()

    def quiet(self):
        return all(session.connection.quiet() for session in self.sessions)


# What is acknowledged only when it is durable: the request, and whether it was done.
CHANGES = {
    'commit': (lambda load, n: (putfh(load.files[n]), commit()),
               lambda load, s, n: content(s, load.files[n]) == text(n)),
    'stable write': (lambda load, n: (putfh(load.files[n]),
                                      write(ANONYMOUS, 0, text(n), FILE_SYNC)),
                     lambda load, s, n: content(s, load.files[n]) == text(n)),
    'create': (lambda load, n: (putfh(load.root), open_(b'%d' % n, f'new{n}', how=unchecked())),
               lambda load, s, n: found(s, load.root, f'new{n}')),
    'mkdir': (lambda load, n: (putfh(load.root), mkdir(f'new{n}')),
              lambda load, s, n: found(s, load.root, f'new{n}')),
    'rename': (lambda load, n: (putfh(load.root), SAVEFH, putfh(load.root),
                                rename(f'{n}', f'new{n}')),
               lambda load, s, n: (found(s, load.root, f'new{n}'),
                                   found(s, load.root, f'{n}')) == (True, False)),
    'remove': (lambda load, n: (putfh(load.root), remove(f'{n}')),
               lambda load, s, n: not found(s, load.root, f'{n}')),
    'chmod': (lambda load, n: (putfh(load.files[n]), setattr_(MODE, u32(0o600))),
              lambda load, s, n: s.compound(putfh(load.files[n]), getattr_(MODE)) == 0o600),
}


def begin_again(site, *sessions):
    """The server, which waits for nobody who does not come back."""
    site.server.start()
    site.pool.ask('serve', site.pool.name, '--end-grace')
    for session in sessions:
        session.reconnect()


def content(session, file):
    return session.compound(putfh(file), read(ANONYMOUS, 0, MIB))[1]


def found(session, root, name):
    status = session.status(putfh(root), lookup(name))
    assert status in (OK, NOENT)
    return status == OK


def missing(load, session, change):
    """The numbers of the requests that were not done."""
    return [n for n in load.numbers if not CHANGES[change][1](load, session, n)]


def make_large(session, root, parts):
    """A file of random MiB, and these; nothing of it is in the server's memory after a restart."""
    file = session.create(root, 'large')
    for number, part in enumerate(parts):
        session.compound(putfh(file), write(ANONYMOUS, number * MIB, part))
    session.compound(putfh(file), commit())
    return file


@pytest.mark.parametrize('change', CHANGES)
def test_reads_go_on_while_more_replies_than_workers_are_held(site, disk, change):
    reader = Session(site)
    parts = [os.urandom(MIB) for _ in range(6)]
    large = make_large(reader, reader.root(SHARE), parts)
    load = Load(site)
    load.make_files()
    for session in (reader, *load.sessions):
        session.end()
    site.server.restart()
    for session in (reader, *load.sessions):
        session.connect()

    def part(number):
        return reader.compound(putfh(large), read(ANONYMOUS, number * MIB, MIB))[1]

    assert part(0) == parts[0]
    load.run(lambda n: (putfh(load.files[n]), write(ANONYMOUS, 0, text(n))))
    with disk.frozen():
        load.start(lambda n: CHANGES[change][0](load, n))
        load.wait_until_held(site)
        assert len(load.calls) > workers(site)
        assert [part(number) for number in (0, 1, 2, 0, 3, 4, 5)] == \
            [parts[number] for number in (0, 1, 2, 0, 3, 4, 5)]
        assert load.quiet()
        load.wait_until_held(site)
    assert len(load.finish()) == len(load.numbers)
    assert missing(load, reader, change) == []
    site.server.kill9()
    begin_again(site, reader)
    assert missing(load, reader, change) == []


def test_a_resend_of_a_held_request_waits_for_nobody(site, disk):
    session, other = Session(site), Session(site)
    root = session.root(SHARE)
    file = session.create(root, 'file', b'bytes')
    more = [Connection(site.server) for _ in range(2 * workers(site))]
    with disk.frozen():
        call = Call(session, 3, putfh(root), mkdir('new'), GETFH).send()
        wait_until(lambda: call.is_under_way(more[0]), 60, 'the server has begun')
        for connection in more:
            call.send(connection)
        for connection in more:
            assert call.status(connection.receive()) == DELAY
        assert content(other, file) == b'bytes'
        assert session.connection.quiet()
    record, = replies([call])
    handle = call.result(record)
    for connection in [session.connection, *more]:
        call.send(connection)
        assert connection.receive() == record
        connection.close()
    assert other.compound(putfh(root), lookup('new'), GETFH) == handle


@pytest.mark.parametrize('abort', (False, True), ids=('closed', 'reset'))
def test_what_a_client_left_is_done_and_its_reply_kept(site, disk, abort):
    load, other = Load(site), Session(site)
    load.make_files()
    with disk.frozen():
        load.start(lambda n: CHANGES['stable write'][0](load, n))
        load.wait_until_held(site)
        for session in load.sessions:
            hang_up(session.connection, abort)
        assert other.compound(putfh(load.root), lookup('0'), GETFH) == load.files[0]
    for session in load.sessions:
        session.connection = Connection(site.server)
    answers = [answer(call) for call in load.calls]
    assert [n for n in load.numbers if answers[n][:2] != (len(text(n)), FILE_SYNC)] == []
    site.server.kill9()
    begin_again(site, other)
    assert missing(load, other, 'stable write') == []


def hang_up(connection, abort):
    if abort:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    connection.close()


def answer(call):
    """What the server says to a resend when it has an answer."""
    def once():
        try:
            return call.send().result(call.session.connection.receive())
        except Refused as refused:
            assert refused.status == DELAY
            return None

    return wait_until(once, 60, 'the reply')


# What an operation on names says of another client's work that is not durable: the request by which
# the other does it, and those that find it done.
TOLD = {
    'mkdir': (lambda: mkdir('new'), lambda: [mkdir('new'), open_(b'b', 'new', how=guarded())]),
    'create': (lambda: open_(b'a', 'new', how=exclusive(b'verifier')),
               lambda: [open_(b'b', 'new', how=exclusive(b'verifier')),
                        open_(b'b', 'new', how=exclusive(b'another!')),
                        open_(b'b', 'new', how=guarded()), open_(b'b', 'new', how=unchecked()),
                        rename('none', 'new')]),
    'remove': (lambda: remove('old'), lambda: [remove('old'), rename('old', 'other')]),
}


@pytest.mark.parametrize('work', TOLD)
def test_what_is_told_of_anothers_work_is_durable(site, disk, work):
    """Whether ganesha's cache knows of it or not; a look at it waits for nothing."""
    maker, other, looker = Session(site), Session(site), Session(site)
    root = maker.root(SHARE)
    maker.create(root, 'old')
    done, found = TOLD[work]
    with disk.frozen():
        calls = [Call(maker, 0, putfh(root), done()).send()]
        wait_until(lambda: looker.status(putfh(root), lookup('old' if work == 'remove' else 'new'))
                   == (NOENT if work == 'remove' else OK), 60, 'it is done')
        calls += [Call(other, n, putfh(root), SAVEFH, putfh(root), operation).send()
                  for n, operation in enumerate(found())]
        probe = Connection(site.server)
        wait_until(lambda: all(call.is_under_way(probe) for call in calls), 60,
                   'the server has begun every request')
        assert looker.status(putfh(root), lookup('none')) == NOENT
        assert maker.connection.quiet() and other.connection.quiet()
        probe.close()
    assert calls[0].status(*replies(calls[:1])) == OK
    told = [call.status(record) for call, record in zip(calls[1:], replies(calls[1:]))]
    assert told == {'mkdir': [EXIST, EXIST], 'create': [OK, EXIST, EXIST, OK, NOENT],
                    'remove': [NOENT, NOENT]}[work]


def test_kill9_while_replies_are_held(site, disk):
    """Nothing more was acknowledged; what was is there, and the pool opens."""
    load, other = Load(site), Session(site)
    load.make_files()
    with disk.frozen():
        load.start(lambda n: CHANGES['stable write'][0](load, n))
        load.wait_until_held(site)
        assert load.quiet()
        site.server.signal(signal.SIGKILL)
    site.server.kill9()
    begin_again(site, other)
    assert {content(other, load.files[n]) for n in load.numbers} <= \
        {b'before', *map(text, load.numbers)}


def test_sigterm_awaits_held_replies(site, disk):
    load, other = Load(site), Session(site)
    load.make_files()
    with disk.frozen():
        load.start(lambda n: CHANGES['stable write'][0](load, n))
        load.wait_until_held(site)
        site.server.signal(signal.SIGTERM)
        wait_until(lambda: not answers_null(site.server.address, site.server.port, 1), 15,
                   'the server takes no more requests')
        assert load.quiet()
    assert len(load.finish()) == len(load.numbers)
    site.server.stop()
    assert site.pool.status()['state'] == 'idle'
    begin_again(site, other)
    assert missing(load, other, 'stable write') == []


# --- what cannot become durable ---

@pytest.fixture
def breaking(start, disk, tmp_path, request):
    """As many of its devices as the test says are on the disk, which will fail."""
    site = start([disk.path] * request.param + [tmp_path] * (6 - request.param))
    yield site
    site.close()
    disk.repair()


@pytest.mark.parametrize('breaking', (4, 6), indirect=True)
@pytest.mark.parametrize('change', ('commit', 'stable write', 'mkdir', 'remove'))
def test_a_held_reply_becomes_an_error_when_the_journal_fails(breaking, disk, change):
    """Nothing is acknowledged any more; the devices come back, and what was before is there."""
    load, other = Load(breaking), Session(breaking)
    load.make_files()
    load.run(lambda n: (putfh(load.files[n]), write(ANONYMOUS, 0, text(n))))
    with disk.frozen():
        load.start(lambda n: CHANGES[change][0](load, n))
        load.wait_until_held(breaking)
        disk.fail()
    statuses = set(load.statuses())
    if change == 'stable write':  # who is told to come again is refused when he does
        statuses = (statuses - {DELAY}) | {other.status(*CHANGES[change][0](load, n))
                                           for n in load.numbers}
    assert statuses == {IO}
    assert other.status(putfh(load.root), mkdir('later')) in (IO, ROFS)
    assert other.status(putfh(load.root), getattr_(MODE)) == OK
    with pytest.raises(RuntimeError, match='stopped with exit 1'):
        breaking.server.stop()
    disk.repair()
    begin_again(breaking, other)
    for n in load.numbers:
        assert content(other, load.files[n]) in (b'before', text(n))
    assert other.status(putfh(load.root), mkdir('later')) == OK
    other.kill9()
    assert found(other, load.root, 'later')


def test_an_outage_of_more_devices_than_parity_loses_nothing_acknowledged(start, tmp_path):
    """Three of six go at the same moment and are back, unhurt, when the server starts again."""
    lost, away = tmp_path / 'lost', tmp_path / 'away'
    lost.mkdir()
    site = start([lost] * 3 + [tmp_path] * 3)
    session = Session(site)
    root, count = session.root(SHARE), 0
    lost.rename(away)
    deadline = time.monotonic() + 60
    while session.status(putfh(root), mkdir(f'{count}')) == OK:
        count += 1
        assert time.monotonic() < deadline, 'the server has not noticed'
    site.server.kill9()
    away.rename(lost)
    site.server.start()
    session.reconnect()
    assert [n for n in range(count) if not found(session, root, f'{n}')] == []


@pytest.fixture
def followed(make_site, disk, tmp_path):
    """Its server is a cluster's: another one may find the drives that it has lost. Three are on the disk."""
    site = make_site(places=[disk.path, tmp_path])
    site.pool.create_share(SHARE, mode=0o777)
    site.server.stop()
    site.server.fenced = True
    site.server.start()
    yield site
    site.close()
    disk.repair()


def read_again_and_again(path):
    """16 MiB, until told to end; from the server each time."""
    import select
    rounds = 0
    with open(path, 'rb') as file:
        while not select.select([sys.stdin], [], [], 0.05)[0]:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            assert file.read() == bytes(range(256)) * 65536
            rounds += 1
            print(rounds, flush=True)


@pytest.fixture
def shared(followed, client):
    """Its share, mounted, with a file to be read."""
    def make(path):
        with open(f'{path}/read', 'wb') as file:
            file.write(bytes(range(256)) * 65536)

    share = Mounted(client, followed, SHARE).mount()
    share.call(make)
    followed.pool.verb('pool', 'set', 'tank', 'cache.size=0')
    yield share
    client.kill_commands()
    share.close()


@pytest.mark.parametrize('writes', (True, False), ids=('read and written', 'read'))
def test_drives_that_another_server_may_find_are_no_error(followed, disk, client, shared, writes):
    """More devices than parity go at once: the server ends, and the client waits for the next."""
    reader = client.spawn_call(read_again_and_again, f'{shared.path}/read')
    writer = Appender(client, shared.path, shared.mount_again()) if writes else None
    reader.wait_for_lines(3, 60)
    disk.fail()
    wait_until(lambda: not followed.server.alive(), 60, 'the server ends')
    with open(followed.server.log) as log:
        assert 'pool tank has failed, and another server may take it: ending' in log.read()
    disk.repair()
    followed.server.start()
    reader.wait_for_lines(len(reader.lines()) + 3, 120)
    if writer:
        writer.check()
    reader.write(b'stop')
    reader.close_input()
    assert reader.wait(timeout=60).rc == 0


def test_a_read_that_fails_before_the_pool_has_noticed(followed, disk):
    """It is to be asked again, as a session does, until the server ends."""
    session = Session(followed)
    file = session.compound(putfh(session.root(SHARE)), open_(b'o', 'file', how=unchecked()), GETFH)
    session.compound(putfh(file), write(ANONYMOUS, 0, os.urandom(MIB), FILE_SYNC))
    followed.pool.verb('pool', 'set', 'tank', 'cache.size=0')
    disk.fail()
    with pytest.raises(ConnectionError):
        session.status(putfh(file), read(ANONYMOUS, 0, MIB))


def test_a_change_that_it_cannot_answer_for_is_not_answered(followed, disk):
    """One copy of three of a rename is written, the others fail. The client asks the next server, which has it done, with the
    number that it asked this one with: told to come again, it would have asked anew."""
    session = Session(followed)
    root, done = session.root(SHARE), 0
    for number in range(3):
        session.create(root, 'old')
        request = Request(session, putfh(root), SAVEFH, putfh(root), rename('old', f'new {number}'))
        disk.fail()
        try:
            answer = request.status()
        except ConnectionError:
            answer = None
        wait_until(lambda: not followed.server.alive(), 60, 'the server ends')
        disk.repair()
        followed.server.start()
        session.connect_again()
        again = request.status()
        session.reconnect()
        is_done = found(session, root, f'new {number}')
        assert (answer, again) == (None, OK) if is_done else again == BADSESSION and answer in (None, DELAY)
        done += is_done
        session.status(putfh(root), remove('old'))
    assert done


def lose(site, *devices):
    """The server dies, devices go, it comes back."""
    site.server.kill9()
    for device in devices:
        site.pool.lose_device(device)
    site.server.start()


def test_a_pool_that_can_only_be_read_knows_no_unstable_writes(start, tmp_path):
    """It is opened under no epoch of its own, and what was not durable has gone all the same."""
    site = start([tmp_path])
    lose(site, 0, 1)
    session = Session(site)
    root = session.root(SHARE)
    file = session.compound(putfh(root), open_(b'o', 'file', how=unchecked()), GETFH)
    _, _, before = session.compound(putfh(file), write(ANONYMOUS, 0, b'unstable'))
    lose(site, 2, 3)
    session.reconnect()
    after = [session.compound(putfh(file), commit())]
    site.server.kill9()
    site.server.start()
    session.reconnect()
    after.append(session.compound(putfh(file), commit()))
    assert len({before, *after}) == 3
    assert site.server.alive()


def test_a_cluster_does_not_serve_what_can_only_be_read(start, tmp_path):
    """Another node may have the drives that this one has not."""
    site = start([tmp_path])
    lose(site, 0, 1)
    site.server.fenced = True
    with pytest.raises(RuntimeError, match='2 of its devices are usable here, and 3 are needed to write'):
        lose(site, 2, 3)
    site.server.fenced = False
    site.server.start()


# --- the server's life ---

@pytest.mark.parametrize('lost', (3, 6))
def test_a_server_whose_pool_does_not_open_ends_and_names_it(backend, tmp_path_factory, lost):
    make_pool, make_server = backend
    pool = make_pool(tmp_path_factory.mktemp('site'), name='granary').create()
    server = make_server(pool, '127.0.0.1')
    for device in range(lost):
        pool.lose_device(device)
    with pytest.raises(RuntimeError, match='ended while starting, exit [1-9](?s:.*)granary'):
        server.start()
    assert not server.alive()
    done = pool.verb('serve', 'granary', '--listen', '127.0.0.1', '--port', str(server.port),
                     check=False)
    assert done.returncode != 0 and 'granary' in done.stderr
    assert not answers_null(server.address, server.port)
    pool.close()


def test_a_port_in_use_is_the_reason_that_is_told(backend, tmp_path_factory):
    make_pool, _ = backend
    pool = make_pool(tmp_path_factory.mktemp('site'), name='granary').create()
    with socket.create_server(('127.0.0.1', 0)) as taken:
        done = pool.verb('serve', 'granary', '--listen', '127.0.0.1', '--port',
                         str(taken.getsockname()[1]), check=False)
    assert done.returncode == 1 and 'in use' in done.stderr and len(done.stderr.splitlines()) == 1
    with open(os.path.join(pool.state_dir, 'log', 'granary.log')) as log:
        assert ':FATAL :' in log.read().splitlines()[-1]
    pool.close()


def keep_creating(session, root, done):
    try:
        while True:
            session.create(root, f'{session.name.hex()}-{len(done)}', text(len(done)))
            done.append(len(done))
    except OSError:
        pass  # the server has ended


def test_sigterm_under_load(site):
    """Exit 0, the pool is closed, and whatever was acknowledged is there."""
    sessions = [Session(site) for _ in range(2 * workers(site))]
    root, done = sessions[0].root(SHARE), [[] for _ in sessions]
    threads = [threading.Thread(target=keep_creating, args=(session, root, numbers))
               for session, numbers in zip(sessions, done)]
    for thread in threads:
        thread.start()
    wait_until(lambda: min(map(len, done)) >= 5, 120, 'every client has made files')
    site.server.stop()
    for thread in threads:
        thread.join(60)
    assert site.pool.status()['state'] == 'idle'
    site.pool.check()
    begin_again(site)
    reader = Session(site)
    for session, numbers in zip(sessions, done):
        for n in numbers:
            file = reader.compound(putfh(root), lookup(f'{session.name.hex()}-{n}'), GETFH)
            assert content(reader, file) == text(n)


def attempt(path):
    """The error number of making and removing a file; 0 when that works."""
    try:
        os.close(os.open(f'{path}/try', os.O_CREAT | os.O_WRONLY))
        os.unlink(f'{path}/try')
        return 0
    except OSError as error:
        return error.errno


@pytest.fixture
def reachable(make_site):
    """A site that listens where the client is."""
    site = make_site()
    yield site
    site.close()


def test_exports_come_and_go_under_mounted_clients(client, reachable):
    site, pid = reachable, reachable.server.pid()
    site.pool.create_share('stays')
    stays = Mounted(client, site, 'stays').mount()
    for round_ in range(3):
        site.pool.create_share('goes')
        goes = Mounted(client, site, 'goes').mount()
        assert client.run(['ls', '-A', goes.path]).stdout == b''
        client.run(f'echo {round_} > {goes.path}/file')
        site.pool.set('share', 'goes', 'nfs.clients', '*:ro')
        assert goes.call(attempt) in (errno.EROFS, errno.EACCES)
        site.pool.set('share', 'goes', 'nfs.clients', '*:rw')
        assert (goes.call(attempt), stays.call(attempt)) == (0, 0)
        site.pool.destroy_share('goes')
        assert goes.call(attempt) == errno.ESTALE
        client.umount(goes.path, force=True)
        with pytest.raises(CommandFailed):
            goes.mount()
        assert stays.call(attempt) == 0
    assert site.server.pid() == pid and site.server.alive()
    stays.close()


def test_a_probe_tells_what_hangs(site, disk):
    """While changes cannot become durable, and only then."""
    def probe(seconds):
        return site.pool.verb('serve', site.pool.name, '--probe', '--wait', str(seconds), check=False)

    session = Session(site)
    root = session.root(SHARE)
    assert probe(30).returncode == 0
    with disk.frozen():
        assert probe(30).returncode == 0  # nothing waits
        call = Call(session, 0, putfh(root), mkdir('new')).send()
        wait_until(lambda: probe(2).returncode == 7, 60, 'the probe finds that a change waits')
        assert 'not durable' in probe(2).stderr
    assert call.status(replies([call])[0]) == OK
    assert probe(30).returncode == 0
    session.end()


def test_no_lease_runs_out_while_nobody_is_answered(site, disk):
    """All workers wait for room for what is written: who is silent meanwhile could not but be so."""
    mine, other, load = Client(site).ready(), Client(site).ready(), Load(site)
    load.make_files()
    stateid = mine.do(putfh(load.files[0]), open_as(mine.clientid, b'owner', u32(BY_HANDLE)))
    locked = mine.do(putfh(load.files[0]), lock(stateid, 0, 10, b'locker'))
    his = other.do(putfh(load.files[0]), open_as(other.clientid, b'owner', u32(BY_HANDLE)))
    piece = bytes(1000000)
    writing = threading.Thread(target=load.start, args=[
        lambda n: (putfh(load.files[n]), write(ANONYMOUS, 0, piece), write(ANONYMOUS, 1000000, piece))])
    with disk.frozen():
        writing.start()  # its connections are not read any more, when that is
        wait_until(lambda: not answers_null(site.server.address, site.server.port), 60, 'nobody is answered')
        time.sleep(LEASE + 12)  # by then a silent client is noted
    for _ in range(3):
        assert other.tell(putfh(load.files[0]), lock(his, 0, 10, b'locker')) == DENIED
    writing.join()
    assert load.statuses() == [OK] * len(load.calls)
    assert mine.tell(putfh(load.files[0]), lock(locked, 20, 10)) == OK
    assert other.tell(putfh(load.files[0]), lock(his, 0, 10, b'locker')) == DENIED


def test_grace_does_not_run_out_while_nobody_can_come_back(site, disk):
    """Who comes is told so when it is on record, or all that was before: by then all of the grace period would be over."""
    one, new = Client(site).ready(), Client(site)
    root = one.do(PUTROOTFH, *map(lookup, (site.pool.name, SHARE)), GETFH)
    one.do(putfh(root), open_as(one.clientid, b'owner', **creating('kept')))
    file = one.do(putfh(root), lookup('kept'), GETFH)
    site.server.kill9()
    site.server.start()
    with disk.frozen():
        one.connection, new.connection = Connection(site.server), Connection(site.server)
        coming = [threading.Thread(target=client.introduce) for client in (new, one)]
        for each in coming:
            each.start()
            time.sleep(1)
        assert all(each.is_alive() for each in coming)
        time.sleep(LEASE * 3 / 2 + 12)
    for each in coming:
        each.join()
    time.sleep(2)  # in which a period that was over would end
    assert one.tell(putfh(file), open_as(one.clientid, b'owner', u32(RECLAIM, 0))) == OK
    for client in (one, new):
        client.do(reclaim_complete())


def test_what_one_slot_is_given_waits_for_what_another_has_said(site, disk):
    """An open is on record when it is answered, though another slot's request has it put there."""
    session, other = Session(site), Session(site)
    file = session.create(session.root(SHARE), 'file', b'bytes')
    site.server.kill9()
    begin_again(site, other)
    session.introduce()
    with disk.frozen():
        said = Call(session, 0, RECLAIM_COMPLETE).send()
        wait_until(lambda: said.is_under_way(other.connection), 60, 'the server has begun')
        given = Call(session, 1, putfh(file), open_as(session.clientid, b'owner', u32(BY_HANDLE))).send()
        wait_until(lambda: given.is_under_way(other.connection), 60, 'the server has begun')
        time.sleep(1)
        assert session.connection.quiet()
    assert [call.status(record) for call, record in zip((said, given), replies([said, given]))] == [OK, OK]

# SPDX-License-Identifier: LGPL-3.0-or-later
"""A pool in use: its volumes come, change and go while it is served, before the command returns, and
a client that works in another volume all the while notices nothing."""

import errno
import json
import os
import socket

import pytest

from harness.host import Daemon, wait_until
from harness.mounted import Mounted
from harness.remote import CommandFailed
from harness.rpc import answers_null

pytestmark = pytest.mark.millrace
TCP = 'vers=4.1,proto=tcp'


def work(path):
    """Writes, reads back from the server and lists, until a line comes; the number of rounds."""
    stop = threading.Event()

    def wait():
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    rounds = 0
    while not stop.is_set():
        data = bytes([rounds % 251]) * 300001
        fd = os.open(f'{path}/file-{rounds % 5}', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.pwrite(fd, data, 0)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if os.pread(fd, len(data) + 1, 0) != data:
            raise ValueError(f'round {rounds}')
        os.close(fd)
        if not os.listdir(path):
            raise ValueError(f'nothing there in round {rounds}')
        rounds += 1
        print(rounds)
    return rounds


def statistics(path):
    """What the client counts for a mount: connections made, answers to nobody, requests sent again
    or timed out, and errors of operations that never have one here."""
    with open('/proc/self/mountstats') as file:
        section = file.read().split(f' mounted on {path} with ')[1].split('\ndevice ')[0]
    transport, operations = section.split('xprt:')[1].split('per-op statistics')
    fields = transport.split('\n')[0].split()
    rows = [line.split() for line in operations.splitlines() if ':' in line]
    rows = {row[0].rstrip(':'): [int(field) for field in row[1:]] for row in rows}
    return {'connections': int(fields[3]), 'bad xids': int(fields[8]),
            'sent again': sum(row[1] - row[0] for row in rows.values()),
            'timed out': sum(row[2] for row in rows.values()),
            'errors': sum(rows[name][8] for name in ('READ', 'WRITE', 'COMMIT', 'READDIR', 'OPEN',
                                                     'CLOSE', 'GETATTR', 'SEQUENCE'))}


@pytest.fixture
def busy(make_share):
    """A share that a client works in; after the test, nothing has happened to it."""
    share = make_share()
    worker = share.spawn_call(work)
    worker.wait_for_lines(2, timeout=120)
    before = share.client.call(statistics, share.path)
    yield share
    worker.wait_for_lines(len(worker.lines()) + 3, timeout=120)
    after = share.client.call(statistics, share.path)
    worker.write(b'stop\n')
    worker.wait(120)
    assert after == before


def cannot_be_mounted(client, site, volume):
    try:
        client.mount(site.pool.export(volume), '/mnt/refused', TCP, port=site.server.port)
    except CommandFailed:
        return True
    client.umount('/mnt/refused')
    return False


def put(path, name, text):
    with open(f'{path}/{name}', 'w') as file:
        file.write(text)


def get(path, name):
    with open(f'{path}/{name}') as file:
        return file.read()


def test_a_share_is_there_when_it_is_made(busy, client, site):
    for i in range(5):
        name = f'made-{i}'
        assert cannot_be_mounted(client, site, name)
        site.pool.create_share(name)
        made = Mounted(client, site, name).mount()
        made.call(put, 'file', name)
        assert made.call(get, 'file') == name
        made.close()
        site.pool.destroy_share(name)
        assert cannot_be_mounted(client, site, name)


def attempt(path, name):
    try:
        with open(f'{path}/{name}', 'w') as file:
            file.write('x')
        return 0
    except OSError as error:
        return error.errno


def test_who_may_write_changes_while_it_is_mounted(busy, make_share, client, site):
    share = make_share()
    for clients, expected in (('*:ro', errno.EROFS), ('*:rw', 0), ('10.255.255.1:rw', errno.EACCES),
                              (f'{client.client_address}:rw', 0)):
        site.pool.set('share', share.volume, 'nfs.clients', clients)
        assert share.call(attempt, f'file-{expected}') == expected, clients
    with open(site.server.log) as log:
        assert 'Errors found' not in log.read()  # which an admin would look for in what he has set


def test_squash_changes_while_it_is_mounted(busy, make_share, site):
    share = make_share(mode=0o777)

    def owner(path, name):
        open(f'{path}/{name}', 'w').close()
        return os.stat(f'{path}/{name}').st_uid

    assert share.call(owner, 'a') == 0
    site.pool.set('share', share.volume, 'nfs.squash', 'root')
    assert share.call(owner, 'b') != 0


def test_a_dataset_is_there_when_it_is_sealed(busy, client, site, tmp_path):
    os.makedirs(tmp_path / 'source')
    (tmp_path / 'source' / 'file').write_text('sealed')
    site.pool.verb('dataset', 'ingest', 'tank/sealing', tmp_path / 'source', '--no-seal')
    site.pool.set('dataset', 'sealing', 'nfs.clients', '*:ro')
    assert cannot_be_mounted(client, site, 'sealing')
    site.pool.verb('dataset', 'seal', 'tank/sealing')
    made = Mounted(client, site, 'sealing').mount()
    assert made.call(get, 'file') == 'sealed'
    made.close()
    site.pool.verb('dataset', 'destroy', 'tank/sealing', '--yes')
    assert cannot_be_mounted(client, site, 'sealing')


def hold(path):
    """Has a file open, with bytes that are stable and bytes that are not, while its volume goes:
    the error of each thing it tries then."""
    fd = os.open(f'{path}/open', os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b's' * 100000, 0)
    os.fsync(fd)
    os.pwrite(fd, b'u' * 100000, 100000)
    print('holding')
    sys.stdin.readline()

    def close():
        os.close(os.open(f'{path}/other', os.O_RDWR | os.O_CREAT))

    found = {}
    os.posix_fadvise(fd, 0, 4096, os.POSIX_FADV_DONTNEED)
    for name, call in (('fsync', lambda: os.fsync(fd)),
                       ('read', lambda: os.pread(fd, 4096, 0)),
                       ('write', lambda: (os.pwrite(fd, b'n' * 4096, 0), os.fsync(fd))),
                       ('open', close),
                       ('list', lambda: os.listdir(path))):
        try:
            call()
            found[name] = 0
        except OSError as error:
            found[name] = error.errno
    try:
        os.close(fd)
    except OSError:
        pass
    return found


def holder_result(holder):
    result = holder.wait(120)
    return json.loads(result.stdout.decode().rstrip('\n').rsplit('\n', 1)[-1])


def test_a_share_goes_while_a_client_has_it_open(busy, client, site):
    """Each call ends, with ESTALE, what was not stable is lost, and it can be unmounted."""
    site.pool.create_share('going')
    going = Mounted(client, site, 'going').mount()
    holder = going.spawn_call(hold)
    holder.wait_for_lines(1, timeout=120)
    site.pool.destroy_share('going')
    assert cannot_be_mounted(client, site, 'going')
    holder.write(b'go\n')
    found = holder_result(holder)
    assert set(found.values()) <= {errno.ESTALE, errno.EIO}, found
    assert found['open'] == found['list'] == errno.ESTALE
    going.close()


def test_a_name_is_used_again_at_once(busy, client, site):
    """The handles of the first volume are not those of the second."""
    site.pool.create_share('twice')
    first = Mounted(client, site, 'twice').mount()
    first.call(put, 'file', 'first')
    site.pool.destroy_share('twice')
    site.pool.create_share('twice')

    def look(path):
        try:
            return os.listdir(path)
        except OSError as error:
            return error.errno

    assert first.call(look) == errno.ESTALE
    first.close()
    second = Mounted(client, site, 'twice').mount()
    assert second.call(look) == []
    second.close()
    site.pool.destroy_share('twice')


def test_systemd_is_told_when_clients_can_reach_it(make_site, tmp_path):
    """And not before: what waits for the unit may mount at once."""
    site = make_site(data=1, parity=1, devices=2)
    try:
        site.server.stop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(120)
            manager.bind(str(tmp_path / 'notify'))
            daemon = Daemon(site.server.argv(), str(tmp_path / 'server.log'),
                            env={'NOTIFY_SOCKET': str(tmp_path / 'notify')})
            try:
                assert manager.recv(100) == b'READY=1'
                assert answers_null(site.server.address, site.server.port, timeout=60)
                assert site.pool.status()['state'] == 'served'
            finally:
                daemon.terminate(120)
    finally:
        site.close()


def test_a_server_that_is_stopped_while_it_starts(make_site, tmp_path):
    """It ends as one that has served, wherever it is: the pool is closed."""
    points = ('Admin thread initialized', 'Starting delayed executor', 'SERVER INITIALIZED')
    site = make_site(data=1, parity=1, devices=2)
    try:
        site.server.stop()
        for i in range(16):
            log = tmp_path / f'server.log.{i}'
            daemon = Daemon(site.server.argv(), str(log))
            wait_until(lambda: points[i % len(points)] in log.read_text(), 120, points[i % len(points)], 0)
            assert daemon.terminate(120) == 0
            assert site.pool.status()['state'] == 'idle'
    finally:
        site.close()

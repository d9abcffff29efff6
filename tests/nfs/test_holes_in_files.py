# SPDX-License-Identifier: LGPL-3.0-or-later
"""Holes in files (RFC 7862): where they are."""

import errno

import pytest

from harness.wire import (
    ACCESS, ANONYMOUS, CHARACTER, DATA, GETFH, HOLE, ISDIR, LOCKED, MODE, NXIO, OK, READ,
    UNION_NOTSUPP, WRITE, WRONG_TYPE, INVAL, Session, close, lookup, mknod, open_, putfh, seek,
    setattr_, u32, unchecked, write)

pytestmark = pytest.mark.millrace
OPTIONS = 'vers=4.2,proto=tcp'


@pytest.fixture
def share(make_share):
    return make_share(OPTIONS)


@pytest.fixture
def connect(site):
    made = []

    def connect(uid=0):
        made.append(Session(site, uid=uid, minor=2))
        return made[-1]

    yield connect
    if site.server.alive():
        for session in made:
            session.end()


@pytest.fixture
def volume(site, request):
    name = request.node.originalname[5:50]
    site.pool.create_share(name, mode=0o777)
    yield name
    if site.server.alive():
        site.pool.destroy_share(name)


def runs(path, name='file'):
    """From where to where there is data."""
    found, fd = [], os.open(f'{path}/{name}', os.O_RDONLY)
    size = os.fstat(fd).st_size
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        found.append([start, at])
    os.close(fd)
    return found, size


# --- through a client ---

def test_holes_are_found(share):
    def make(path):
        with open(f'{path}/file', 'wb') as file:
            for start, length in ((100000, 5000), (1 << 20, 1 << 20), (5 << 30, 1)):
                file.seek(start)
                file.write(b'x' * length)
            file.truncate(6 << 30)
        with open(f'{path}/dense', 'wb') as file:
            file.write(b'x' * 300000)
        with open(f'{path}/empty', 'wb') as file:
            file.truncate(1 << 40)

    wanted = [[98304, 106496], [1 << 20, 2 << 20], [5 << 30, (5 << 30) + 4096]]
    share.call(make)
    assert share.call(runs) == [wanted, 6 << 30]
    share.remount()
    assert share.call(runs) == [wanted, 6 << 30]
    assert share.call(runs, 'dense') == [[[0, 300000]], 300000]
    assert share.call(runs, 'empty') == [[], 1 << 40]


def test_unwritten_pages_of_the_client_count(share):
    def write_and_look(path):
        fd = os.open(f'{path}/file', os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b'x' * 4096, 1 << 20)
        found = [os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 1 << 20, os.SEEK_HOLE)]
        os.pwrite(fd, b'x' * 4096, 8192)
        return found + [os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE)]

    assert share.call(write_and_look) == [1 << 20, (1 << 20) + 4096, 8192, 0]


def test_the_end_is_linuxs(share):
    def tries(path):
        with open(f'{path}/file', 'wb') as file:
            file.write(b'x' * 10000)
            file.truncate(50000)
        fd = os.open(f'{path}/file', os.O_RDONLY)
        found = []
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            for at in (20000, 49999, 50000, 60000):
                try:
                    found.append(os.lseek(fd, at, whence))
                except OSError as error:
                    found.append(-error.errno)
        return found

    none = -errno.ENXIO
    assert share.call(tries) == [none, none, none, none, 20000, 49999, none, none]


def test_a_copy_keeps_holes(share):
    def copy(path):
        with open(f'{path}/file', 'wb') as file:
            file.seek(100 << 20)
            file.write(b'end')
        subprocess.run(['cp', '--sparse=auto', f'{path}/file', f'{path}/copy'], check=True)
        return os.stat(f'{path}/copy').st_blocks * 512 < 1 << 20

    assert share.call(copy)
    assert share.call(runs, 'copy') == [[[100 << 20, (100 << 20) + 3]], (100 << 20) + 3]


# --- by hand ---

def test_seek_by_hand(connect, volume):
    session, user = connect(), connect(uid=1000)
    root = session.root(volume)
    here = putfh(session.create(root, 'file'))
    session.compound(here, write(ANONYMOUS, 40960, b'x' * 4096))
    session.compound(here, write(ANONYMOUS, 99999, b'x'))
    assert session.compound(here, seek(0, DATA)) == (False, 40960)
    assert session.compound(here, seek(0, HOLE)) == (False, 0)
    assert session.compound(here, seek(41000, HOLE)) == (False, 45056)
    assert session.compound(here, seek(99000, HOLE)) == (True, 100000)
    assert session.status(here, seek(100000, HOLE)) == NXIO
    assert session.status(here, seek(100000, DATA)) == NXIO
    assert session.status(here, seek(0, 2)) == UNION_NOTSUPP
    assert session.status(putfh(root), seek(0, DATA)) == ISDIR
    session.compound(here, setattr_(4, (200000).to_bytes(8, 'big')))
    assert session.compound(here, seek(150000, DATA)) == (True, 200000)
    assert user.compound(here, seek(0, DATA)) == (False, 40960)
    session.compound(here, setattr_(MODE, u32(0o600)))
    assert user.status(here, seek(0, DATA)) == ACCESS
    session.compound(putfh(root), mknod('node', CHARACTER))
    node = putfh(session.compound(putfh(root), lookup('node'), GETFH))
    assert session.status(node, seek(0, DATA)) in (INVAL, WRONG_TYPE)


def test_seek_with_an_open_file(connect, volume):
    session = connect()
    root = session.root(volume)
    mine = session.compound(putfh(root), open_(b'one', 'file', WRITE, deny=READ, how=unchecked()))
    here = putfh(session.compound(putfh(root), lookup('file'), GETFH))
    session.compound(here, write(mine, 8192, b'x'))
    assert session.compound(here, seek(0, DATA, mine)) == (False, 8192)
    assert session.status(here, seek(0, DATA)) == LOCKED
    session.compound(here, close(mine))
    assert session.status(here, seek(0, DATA)) == OK

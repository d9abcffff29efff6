# SPDX-License-Identifier: LGPL-3.0-or-later
"""Holes in files (RFC 7862): where they are, and how they are made."""

import errno

import pytest

from harness.wire import (
    ACCESS, ANONYMOUS, CHANGE, CHARACTER, DATA, FILE_SYNC, GETFH, HOLE, INVAL, ISDIR, LOCKED, MODE,
    NXIO, OK, OPENMODE, READ, ROFS, SIZE, UNION_NOTSUPP, WRITE, WRONG_TYPE,
    close, commit, deallocate, getattr_, lookup, mknod, open_, putfh, read, seek,
    setattr_, u32, unchecked, write)

pytestmark = pytest.mark.millrace
OPTIONS, MINOR = 'vers=4.2,proto=tcp', 2


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


def punch(path, offset, length, name='file'):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(f'{path}/{name}', os.O_WRONLY)
    keep_size_and_punch = 3
    at, size = ctypes.c_int64(offset), ctypes.c_int64(length)
    r = libc.fallocate64(fd, keep_size_and_punch, at, size)
    os.close(fd)
    return ctypes.get_errno() if r else 0


def test_a_punched_hole_holds(share, site):
    def make(path):
        with open(f'{path}/file', 'wb') as file:
            file.write(b'x' * (8 << 20))
            os.fsync(file.fileno())
        return os.stat(f'{path}/file').st_blocks * 512

    def look(path):
        with open(f'{path}/file', 'rb') as file:
            data = file.read()
        holes = bytes(1000000) == data[1234567:2234567] and bytes(3 << 20) == data[5 << 20:]
        rest = data[:1234567] + data[2234567:5 << 20]
        return [len(data), holes, rest == b'x' * len(rest), os.stat(f'{path}/file').st_blocks * 512]

    before = share.call(make)
    assert share.call(punch, 1234567, 1000000) == 0
    assert share.call(punch, 5 << 20, 100 << 20) == 0
    wanted = [8 << 20, True, True]
    *found, after = share.call(look)
    assert found == wanted and after <= before - 1000000 - (3 << 20) + 4096
    site.server.kill9()
    site.server.start()
    share.remount()
    *found, again = share.call(look)
    assert found == wanted and again == after
    assert share.call(runs) == [[[0, 1236992], [2232320, 5 << 20]], 8 << 20]


def test_a_punched_hole_takes_unwritten_pages(share):
    def write_and_punch(path):
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(f'{path}/file', os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b'x' * 100000, 0)
        found = [libc.fallocate64(fd, 3, ctypes.c_int64(10000), ctypes.c_int64(50000))]
        os.pwrite(fd, b'new', 30000)
        data = os.pread(fd, 200000, 0)
        wanted = b'x' * 10000 + bytes(20000) + b'new' + bytes(29997) + b'x' * 40000
        return found + [data == wanted]

    def look(path):
        with open(f'{path}/file', 'rb') as file:
            return file.read() == (
                b'x' * 10000 + bytes(20000) + b'new' + bytes(29997) + b'x' * 40000)

    assert share.call(write_and_punch) == [0, True]
    share.remount()
    assert share.call(look)


def test_random_writes_cuts_and_holes(share):
    def work(path, seed, remounted):
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        chance, wanted = random.Random(seed), bytearray()
        fd = os.open(f'{path}/file', os.O_RDWR | os.O_CREAT)
        for step in range(300):
            kind = chance.choice(('write', 'punch', 'allocate', 'cut', 'sync'))
            at = chance.choice((chance.randrange(3000), chance.randrange(400000)))
            length = chance.choice((chance.randrange(1, 3000), chance.randrange(1, 100000)))
            if kind == 'write':
                data = chance.randbytes(length)
                wanted.extend(bytes(max(0, at + length - len(wanted))))
                wanted[at:at + length] = data
                if not remounted:
                    os.pwrite(fd, data, at)
            elif kind == 'punch':
                end = min(at + length, len(wanted))
                if at < end:
                    wanted[at:end] = bytes(end - at)
                if not remounted:
                    assert libc.fallocate64(fd, 3, ctypes.c_int64(at), ctypes.c_int64(length)) == 0
            elif kind == 'allocate':
                wanted.extend(bytes(max(0, at + length - len(wanted))))
                if not remounted:
                    os.posix_fallocate(fd, at, length)
            elif kind == 'cut' and chance.random() < .3:
                wanted = wanted[:at] + bytes(max(0, at - len(wanted)))
                if not remounted:
                    os.ftruncate(fd, at)
            elif kind == 'sync' and not remounted:
                os.fsync(fd)
        found = os.pread(fd, 1 << 20, 0)
        os.close(fd)
        return found == bytes(wanted)

    for seed in range(3):
        assert share.call(work, seed, False, timeout=300), f'seed {seed}'
        share.remount()
        assert share.call(work, seed, True), f'seed {seed}, from the server'
        share.client.run(['rm', f'{share.path}/file'])


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


def test_deallocate_by_hand(connect, volume, site):
    session, user = connect(), connect(uid=1000)
    root = session.root(volume)
    here = putfh(session.create(root, 'file'))
    session.compound(here, write(ANONYMOUS, 0, b'x' * 100000, FILE_SYNC))
    session.compound(here, commit())
    before = session.compound(here, getattr_(CHANGE))
    session.compound(here, deallocate(1000, 2000))
    assert session.compound(here, getattr_(CHANGE)) > before
    session.compound(here, deallocate(90000, 1 << 40))
    session.compound(here, deallocate(1 << 40, 10))
    session.compound(here, deallocate(50, 0))
    wanted = b'x' * 1000 + bytes(2000) + b'x' * 87000 + bytes(10000)
    assert session.compound(here, getattr_(SIZE)) == 100000
    session.kill9()
    user.reconnect()
    assert session.compound(here, read(ANONYMOUS, 0, 200000)) == (True, wanted)
    assert session.status(here, deallocate((1 << 64) - 10, 100)) == INVAL
    assert session.status(putfh(root), deallocate(0, 10)) == ISDIR
    assert user.status(here, deallocate(0, 10)) == ACCESS
    site.pool.set('share', volume, 'nfs.clients', '*:ro')
    assert session.status(here, deallocate(0, 10)) == ROFS
    assert session.compound(here, read(ANONYMOUS, 0, 200000)) == (True, wanted)


def test_deallocate_with_an_open_file(connect, volume):
    session = connect()
    root = session.root(volume)
    file = session.create(root, 'file', b'x' * 10000)
    here = putfh(file)
    reader = session.compound(putfh(root), open_(b'one', 'file', READ))
    assert session.status(here, deallocate(0, 10, reader)) == OPENMODE
    session.compound(here, close(reader))


def test_a_punch_takes_privileges_away(connect, volume):
    session, user = connect(), connect(uid=1000)
    here = putfh(session.create(session.root(volume), 'file', b'x' * 10000))
    session.compound(here, setattr_(MODE, u32(0o6777)))
    user.compound(here, deallocate(0, 10))
    assert session.compound(here, getattr_(MODE)) == 0o777


def test_nothing_is_punched_into_a_dataset(connect, site, tmp_path):
    (tmp_path / 'file').write_bytes(b'x' * 10000)
    site.pool.ingest('solid', tmp_path, clients='*:rw')
    session = connect()
    here = putfh(session.compound(putfh(session.root('solid')), lookup('file'), GETFH))
    assert session.status(here, deallocate(0, 10)) == ROFS
    assert session.compound(here, read(ANONYMOUS, 0, 10)) == (False, b'x' * 10)

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Space that is kept for bytes to come (fallocate, RFC 7862's ALLOCATE)."""

import pytest

from harness.mounted import Mounted
from harness.wire import (
    ACCESS, ANONYMOUS, CHANGE, DATA, DQUOT, FBIG, INVAL, ISDIR, MODE, NOSPC, OPENMODE, READ, ROFS,
    SIZE, allocate, close, deallocate, getattr_, open_, putfh, read, seek, setattr_, u32,
    write)

pytestmark = pytest.mark.millrace
OPTIONS, MINOR = 'vers=4.2,proto=tcp', 2
MIB = 1 << 20


# --- through a client; these run there ---

def fallocate(path, name, offset, length):
    """0 or an errno; only where the server keeps the space, not by writing zeros."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(f'{path}/{name}', os.O_RDWR | os.O_CREAT)
    r = libc.fallocate64(fd, 0, ctypes.c_int64(offset), ctypes.c_int64(length))
    os.close(fd)
    return ctypes.get_errno() if r else 0


def look(path, name):
    at, fs = os.stat(f'{path}/{name}'), os.statvfs(path)
    return at.st_size, at.st_blocks * 512, fs.f_bavail * fs.f_frsize


def fill(path, name):
    """Writes until there is no room; the errno."""
    try:
        with open(f'{path}/{name}', 'wb', buffering=0) as file:
            while True:
                file.write(b'f' * (1 << 20))
                os.fsync(file.fileno())
    except OSError as error:
        return error.errno


def write_blocks(path, name, first, last, step):
    """Each STEP-th block of 64 KiB, with fsyncs; 0 or an errno."""
    try:
        fd = os.open(f'{path}/{name}', os.O_RDWR)
        try:
            for i in range(first, last, step):
                os.pwrite(fd, b'%07d\n' % i * 8192, i << 16)
                if i % 16 == 0:
                    os.fsync(fd)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno
    return 0


def has_blocks(path, name, count):
    with open(f'{path}/{name}', 'rb') as file:
        return all(file.read(1 << 16) == b'%07d\n' % i * 8192 for i in range(count))


def is_zeros(path, name, length):
    with open(f'{path}/{name}', 'rb') as file:
        return file.read() == bytes(length)


def test_space_is_kept(share):
    import errno

    size, used, before = share.call(look, '.')
    assert share.call(fallocate, 'file', MIB, 99 * MIB) == 0
    size, used, free = share.call(look, 'file')
    assert (size, used) == (100 * MIB, 99 * MIB) and free <= before - 99 * MIB
    assert share.call(is_zeros, 'file', 100 * MIB)
    share.site.server.kill9()
    share.site.server.start()
    share.remount()
    size, used, free = share.call(look, 'file')
    assert (size, used) == (100 * MIB, 99 * MIB) and free <= before - 99 * MIB
    assert share.call(is_zeros, 'file', 100 * MIB)
    assert share.call(write_blocks, 'file', 32, 1600, 1) == 0
    share.remount()
    assert share.call(look, 'file')[:2] == [100 * MIB, 99 * MIB]
    share.client.run(['fallocate', '-p', '-o', '0', '-l', '50M', f'{share.path}/file'])
    share.client.run(['truncate', '-s', '80M', f'{share.path}/file'])
    assert share.call(look, 'file')[:2] == [80 * MIB, 30 * MIB]
    share.client.run(['rm', f'{share.path}/file'])
    assert share.call(fallocate, 'file', 0, 1 << 50) == errno.ENOSPC
    assert share.call(look, 'file')[0] == 0


def test_it_counts_for_the_quota(share):
    import errno

    share.site.pool.set('share', share.volume, 'quota', '10M')
    assert share.call(fallocate, 'file', 0, 11 * MIB) == errno.EDQUOT
    assert share.call(look, 'file')[:2] == [0, 0]
    assert share.call(fallocate, 'file', 0, 10 * MIB) == 0
    assert share.call(look, 'file') == [10 * MIB, 10 * MIB, 0]
    assert share.call(write_blocks, 'file', 0, 160, 1) == 0
    assert share.call(write_blocks, 'file', 160, 161, 1) == errno.EDQUOT
    share.remount()
    assert share.call(has_blocks, 'file', 160)


def test_a_full_pool_has_room_for_it(client, make_site):
    import errno

    site = make_site(device_bytes=128 * MIB)
    try:
        site.pool.create_share('full')
        share = Mounted(client, site, 'full').mount(OPTIONS)
        try:
            keep_in_a_full_pool(share, errno.ENOSPC)
        finally:
            client.kill_commands()
            share.close()
    finally:
        site.close()


def keep_in_a_full_pool(share, enospc):
    blocks = 800

    assert share.call(fallocate, 'file', 0, blocks << 16) == 0
    assert share.call(fill, 'filler', timeout=300) == enospc
    assert share.call(fallocate, 'more', 0, 100 * MIB) == enospc
    assert share.call(look, 'more')[0] == 0
    assert share.call(write_blocks, 'file', 0, blocks, 2, timeout=300) == 0
    share.site.server.kill9()
    share.site.server.start()
    assert share.call(write_blocks, 'file', 1, blocks, 2, timeout=300) == 0
    share.remount()
    assert share.call(has_blocks, 'file', blocks)
    share.client.run(['rm', f'{share.path}/filler'])
    share.site.pool.check()


# --- by hand ---

def test_allocate_by_hand(connect, volume, site):
    session, user = connect(), connect(uid=1000)
    root = session.root(volume)
    here = putfh(session.create(root, 'file', b'x' * 10000))
    before = session.compound(here, getattr_(CHANGE))
    session.compound(here, allocate(5000, 95000))
    assert session.compound(here, getattr_(CHANGE)) > before
    assert session.compound(here, getattr_(SIZE)) == 100000
    session.compound(here, allocate(0, 0))
    session.compound(here, allocate(0, 100000))
    wanted = b'x' * 10000 + bytes(90000)
    assert session.compound(here, read(ANONYMOUS, 0, 200000)) == (True, wanted)
    session.kill9()
    user.reconnect()
    assert session.compound(here, read(ANONYMOUS, 0, 200000)) == (True, wanted)
    assert session.compound(here, seek(12288, DATA)) == (True, 100000)
    assert session.status(here, allocate((1 << 64) - 10, 100)) == INVAL
    assert session.status(here, allocate(1 << 62, 100)) == FBIG
    assert session.status(here, allocate(0, 1 << 60)) == NOSPC
    assert session.status(putfh(root), allocate(0, 10)) == ISDIR
    site.pool.set('share', volume, 'quota', '150000')
    assert session.status(here, allocate(0, 150001)) == DQUOT
    session.compound(here, allocate(0, 150000))
    assert session.status(here, write(ANONYMOUS, 150000, b'x')) == DQUOT
    session.compound(here, write(ANONYMOUS, 140000, b'x' * 10000))
    session.compound(here, deallocate(0, 50000))
    session.compound(here, write(ANONYMOUS, 150000, b'x' * 10000))
    site.pool.set('share', volume, 'nfs.clients', '*:ro')
    assert session.status(here, allocate(0, 10)) == ROFS


def test_who_may_allocate(connect, volume):
    session, user = connect(), connect(uid=1000)
    root = session.root(volume)
    here = putfh(session.create(root, 'file', b'x' * 10000))
    reader = session.compound(putfh(root), open_(b'one', 'file', READ))
    assert session.status(here, allocate(0, 20000, reader)) == OPENMODE
    session.compound(here, close(reader))
    assert user.status(here, allocate(0, 20000)) == ACCESS
    session.compound(here, setattr_(MODE, u32(0o6777)))
    user.compound(here, allocate(0, 20000))
    assert session.compound(here, getattr_(MODE)) == 0o777

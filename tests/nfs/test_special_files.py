# SPDX-License-Identifier: LGPL-3.0-or-later
"""FIFOs, sockets and devices: the server keeps what they are, the client does what they do."""

import errno
import os
import stat

import pytest

from harness.mounted import Mounted
from harness.wire import (
    ANONYMOUS, BLOCK, CHARACTER, FIFO, GETFH, INVAL, OK, RAWDEV, READ, SIZE, SOCKET, SYMLINK,
    WRITE, WRONG_TYPE, Refused, Session, getattr_, lookup, mknod, open_, putfh, read, setattr_, u64,
    unchecked, write)

DEVICES = {'null': (stat.S_IFCHR, 1, 3), 'disk': (stat.S_IFBLK, 8, 17),
           'large': (stat.S_IFCHR, 4095, 1048575), 'zero': (stat.S_IFBLK, 0, 0)}


def make_nodes(path, devices):
    os.umask(0)
    os.mkfifo(f'{path}/fifo', 0o640)
    os.mknod(f'{path}/socket', stat.S_IFSOCK | 0o600)
    for name, (kind, major, minor) in devices.items():
        os.mknod(f'{path}/{name}', kind | 0o666, os.makedev(major, minor))


def describe_nodes(path):
    found = {name: os.lstat(f'{path}/{name}') for name in sorted(os.listdir(path))}
    return {name: [stat.filemode(at.st_mode), os.major(at.st_rdev), os.minor(at.st_rdev),
                   at.st_nlink, at.st_size] for name, at in found.items()}


NODES = {'fifo': ['prw-r-----', 0, 0, 1, 0], 'socket': ['srw-------', 0, 0, 1, 0],
         'null': ['crw-rw-rw-', 1, 3, 1, 0], 'disk': ['brw-rw-rw-', 8, 17, 1, 0],
         'large': ['crw-rw-rw-', 4095, 1048575, 1, 0], 'zero': ['brw-rw-rw-', 0, 0, 1, 0]}


def test_they_are_what_they_were_made(share):
    share.call(make_nodes, DEVICES)
    assert share.call(describe_nodes) == NODES
    share.remount()
    assert share.call(describe_nodes) == NODES


@pytest.mark.millrace
def test_they_outlive_kill9(share, site):
    share.call(make_nodes, DEVICES)
    site.server.kill9()
    site.server.start()
    share.remount()
    assert share.call(describe_nodes) == NODES


def test_they_are_moved_linked_changed_and_removed(share):
    def change(path):
        os.mkfifo(f'{path}/fifo')
        os.link(f'{path}/fifo', f'{path}/second')
        os.rename(f'{path}/second', f'{path}/third')
        os.chmod(f'{path}/third', 0o600)
        os.chown(f'{path}/third', 1000, 1001)
        os.utime(f'{path}/third', ns=(1, 2))
        at = os.lstat(f'{path}/fifo')
        os.unlink(f'{path}/fifo')
        return [at.st_nlink, at.st_mode & 0o777, at.st_uid, at.st_gid, at.st_mtime_ns,
                os.listdir(path)]

    assert share.call(change) == [2, 0o600, 1000, 1001, 2, ['third']]


def test_a_fifo_joins_two_processes(share):
    def talk(path):
        os.mkfifo(f'{path}/fifo')
        reader = subprocess.Popen(['cat', f'{path}/fifo'], stdout=subprocess.PIPE)
        with open(f'{path}/fifo', 'wb') as fifo:
            fifo.write(b'through the kernel')
        return reader.communicate()[0].decode(), os.stat(f'{path}/fifo').st_size

    assert share.call(talk) == ['through the kernel', 0]


def test_a_fifo_that_the_client_has_not_seen_is_opened(share):
    def make(path):
        os.mkfifo(f'{path}/fifo')

    def open_it(path):
        os.close(os.open(f'{path}/fifo', os.O_RDONLY | os.O_NONBLOCK))
        return stat.S_ISFIFO(os.stat(f'{path}/fifo').st_mode)

    share.call(make)
    share.remount()
    assert share.call(open_it)


def test_a_device_is_the_clients_own(share):
    def use(path):
        os.mknod(f'{path}/zero', stat.S_IFCHR | 0o666, os.makedev(1, 5))
        with open(f'{path}/zero', 'rb') as device:
            return len(device.read(100))

    assert share.call(use) == 100


def test_only_root_makes_devices(make_share):
    share = make_share(mode=0o777)

    def tries(path):
        found = []
        for kind in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK):
            try:
                os.mknod(f'{path}/{kind}', kind | 0o600, os.makedev(1, 3))
                found.append(0)
            except OSError as error:
                found.append(error.errno)
        return found

    assert share.call(tries, user=1000) == [errno.EPERM, errno.EPERM, 0, 0]


@pytest.mark.millrace
def test_a_dataset_keeps_them(site, client, tmp_path):
    make_nodes(tmp_path, DEVICES)
    site.pool.ingest('nodes', tmp_path)
    dataset = Mounted(client, site, 'nodes').mount()
    assert dataset.call(describe_nodes) == NODES
    dataset.close()


@pytest.mark.millrace
def test_the_server_does_not_open_them(site):
    site.pool.create_share('not-opened', mode=0o777)
    session = Session(site)
    here = putfh(session.root('not-opened'))
    kinds = {'fifo': FIFO, 'socket': SOCKET, 'character': CHARACTER, 'block': BLOCK}
    for name, kind in kinds.items():
        session.compound(here, mknod(name, kind))
        node = putfh(session.compound(here, lookup(name), GETFH))
        device = (8 << 32 | 1) if kind in (CHARACTER, BLOCK) else 0
        assert session.compound(node, getattr_(RAWDEV)) == device
        # what makes clients look the name up and open it themselves
        assert session.status(here, open_(b'owner', name, READ)) == SYMLINK
        assert session.status(here, open_(b'owner', name, WRITE, how=unchecked())) == SYMLINK
        assert session.status(node, read(ANONYMOUS, 0, 1)) in (INVAL, WRONG_TYPE)
        assert session.status(node, write(ANONYMOUS, 0, b'x')) in (INVAL, WRONG_TYPE)
        assert session.status(node, setattr_(SIZE, u64(0))) == INVAL
        assert session.status(node, getattr_(SIZE)) == OK
    with pytest.raises(Refused):
        session.compound(here, mknod('fifo', FIFO))
    session.end()
    site.pool.destroy_share('not-opened')

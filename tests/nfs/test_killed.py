# SPDX-License-Identifier: LGPL-3.0-or-later
"""A server that is killed while one of its drives hangs: what it has given to the kernel for that one is written when it
goes on, whenever that is."""

import contextlib
import errno
import os
import subprocess
import threading
from types import SimpleNamespace

import pytest

from harness.disk import Disk
from harness.host import command, wait_until
from harness.server import Pool, Server
from harness.wire import ANONYMOUS, FILE_SYNC, Session, putfh, read, write

pytestmark = pytest.mark.millrace

SHARE = 'share'
MIB = 1 << 20


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    disk.close()


def queue(drive, name):
    return f'/sys/block/{os.path.basename(drive)}/{name}'


@pytest.fixture
def site(disk, tmp_path):
    """Its first drive is a block device on the disk, without a cache: no process waits for that in the kernel."""
    pool = Pool(tmp_path / 'site', places=[disk.path, *[tmp_path] * 5])
    pool.devices[0] = subprocess.run(['losetup', '--find', '--show', pool.devices[0]], check=True, capture_output=True,
                                     text=True).stdout.strip()
    with open(queue(pool.devices[0], 'queue/write_cache'), 'w') as file:
        file.write('write through')
    pool.create().create_share(SHARE, mode=0o777)
    server = Server(pool, '127.0.0.1')
    try:
        yield SimpleNamespace(pool=pool, server=server.start())
    finally:
        server.close()
        command('losetup', '--detach', pool.devices[0])
        pool.close()


def under_way(drive):
    with open(queue(drive, 'inflight')) as file:
        return sum(map(int, file.read().split()))


def is_free(drive):
    try:
        os.close(os.open(drive, os.O_RDWR | os.O_EXCL))
    except OSError as error:
        assert error.errno == errno.EBUSY
        return False
    return True


def test_the_next_one_does_without_that_drive(site, disk):
    """Until nothing is under way to it any more: else that came behind what the next one has written."""
    pool, drive = site.pool, site.pool.devices[0]
    session, data = Session(site), os.urandom(MIB)
    root = session.root(SHARE)
    file, other = session.create(root, 'file', data), session.create(root, 'other')

    def write_on():
        with contextlib.suppress(OSError):
            session.compound(putfh(other), write(ANONYMOUS, 0, data, FILE_SYNC))

    with disk.frozen():
        writing = threading.Thread(target=write_on)
        writing.start()
        wait_until(lambda: under_way(drive), 20, 'it is written to')
        site.server.kill9()
        writing.join()
        assert under_way(drive) and not is_free(drive)
        site.server.start()
        assert pool.status()['devices'][0]['state'] == 'dropped'
        session.reconnect()
        assert session.compound(putfh(file), read(ANONYMOUS, 0, MIB))[1] == data
        session.compound(putfh(other), write(ANONYMOUS, 0, data, FILE_SYNC))
        assert not is_free(drive)
    wait_until(lambda: is_free(drive), 20, 'nothing is under way to it')
    pool.verb('pool', 'attach', 'tank', drive)
    wait_until(lambda: all(device['whole'] for device in pool.status()['devices']), 60, 'all is whole')
    assert session.compound(putfh(other), read(ANONYMOUS, 0, MIB))[1] == data
    pool.check()

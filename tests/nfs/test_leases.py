# SPDX-License-Identifier: LGPL-3.0-or-later
"""Clients that are silent for a lease, or that the server did not hear (RFC 8881, section 8.3)."""

import os
import signal
import time

import pytest

from harness.host import wait_until
from harness.protocol import BY_HANDLE, DENIED, WRITE_LOCK, Client, creating, lock, open_as
from harness.server import LEASE
from harness.wire import GETFH, OK, PUTROOTFH, lookup, putfh, u32

pytestmark = pytest.mark.millrace

NOTED = LEASE + 11  # seconds: by then the server has noted that a client is silent
WAITING_LOCK = 4


@pytest.fixture(scope='module')
def root(site):
    site.pool.create_share('leases', mode=0o777)
    maker = Client(site).ready()
    handle = maker.do(PUTROOTFH, *map(lookup, (site.pool.name, 'leases')), GETFH)
    maker.close()
    return handle


@pytest.fixture
def holder(newcomer, root):
    """holder(name): a new client with locks of two owners on the new file NAME: `stateid` of the first, `file`."""
    def make(name):
        client = newcomer().ready()
        mine = client.do(putfh(root), open_as(client.clientid, b'owner', **creating(name)))
        client.file = client.do(putfh(root), lookup(name), GETFH)
        client.stateid = client.do(putfh(client.file), lock(mine, 0, 10, b'first'))
        client.do(putfh(client.file), lock(mine, 20, 10, b'second'))
        return client

    return make


class Wanting:
    """A client that wants all that the holder has locked."""

    def __init__(self, client, file):
        self._client, self._file = client, file
        self._stateid = client.do(putfh(file), open_as(client.clientid, b'owner', u32(BY_HANDLE)))

    def gets(self, kind=WRITE_LOCK):
        """Whether it has it now. With WAITING_LOCK it waits from then on, and is not served again until it is its turn."""
        status = self._client.tell(putfh(self._file), lock(self._stateid, 0, 100, b'locker', kind))
        assert status in (OK, DENIED)
        return status == OK


def test_all_locks_of_a_silent_client_go_to_who_waits_for_them(newcomer, holder):
    silent = holder('silent')
    wanting = Wanting(newcomer().ready(), silent.file)
    assert not wanting.gets(WAITING_LOCK)
    wait_until(lambda: wanting.gets(WAITING_LOCK), 2 * LEASE + 25, 'the locks are free', interval=1)


def test_a_silent_client_that_has_rebooted_lets_go_of_its_locks(newcomer, holder):
    silent, another = holder('rebooted'), newcomer().ready()
    time.sleep(LEASE - 5)
    wanting = Wanting(another, silent.file)
    assert not wanting.gets(WAITING_LOCK)
    time.sleep(NOTED - LEASE + 5)
    silent.boot = os.urandom(8)
    silent.ready()
    assert wanting.gets(WAITING_LOCK)


def test_who_comes_late_has_what_it_had(newcomer, holder):
    """The server may have noted that it was silent, or not yet."""
    late = []
    for seconds in (LEASE + 2, LEASE + 2, NOTED):
        late.append((holder(f'late {len(late)}'), time.monotonic() + seconds))
        time.sleep(3)
    for client, until in late:
        time.sleep(max(0, until - time.monotonic()))
        assert client.tell(putfh(client.file), lock(client.stateid, 200, 10)) == OK
        assert not Wanting(newcomer().ready(), client.file).gets()


def test_nobody_loses_anything_while_the_server_stands_still(site, newcomer, holder):
    mine = holder('server stood still')
    wanting = Wanting(newcomer().ready(), mine.file)
    site.server.signal(signal.SIGSTOP)
    time.sleep(LEASE + 5)
    site.server.signal(signal.SIGCONT)
    for _ in range(3):
        assert not wanting.gets()
        time.sleep(1)
    assert mine.tell(putfh(mine.file), lock(mine.stateid, 200, 10)) == OK
    assert not wanting.gets()

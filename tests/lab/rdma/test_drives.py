# SPDX-License-Identifier: LGPL-3.0-or-later
"""Drives that go while a client writes over RDMA: the pool is without them from there on."""

import pytest

from writer import Writer

PULLED = [1, 4]


@pytest.fixture
def uncached(service):
    """The server keeps no file's bytes in memory."""
    service.verb('pool set tank cache.size=0')
    yield
    service.verb('pool set tank cache.size=auto')


def test_two_drives_pulled_while_a_client_writes(rdma, pair, service, mount, client, uncached):
    server = pair[0]
    writer = Writer(client, mount('rdma'))
    writer.more(5)
    for number in PULLED:
        server.pull_drive(number)
        writer.more(5)
    writer.more(5)
    writer.check()
    pool = server.json('millrace pool status tank')['pool']
    gone = [device['id'] for device in pool['devices'] if device['state'] != 'active']
    assert (pool['health'], gone) == ('degraded', PULLED)

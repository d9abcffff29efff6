# SPDX-License-Identifier: LGPL-3.0-or-later
"""Drives that go while a client writes over RDMA: the pool is without them until they are back, and taken back."""

import pytest

from harness.host import wait_until
from writer import Writer

PULLED = [1, 4]


def health(server):
    """What the server calls the pool, and its devices that lack something."""
    pool = server.json('millrace pool status tank')['pool']
    return pool['health'], [device['id'] for device in pool['devices'] if not device['whole']]


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
    assert health(server) == ('degraded', PULLED)
    for number in PULLED:
        server.put_drive(number)
    for number in PULLED:
        wait_until(lambda: server.does(f'test -b {server.drives[number].path}'), 120, f'drive {number} is there', 1)
    assert server.json('millrace pool attach tank')['resilver']['whole']
    assert health(server) == ('healthy', [])
    writer.more(5)
    writer.check()

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Connections on which no call comes. Linux (6.0 and later) makes none any more, and waits for ever, where it has seen another
hardware address of the server for a moment; ended by the server, the connection is made anew."""

import time

import pytest

from harness.wire import u32
from raw import MESSAGE, Raw
from service import LEASE

NULL = u32(77, 0, 2, 100003, 4, 0, 0, 0, 0, 0)
OTHER = '52:54:00:de:ad:01'
READS, CALLS = 12, 16  # each read is so many calls of 1 MiB at once: more than had memory of their own until then, when there was one


def test_a_connection_without_a_call_ends(rdma, service, raw_client):
    raw = Raw(raw_client, service.address)
    raw.send(NULL)
    assert raw.receive_answer().kind == MESSAGE
    called = time.monotonic()
    assert raw.receive_answer() is None
    assert time.monotonic() - called > LEASE * 2 / 3
    raw.close()


def test_a_client_at_rest_keeps_its_connection(rdma, mount, client):
    path = mount('rdma')
    client.run(f'echo kept >{path}/file; sync {path}/file')
    before = client.connections_made()
    time.sleep(2 * LEASE)
    assert client.run(f'cat {path}/file').stdout == b'kept\n' and client.connections_made() == before != []


@pytest.mark.long
def test_each_of_several_connections_is_kept(rdma, mount, client):
    """Linux renews its lease on them in turn."""
    path = mount('rdma', options=',nconnect=4')
    client.run(f'for i in $(seq 8); do echo $i >{path}/$i; done; sync')
    before = rdma.held().pairs
    time.sleep(3 * LEASE)
    assert rdma.held().pairs == before >= 4


@pytest.mark.rxe  # siw's connections are TCP's, which ask nobody for hardware addresses
def test_a_server_with_another_hardware_address_for_a_moment(rdma, pair, service, mount, client):
    """As of a node that was fenced and goes on. The client's connection has not ended meanwhile."""
    server = pair[0]
    path = mount('rdma')
    client.run(f'head -c {CALLS}M /dev/urandom >/tmp/read; dd if=/tmp/read of={path}/file bs=1M oflag=direct status=none', timeout=300)
    replace = f'ip neigh replace {service.address} dev {client.network} nud reachable lladdr'
    client.run(f'{replace} {OTHER}; sleep 0.3; {replace} {server.hardware_address("lan")}')
    before, told = client.connections_made(), service.log().count('no call has come')
    client.run(f'for i in $(seq {READS}); do dd if={path}/file bs={CALLS}M iflag=direct status=none | cmp - /tmp/read || exit 1; done; '
               'rm /tmp/read', timeout=400)
    assert service.log().count('no call has come') > told
    assert client.connections_made() != before  # else there was nothing to see

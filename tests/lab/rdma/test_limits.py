# SPDX-License-Identifier: LGPL-3.0-or-later
"""A server that takes few connections, and has little memory for their data."""

import pytest

from harness.host import wait_until
from held import ARENA_KB, CONNECTION_KB, SLAB_KB
from raw import Raw

CONNECTIONS = 4
AT_ONCE = 24  # calls of 1 MiB, three for each buffer that the server has


@pytest.fixture(scope='module')
def small(rdma, service):
    service.stop()
    service.start(options=f'--rdma-connections {CONNECTIONS} --rdma-memory 9M')
    service.wait_for_rdma()
    yield rdma
    service.stop()
    service.start()
    service.wait_for_rdma()


def test_no_more_connections_than_may_be(small, service, raw_client):
    """One too many is told so at once; it may come when another has gone."""
    small.held_by_none()
    made = [Raw(raw_client, service.address) for _ in range(CONNECTIONS)]
    assert not any(raw.refused for raw in made)
    assert Raw(raw_client, service.address).refused
    assert '--rdma-connections' in service.log()
    made.pop().close()
    wait_until(lambda: small.held().pairs < CONNECTIONS, 120, 'one has gone', interval=1)
    made.append(Raw(raw_client, service.address))
    assert not made[-1].refused
    for raw in made:
        raw.close()


def test_more_data_under_way_than_memory(small, mount, client):
    """Calls wait for memory in turn, and all of them get some."""
    before = small.held_by_none()
    path = mount('rdma')
    every = f'for i in $(seq {AT_ONCE}); do'
    client.run(f'head -c 2M /dev/urandom >/tmp/data; {every} dd if=/tmp/data of={path}/$i bs=1M oflag=direct status=none & done; wait',
               timeout=300)
    client.run(f'{every} dd if={path}/$i of=/tmp/$i bs=1M iflag=direct status=none & done; wait', timeout=300)
    client.run(f'{every} cmp /tmp/data /tmp/$i || exit 1; rm /tmp/$i; done')
    assert small.held().pinned - before.pinned <= ARENA_KB + SLAB_KB + CONNECTION_KB

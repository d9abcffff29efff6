# SPDX-License-Identifier: LGPL-3.0-or-later
"""Clients of a cluster, which each module has as its fixture `cluster`."""

import pytest

from cluster import MINE, POOL, PORTS, SERVICE
from harness.appender import Appender
from harness.appender import told as tell  # noqa: F401 (a fixture)
from phases import phases
from reader import Reader

ALSO, SET = '/mnt/also', '/mnt/set'


@pytest.fixture(scope='module')
def client(cluster):
    cluster.client.wait_until_up()
    return cluster.client


@pytest.fixture(params=['rdma', pytest.param('tcp', marks=pytest.mark.long)])
def transport(request):
    return request.param


@pytest.fixture
def writer(cluster, client, transport, request, number):
    """At work in a directory of its own."""
    cluster.wait_until_whole()
    for path, options in ((MINE, ''), (ALSO, ',nosharecache')):
        client.mount(f'/{SERVICE}/share', path, f'vers=4.1,proto={transport},timeo=150{options}', PORTS[transport],
                     timeout=300)
    client.run(f'mkdir {MINE}/{request.node.name}', timeout=300)
    yield Appender(client, f'{MINE}/{request.node.name}', f'{ALSO}/{request.node.name}')
    client.kill_commands()
    cluster.wait_until_whole()  # else nobody might answer who unmounts
    for path in (MINE, ALSO):
        client.run(f'umount -i {path}', timeout=300)


@pytest.fixture
def reader(cluster, client, transport, writer):
    """Of the dataset, at the node that does not serve the share."""
    node = cluster.other(cluster.owner())
    client.mount(f'/{POOL}/set', SET, f'vers=4.1,proto={transport},timeo=150', PORTS[transport], timeout=300,
                 server=cluster.address_of(node))
    yield Reader(client, f'{SET}/data', cluster.digest)
    client.kill_commands()
    client.run(f'umount -i {SET}', timeout=300)


@pytest.fixture
def told(tell, cluster, client, writer, record_property, capsys):  # noqa: F811 (a fixture)
    """Tells a figure with the name of the test; of the writer's longest gap also what it went with."""
    def told(seconds, what=None):
        tell(seconds, *filter(None, [what]))
        if what is None:
            for name, took in phases(cluster, client, writer).items():
                record_property(name, took)
                with capsys.disabled():
                    print(f' {name} {took:.1f}', end='')

    return told

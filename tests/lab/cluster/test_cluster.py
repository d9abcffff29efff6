# SPDX-License-Identifier: LGPL-3.0-or-later
"""Two nodes of the appliance, made a cluster by its own commands, while a client with a stock kernel writes over RDMA:
what is acknowledged is kept, locks are kept, and clients go on by themselves."""

import json
import signal

import pytest

from cluster import ADDRESS, PORTS, SERVICE, Cluster
from guest import Guest
from harness.appender import Appender, told  # noqa: F401 (a fixture)
from harness.host import wait_until
from node import kernel_of

MINE, ALSO = '/mnt/share', '/mnt/also'


@pytest.fixture(scope='module')
def apart(lab, image, key, public_key):
    """Two nodes that see the same pool."""
    return Cluster(lab, public_key, image=image, key=key, kernel=kernel_of(image, lab.workdir)).start()


@pytest.fixture(scope='module')
def cluster(apart):
    token = apart.create()
    assert 'does not answer to this token' in apart.join('a' * len(token), rc=4)
    apart.join(token)
    return apart.serve()


@pytest.fixture(scope='module')
def client(lab, cluster):
    client = lab.add(Guest, 'client', server_address=ADDRESS, networks={'lan': '192.0.2.9/24'})
    client.start()
    return client


@pytest.fixture(params=['rdma', pytest.param('tcp', marks=pytest.mark.long)])
def writer(cluster, client, request):
    """At work in a directory of its own."""
    cluster.wait_until_whole()
    for path, options in ((MINE, ''), (ALSO, ',nosharecache')):
        client.mount(f'/{SERVICE}/share', path, f'vers=4.1,proto={request.param},timeo=150{options}', PORTS[request.param],
                     timeout=300)
    client.run(f'mkdir {MINE}/{request.node.name}', timeout=300)
    yield Appender(client, f'{MINE}/{request.node.name}', f'{ALSO}/{request.node.name}')
    client.kill_commands()
    for path in (MINE, ALSO):
        client.run(f'umount -i {path}', timeout=300)


def test_the_cluster_is_whole(cluster):
    assert cluster.states() == {'n1': 'online', 'n2': 'online'}
    assert 'already' in json.loads(cluster.nodes[0].run('millrace cluster create --address 192.0.2.1 --pool tank --json',
                                                        rc=4))['error']['message']


def test_a_planned_move(cluster, writer, told):
    before = cluster.owner()
    before.run(f'millrace service move {SERVICE}', timeout=600)
    assert cluster.owner() is cluster.other(before)
    told(writer.check())


def test_a_server_that_is_killed(cluster, writer, told):
    owner = cluster.owner()
    pid = cluster.server_pid(owner)
    owner.run(f'kill -{signal.SIGKILL} {pid}')
    wait_until(lambda: (now := cluster.owner()) and (now is not owner or cluster.server_pid(now) != pid), 900,
               'another server', interval=2)
    told(writer.check())


def test_a_node_without_power(cluster, writer, told):
    owner = cluster.owner()
    owner.power_off()
    wait_until(lambda: cluster.owner() is cluster.other(owner), 900, 'the other node serves', interval=2)
    why = json.loads(cluster.other(owner).run('millrace node update /state/none --json', rc=4))['error']['message']
    assert f'{owner.name} is offline' in why
    told(writer.check())


def test_a_node_that_stands_still_and_goes_on(cluster, writer, told):
    """Its watchdog stands still too. It is told that it was fenced, and what it writes until then is not kept."""
    owner = cluster.owner()
    owner.pause()
    wait_until(lambda: cluster.owner() is cluster.other(owner), 900, 'the other node serves', interval=2)
    writer.more(20)
    owner.go_on()
    wait_until(lambda: not owner.is_on(), 300, 'it resets itself', interval=1)
    told(writer.check())


def test_a_node_leaves(cluster):
    """What it served goes on, and the one that is left has a quorum by itself."""
    cluster.wait_until_whole()
    leaving, left = cluster.nodes[1], cluster.nodes[0]
    leaving.run('millrace cluster leave', timeout=900)
    assert leaving.json('millrace cluster status', rc=3)['error']['code'] == 'not_found'
    wait_until(lambda: cluster.owner() is left, 900, 'the other node serves', interval=2)
    told = left.json('millrace cluster status')
    assert told['cluster']['quorum'] and [node['name'] for node in told['nodes']] == [left.name]
    assert left.run('millrace cluster leave --json', rc=4)

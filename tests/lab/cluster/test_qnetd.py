# SPDX-License-Identifier: LGPL-3.0-or-later
"""Two nodes, and a third machine with corosync-qnetd that decides between them."""

import json
import re

import pytest

from cluster import CLIENTS, Cluster
from guest import Guest
from harness.host import wait_until
from node import kernel_of

pytestmark = pytest.mark.long

HOST = '192.0.2.20'
THERE = '/etc/corosync/qnetd/nssdb'
CA, CERTIFICATE = '/state/qnetd-cacert.crt', '/state/cluster-millrace.crt'  # on a node


@pytest.fixture(scope='module')
def cluster(lab, image, key, public_key):
    cluster = Cluster(lab, public_key, image=image, key=key, kernel=kernel_of(image, lab.workdir))
    cluster.start().create_pool(drive.path for drive in cluster.nodes[0].drives)
    cluster.begin_clients()
    cluster.join(cluster.create())
    yield cluster.serve()
    cluster.remove()


@pytest.fixture(scope='module')
def arbiter(lab):
    arbiter = lab.add(Guest, 'arbiter', server_address=HOST, networks={CLIENTS: f'{HOST}/24'})
    arbiter.start()
    yield arbiter
    lab.remove(arbiter)


def begin(arbiter):
    arbiter.run('mkdir -p /run/corosync-qnetd && corosync-qnetd')


def carry(text, to, path):
    """A file whose content base64 has printed."""
    to.run(f'echo {text.strip()} | base64 -d >{path}')


def fetch(arbiter, name):
    return arbiter.run(f'base64 -w 0 {THERE}/{name}').stdout.decode()


def votes(node):
    found = re.search(r'Total votes: +(\d+)', node.attempt('corosync-quorumtool -s').stdout)
    return int(found[1]) if found else 0


def asked(cluster, node):
    """Which machine NODE asks, and whether both are connected."""
    told = (cluster.ask_node(node, 'cluster status') or {}).get('cluster', {})
    return told.get('qnetd'), told.get('qnetd_connected')


def is_asked(cluster):
    return all(asked(cluster, node) == (HOST, True) and votes(node) == 3 for node in cluster.nodes)


def wait_until_asked(cluster):
    wait_until(lambda: is_asked(cluster), 300, 'both ask it', interval=2)


def why(node, words, rc=4):
    return json.loads(node.run(f'millrace cluster qnetd {words} --json', rc, timeout=300))['error']['message']


def sign(node, arbiter):
    """NODE has a certificate then."""
    carry(fetch(arbiter, 'qnetd-cacert.crt'), node, CA)
    request = node.json(f'millrace cluster qnetd {HOST} --ca {CA}')['request']
    carry(node.run(f'base64 -w 0 {request}'), arbiter, '/tmp/request')
    arbiter.run('corosync-qnetd-certutil -s -c /tmp/request -n millrace')
    carry(fetch(arbiter, 'cluster-millrace.crt'), node, CERTIFICATE)


@pytest.fixture
def device(cluster, arbiter):
    """The machine, which both ask, also where tests before were not run."""
    node = cluster.nodes[0]
    if not is_asked(cluster):
        arbiter.run('pgrep corosync-qnetd >/dev/null || (mkdir -p /run/corosync-qnetd && corosync-qnetd)')
        told = node.attempt(f'millrace cluster qnetd {HOST} --json', 300).stdout
        if 'has signed no certificate' in told:
            sign(node, arbiter)
            node.run(f'millrace cluster qnetd {HOST} --certificate {CERTIFICATE}', timeout=300)
        wait_until_asked(cluster)
    return arbiter


def test_it_is_asked(cluster, arbiter):
    """When it has signed what the cluster asks with, and answers: before that nothing changes."""
    node = cluster.nodes[0]
    assert 'has no quorum device' in why(node, 'none')
    assert 'has signed no certificate' in why(node, HOST)
    sign(node, arbiter)
    assert 'does not answer' in why(node, f'{HOST} --certificate {CERTIFICATE}', rc=1)
    assert asked(cluster, node) == (None, None) and votes(node) == 2
    begin(arbiter)
    node.run(f'millrace cluster qnetd {HOST}', timeout=300)
    wait_until_asked(cluster)


def test_a_node_that_begins_anew(cluster, device):
    node = cluster.other(cluster.owner())
    node.run('systemctl stop pacemaker corosync', timeout=300)
    node.run('systemctl start pacemaker', timeout=300)
    wait_until_asked(cluster)


def test_it_dies_and_comes_back(cluster, device, work):
    """The nodes do not need it as long as they see each other."""
    device.run('pkill corosync-qnetd')
    wait_until(lambda: asked(cluster, cluster.nodes[0]) == (HOST, False), 120, 'it is missed', interval=2)
    work.more(50)
    assert all(node.json('millrace cluster status')['cluster']['quorum'] for node in cluster.nodes)
    work.check()
    begin(device)
    wait_until_asked(cluster)


def test_nodes_that_do_not_see_each_other(cluster, device, work):
    """It sees both. One goes on, the other is reset, and whichever has the vote serves."""
    for node in cluster.nodes:
        node.run('systemd-run --on-active=10 nft "add table inet parted; add chain inet parted from { type filter hook input '
                 'priority -10; }; add rule inet parted from udp dport 5405-5412 drop"')
    wait_until(lambda: not all(node.is_on() for node in cluster.nodes), 600, 'one is reset', interval=1)
    left = next(node for node in cluster.nodes if node.is_on())
    cluster.wait_for_owner(left)
    work.more(20)
    assert left.is_on() and left.json('millrace cluster status')['cluster']['quorum']
    left.run('nft delete table inet parted')
    work.check()
    cluster.wait_until_whole()
    wait_until_asked(cluster)


def test_a_node_that_starts_alone(cluster, device, work):
    """It serves: the other has no vote."""
    alone = cluster.nodes[1]
    for node in cluster.nodes:
        node.power_off()
    alone.start()
    cluster.wait_for_owner(alone)
    assert asked(cluster, alone) == (HOST, True)
    work.check()
    cluster.wait_until_whole()
    wait_until_asked(cluster)


def test_it_is_away_and_a_node_dies(cluster, device, work):
    """Who is left serves no more, until somebody says to have seen that the other is off."""
    owner = cluster.owner()
    other = cluster.other(owner)
    device.run('pkill corosync-qnetd')
    wait_until(lambda: asked(cluster, owner) == (HOST, False), 120, 'it is missed', interval=2)
    assert 'quorum device' in json.loads(owner.run('millrace node update /state/none --json', rc=4))['error']['message']
    other.power_off()
    wait_until(lambda: cluster.server_pid(owner) is None, 300, 'it stops', interval=2)
    owner.run(f'millrace cluster confirm-dead {other.name} --yes')
    cluster.wait_for_owner(owner)
    assert asked(cluster, owner) == (None, None)
    work.check()
    begin(device)
    other.start()
    wait_until(lambda: cluster.states().get(other.name) == 'online', 300, 'it is a member', interval=2)


def test_members_change(cluster, device):
    """Who is left alone asks nobody. When another has joined it may ask again, with what was signed before."""
    left, gone = cluster.nodes
    gone.run('millrace cluster leave', timeout=900)
    cluster.wait_for_owner(left)
    assert asked(cluster, left) == (None, None) and left.json('millrace cluster status')['cluster']['quorum']
    assert 'this cluster has 1' in why(left, HOST)
    cluster.join(left.json('millrace cluster token')['cluster']['token'])
    left.run(f'millrace cluster qnetd {HOST}', timeout=300)
    wait_until_asked(cluster)


def test_it_is_asked_no_more(cluster, device):
    cluster.nodes[1].run('millrace cluster qnetd none', timeout=300)
    assert all(asked(cluster, node) == (None, None) for node in cluster.nodes)
    wait_until(lambda: [votes(node) for node in cluster.nodes] == [2, 2], 60, 'it has no vote')
    assert 'two_node: 1' in cluster.nodes[0].run('cat /etc/corosync/corosync.conf')

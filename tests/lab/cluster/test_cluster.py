# SPDX-License-Identifier: LGPL-3.0-or-later
"""Two nodes of the appliance, made a cluster by its own commands, while clients with a stock kernel are at work over
RDMA and TCP: what is acknowledged is kept, locks are kept, and they go on by themselves."""

import json
import signal
import time

import pytest

from cluster import ADDRESS, CLIENTS, CORE, MINE, PORTS, SERVICE, Cluster
from guest import Guest
from harness.host import wait_until
from node import kernel_of


@pytest.fixture(scope='module')
def apart(lab, image, key, public_key):
    """Two nodes that see the same pool."""
    cluster = Cluster(lab, public_key, image=image, key=key, kernel=kernel_of(image, lab.workdir))
    cluster.start().create_pool(drive.path for drive in cluster.nodes[0].drives)
    yield cluster
    cluster.remove()


@pytest.fixture(scope='module')
def cluster(apart):
    apart.begin_clients()
    token = apart.create()
    assert 'does not answer to this token' in apart.join('a' * len(token), rc=4)
    apart.join(token)
    return apart.serve()


def signal_server(cluster, work, number):
    owner, pid = cluster.serving()
    with work.cut_off():
        owner.run(f'kill -{number} {pid}')
    cluster.wait_for_another_server(owner, pid)


def kill_server(cluster, work):
    signal_server(cluster, work, signal.SIGKILL)


def cut_power(cluster, work):
    owner = cluster.owner()
    with work.cut_off():
        owner.power_off()
    cluster.wait_for_owner(cluster.other(owner))


def move(cluster, work):
    cluster.owner().run(f'millrace service move {SERVICE}', timeout=600)


def test_the_cluster_is_whole(cluster):
    assert cluster.states() == {'n1': 'online', 'n2': 'online'}
    assert 'already' in json.loads(cluster.nodes[0].run('millrace cluster create --address 192.0.2.1 --pool tank --json',
                                                        rc=4))['error']['message']


def test_a_planned_move(cluster, work):
    before = cluster.owner()
    move(cluster, work)
    assert cluster.owner() is cluster.other(before)
    work.check()


def test_a_node_without_power(cluster, work):
    """Who reads a dataset at the other node does not notice."""
    owner = cluster.owner()
    work.read_at(cluster.other(owner))
    cut_power(cluster, work)
    why = json.loads(cluster.other(owner).run('millrace node update /state/none --json', rc=4))['error']['message']
    assert f'{owner.name} is offline' in why
    work.check()


@pytest.mark.one_node
def test_a_server_that_is_killed(cluster, work):
    kill_server(cluster, work)
    work.check()


def test_a_node_that_stands_still_and_goes_on(cluster, work):
    """Its watchdog stands still too. It is told that it was fenced, and what it writes until then is not kept."""
    owner = cluster.owner()
    with work.cut_off():
        owner.pause()
    cluster.wait_for_owner(cluster.other(owner))
    work.more(20)
    owner.go_on()
    wait_until(lambda: not owner.is_on(), 300, 'it resets itself', interval=1)
    work.check()


# --- more events, with --all ----------------------------------------------------------------------------

@pytest.mark.long
def test_a_server_that_stands_still(cluster, work):
    """Its monitor's time passes."""
    signal_server(cluster, work, signal.SIGSTOP)
    work.check()


@pytest.mark.long
def test_a_kernel_that_panics(cluster, work):
    owner = cluster.owner()
    with work.cut_off():
        owner.run('systemd-run --on-active=1 sh -c "echo c >/proc/sysrq-trigger"')
    cluster.wait_for_owner(cluster.other(owner))
    work.check()


def boot_of(node):
    return node.run('cat /proc/sys/kernel/random/boot_id')


@pytest.mark.long
def test_one_of_two_networks_between_the_nodes(cluster, work):
    """They have another: each is cut, the clients' too, whose service goes with it."""
    owner = cluster.owner()
    boots = {node: boot_of(node) for node in cluster.nodes}
    assert owner.run('corosync-cfgtool -s').split().count('connected') == 2
    owner.cut(CORE)
    wait_until(lambda: 'disconnected' in owner.run('corosync-cfgtool -s'), 120, 'the cable is missed')
    work.more(50)
    assert cluster.owner() is owner
    owner.join(CORE)
    wait_until(lambda: 'disconnected' not in owner.run('corosync-cfgtool -s'), 120, 'the cable is back')
    with cluster.spoiling(owner):  # rxe may not outlive a pulled cable (soft.py)
        with work.cut_off():
            owner.cut(CLIENTS)
        cluster.wait_for_owner(cluster.other(owner))
        work.check()
        assert boots == {node: boot_of(node) for node in cluster.nodes}


@pytest.mark.long
def test_nodes_that_do_not_see_each_other(cluster, work):
    """The one that serves goes on, and the other is fenced."""
    owner = cluster.owner()
    other = cluster.other(owner)
    with cluster.spoiling(other):
        for network in (CORE, CLIENTS):
            other.cut(network)
        wait_until(lambda: not other.is_on() or not owner.is_on(), 600, 'one of them resets itself', interval=1)
        assert owner.is_on() and cluster.owner() is owner
        work.check()


@pytest.mark.long
def test_the_storage_path_is_cut(cluster, work):
    """The node that serves sees no drive any more."""
    owner = cluster.owner()
    with cluster.spoiling(owner):
        with work.cut_off():
            owner.pull_drives([drive.number for drive in owner.drives])
        cluster.wait_for_owner(cluster.other(owner))
        work.check()


@pytest.mark.long
def test_a_drive_is_lost_meanwhile(cluster, work):
    owner = cluster.owner()
    other = cluster.other(owner)
    try:
        with work.cut_off():
            owner.power_off()
            other.pull_drive(5)
        cluster.wait_for_owner(other)
        work.check()
    finally:
        other.put_drive(5)


@pytest.mark.long
def test_moved_back_at_once(cluster, work):
    owner = cluster.owner()
    for node in (cluster.other(owner), owner):
        move(cluster, work)
        assert cluster.owner() is node
    work.check()


@pytest.mark.long
def test_both_nodes_at_once(cluster, work):
    for node in cluster.nodes:
        node.power_off()
    for node in cluster.nodes:
        node.power_on()
    cluster.wait_until_whole()
    work.check()


@pytest.mark.long
def test_a_node_that_starts_alone(cluster, work):
    """It serves when somebody says to have seen that the other is off, and not before."""
    alone, off = cluster.nodes
    for node in cluster.nodes:
        node.power_off()
    alone.start()
    wait_until(lambda: 'has no quorum' in alone.attempt('millrace cluster leave --json').stdout, 300, 'it is a member')
    time.sleep(60)
    assert not alone.json('millrace cluster status')['cluster']['quorum'] and not cluster.owner()
    assert 'has seen' in alone.run(f'millrace cluster confirm-dead {off.name} --json', rc=4)
    alone.run(f'millrace cluster confirm-dead {off.name} --yes')
    cluster.wait_for_owner(alone)
    work.check()


@pytest.mark.long
def test_a_clock_that_is_an_hour_behind(cluster, work):
    owner = cluster.owner()
    other = cluster.other(owner)
    with cluster.spoiling(other):
        other.run('systemctl stop chrony; date --set="1 hour ago"')
        with work.cut_off():
            owner.power_off()
        cluster.wait_for_owner(other)
        work.check()


@pytest.fixture
def dying(lab, cluster):
    """A client that holds a lock."""
    dying = lab.add(Guest, 'dying', server_address=ADDRESS, networks={CLIENTS: '192.0.2.11/24'})
    dying.start()
    dying.mount(f'/{SERVICE}/share', MINE, 'vers=4.1,proto=tcp', PORTS['tcp'], timeout=300)
    held = dying.spawn(f'exec 9>{MINE}/dying && flock 9 && echo held && sleep 1000')
    held.wait_for_lines(1, 300)
    yield dying
    lab.remove(dying)


@pytest.mark.long
def test_a_client_that_dies_in_grace(cluster, clients, work, dying):
    """It is waited for, and nobody has what it had locked before grace is over."""
    owner, pid = cluster.serving()
    owner.run(f'kill -{signal.SIGKILL} {pid}')
    dying.power_off()
    cluster.wait_for_another_server(owner, pid)
    clients['rdma'].run(f'flock {MINE}/dying true', timeout=300)
    assert not cluster.owner().json(f'millrace service end-grace {SERVICE}')['grace_ended']  # it was over
    work.check()


@pytest.mark.long
def test_a_node_is_drained_and_resumed(cluster, work):
    owner = cluster.owner()
    owner.run('millrace node drain', timeout=900)
    assert cluster.owner() is cluster.other(owner) and cluster.states()[owner.name] == 'drained'
    work.check()
    owner.run('millrace node resume', timeout=900)


def processes(node):
    """Of servers, and of agents that watch one."""
    return [int(count) for count in node.run('pgrep -c -x ganesha.nfsd; pgrep -c -x tail; true').split()]


@pytest.mark.long
def test_twenty_failovers(cluster, work):
    """One after the other, all of the same work."""
    kinds = (('a server that is killed', kill_server), ('a node without power', cut_power), ('a planned move', move))
    for number in range(20):
        event, cause = kinds[number % 3]
        cause(cluster, work)
        work.more(20)
        work.look(event)
        cluster.wait_until_whole()
    work.check()
    owner = cluster.owner()
    wait_until(lambda: processes(owner) == [2, 2] and processes(cluster.other(owner)) == [1, 1], 60, 'nothing is left behind')


# --- members go -----------------------------------------------------------------------------------------

@pytest.mark.long
def test_a_node_is_gone_for_good(cluster, work):
    """It is taken out, and the other has a quorum by itself. When it is there after all it may forget the cluster, and join
    it anew."""
    left, gone = cluster.nodes
    gone.power_off()
    assert 'is fenced first' in left.run(f'millrace cluster remove {gone.name} --yes --json', rc=4)
    wait_until(lambda: cluster.states()[gone.name] == 'offline', 300, 'it is fenced', interval=2)
    cluster.wait_for_owner(left)
    left.run(f'millrace cluster remove {gone.name} --json', rc=4)
    left.run(f'millrace cluster remove {gone.name} --yes', timeout=300)
    assert cluster.states() == {left.name: 'online'}
    work.more(20)
    gone.start()
    wait_until(lambda: 'has no quorum' in gone.attempt('millrace cluster leave --json').stdout, 300, 'it does not know yet')
    gone.run('millrace cluster leave --yes', timeout=300)
    cluster.join(left.json('millrace cluster token')['cluster']['token'])
    work.check()


@pytest.mark.long
def test_a_node_leaves(cluster):
    """What it served goes on, and the one that is left has a quorum by itself. It has one of its networks left to say so."""
    cluster.wait_until_whole()
    leaving, left = cluster.nodes[1], cluster.nodes[0]
    leaving.cut(CLIENTS)
    cluster.wait_for_owner(left)
    leaving.run('millrace cluster leave', timeout=900)
    assert leaving.json('millrace cluster status', rc=3)['error']['code'] == 'not-found'
    cluster.wait_for_owner(left)
    told = left.json('millrace cluster status')
    assert told['cluster']['quorum'] and [node['name'] for node in told['nodes']] == [left.name]
    assert left.run('millrace cluster leave --json', rc=4)

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Three nodes of the appliance with three drives each, more than parity, which they see of each other over NVMe-oF: one pool,
of which any node may be lost with its drives, and another one when it is back. Clients are at work meanwhile, as in
test_cluster.py."""

import contextlib
import signal
import time

import pytest

from cluster import CLIENTS, CORE, POOL, SERVICE, OwnDrives
from grace import dies_in_grace
from harness.host import wait_until
from node import kernel_of

pytestmark = pytest.mark.long


@pytest.fixture(scope='module', params=['tcp', 'rdma'])
def fabric(request):
    """Over which nodes see each other's drives."""
    return request.param


@pytest.fixture(scope='module')
def cluster(lab, image, key, public_key, fabric):
    cluster = OwnDrives(lab, public_key, fabric, image=image, key=key, kernel=kernel_of(image, lab.workdir))
    cluster.start()
    cluster.begin_clients()
    token = cluster.create()
    cluster.join_all(token)
    cluster.wait_for_drives()
    cluster.create_pool()
    yield cluster.serve()
    cluster.remove()


def wait_until_whole(cluster):
    """All nodes are there, and their drives are whole and read by all; nobody has said so."""
    cluster.wait_until_whole()
    cluster.wait_until_devices_are_whole()
    wait_until(lambda: cluster.not_whole() == 0, 120, 'the cluster knows it', interval=5)
    owner = cluster.owner()
    assert owner.json(f'millrace pool status {POOL}')['pool']['domain_may_die']  # what was written without a node, too
    for node in (node for node in cluster.nodes if node is not owner):
        wait_until(lambda: set(cluster.readers_see(node)) == {'active'}, 120, f'the reader at {node.name} has them', interval=5)


def domains_away(cluster):
    return {device['domain'] for device in cluster.devices() if device['state'] != 'active'}


def test_a_node_is_a_domain(cluster):
    assert cluster.states() == {'n1': 'online', 'n2': 'online', 'n3': 'online'}
    for node in cluster.nodes:  # two others, two paths: keep-alive, fast_io_fail, reconnect, ctrl-loss
        times = node.run('cd /sys/class/nvme && for each in nvme*; do [ ! -e $each/fast_io_fail_tmo ] || '
                         'echo $(cat $each/kato $each/fast_io_fail_tmo $each/reconnect_delay $each/ctrl_loss_tmo); done')
        assert times.splitlines() == ['5 5 2 off'] * 4
    assert sorted(device['domain'] for device in cluster.devices()) == sorted(['n1', 'n2', 'n3'] * cluster.EACH)
    assert cluster.owner().json(f'millrace pool status {POOL}')['pool']['domain_may_die']
    node = cluster.nodes[0]
    assert "another node's" in node.run(f"millrace cluster export {cluster.drives(node)['n2'][0][0]} --json", rc=4)
    assert 'are one drive' in node.run(f'millrace cluster export {node.drives[0].path} $(realpath {node.drives[0].path}) --json', rc=2)
    node.run(f'millrace cluster export $(realpath {node.drives[0].path})')  # which it has
    assert len(cluster.drives(node)['n1']) == cluster.EACH


def test_nobody_else_is_let_in(cluster):
    """Neither who knows a member's name but not how it calls itself, nor who knows both and not the secret."""
    node, other = cluster.nodes[:2]
    address = cluster.address_of(other)
    known = node.run(f"cd /sys/class/nvme && grep -l traddr={address}, */address | head -n 1 | xargs dirname | "
                     "xargs -I DIR cat DIR/subsysnqn DIR/hostnqn DIR/hostid").split()
    stranger = '00000000-0000-4000-8000-000000000000'
    hosts = (f'hostnqn=nqn.2014-08.org.nvmexpress:uuid:{stranger},hostid={stranger}',
             'hostnqn={},hostid={},duplicate_connect'.format(*known[1:]))
    for host in hosts:  # not by nvme-cli, which knows where the kernel has the secret
        node.run(f'! echo transport={cluster.transport},traddr={address},trsvcid=4420,nqn={known[0]},{host} >/dev/nvme-fabrics')
    assert 'no key' in node.run('dmesg | tail -n 20')


def test_a_planned_move(cluster, work):
    before = cluster.owner()
    work.read_at(cluster.other(before))
    before.run(f'millrace service move {SERVICE}', timeout=600)
    assert cluster.owner() not in (None, before)
    work.check()
    assert not domains_away(cluster)


def signal_server(cluster, work, number):
    """Who reads is at the same node. No drive is missed."""
    owner, pid = cluster.serving()
    work.read_at(owner)
    with work.cut_off():
        owner.run(f'kill -{number} {pid}')
    cluster.wait_for_another_server(owner, pid)
    work.check()
    assert not domains_away(cluster)


def test_a_server_that_is_killed(cluster, work):
    signal_server(cluster, work, signal.SIGKILL)


def test_a_server_that_stands_still(cluster, work):
    """Its monitor's time passes."""
    signal_server(cluster, work, signal.SIGSTOP)


def test_moved_back_at_once(cluster, work):
    owner = cluster.owner()
    other = cluster.other(owner)
    work.read_at(next(node for node in cluster.nodes if node not in (owner, other)))
    for node in (other, owner):
        cluster.owner().run(f'millrace service move {SERVICE} {node.name}', timeout=600)
        assert cluster.owner() is node
    work.check()
    assert not domains_away(cluster)


def test_all_nodes_at_once(cluster, work):
    """Nobody has the pool before most of them see each other, and each other's drives."""
    for node in cluster.nodes:
        node.power_off()
    for node in cluster.nodes:
        node.power_on()
    wait_until_whole(cluster)
    work.check()


def test_the_node_that_serves_dies(cluster, work):
    """The pool goes on without its drives; who reads a dataset at another node has no error. When it is there again they
    are taken back."""
    owner = cluster.owner()
    work.read_at(cluster.other(owner))
    with work.cut_off():
        owner.power_off()
    wait_until(lambda: cluster.owner() not in (None, owner), 900, 'another serves', interval=2)
    work.check()
    assert domains_away(cluster) == {owner.name}
    wait_until(lambda: cluster.not_whole() == cluster.EACH, 120, 'the cluster knows of its devices', interval=5)
    wait_until_whole(cluster)


def test_a_kernel_that_panics(cluster, work):
    owner = cluster.owner()
    work.read_at(cluster.other(owner))
    with work.cut_off():
        owner.run('systemd-run --on-active=1 sh -c "echo c >/proc/sysrq-trigger"')
    wait_until(lambda: cluster.owner() not in (None, owner), 900, 'another serves', interval=2)
    work.check()
    wait_until_whole(cluster)


def test_clocks_that_are_an_hour_behind(cluster, work):
    """Those of all who go on."""
    owner = cluster.owner()
    others = [node for node in cluster.nodes if node is not owner]
    with contextlib.ExitStack() as spoilt:
        for node in others:
            spoilt.enter_context(cluster.spoiling(node))
            node.run('systemctl stop chrony; date --set="1 hour ago"')
        work.read_at(others[0])
        with work.cut_off():
            owner.power_off()
        wait_until(lambda: cluster.owner() in others, 900, 'another serves', interval=2)
        work.check()
    wait_until_whole(cluster)


def test_another_node_dies(cluster, work):
    """Its drives are missed, and no more."""
    owner = cluster.owner()
    other = cluster.other(owner)
    work.read_at(next(node for node in cluster.nodes if node not in (owner, other)))
    other.power_off()
    wait_until(lambda: domains_away(cluster) == {other.name}, 600, 'its drives are dropped', interval=2)
    work.more(50)
    assert cluster.owner() is owner
    work.check()
    wait_until_whole(cluster)


def test_a_node_without_network_is_reset(cluster, work):
    """By its own watchdog: it has lost the others, and they cannot tell it anything."""
    owner = cluster.owner()
    other = cluster.other(owner)
    work.read_at(owner)
    with cluster.spoiling(other):
        for network in (CORE, CLIENTS):
            other.cut(network)
        wait_until(lambda: not other.is_on(), 600, 'it resets itself', interval=1)
        assert owner.is_on() and cluster.owner() is owner
        work.more(50)
        work.check()
    wait_until_whole(cluster)


def test_a_node_whose_messages_are_lost(cluster, work):
    """No cable is out. Its watchdog resets it, as it has lost the others."""
    owner = cluster.owner()
    other = cluster.other(owner)
    work.read_at(owner)
    other.run('nft insert rule inet millrace input udp dport 5405-5412 drop')
    wait_until(lambda: not all(node.is_on() for node in cluster.nodes), 600, 'one is reset', interval=1)
    assert not other.is_on() and cluster.owner() is owner
    work.more(50)
    work.check()
    wait_until_whole(cluster)


def test_the_node_that_serves_has_all_its_cables_out(cluster, work):
    """It has lost the others, and is reset by its own watchdog; they go on without its drives."""
    owner = cluster.owner()
    work.read_at(cluster.other(owner))
    with cluster.spoiling(owner):
        with work.cut_off():
            for network in (CORE, CLIENTS):
                owner.cut(network)
        wait_until(lambda: cluster.owner() not in (None, owner), 900, 'another serves', interval=2)
        wait_until(lambda: not owner.is_on(), 300, 'it resets itself', interval=1)
        work.check()
    wait_until_whole(cluster)


def test_the_node_that_serves_stands_still_and_goes_on(cluster, work):
    """For a minute at least, and its watchdog too; nobody can tell it that it was fenced. Who serves by then is left alone."""
    owner = cluster.owner()
    work.read_at(cluster.other(owner))
    with work.cut_off():
        owner.pause()
    end = time.monotonic() + 60
    wait_until(lambda: cluster.owner() not in (None, owner), 900, 'another serves', interval=2)
    after, pid = cluster.serving()
    work.more(20)
    time.sleep(max(0, end - time.monotonic()))
    owner.go_on()
    wait_until(lambda: not owner.is_on(), 300, 'it resets itself', interval=1)
    work.check()
    assert cluster.owner() is after, cluster.said
    assert cluster.server_pid(after) == pid
    wait_until_whole(cluster)


def live_paths(node):
    """To others' drives, by what the kernel says: `cluster status` takes seconds of a processor that clients are waiting for."""
    return int(node.run("cd /sys/class/nvme; grep -l '^live$' $(grep -lE 'tcp|rdma' */transport | sed s/transport/state/) | wc -l"))


def test_a_network_is_cut(cluster, work):
    """Drives are reached over the other, and so when the owner has found out."""
    owner = cluster.owner()
    work.read_at(cluster.other(owner))
    assert live_paths(owner) == 4
    with cluster.spoiling(owner):  # rxe may not outlive a pulled cable (soft.py)
        owner.cut(CORE)
        wait_until(lambda: live_paths(owner) == 2, 120, 'it has one path to each of the others', interval=2)
        work.more(100)
        assert cluster.owner() is owner and not domains_away(cluster)
        work.check()


def test_the_network_of_clients_is_cut(cluster, work):
    """At the node that serves: the service goes where clients reach it, and nobody is reset."""
    owner = cluster.owner()
    boots = [node.run('cat /proc/sys/kernel/random/boot_id') for node in cluster.nodes]
    work.read_at(cluster.other(owner))
    with cluster.spoiling(owner):  # as above
        with work.cut_off():
            owner.cut(CLIENTS)
        wait_until(lambda: cluster.owner() not in (None, owner), 900, 'another serves', interval=2)
        work.check()
        assert boots == [node.run('cat /proc/sys/kernel/random/boot_id') for node in cluster.nodes]
    wait_until_whole(cluster)


def test_a_drive_is_lost_while_another_node_takes_over(cluster, work):
    """One of a third node's."""
    owner = cluster.owner()
    third, other = (node for node in cluster.nodes if node is not owner)
    work.read_at(third)
    with work.cut_off():
        third.pull_drive(0)
        owner.run(f'millrace service move {SERVICE} {other.name}', timeout=600)
    assert cluster.owner() is other
    work.check()
    wait_until(lambda: domains_away(cluster) == {third.name}, 120, 'it is dropped', interval=2)
    third.put_drive(0)
    wait_until_whole(cluster)


def test_a_client_that_dies_in_grace(cluster, clients, work, dying):
    dies_in_grace(cluster, clients, work, dying)


def test_a_drive_is_pulled_and_put_back(cluster, work):
    """Of a node that does not serve: it is missed and found through that node. Until it is whole no node is updated."""
    wait_until_whole(cluster)
    owner = cluster.owner()
    other = cluster.other(owner)
    work.read_at(owner)
    other.pull_drive(0)
    wait_until(lambda: domains_away(cluster) == {other.name}, 600, 'it is dropped', interval=2)
    wait_until(lambda: cluster.not_whole() == 1, 120, 'the cluster knows of it', interval=5)
    for verb in ('node update /state/none', 'cluster leave --yes'):
        assert 'not whole' in owner.run(f'millrace {verb} --json', rc=4)
    other.put_drive(0)
    work.check()
    wait_until_whole(cluster)


def test_who_was_removed_is_connected_no_more(cluster):
    """Though it runs."""
    wait_until_whole(cluster)
    owner = cluster.owner()
    gone = cluster.other(owner)

    def is_connected():
        """Those that are made anew, and refused, come and go."""
        return gone.run("cd /sys/class/nvme; for name in *; do paste -d ' ' $name/transport $name/state; done 2>&1 | "
                        "grep '^[^p].* live$' || true")

    def wait_for_state(state):
        wait_until(lambda: cluster.states().get(gone.name) == state, 300, f'{gone.name} is {state}', interval=2)

    gone.run('systemctl stop pacemaker corosync', timeout=300)
    wait_for_state('offline')
    gone.run('systemctl start corosync', timeout=300)  # as while it boots: sbd does not miss a pacemaker that has not been there
    wait_for_state('starting')
    assert 'is starting' in owner.run(f'millrace cluster remove {gone.name} --yes --json', rc=4)
    gone.run('systemctl stop corosync', timeout=300)
    wait_for_state('offline')
    assert is_connected()
    owner.run(f'millrace cluster remove {gone.name} --yes', timeout=300)
    wait_until(lambda: not is_connected(), 120, 'its connections end', interval=2)
    assert cluster.owner() is owner
    wait_until(lambda: domains_away(cluster) == {gone.name}, 600, 'the others have their drives', interval=2)
    assert 'pacemaker does not run' in gone.run('millrace cluster leave --json', rc=4)
    gone.run('millrace cluster leave --yes', timeout=300)
    assert gone.json('millrace cluster status', rc=3)['error']['code'] == 'not-found'

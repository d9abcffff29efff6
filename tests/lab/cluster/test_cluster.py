# SPDX-License-Identifier: LGPL-3.0-or-later
"""Two nodes of the appliance, made a cluster by its own commands, while clients with a stock kernel are at work over
RDMA and TCP: what is acknowledged is kept, locks are kept, and they go on by themselves."""

import contextlib
import json
import os
import re
import signal
import time

import pytest

from cluster import ACT_TIMEOUT, CLIENTS, CORE, MINE, POOL, PORTS, SERVICE, SET_BYTES, WATCHDOG, Cluster
from grace import dies_in_grace
from harness.host import Timeout, wait_until
from machine import ROOT
from node import kernel_of
from work import MOUNT_TIMEOUT


LOG = f'/var/lib/millrace/log/{POOL}.log'
GROWN = 16 << 20  # bytes that a process may have more of behind 17 failovers
MESSAGES = 'inet millrace input udp dport 5405-5412'  # corosync's


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


def read_elsewhere(cluster, work):
    """A dataset at the node that does not serve."""
    work.read_at(cluster.other(cluster.owner()))


def test_the_cluster_is_whole(cluster, record_property):
    record_property('set-up', round(cluster.set_up_seconds))
    assert cluster.set_up_seconds < 15 * 60
    for node in cluster.nodes:
        assert node.run('stat -c %a /etc/corosync/authkey /etc/millrace/cluster').split() == ['400', '600']
    assert cluster.states() == {'n1': 'online', 'n2': 'online'}
    for transport, port in PORTS.items():
        for volume, address in ((f'{POOL}/share', cluster.address), (f'{POOL}/set', cluster.address_of(cluster.nodes[1]))):
            told = cluster.nodes[0].json(f'millrace client mount-command {volume} --proto {transport} --rank 1')['mount']
            assert told['address'] == address and told['path'] == f'/{volume}'
            assert set(told['options'].split(',')) - {'ro'} == {*cluster.mount_options(transport).split(','), f'port={port}'}
    assert 'already' in json.loads(cluster.nodes[0].run('millrace cluster create --address 192.0.2.1 --pool tank --json',
                                                        rc=4))['error']['message']


def test_a_planned_move(cluster, work):
    """Who reads a dataset at the node that is moved to, or at any that goes on, does not notice: nor below."""
    before = cluster.owner()
    read_elsewhere(cluster, work)
    move(cluster, work)
    owner = cluster.owner()
    assert owner is cluster.other(before)
    work.check()
    assert owner.run(f"grep -o 'RDMA is served\\|the network is told' {LOG}").splitlines()[-2:] == \
        ['RDMA is served', 'the network is told']


def test_a_node_without_power(cluster, work):
    owner = cluster.owner()
    read_elsewhere(cluster, work)
    cut_power(cluster, work)
    why = json.loads(cluster.other(owner).run('millrace node update /state/none --json', rc=4))['error']['message']
    assert f'{owner.name} is offline' in why
    work.check()


@pytest.mark.one_node
def test_a_server_that_is_killed(cluster, work):
    work.read_at(cluster.owner())
    kill_server(cluster, work)
    work.check()


def renewals(node):
    """How often its servers have had clients over RDMA connect anew, as another node was back."""
    return int(node.run(f"grep -c 'clients over RDMA are to connect anew' {LOG}; true"))


def test_a_node_that_stands_still_and_goes_on(cluster, clients, work):
    """For a minute at least, and its watchdog too. It is told that it was fenced, and what it writes until then is not kept. Clients
    over RDMA, which may have heard both, connect anew when it has ended its server, or has booted."""
    owner = cluster.owner()
    read_elsewhere(cluster, work)
    with work.cut_off():
        owner.pause()
    end = time.monotonic() + 60
    cluster.wait_for_owner(cluster.other(owner))
    work.more(20)
    time.sleep(max(0, end - time.monotonic()))
    before, told = clients['rdma'].connections_made(), renewals(cluster.other(owner))
    owner.go_on()
    wait_until(lambda: not owner.is_on(), 300, 'it resets itself', interval=1)
    work.check()
    cluster.start_again()
    wait_until(lambda: renewals(cluster.other(owner)) > told, 300, 'its node hears that it is back', interval=2)

    def connects_anew():
        clients['rdma'].run(f'date >{MINE}/back', timeout=MOUNT_TIMEOUT)  # one that asks for nothing has no need to
        return clients['rdma'].connections_made() != before

    wait_until(connects_anew, 30, 'the client connects anew')


# --- more events, with --all ----------------------------------------------------------------------------

@pytest.mark.long
def test_a_server_that_stands_still(cluster, work):
    """Its monitor's time passes. Until that is forgotten the other node is not updated."""
    owner = cluster.owner()
    work.read_at(owner)
    signal_server(cluster, work, signal.SIGSTOP)
    why = json.loads(cluster.other(owner).run('millrace node update /state/none --json', rc=4))['error']['message']
    assert f'on {owner.name} failed tank-server' in why
    work.check()


@pytest.mark.long
def test_the_other_node_without_power(cluster, work):
    """The one that serves fences it, and goes on."""
    owner = cluster.owner()
    other = cluster.other(owner)
    work.read_at(owner)
    other.power_off()
    wait_until(lambda: cluster.states()[other.name] == 'offline', 300, 'it is fenced', interval=2)
    assert cluster.owner() is owner
    work.more(20)
    work.check()


@pytest.mark.long
def test_a_kernel_that_panics(cluster, work):
    owner = cluster.owner()
    read_elsewhere(cluster, work)
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
    read_elsewhere(cluster, work)
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
    work.read_at(owner)
    with cluster.spoiling(other):
        for network in (CORE, CLIENTS):
            other.cut(network)
        wait_until(lambda: not other.is_on() or not owner.is_on(), 600, 'one of them resets itself', interval=1)
        assert owner.is_on() and cluster.owner() is owner
        work.check()


@pytest.mark.long
def test_nodes_whose_messages_are_lost(cluster, work):
    """Neither has a cable out: each would fence the other, and the one that serves is the first."""
    owner = cluster.owner()
    other = cluster.other(owner)
    work.read_at(owner)
    for node in cluster.nodes:
        node.run(f'nft insert rule {MESSAGES} drop')
    try:
        wait_until(lambda: not other.is_on() or not owner.is_on(), 600, 'one of them is reset', interval=1)
    finally:
        owner.run('systemctl reload nftables')
    assert owner.is_on() and cluster.owner() is owner
    work.check()


@pytest.mark.long
def test_the_node_that_serves_has_all_its_cables_out(cluster, work):
    """The other one fences it, over the drives, before it may do that itself."""
    owner = cluster.owner()
    other = cluster.other(owner)
    read_elsewhere(cluster, work)
    with cluster.spoiling(owner):
        with work.cut_off():
            for network in (CORE, CLIENTS):
                owner.cut(network)
        cluster.wait_for_owner(other)
        assert other.is_on()
        wait_until(lambda: not owner.is_on(), 300, 'it is reset', interval=1)
        work.check()


@pytest.mark.long
def test_the_storage_path_is_cut(cluster, work):
    """The node that serves sees no drive any more."""
    owner = cluster.owner()
    read_elsewhere(cluster, work)
    with cluster.spoiling(owner):
        with work.cut_off():
            owner.pull_drives([drive.number for drive in owner.drives])
        cluster.wait_for_owner(cluster.other(owner))
        work.check()


@pytest.mark.long
def test_the_other_node_sees_no_drive(cluster, work):
    """The service goes on. That node could not take it over, which the cluster says, and the one that serves is not updated."""
    owner = cluster.owner()
    other = cluster.other(owner)
    work.read_at(owner)

    def failed():
        return next(node['failed'] for node in owner.json('millrace cluster status')['nodes'] if node['name'] == other.name)

    assert failed() == []
    with cluster.spoiling(other):
        other.pull_drives([drive.number for drive in other.drives])
        wait_until(lambda: f'{POOL}-reader' in failed(), 300, 'its reader has ended', interval=5)
        why = json.loads(owner.run('millrace node update /state/none --json', rc=4))['error']['message']
        assert f'on {other.name} failed {POOL}-reader' in why
        work.more(20)
        assert cluster.owner() is owner and other.is_on()
        work.check()


def not_whole(cluster):
    return [device['id'] for device in cluster.devices() if not device['whole']]


@pytest.mark.long
@pytest.mark.parametrize('drive', [5, 0])  # by 0 they fence, as by 1 and 2
def test_a_drive_is_lost_meanwhile(cluster, work, drive):
    """It is missed, and taken back when it is there again and the node without power, which may have written more to it, has booted."""
    owner = cluster.owner()
    other = cluster.other(owner)
    read_elsewhere(cluster, work)
    try:
        with work.cut_off():
            owner.power_off()
            other.pull_drive(drive)
        cluster.wait_for_owner(other)
        work.check()
        assert not_whole(cluster) == [drive]
    finally:
        other.put_drive(drive)
    cluster.wait_until_whole()
    assert not_whole(cluster) == []


def may_write(cluster):
    """Earlier owners that may, by what the server knows."""
    return cluster.owner().json(f'millrace serve {POOL} --probe')['probe']['may_write']


def read_drive(cluster, node):
    """One that the reader at NODE reads all the time, and by which nobody is fenced."""
    def read_bytes():
        devices = node.json(f'millrace pool iostat {POOL} --run-dir /run/millrace/reader')['devices']
        return {device['id']: device['read_bytes'] for device in devices if device['id'] > 2}

    def grown():
        return [number for number, count in read_bytes().items() if count - before[number] >= 2 * SET_BYTES // 4]

    before = read_bytes()
    return wait_until(grown, 120, 'data are read', interval=2)[0]


@contextlib.contextmanager
def hanging(node, number):
    """In this, drive NUMBER hangs at NODE, and Linux does not give it up: else it resets the drive after a minute, which stops all of QEMU
    until that has answered."""
    times = f'/sys/block/$(basename $(readlink -f {node.drives[number].path}))/queue/io_timeout'
    before = node.run(f'cat {times} && echo {1000 * ACT_TIMEOUT} >{times}')
    node.hang_drive(number)
    try:
        yield
    finally:
        node.let_drive_answer(number)
        node.run(f'echo {before.strip()} >{times}')


@pytest.mark.long
def test_a_drive_that_hangs(cluster, work):
    """At the node that serves: what its reader serves goes on, rebuilt from others, and it is moved away from there without anybody
    being fenced. Nobody knows what of its writes comes later, until that node has the pool again."""
    owner = cluster.owner()
    boots = {node: boot_of(node) for node in cluster.nodes}
    work.read_at(owner)
    drive = read_drive(cluster, owner)
    late = cluster.late_reads(owner, drive)
    with hanging(owner, drive):
        with work.cut_off():
            move(cluster, work)
        assert cluster.owner() is cluster.other(owner) and may_write(cluster) == 1
        work.check()
        assert cluster.late_reads(owner, drive) > late
        assert boots == {node: boot_of(node) for node in cluster.nodes}
    assert cluster.owner().json(f'millrace pool check {POOL}')['check']['bad_blocks'] == 0
    move(cluster, work)
    assert cluster.owner() is owner and may_write(cluster) == 0


@pytest.mark.long
def test_a_server_that_is_killed_while_a_drive_hangs(cluster, work):
    """The next one has the pool without that drive, which is taken back when it answers."""
    owner = cluster.owner()
    read_elsewhere(cluster, work)
    with hanging(owner, 5):
        kill_server(cluster, work)
        work.check()
        assert cluster.owner() is owner
        assert not_whole(cluster) == [5]
    cluster.wait_until_devices_are_whole()


@pytest.mark.long
def test_moved_back_at_once(cluster, work):
    owner = cluster.owner()
    read_elsewhere(cluster, work)
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
        read_elsewhere(cluster, work)
        with work.cut_off():
            owner.power_off()
        cluster.wait_for_owner(other)
        work.check()


@pytest.mark.long
def test_a_client_that_dies_in_grace(cluster, clients, work, dying):
    dies_in_grace(cluster, clients, work, dying)


@pytest.mark.long
def test_a_node_is_drained_and_resumed(cluster, work):
    owner = cluster.owner()
    read_elsewhere(cluster, work)
    owner.run('millrace node drain', timeout=900)
    assert cluster.owner() is cluster.other(owner) and cluster.states()[owner.name] == 'drained'
    work.check()
    owner.run('millrace node resume', timeout=900)


def left(node):
    """Servers, agents that watch one, drives for fencing, directories that commands work in (the one that listens has one)."""
    return [int(count) for count in node.run('pgrep -c -x ganesha.nfsd; pgrep -c -x tail; losetup --list --noheadings | wc -l; '
                                             'find /run -maxdepth 1 -name "millrace-*" | wc -l; true').split()]


def left_on(nodes):
    return {node.name: left(node) for node in nodes}


def open_files(node):
    """Of its reader, which clients have left alone."""
    return int(node.run(f'ls /proc/$(cat /run/millrace/reader/{POOL}/pid)/fd | wc -l'))


def memory(node):
    """Of its reader, corosync, and pacemaker's daemons: bytes that are theirs alone, by name."""
    told = node.run(f'for pid in $(cat /run/millrace/reader/{POOL}/pid) $(pgrep -x "corosync|pacemaker.*|sbd.*"); do '
                    'echo $(cat /proc/$pid/comm | tr " " -) $(grep -h ^Private_ /proc/$pid/smaps_rollup | tr -dc "0-9\\n "); done')
    sizes = {}
    for name, *kib in map(str.split, told.splitlines()):  # of sbd there are several
        sizes[name] = sizes.get(name, 0) + 1024 * sum(map(int, kib))
    return sizes


@pytest.mark.long
def test_twenty_failovers(cluster, work, record_property):
    """One after the other, all of the same work. Nothing boots but what has lost its power, nothing is left behind, and on the node that
    has been up all the while nothing has grown."""
    kinds = (('a server that is killed', kill_server), ('a node without power', cut_power), ('a planned move', move))
    boots, first = {node: boot_of(node) for node in cluster.nodes}, {}
    for number in range(20):
        event, cause = kinds[number % 3]
        off = cluster.owner() if cause is cut_power else None
        cause(cluster, work)
        work.more(20)
        work.look(event)
        cluster.wait_until_whole()
        before, boots = boots, {node: boot_of(node) for node in cluster.nodes}
        assert [node for node in cluster.nodes if boots[node] != before[node]] == ([off] if off else [])
        if number == 2:  # all have run
            first = {node: (boots[node], memory(node)) for node in cluster.nodes}
    work.check()
    stayed = [node for node, (boot, _) in first.items() if boot == boots[node]]
    assert stayed, 'both have booted: there is none to look at'
    for node in stayed:
        grown = {name: size - first[node][1].get(name, 0) for name, size in memory(node).items()}
        record_property('grown', grown)
        assert max(grown.values()) < GROWN
    owner = cluster.owner()
    wanted = {owner.name: [2, 2, 3, 1], cluster.other(owner).name: [1, 1, 3, 1]}
    with contextlib.suppress(Timeout):
        wait_until(lambda: left_on(cluster.nodes) == wanted, 60, 'nothing is left behind')
    assert left_on(cluster.nodes) == wanted
    assert owner.json(f'millrace pool check {POOL}')['check']['bad_blocks'] == 0 and not_whole(cluster) == []
    assert abs(open_files(owner) - open_files(cluster.other(owner))) < 5


# --- drives for fencing ---------------------------------------------------------------------------------

def fencing_drives(node):
    """Numbers of those that fencing uses at NODE, in its order."""
    held = node.run('for each in 1 2 3; do losetup --list --noheadings --output BACK-FILE $(readlink /dev/millrace-fencing-$each); done')
    paths = node.run(f'readlink -f {" ".join(drive.path for drive in node.drives)}').split()
    return [paths.index(path) for path in held.split()]


def fencing_of(node):
    told = node.json('millrace cluster status')
    return told['cluster']['fencing'], told['cluster']['fencing_lost'], any('fencing' in row['what'] for row in told['advice'])


@pytest.mark.long
def test_drives_for_fencing_are_lost(cluster, work):
    """Two of three, one after the other, on both nodes: without others in their place nobody could be fenced."""
    owner = cluster.owner()
    other = cluster.other(owner)
    read_elsewhere(cluster, work)
    assert 'Nodes are fenced over' in owner.run('millrace cluster fencing', timeout=300)
    first = fencing_drives(owner)
    with cluster.spoiling(owner):
        for drive in first[:2]:
            for node in cluster.nodes:
                node.pull_drive(drive)
            wait_until(lambda: fencing_of(owner) == (True, 1, True), 120, 'it is missed', interval=2)
            owner.run('millrace cluster fencing', timeout=300)
            for node in cluster.nodes:
                wait_until(lambda: fencing_of(node) == (True, 0, False), 120, 'another is used', interval=2)
        lists = {node.run('cat /etc/millrace/fencing') for node in cluster.nodes}
        now = fencing_drives(owner)
        assert len(lists) == 1 and now == fencing_drives(other) and now[2] == first[2] and not set(now[:2]) & set(first[:2])
        cut_power(cluster, work)
        why = json.loads(other.run('millrace cluster fencing --json', rc=4))['error']['message']
        assert f'{owner.name} is offline' in why
        work.check()
    for drive in first[:2]:
        other.put_drive(drive)
    cluster.wait_until_whole()
    cluster.wait_until_devices_are_whole()


# --- members go -----------------------------------------------------------------------------------------

@pytest.mark.long
def test_a_node_is_gone_for_good(cluster, work):
    """It is taken out, and the other has a quorum by itself. When it is there after all it may forget the cluster, and join
    it anew."""
    left, gone = cluster.nodes
    if cluster.owner() is left:
        move(cluster, work)
    work.read_at(left)
    gone.power_off()
    assert 'is fenced first' in left.run(f'millrace cluster remove {gone.name} --yes --json', rc=4)
    wait_until(lambda: cluster.states()[gone.name] == 'offline', 300, 'it is fenced', interval=2)
    cluster.wait_for_owner(left)
    left.run(f'millrace cluster remove {gone.name} --json', rc=4)
    assert may_write(cluster) == 1
    left.run(f'millrace cluster remove {gone.name} --yes', timeout=300)
    assert cluster.states() == {left.name: 'online'}
    wait_until(lambda: may_write(cluster) == 0, 400, 'what was kept for it is given back', interval=5)
    work.more(20)
    gone.start()
    wait_until(lambda: 'has no quorum' in gone.attempt('millrace cluster leave --json').stdout, 300, 'it does not know yet')
    gone.run('millrace cluster leave --yes', timeout=300)
    cluster.join(left.json('millrace cluster token')['cluster']['token'])
    work.check()


@pytest.fixture
def alone(cluster):
    """The first node, when the second has left, over the one of its networks that it had then."""
    leaving = cluster.nodes[1]
    if leaving.attempt('millrace cluster status --json').returncode != 3:
        cluster.wait_until_whole()
        leaving.cut(CLIENTS)
        cluster.wait_for_owner(cluster.nodes[0])
        leaving.run('millrace cluster leave', timeout=900)
        leaving.join(CLIENTS)
    return cluster.nodes[0]


@pytest.mark.long
def test_a_node_leaves(cluster, alone):
    """What it served goes on, and the one that is left has a quorum by itself."""
    assert cluster.nodes[1].json('millrace cluster status', rc=3)['error']['code'] == 'not-found'
    cluster.wait_for_owner(alone)
    told = alone.json('millrace cluster status')
    assert told['cluster']['quorum'] and [node['name'] for node in told['nodes']] == [alone.name]
    assert alone.run('millrace cluster leave --json', rc=4)


@pytest.mark.long
def test_a_node_that_is_not_seen_is_not_let_in(cluster, alone):
    """What members say to each other does not get through; that it has joined is not said, and nothing is left of it."""
    new, member = cluster.nodes[1], alone
    token = member.json('millrace cluster token')['cluster']['token']
    member.run(f'nft insert rule {MESSAGES} drop')
    assert 'does not see it' in cluster.join(token, rc=1)
    member.run('systemctl reload nftables')
    assert new.json('millrace cluster status', rc=3)['error']['code'] == 'not-found'
    told = member.json('millrace cluster status')
    assert told['cluster']['quorum'] and [node['name'] for node in told['nodes']] == [member.name]
    assert 'does not answer at port' in cluster.join('a' * len(token), rc=1)  # the token has served
    cluster.join(member.json('millrace cluster token')['cluster']['token'])
    cluster.wait_until_whole()


# --- by hand --------------------------------------------------------------------------------------------

def what_pcs_does(cluster):
    """The lines of docs/high-availability.md, for this cluster."""
    with open(os.path.join(ROOT, 'docs', 'high-availability.md')) as file:
        lines = re.search(r'by hand, with\s+`pcs`[^:]*:\n\n((?:    .*\n)+)', file.read())[1]
    for number, node in enumerate(cluster.nodes, 1):
        lines = lines.replace(f'node{number}', node.name).replace(f'=192.0.2.1{number}', f'={cluster.address_of(node)}')
    return lines.replace('priority-fencing-delay=5s', f'priority-fencing-delay={WATCHDOG}s')


@pytest.mark.long
def test_a_service_that_pcs_has_made(cluster, work):
    """Clients wait while there is none, and it is as one of `service create`."""
    node, script = cluster.nodes[0], what_pcs_does(cluster)
    with work.cut_off():
        node.run(f'millrace service remove {SERVICE} --yes', timeout=300)
        node.run(f'cd /tmp && set -e\n{script}', timeout=ACT_TIMEOUT)
    told = cluster.wait_until_served().json('millrace service list')['services']
    assert [(service['pool'], service['address']) for service in told] == [(POOL, cluster.address)]
    for each in cluster.nodes:
        wait_until(lambda: each.attempt(f'millrace serve {POOL} --reader --probe').returncode == 0, 120, 'its readers serve')
    with work.cut_off():
        move(cluster, work)
    work.more(20)
    work.check()

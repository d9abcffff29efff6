# SPDX-License-Identifier: LGPL-3.0-or-later
"""A cluster of two nodes that serves: what an admin does with it, and is told; nodes and services that cannot do what
they are told to."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

import pytest

from cluster import PORT, REFUSED, USAGE
from harness.appender import told  # noqa: F401 (a fixture)
from harness.host import wait_until
from harness.server import MILLRACE
from served import client, cluster, readers, whole, writer  # noqa: F401 (fixtures)

ETH_P_ARP = 0x0806


def test_the_service_says_where_it_is(cluster):
    """Again and again: another node may have said it of itself."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ARP)) as listener:
        listener.bind((cluster.bridge, 0))
        listener.settimeout(60)
        said, end = [], time.monotonic() + 60
        while not said or said[-1] - said[0] < 5:
            assert time.monotonic() < end
            if listener.recv(100)[28:32] == socket.inet_aton(cluster.address):  # the sender's
                said.append(time.monotonic())


def test_who_does_not_serve_says_who_is_to_be_asked(cluster):
    other = cluster.other(cluster.owner())
    done = other.attempt('env', f'MILLRACE_DEVICE_DIR={cluster.pool.device_dir}', 'millrace', 'status', '--json')
    advice, = json.loads(done.stdout)['advice']
    assert '`millrace service list`' in advice['next'] and '--force' not in done.stdout


def test_fencing_is_of_one_kind(cluster):
    """Nothing is asked of the drives that are named, nor of the cluster that this node is in."""
    for words in (('--pool', 'tank', '--fencing', '/dev/fence'), ('--pool', 'tank', '--drive', '/dev/own'),
                  ('--fencing', '/dev/fence', '--transport', 'tcp'), ('--transport', 'tcp')):
        done = cluster.nodes[0].attempt('millrace', 'cluster', 'create', '--address', '192.0.2.1', *words, '--json')
        assert done.returncode == USAGE and '--pool' in json.loads(done.stdout)['error']['message']


def test_who_may_ask(cluster):
    """Root, also one whose path has no sbin, as of a user who became root."""
    node = cluster.nodes[0]
    node.run('env', 'PATH=/usr/bin:/bin', 'millrace', 'cluster', 'status')
    for words in (('cluster', 'status'), ('service', 'list'), ('client', 'mount-command', 'tank/set')):
        done = node.attempt('runuser', '-u', 'nobody', '--', 'millrace', *words, '--json')
        assert done.returncode == 6 and 'only root may' in json.loads(done.stdout)['error']['message']


def advice(node):
    """What `cluster status` finds wrong, and what it says of that."""
    return {row['what']: row['next'] for row in node.ask('cluster', 'status')['advice']}


def test_without_fencing_nothing_is_started(cluster, writer):
    cluster.set('stonith-enabled', 'false')
    try:
        cluster.owner().signal_server(signal.SIGKILL)
        wait_until(lambda: any('no fencing' in why for why in cluster.failures()), 120, 'the start is refused')
        assert cluster.owner() is None
        told = advice(cluster.nodes[0])
        assert 'service tank is served by no node' in told and any('could fence nobody' in what for what in told)
    finally:
        cluster.set('stonith-enabled', 'true')
        cluster.clean()
    cluster.wait_until_served()
    writer.check()


def test_a_node_is_drained_and_resumed(cluster, writer, told):
    before = cluster.owner()
    other = cluster.other(before)
    before.ask('node', 'drain')
    assert cluster.owner() is other
    assert advice(other)[f'{before.name} is drained'] == f'`millrace node resume {before.name}` when your work is done'
    assert 'no other node is online' in other.refused('node', 'drain')
    assert 'no other node is online' in other.refused('service', 'move', 'tank')
    assert f'{before.name} is drained' in other.refused('service', 'move', 'tank', before.name)
    assert cluster.owner() is other
    before.ask('node', 'resume')
    cluster.wait_for_nodes()
    told(writer.check())
    assert cluster.fenced == []


@pytest.mark.parametrize('words', [('node', 'drain'), ('cluster', 'leave')])
def test_a_node_stays_whose_service_nobody_takes_over(cluster, writer, told, words):
    """It serves on, is not drained, and is a member."""
    node = cluster.owner()
    with cluster.other(node).taken(PORT):
        done = node.attempt('millrace', *words, '--json')
        assert done.returncode == 1 and 'tank is served by no node' in done.stdout
        assert cluster.wait_until_served() is node
        assert [each for each in node.ask('cluster', 'status')['nodes'] if each['failed']] == \
            [{'name': cluster.other(node).name, 'state': 'online', 'failed': ['tank-server']}]
    wait_until(lambda: serves_again(cluster, node), 60, 'it is not drained')
    assert node.run('cat', '/etc/corosync/corosync.conf').count('nodeid') == 2
    assert node.attempt('cibadmin', '--query', '--xpath', "//cluster_property_set[@id='millrace-change']").returncode
    told(writer.check())


def serves_again(cluster, node):
    tree = cluster.status()
    return tree is not None and tree.find(f"nodes/node[@name='{node.name}']").get('standby') == 'false'


@contextlib.contextmanager
def in_place_of(program, node, script):
    """SCRIPT, which has pacemaker's PROGRAM at "$0.own"."""
    path = f'/usr/sbin/{program}'
    node.run('mv', path, f'{path}.own')
    node.run('sh', '-c', f'echo "$0" >{path} && chmod +x {path}', script)
    try:
        yield
    finally:
        node.run('mv', f'{path}.own', path)


# It does what it does, and takes its time to end.
TAKES_TIME = r'''#!/bin/sh
"$0.own" "$@"
touch /run/drained
sleep 20
'''


def test_a_drain_that_is_broken_off(cluster, writer, told):
    """As soon as the node is drained."""
    node = cluster.owner()
    with in_place_of('crm_standby', node, TAKES_TIME):
        node.run('sh', '-c', 'millrace node drain >/dev/null 2>&1 &')
        wait_until(lambda: node.attempt('test', '-e', '/run/drained').returncode == 0, 60, 'it is drained')
    node.run('pkill', '-TERM', '-f', 'millrace/service drain')
    wait_until(lambda: serves_again(cluster, node), 120, 'it is resumed')
    cluster.wait_for_nodes()
    cluster.wait_until_served()
    told(writer.check())


def test_what_pacemaker_leaves_alone(cluster, readers):
    """It is not said to be moved, drained or removed."""
    node = cluster.owner()
    cluster.set('maintenance-mode', 'true')
    try:
        for words in (('service', 'move', 'tank'), ('service', 'remove', 'tank', '--yes')):
            assert 'to leave tank alone' in node.refused(*words)
        for each in cluster.nodes:  # one of them has its reader alone
            assert f'to leave what {each.name} runs alone' in node.refused('node', 'drain', each.name)
            assert f'to leave what {each.name} runs alone' in each.refused('cluster', 'leave')
            assert 'to leave all alone' in node.refused('node', 'resume', each.name)
    finally:
        cluster.set('maintenance-mode', 'false')
    assert cluster.wait_until_served() is node


LEAVES = (('node', 'drain'), ('service', 'move', 'tank'), ('cluster', 'leave'))


def test_a_node_that_pacemaker_leaves_alone_takes_nothing_over(cluster):
    owner = cluster.owner()
    other = cluster.other(owner)
    maintenance = ('crm_attribute', '--node', other.name, '--name', 'maintenance')
    owner.run(*maintenance, '--update', 'true')
    try:
        wait_until(lambda: f'pacemaker leaves {other.name} alone: it takes nothing over' in advice(owner), 60, 'it is told')
        for words in LEAVES:
            assert 'no other node is online' in owner.refused(*words)
        assert f'{other.name} is maintenance' in owner.refused('service', 'move', 'tank', other.name)
        assert 'no other node is online' in may_not_boot(owner)
    finally:
        owner.run(*maintenance, '--delete')
    assert cluster.owner() is owner


def may_not_boot(node):
    """What it is told when it is to be updated."""
    done = node.attempt('/usr/lib/millrace/cluster', 'claim', 'seconds=300')
    assert done.returncode == 4 and node.attempt('cibadmin', '--query', '--xpath',
                                                 "//cluster_property_set[@id='millrace-change']").returncode
    return done.stdout


def test_a_node_that_pacemaker_leaves_alone_does_not_boot(cluster):
    """Its server would go on beside the next one."""
    owner = cluster.owner()
    maintenance = ('crm_attribute', '--node', owner.name, '--name', 'maintenance')
    owner.run(*maintenance, '--update', 'true')
    try:
        wait_until(lambda: f'pacemaker leaves {owner.name} alone: it takes nothing over' in advice(owner), 60, 'it is told')
        assert f'to leave what {owner.name} runs alone' in may_not_boot(owner)
    finally:
        owner.run(*maintenance, '--delete')
    assert cluster.wait_until_served() is owner


@contextlib.contextmanager
def unplugged(node, told_by):
    """The cable of its first address is out, which `cluster status` tells; of one that was out before it tells no more."""
    def is_told():
        return any(what.startswith(f'clients do not reach {node.name}') for what in advice(told_by))

    wait_until(lambda: not is_told(), 60, 'its cable is in')
    node.cut(node.reader_device)
    wait_until(is_told, 60, 'it is told')
    try:
        yield
    finally:
        node.join(node.reader_device)


def test_a_node_that_clients_do_not_reach_takes_nothing_over(cluster, readers):
    """As long as they reach the one that serves."""
    owner = cluster.owner()
    other = cluster.other(owner)
    with unplugged(other, owner):
        assert [node.get('link') for node in owner.ask('cluster', 'status')['nodes'] if node['name'] == other.name] == [False]
        for words in (*LEAVES, ('service', 'move', 'tank', other.name)):
            assert f'clients do not reach {other.name}' in owner.refused(*words)
        assert cluster.owner() is owner
        pid = owner.server_pid()
        with unplugged(owner, owner):
            time.sleep(5)  # in which it would leave
            assert cluster.owner() is owner and owner.server_pid() == pid
            cluster.move()
            assert cluster.owner() is other


def roles(node):
    return node.attempt('cibadmin', '--query', '--xpath', "//nvpair[@name='target-role']").stdout


def test_datasets_are_not_where_clients_do_not_reach_a_node(cluster, readers):
    """As long as they reach one of those that have them."""
    def told():
        return {owner.ask('client', 'mount-command', 'tank/set', '--rank', str(rank))['mount']['address'] for rank in range(2)}

    owner = cluster.owner()
    other = cluster.other(owner)
    both = {node.reader_address for node in cluster.nodes}
    assert told() == both
    with unplugged(other, owner):
        assert told() == {owner.reader_address}
        with unplugged(owner, owner):
            assert told() == both


def reads(cluster, node):
    tree = cluster.status()
    return tree.find(f".//clone[@id='tank-reader-clone']/resource[@role='Started']/node[@name='{node.name}']") is not None


def test_a_node_without_its_reader_takes_nothing_over(cluster, readers):
    """What keeps that from the pool would keep the server from it."""
    owner = cluster.owner()
    other = cluster.other(owner)
    attribute = ('crm_attribute', '--node', other.name, '--name', 'millrace-address')
    wait_until(lambda: not any('clients do not reach' in what for what in advice(owner)), 60, 'all cables are in')
    other.run(*attribute, '--delete')
    try:
        other.run('sh', '-c', 'kill -9 $(cat /run/millrace/reader/tank/pid)')
        wait_until(lambda: not reads(cluster, other), 60, 'it does not come back')
        for words in (*LEAVES, ('service', 'move', 'tank', other.name)):
            assert f'tank-reader does not run on {other.name}' in owner.refused(*words)
        assert cluster.owner() is owner
    finally:
        other.run(*attribute, '--update', other.reader_address)
        cluster.clean()
    wait_until(lambda: reads(cluster, other), 60, 'its reader runs')
    cluster.move()
    assert cluster.owner() is other


CHANGES = (('share', 'create', 'tank/another'), ('pool', 'set', 'tank', 'cache.size=64M'), ('pool', 'export', 'tank'),
           ('pool', 'destroy', 'tank', '--yes'))


def test_a_pool_whose_server_is_about_to_start_is_changed_by_nobody(cluster):
    """It may start elsewhere at any time, and takes the pool on the cluster's word; but pacemaker may have been told to leave it alone."""
    owner = cluster.owner()
    other = cluster.other(owner)
    for node in cluster.nodes:
        node.run('crm_resource', '--ban', '--resource', 'tank-server', '--node', node.name)
    try:
        wait_until(lambda: owner.attempt('millrace', 'serve', 'tank', '--probe').returncode == 3, 60, 'no server runs')
        for words in CHANGES:
            assert 'service tank of this cluster is to serve it' in owner.refused(*words)
        assert 'is to serve it' in other.refused('pool', 'import', 'tank', '--force', '--device-dir', cluster.pool.device_dir)
        assert 'another' not in owner.run('millrace', 'share', 'list', 'tank')  # who looks is in nobody's way
        with told_to('tank-server', 'Stopped', owner):
            owner.run('millrace', *CHANGES[0])
        with in_place_of('crm_mon', owner, '#!/bin/sh\nexit 1\n'):
            for words in CHANGES:
                done = owner.attempt('millrace', *words, '--json')
                assert done.returncode == 1 and 'the cluster does not run on this node' in json.loads(done.stdout)['error']['message']
        assert 'is to serve it' in owner.refused('share', 'destroy', 'tank/another', '--yes')
        cluster.set('maintenance-mode', 'true')
        try:
            owner.run('millrace', 'share', 'destroy', 'tank/another', '--yes')
        finally:
            cluster.set('maintenance-mode', 'false')
    finally:
        for node in cluster.nodes:
            node.run('crm_resource', '--clear', '--resource', 'tank-server', '--node', node.name)
    cluster.wait_until_served()


def test_a_removal_that_is_broken_off(cluster, readers, writer, told):
    """Nothing is removed, and all runs again."""
    node = cluster.owner()
    with in_place_of('crm_resource', node, WAITS):
        node.run('sh', '-c', 'millrace service remove tank --yes >/dev/null 2>&1 &')
        wait_until(lambda: roles(node).count('Stopped') == 3, 60, 'all is to stop')
        node.run('pkill', '-TERM', '-f', 'millrace/service remove')
        node.run('pkill', '-KILL', '-f', 'sleep 60')
        wait_until(lambda: not roles(node), 60, 'nothing is')
    cluster.wait_until_served()
    told(writer.check())


def test_who_is_gone_stands_in_the_configuration_until_it_joins(cluster):
    node = cluster.owner()

    def call(function, name):
        node.run('bash', '-c', f'. /usr/lib/millrace/common && . /usr/lib/millrace/changes && {function} {name}')

    def gone():
        return re.findall(r'value="(\S+) \d+"', node.attempt('cibadmin', '--query', '--xpath', "//*[@id='millrace-gone']").stdout)

    for function, name, left in (('note_back', 'n9', []), ('note_gone', 'n9', ['n9']), ('note_gone', 'n8.lab', ['n9', 'n8.lab']),
                                 ('note_gone', 'n9', ['n9', 'n8.lab']), ('note_back', 'n9', ['n8.lab']), ('note_back', 'n8.lab', [])):
        call(function, name)
        assert sorted(gone()) == sorted(left)


# To it something is always under way, as it is where a monitor failed when it first ran.
WAITS_IN_VAIN = r'''#!/bin/sh
case " $* " in *" --wait "*) sleep 3; exit 124;; esac
exec "$0.own" "$@"
'''


def test_what_pacemaker_waits_for_in_vain(cluster):
    """Where the cluster is idle nothing is under way."""
    node = cluster.owner()
    with in_place_of('crm_resource', node, WAITS_IN_VAIN):
        node.ask('node', 'drain')
        assert cluster.owner() is cluster.other(node)
        node.ask('node', 'resume')
    cluster.wait_for_nodes()


def bans(node):
    done = node.attempt('cibadmin', '--query', '--xpath', "//rsc_location[@id='tank-move']")
    return done.stdout if done.returncode == 0 else ''


# What waits has the lock of what is cut off, unless it lets it go.
WAITS = r'''#!/bin/sh
case " $* " in *" --wait "*) exec 9>&-; sleep 60;; esac
exec "$0.own" "$@"
'''


def test_a_move_that_was_cut_off(cluster):
    """With its node's power: that node is not kept from the service for good."""
    node = cluster.owner()
    with in_place_of('crm_resource', node, WAITS):
        node.run('sh', '-c', 'millrace service move tank >/dev/null 2>&1 &')
        wait_until(lambda: bans(node), 60, 'it is to leave')
        node.run('pkill', '-KILL', '-f', 'millrace/service move|crm_resource')
        assert 'date_expression' in bans(node) and ' end="' in bans(node)
    assert cluster.wait_until_served(but=node)
    cluster.move()
    assert cluster.owner() is node and not bans(node)


def test_what_an_admin_has_told_pacemaker_stays(cluster):
    """A service does not move against it, nor does its node go, and it goes on where it is; behind a move that it does not prevent
    it is there, too."""
    owner = cluster.owner()
    other = cluster.other(owner)
    pid = owner.server_pid()

    def told(rules, id):
        owner.run('cibadmin', '--modify', '--allow-create', '--scope', 'constraints', '--xml-text',
                  f'<rsc_location id="{id}" rsc="tank-server" {rules}</rsc_location>')

    def untell(id):
        owner.run('cibadmin', '--delete', '--xpath', f"//rsc_location[@id='{id}']")

    for id, rules in (('away', f'node="{other.name}" score="-INFINITY">'), ('home', f'node="{owner.name}" score="INFINITY">')):
        told(rules, id)
        try:
            for words in ((), (other.name,)):
                assert f'pcs constraint remove {id}' in owner.refused('service', 'move', 'tank', *words)
            for words in (('node', 'drain'), ('cluster', 'leave')) if id == 'away' else ():
                assert f'pcs constraint remove {id}' in owner.refused(*words)
            assert id != 'away' or f'pcs constraint remove {id}' in may_not_boot(owner)
        finally:
            untell(id)
    assert cluster.owner() is owner and owner.server_pid() == pid
    told(f'node="{other.name}" score="-INFINITY">', 'away')
    try:  # nor while the server is just begun anew
        owner.run('kill', '-KILL', str(pid))
        wait_until(lambda: cluster.owner() is None, 30, 'nobody serves')
        assert 'pcs constraint remove away' in owner.refused('node', 'drain')
        assert cluster.wait_until_served() is owner
    finally:
        untell('away')
    for rules in (f'node="{owner.name}" score="500">', f'''><rule id="rule" score="INFINITY">
                  <expression id="here" attribute="#uname" operation="eq" value="{owner.name}"/></rule>'''):
        told(rules, 'likes')
        try:
            assert 'pcs constraint remove likes' in owner.refused('service', 'move', 'tank')
        finally:
            untell('likes')
    told(f'node="{owner.name}" score="150">', 'likes')
    try:
        cluster.move()
        owner.run('cibadmin', '--query', '--xpath', "//rsc_location[@id='likes']")
    finally:
        untell('likes')


def test_a_move_behind_a_death(cluster):
    """Until another node serves, nobody does: that is waited for."""
    before = cluster.owner()
    other = cluster.other(before)
    before.kill()
    gone = f"nodes/node[@name='{before.name}'][@online='false']"
    wait_until(lambda: (tree := cluster.status()) is not None and tree.find(gone) is not None, 60, 'it is gone')
    assert 'no other node is online' in other.refused('service', 'move', 'tank')
    assert cluster.owner() is other


def test_a_node_where_systemd_would_serve_the_pool(cluster):
    node = cluster.owner()
    other = cluster.other(node)
    wanted = '/etc/systemd/system/multi-user.target.wants/millrace-tank.service'
    other.run('sh', '-c', f'mkdir -p {os.path.dirname(wanted)} && touch {wanted}')
    done = node.attempt('millrace', 'service', 'move', 'tank', '--json')
    other.run('rm', wanted)
    assert done.returncode == 1 and 'millrace serve tank --disable' in done.stdout
    assert cluster.wait_until_served() is node and not bans(node)


def test_a_node_that_has_got_another_name(cluster):
    """Fencing would look for it by the old one: its corosync does not start, and it says why."""
    node = cluster.other(cluster.owner())
    check = ('/usr/lib/millrace/cluster', 'check-name')
    node.run(*check)
    node.run('hostname', 'n9')
    node.run('sh', '-c', 'echo node=n9 >/etc/millrace/cluster')
    node.run(*check)
    node.run('sh', '-c', f'echo node={node.name} >/etc/millrace/cluster')
    try:
        assert node.attempt(*check).returncode == 4
        node.run('hostname', cluster.owner().name)  # another member's
        assert 'its cluster knows ' + node.name in node.refused('cluster', 'status')
        node.run('hostname', 'n9')
        node.run('sh', '-c', ': >/etc/millrace/cluster')  # an earlier version's
        assert node.attempt(*check).returncode == 4
        assert 'is called n9' in node.refused('cluster', 'status') and 'is called n9' in node.refused('cluster', 'leave')
    finally:
        node.run('hostname', node.name)
    node.run(*check)


def test_grace_is_ended_where_the_service_is(cluster):
    owner = cluster.owner()
    assert f'is served by {owner.name}' in cluster.other(owner).refused('service', 'end-grace', 'tank')
    wait_until(lambda: owner.ask('service', 'end-grace', 'tank')['grace_ended'] is False, 60, 'it was ended before')
    services = [{'name': 'tank', 'pool': 'tank', 'address': cluster.address, 'node': owner.name}]
    assert all(node.ask('service', 'list')['services'] == services for node in cluster.nodes)


def test_clients_are_told_how_to_mount(cluster, readers, client):
    """A share at the service's address, a dataset at each node's in turn, whichever node is asked."""
    for node in cluster.nodes:
        told = [node.ask('client', 'mount-command', 'tank/set', '--rank', str(rank))['mount'] for rank in range(4)]
        assert {mount['address'] for mount in told} == {node.reader_address for node in cluster.nodes} and told[:2] == told[2:]
        share = node.ask('client', 'mount-command', 'tank/share')['mount']
        assert share['address'] == cluster.address
        for mount, how in ((told[0], 'ro'), (share, 'rw')):
            assert mount['command'] == 'mount -t nfs -o {options} {address}:{path} /mnt/{name}'.format(
                **mount, name=mount['path'].split('/')[-1])
            client.mount(mount['path'], '/mnt/told', mount['options'], server=mount['address'])
            assert how in client.run('grep " /mnt/told " /proc/mounts').stdout.decode().split()[3].split(',')
            client.umount('/mnt/told')
    done = cluster.living().attempt('millrace', 'client', 'mount-command', 'tank/none', '--json')
    assert done.returncode == 3 and 'no sealed dataset' in done.stdout


@contextlib.contextmanager
def without_reader(node):
    node.run('crm_resource', '--ban', '--resource', 'tank-reader-clone', '--node', node.name)
    wait_until(lambda: node.attempt('millrace', 'serve', 'tank', '--reader', '--probe').returncode == 3, 60, 'it has ended')
    try:
        yield
    finally:
        node.run('crm_resource', '--clear', '--resource', 'tank-reader-clone', '--node', node.name)


HANGS = '#!/bin/sh\nexec sleep 600 8>&- 9>&-\n'


def test_one_change_of_the_members_at_a_time(cluster, readers):
    """Who makes one stands in the cluster's configuration; what is left of one that broke off does not count. Whose clock says
    what does not matter."""
    maker, node = cluster.owner(), cluster.other(cluster.owner())
    mark = "//cluster_property_set[@id='millrace-change']"

    def claim(name, seconds, *words):
        node.run('cibadmin', '--create', '--scope', 'crm_config', '--xml-text',
                 '<cluster_property_set id="millrace-change"><nvpair id="millrace-change-by" name="millrace-change-by" '
                 f'value="{" ".join([name, str(seconds), *words])}"/></cluster_property_set>')

    def cut_off():
        """What `cluster listen` does first."""
        node.run('bash', '-c', f'here={node.name}; . /usr/lib/millrace/common; . /usr/lib/millrace/changes; '
                               'is_online() { [ "$(node_state "$1")" = online ]; }; ask_cluster; end_cut_off')

    before = node.run('cat', '/etc/corosync/corosync.conf')
    claim(node.name, 1800, '1000')  # its power was cut
    assert f'{node.name} changes the cluster' in maker.refused('node', 'drain')
    with in_place_of('crm_standby', node, HANGS):
        node.run('sh', '-c', 'millrace node drain >/dev/null 2>&1 &')  # which is no other's
        wait_until(lambda: ' 1000"' not in maker.attempt('cibadmin', '--query', '--xpath', mark).stdout, 60, 'it is at it')
        cut_off()
        assert f'{node.name} changes the cluster' in maker.refused('node', 'drain')
        node.run('pkill', '-KILL', '-f', 'millrace/service drain|sleep 600')
    cut_off()
    assert node.attempt('cibadmin', '--query', '--xpath', mark).returncode
    claim(node.name, 300, '1000')  # of who has said that it boots
    cut_off()
    node.run('cibadmin', '--delete', '--xpath', mark)
    for when in (int(time.time()), 1000, 2 ** 33):
        claim(maker.name, 1800, str(when))
        for words in (('cluster', 'leave'), ('node', 'drain'), ('service', 'create', 'pond', '--pool', 'pond', '--address', '192.0.2.9/24')):
            assert f'{maker.name} changes the cluster' in node.refused(*words)
        node.run('cibadmin', '--delete', '--xpath', mark)
    maker.run('/usr/lib/millrace/cluster', 'claim', 'seconds=300')  # it is about to boot
    assert 'about to boot' in node.refused('node', 'drain') and cluster.wait_until_served() is maker
    maker.run('/usr/lib/millrace/cluster', 'release')  # it has booted
    assert node.attempt('cibadmin', '--query', '--xpath', mark).returncode
    claim('gone', 1800, '1000', 'leaving')  # which is offline while it tells the others
    assert 'gone changes the cluster' in node.refused('node', 'drain')
    node.run('cibadmin', '--delete', '--xpath', mark)
    claim('gone', 1800, '1000')
    node.run('/usr/lib/millrace/cluster', 'claim', 'seconds=300')
    node.run('/usr/lib/millrace/cluster', 'release')
    claim(maker.name, 1, '1000')
    assert f'{maker.name} changes the cluster' in node.refused('cluster', 'leave')
    time.sleep(3)
    # Nothing stops pacemaker here, as units would: what it has left is not left behind.
    done = node.attempt('millrace', 'cluster', 'leave', '--json')
    assert done.returncode == 1 and 'millrace serve tank --reader --stop' in done.stdout
    with without_reader(node):
        node.run('ip', 'address', 'add', f'{cluster.address}/32', 'dev', 'lo')
        try:
            assert f'still has {cluster.address}' in node.attempt('millrace', 'cluster', 'leave', '--json').stdout
        finally:
            node.run('ip', 'address', 'delete', f'{cluster.address}/32', 'dev', 'lo')
    with without_reader(node):  # and nobody listens
        node.run('sh', '-c', '(TALK_SECONDS=8 millrace cluster leave --json >/run/left; echo $? >/run/left.rc) >/dev/null 2>&1 &')
        wait_until(lambda: ' leaving"' in maker.attempt('cibadmin', '--query', '--xpath', mark).stdout, 60, 'it leaves')
        assert wait_until(lambda: node.attempt('cat', '/run/left.rc').stdout, 120, 'it stays') == '1\n'
        assert f'{maker.name} does not take the new list of members' in node.run('cat', '/run/left')
    assert node.attempt('cibadmin', '--query', '--xpath', mark).returncode
    assert node.run('cat', '/etc/corosync/corosync.conf') == before


@contextlib.contextmanager
def told_to(resource, role, node):
    """RESOURCE is to have ROLE."""
    words = ('crm_resource', '--resource', resource, '--meta', '--parameter-value', role)
    node.run(*words, '--set-parameter', 'target-role')
    try:
        yield
    finally:
        node.run(*words[:-2], '--delete-parameter', 'target-role')


@contextlib.contextmanager
def another_tank(device_dir):
    """A pool of that name is there as well."""
    with tempfile.TemporaryDirectory() as elsewhere:
        devices = [os.path.join(device_dir, f'other{i}') for i in range(3)]
        for device in devices:
            with open(device, 'wb') as file:
                file.truncate(256 << 20)
        try:
            subprocess.run([MILLRACE, 'pool', 'create', 'tank', '--data', '2', '--parity', '1', *devices, '--state-dir', elsewhere,
                            '--run-dir', elsewhere], check=True, capture_output=True)
            yield
        finally:
            for device in devices:
                os.unlink(device)


def test_a_service_is_removed_and_made(cluster, readers, writer, told):
    """Nothing of it is left, and the one that is made has what this module's had."""
    node = cluster.nodes[0]

    def configuration():
        text = node.run('cibadmin', '--query', '--scope', 'resources') + node.run('cibadmin', '--query', '--scope', 'constraints')
        return (set(re.findall(r'<(?:primitive|clone|rsc_location) id="(tank-[a-z]+)"', text)),
                {tuple(sorted(re.findall(r'[a-z-]+="[^"]+"', words))) for words in re.findall(r'<rsc_(?:order|colocation) ([^>]+)>', text)})

    def epochs():
        return re.findall('name="millrace-epoch-tank" value="[0-9]+"', node.run('cibadmin', '--query', '--scope', 'nodes'))

    def constrain(text):
        node.run('cibadmin', '--modify', '--allow-create', '--scope', 'constraints', '--xml-text', text)

    def has_failed(part):
        return f'fail-count-tank-{part}' in node.run('cibadmin', '--query', '--scope', 'status')

    before = configuration()
    assert epochs()
    assert '--yes' in node.refused('service', 'remove', 'tank')
    constrain('<rsc_order id="several"><resource_set id="set"><resource_ref id="fencing"/><resource_ref id="tank-server"/>'
              '</resource_set></rsc_order>')
    assert 'tank-server is a part of several' in node.refused('service', 'remove', 'tank', '--yes')
    node.run('cibadmin', '--delete', '--xpath', "//rsc_order[@id='several']")
    managed = ('crm_resource', '--resource', 'tank-reader', '--meta', '--parameter-value', 'false')
    node.run(*managed, '--set-parameter', 'is-managed')
    try:
        assert 'to leave readers of tank alone' in node.refused('service', 'remove', 'tank', '--yes')
    finally:
        node.run(*managed[:-2], '--delete-parameter', 'is-managed')
    constrain('<rsc_colocation id="beside" rsc="fencing" with-rsc="tank-address" score="1"/>')  # goes with what it is about
    node.run('attrd_updater', '--name', 'fail-count-tank-reader#start_0', '--update', '1')
    wait_until(lambda: has_failed('reader#start_0'), 60, 'that has failed')
    node.ask('service', 'remove', 'tank', '--yes')
    assert not has_failed('')
    assert configuration() == (set(), set()) and not epochs() and node.ask('service', 'list')['services'] == []
    words = ('service', 'create', 'tank', '--pool', 'tank', '--address', f'{cluster.address}/24', '--json')
    assert 'three nodes' in node.refused(*words[:-1])
    node.run('touch', '/etc/millrace/fencing')  # by which the command knows that two nodes can fence each other
    cluster.set('stonith-enabled', 'false')
    try:
        assert 'has no fencing' in node.refused(*words[:-1])
    finally:
        cluster.set('stonith-enabled', 'true')
    with told_to('fencing', 'Stopped', node):
        assert 'it is disabled' in node.refused(*words[:-1])
    cluster.set('maintenance-mode', 'true')
    try:
        assert 'maintenance-mode' in node.refused(*words[:-1])
    finally:
        cluster.set('maintenance-mode', 'false')
    create = ('env', f'MILLRACE_DEVICE_DIR={cluster.pool.device_dir}', 'millrace', *words)
    other = cluster.nodes[1]
    place = ('--device-dir', cluster.pool.device_dir)
    owner = next(each for each in cluster.nodes if each.attempt('millrace', 'pool', 'export', 'tank').returncode == 0)
    owner.run('millrace', 'pool', 'import', 'tank', '--host', 'elsewhere', *place)
    assert 'assigned to host elsewhere' in node.attempt(*create).stdout
    node.run('millrace', 'pool', 'import', 'tank', '--force', *place)
    for address, why in ((other.address, f'of node {other.name}'), (other.reader_address, f'of node {other.name}'),
                         (node.reader_address, 'this node has'), (f'{cluster.network}.1', 'another host has'),
                         ('198.51.100.7', 'in no network of this node')):
        assert why in node.refused('service', 'create', 'tank', '--pool', 'tank', '--address', f'{address}/24')
    for address in ('127.0.0.2/8', '224.0.0.1/24', f'{cluster.network}.255/24', '0.0.0.0/0', 'fe80::7/64', f'{cluster.address}/0'):
        done = node.attempt('millrace', 'service', 'create', 'tank', '--pool', 'tank', '--address', address)
        assert done.returncode in (USAGE, REFUSED), done
    node.run('ip', 'address', 'add', '203.0.113.1/24', 'dev', 'lan')
    why = node.refused('service', 'create', 'tank', '--pool', 'tank', '--address', '203.0.113.7/24')
    assert f'datasets at {node.reader_address}' in why
    node.run('ip', 'address', 'delete', '203.0.113.1/24', 'dev', 'lan')
    with another_tank(cluster.pool.device_dir):
        assert 'drives of 2 pools called tank' in node.attempt(*create).stdout
    with node.taken(PORT):
        assert f'something listens at port {PORT}' in node.attempt(*create).stdout
    with cluster.nodes[0].taken(PORT, listens=False), cluster.nodes[1].taken(PORT, listens=False):
        failed = node.attempt(*create)
        assert failed.returncode == 1 and 'tank is served by no node: ' in failed.stdout
    assert configuration() == (set(), set())
    wait_until(lambda: not has_failed(''), 60, 'its failures are forgotten')
    for kept in cluster.nodes:
        for part in ('server#start_0', 'reader#start_0'):
            kept.run('attrd_updater', '--name', f'fail-count-tank-{part}', '--update', 'INFINITY')
    other.run(*create[:2], 'millrace', 'serve', 'tank', '--listen', other.address, '--port', str(PORT))
    made = node.run(*create)
    assert "served here by nobody's order" in ' '.join(filter(None, cluster.failures()))
    assert f'{other.address}:{PORT}' not in other.run('ss', '--no-header', '-ltn')
    assert json.loads(made)['service']['node'] == cluster.wait_until_served().name and configuration() == before
    wait_until(epochs, 60, 'the cluster knows who has the pool')
    assert 'a tank-server already' in node.refused(*words[:-1])
    assert 'serves pool tank already' in node.refused('service', 'create', 'pond', '--pool', 'pond', '--address', '192.0.2.9/24')
    told(writer.check())


def test_a_server_that_dies_again_and_again(cluster, readers, writer, told):
    """Of a service that `service create` makes: the third time another node serves."""
    node = cluster.nodes[0]
    node.ask('service', 'remove', 'tank', '--yes')
    node.run('touch', '/etc/millrace/fencing')  # as above
    node.run('env', f'MILLRACE_DEVICE_DIR={cluster.pool.device_dir}', 'millrace', 'service', 'create', 'tank', '--pool', 'tank',
             '--address', f'{cluster.address}/24')
    owner = cluster.wait_until_served()
    for number in (1, 2, 3):
        before = owner.server_pid()
        owner.signal_server(signal.SIGKILL)
        if number < 3:
            wait_until(lambda before=before: cluster.wait_until_served() is owner and owner.server_pid() != before, 60,
                       'it serves again', 0.2)
            writer.more(5)
    assert cluster.wait_until_served(but=owner) is cluster.other(owner)
    told(writer.check())

# SPDX-License-Identifier: LGPL-3.0-or-later
"""A cluster of two nodes, corosync's and pacemaker's, whose service moves while a real NFS client writes: no
acknowledged record is lost, no lock is stolen, no checkpoint is half."""

import os
import signal
import subprocess

import pytest

from harness.appender import told  # noqa: F401 (a fixture)
from harness.host import wait_until
from served import client, cluster, readers, whole, writer  # noqa: F401 (fixtures)


def look_when_the_address_leaves(node, address):
    """Returns a function: whether the server of NODE had ended by then."""
    node.run('rm', '-f', '/run/left')
    node.run('bash', '-c', f'(grep --quiet "^Deleted .* {address}/" < <(ip -oneline monitor address); '
                           f'[ ! -e /proc/{node.server_pid()}/exe ]; echo $? >/run/left) >/dev/null 2>&1 &')
    return lambda: wait_until(lambda: node.attempt('cat', '/run/left').stdout, 60, 'the address leaves') == '0\n'


def test_a_planned_move(cluster, writer, told):
    before = cluster.owner()
    had_ended = look_when_the_address_leaves(before, cluster.address)
    assert cluster.move() is not before
    assert had_ended()
    told(writer.check())
    assert cluster.fenced == []


def test_a_server_that_is_killed(cluster, writer, told):
    owner = cluster.owner()
    pid = owner.server_pid()
    owner.signal_server(signal.SIGKILL)
    wait_until(lambda: (now := cluster.owner()) and (now is not owner or now.server_pid() != pid), 120, 'another server')
    told(writer.check())
    assert cluster.fenced == []


def test_a_server_that_hangs(cluster, writer, told):
    cluster.owner().signal_server(signal.SIGSTOP)
    told(writer.check())
    assert cluster.fenced == []


def test_a_node_that_dies(cluster, writer, told):
    before = cluster.owner()
    before.kill()
    assert cluster.wait_until_served(before)
    told(writer.check())
    assert cluster.fenced == [before.name]


def test_a_node_that_is_paused_is_fenced(cluster, writer, told):
    before = cluster.owner()
    before.pause()
    assert cluster.wait_until_served(before)
    told(writer.check())
    assert cluster.fenced == [before.name] and not before.is_on()


def test_a_network_that_parts_the_nodes(cluster, writer, told):
    """The node that serves wins."""
    before = cluster.owner()
    cluster.other(before).cut()
    wait_until(lambda: cluster.fenced, 120, 'the other node is fenced')
    writer.more(20)
    told(writer.check())
    assert cluster.fenced == [cluster.other(before).name] and cluster.owner() is before


def test_both_nodes_at_once(cluster, writer, told):
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    cluster.wait_for_nodes()
    cluster.wait_until_served()
    told(writer.check())


@pytest.mark.long
def test_twenty_in_a_row(cluster, writer, told):
    """Moves and deaths in turn; each node is back before the next."""
    for i in range(20):
        before = cluster.owner()
        if i % 2:
            cluster.move()
        else:
            before.kill()
            cluster.wait_until_served(before)
            before.start()
            cluster.wait_for_nodes()
        writer.more(10)
    told(writer.check())
    assert len(cluster.fenced) == 10


def test_readers_on_every_node(cluster, readers, client):
    """They go on while the owner dies, at the other node, with the same bytes."""
    before = cluster.owner()
    other = cluster.other(before)
    client.mount('/tank/set', '/mnt/set', server=other.reader_address)
    wanted = client.run('sha256sum </mnt/set/large', timeout=120).stdout
    reading = client.spawn('for i in 1 2 3 4 5 6 7 8; do echo 3 >/proc/sys/vm/drop_caches; sha256sum </mnt/set/large; done')
    reading.wait_for_lines(1, 120)
    before.kill()
    cluster.wait_until_served(before)
    assert set(reading.wait(timeout=300).stdout.splitlines(True)) == {wanted}
    client.umount('/mnt/set')


def test_a_service_leaves_a_node_whose_cable_is_out(cluster, readers, writer, told):
    """The reader says so."""
    def wait_for_link(node, value):
        wait_until(lambda: f'value="{value}"' in node.attempt('attrd_updater', '--name', 'millrace-link', '--query').stdout,
                   60, f'{node.name} says {value}')

    for node in cluster.nodes:
        wait_for_link(node, 1)
    before = cluster.owner()
    before.cut(before.reader_device)
    assert cluster.wait_until_served(before)
    wait_for_link(before, 0)
    before.join(before.reader_device)
    wait_for_link(before, 1)
    told(writer.check())
    assert cluster.fenced == []


def test_a_node_that_sees_no_drive(cluster, readers):
    """It serves nothing: its reader ends, which the cluster says, and is begun again when they are there."""
    node = cluster.other(cluster.owner())

    def failed():
        return next(each['failed'] for each in cluster.owner().ask('cluster', 'status')['nodes'] if each['name'] == node.name)

    wait_until(lambda: failed() == [], 60, 'its reader runs')
    cluster.set('start-failure-is-fatal', 'false')  # as `cluster create` does
    node.run('mount', '-t', 'tmpfs', 'none', cluster.pool.device_dir)
    try:
        wait_until(lambda: failed() == ['tank-reader'], 120, 'its reader has ended')
        assert node.attempt('millrace', 'serve', 'tank', '--reader', '--probe').returncode
    finally:
        node.run('umount', cluster.pool.device_dir)
    wait_until(lambda: node.attempt('millrace', 'serve', 'tank', '--reader', '--probe').returncode == 0, 120, 'its reader runs again')
    cluster.set('start-failure-is-fatal', 'true')
    cluster.clean()
    wait_until(lambda: failed() == [], 60, 'that is forgotten')


def device_states(node):
    return [device['state'] if device['whole'] else 'lacks' for device in node.ask('pool', 'status', 'tank')['pool']['devices']]


def test_a_drive_comes_back_behind_a_failover(cluster, readers, writer, told):
    """It is whole again, and nobody has said so, once the node that had the pool has booted; before that it is left alone."""
    before, drive = cluster.owner(), cluster.pool.devices[2]
    os.rename(drive, f'{drive}.away')
    wait_until(lambda: device_states(before)[2] != 'active', 60, 'it is dropped')
    before.kill()
    after = cluster.wait_until_served(before)
    subprocess.run(['cp', '--sparse=always', f'{drive}.away', drive], check=True)  # another one of its name, as a drive that is plugged in
    os.unlink(f'{drive}.away')
    assert 'may still write' in after.refused('pool', 'attach', 'tank')
    assert device_states(after)[2] != 'active'
    assert f'{after.name} is alive' in after.refused('cluster', 'confirm-dead', after.name, '--yes')
    after.run('millrace', 'cluster', 'confirm-dead', before.name, '--yes')
    before.start()
    cluster.wait_for_nodes()
    wait_until(lambda: set(device_states(after)) == {'active'}, 240, 'it is whole again')
    told(writer.check())
    assert cluster.owner() is after and cluster.fenced == [before.name]


def test_who_has_booted_may_write_no_more(cluster, readers):
    """So that what is deleted gives its space back, though all drives are whole and nobody has said anything."""
    before = cluster.owner()
    before.kill()
    after = cluster.wait_until_served(before)
    wait_until(lambda: after.ask('pool', 'status', 'tank')['pool']['other_owners'] == before.name, 60, 'it may still write')
    before.start()
    cluster.wait_for_nodes()
    wait_until(lambda: after.ask('pool', 'status', 'tank')['pool']['other_owners'] == '', 240, 'it is known to have booted')
    assert cluster.owner() is after

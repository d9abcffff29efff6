# SPDX-License-Identifier: LGPL-3.0-or-later
"""Two nodes of the appliance that see the same drives of a third machine over NVMe-oF, which have reservations: who is
fenced is shut out of them. Clients are at work meanwhile, as in test_cluster.py, over IPv6, and nodes have one address each."""

import base64
import itertools
import json
import os
import time

import pytest

from cluster import CORE, POOL, Cluster
from harness.host import wait_until
from machine import ROOT
from node import kernel_of
from target import SUBSYSTEM, Target

pytestmark = pytest.mark.long

ADDRESS = '198.51.100.9'
DRIVES, DRIVE_MIB = 6, 1 << 10


def shelf_unit():
    with open(os.path.join(ROOT, 'docs/high-availability.md')) as page:
        lines = page.read().partition('    # /etc/systemd/system/shelf.service')[2].splitlines()[1:]
    unit = '\n'.join(line[4:] for line in itertools.takewhile(lambda line: not line or line.startswith('    '), lines))
    for of_page, ours in (('192.0.2.50', ADDRESS), ('nqn.2014-08.org.nvmexpress:uuid:...', SUBSYSTEM)):
        assert unit.count(of_page) == 1
        unit = unit.replace(of_page, ours)
    return unit


class OnTarget(Cluster):
    PREFIX, BITS = '2001:db8::', 64

    def _addresses(self, node):
        return f'--address {self.address_of(node)}'

    def _drives(self):
        return 0

    def connect(self, node):
        """To the drives, which have the same names at each, now and at each boot, by the unit that the page has."""
        node.run(f'echo {base64.b64encode(shelf_unit().encode()).decode()} | base64 -d >/etc/systemd/system/shelf.service; '
                 'systemctl enable --now shelf', timeout=120)
        wait_until(lambda: len(self.paths(node)) == DRIVES, 60, f'{node.name} sees the drives', interval=1)

    def paths(self, node):
        return node.attempt('ls -d /dev/nvme?n?').stdout.split()

    def reports(self, node):
        """How each drive is reserved, and who is registered."""
        told = [json.loads(node.run(f'nvme resv-report {path} --eds --output-format=json')) for path in self.paths(node)]
        return [(one['rtype'], {entry['rkey'] for entry in one['regctlext']}) for one in told]


@pytest.fixture(scope='module')
def machines(lab, image, key, public_key):
    """Of the cluster, before there is one."""
    target = lab.add(Target, 'target', server_address=ADDRESS, networks={CORE: f'{ADDRESS}/24'})
    cluster = OnTarget(lab, public_key, image=image, key=key, kernel=kernel_of(image, lab.workdir))
    target.start()
    target.share_drives(DRIVES, DRIVE_MIB, ADDRESS)
    cluster.start()
    for node in cluster.nodes:
        cluster.connect(node)
    cluster.begin_clients()
    cluster.create_pool(cluster.paths(cluster.nodes[0]))
    cluster.target = target
    yield cluster
    cluster.remove()
    lab.remove(target)


@pytest.fixture(scope='module')
def cluster(machines):
    machines.join(machines.create())
    return machines.serve()


def test_one_that_cannot_be_made(machines):
    """Nothing is left of it, on the node or on drives; it is made below, in the same way."""
    node = machines.nodes[0]
    node.run('systemctl mask --runtime corosync.service')
    assert 'units' in machines.create(rc=1)
    node.run('systemctl unmask --runtime corosync.service')
    assert node.json('millrace cluster status', rc=3)['error']['code'] == 'not-found'
    assert not any(keys for _, keys in machines.reports(node))
    told = node.json('millrace pool import')['pools'][0]
    assert not any(node.does(f'dd if={area["path"]} bs=64k skip={area["offset"]} count=1 iflag=skip_bytes status=none | grep -aq SBD_SBD_')
                   for area in told['fencing'])


def test_both_are_registered(cluster):
    reports = cluster.reports(cluster.nodes[0])
    assert all(kind == 5 and len(keys) == 2 for kind, keys in reports) and len(reports) == DRIVES


def test_clients_are_told_its_address(cluster):
    told = cluster.nodes[1].json(f'millrace client mount-command {POOL}/share --proto rdma')['mount']
    assert 'proto=rdma6' in told['options'].split(',') and f' [{cluster.address}]:/{POOL}/share ' in told['command']


def test_who_stands_still_is_shut_out(cluster, work):
    """Nobody waits for its watchdog. It resets itself when it goes on."""
    owner = cluster.owner()
    other = cluster.other(owner)
    with work.cut_off():
        owner.pause()
    cluster.wait_for_owner(other)
    assert all(len(keys) == 1 for _, keys in cluster.reports(other))
    assert 'is shut out of all drives' in other.run('grep -h "shut out" /var/log/pacemaker/pacemaker.log; journalctl -q -o cat | grep "shut out"; :')
    work.more(20)
    owner.go_on()
    wait_until(lambda: not owner.is_on(), 300, 'it resets itself', interval=1)
    work.check()


def state_of(node, unit):
    return node.attempt(f'systemctl show --value --property=ActiveState {unit}').stdout.strip()


def test_a_node_that_is_fenced_while_it_boots(cluster, work):
    """It is shut out of the drives as its sbd waits; and is registered on them when that starts."""
    owner = cluster.owner()
    other = cluster.other(owner)
    other.power_off()
    wait_until(lambda: cluster.states()[other.name] == 'offline', 300, 'it is fenced', interval=1)
    other.power_on()
    other.wait_until_up()
    wait_until(lambda: state_of(other, 'sbd') == 'activating' and state_of(other, 'millrace-fencing') == 'active', 120,
               'its sbd waits', interval=0.5)
    owner.run(f'stonith_admin --fence {other.name}', timeout=120)
    assert all(len(keys) == 1 for _, keys in cluster.reports(owner))
    assert state_of(other, 'sbd') == 'activating'
    cluster.wait_until_whole()
    wait_until(lambda: all(kind == 5 and len(keys) == 2 for kind, keys in cluster.reports(owner)), 120, 'both are registered', interval=2)
    work.check()


def test_drives_that_come_later_than_the_nodes(cluster, work):
    """As a shelf may, behind a power cut: they are waited for, and nobody is asked to begin."""
    for node in cluster.nodes:  # without which nothing looks for drives before they are connected
        node.run("sed -i '/^Before=millrace-fencing/d' /etc/systemd/system/shelf.service && sync")
        node.power_off()
    cluster.target.hide_drives()
    for node in cluster.nodes:
        node.power_on()
        node.wait_until_up()
    time.sleep(90)
    for node in cluster.nodes:
        wait_until(lambda: int(node.run('cut -d . -f 1 /proc/uptime')) > 150, 300, 'it has looked for long', interval=5)
        assert [state_of(node, unit) for unit in ('shelf', 'millrace-fencing', 'pacemaker')] == ['activating', 'activating', 'inactive']
    cluster.target.show_drives()
    cluster.wait_until_whole()
    work.check()

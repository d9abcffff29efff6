# SPDX-License-Identifier: LGPL-3.0-or-later
"""Nodes of a cluster, which boot through firmware and GRUB here, are updated one after another, as an admin would, while
clients are at work."""

import json
import os

import pytest

import variant
from cluster import ACT_TIMEOUT, Cluster
from harness.host import wait_until
from node import make_disk_of

pytestmark = pytest.mark.long

SHORT = {f'{variant.TRIAL}/short.conf': '[Service]\nEnvironment=MILLRACE_TRIAL_SECONDS=240\n'}
CLAIM = "//nvpair[@id='millrace-change-by']"
JOINS_NOT = {'usr/sbin/corosync': None, **SHORT}


@pytest.fixture(scope='module')
def cluster(lab, image, key, public_key):
    cluster = Cluster(lab, public_key, image=image, key=key, firmware='uefi')
    cluster.start().create_pool(drive.path for drive in cluster.nodes[0].drives)
    cluster.begin_clients()
    cluster.join(cluster.create())
    yield cluster.serve()
    cluster.remove()


@pytest.fixture
def disk(version, update_file, tmp_path):
    """disk(NAME, CHANGES): one with an update file, new.update; and its version, of which NAME is the end."""
    def make(name, changes):
        newer = f'{version}+{name}'
        os.mkdir(tmp_path / name)
        variant.make(update_file, newer, changes, os.fspath(tmp_path / name / 'new.update'))
        make_disk_of(tmp_path / name, os.fspath(tmp_path / f'{name}.disk'))
        return os.fspath(tmp_path / f'{name}.disk'), newer

    return make


def update(node, disk):
    """From DISK, which is put into the node; it boots, which ends QEMU."""
    node.run(f'millrace node update {node.mount_disk(disk)}/new.update', timeout=1800)
    wait_until(lambda: not node.is_on(), ACT_TIMEOUT, f'{node.name} boots', 1)


def status(node):
    return node.json('millrace node status')['node']


def wait_until_settled(cluster, node, state):
    """It is in the cluster again, and its update is STATE. It may boot several times."""
    def is_settled():
        cluster.start_again()
        told = cluster.ask_node(node, 'node status')
        return told and told['node'].get('update_state') == state

    wait_until(is_settled, 2 * ACT_TIMEOUT, f'the update of {node.name} is {state}', 2)
    cluster.wait_until_whole()


def test_nodes_are_updated_one_after_another(cluster, work, disk, record_property):
    """First the one that does not serve; meanwhile the other refuses. The service goes to the new version by itself."""
    record_property('set-up', round(cluster.set_up_seconds))
    assert cluster.set_up_seconds < 15 * 60
    file, version = disk('1', {})
    owner = cluster.owner()
    first = cluster.other(owner)
    update(first, file)
    why = json.loads(owner.run('millrace node update /state/none --json', rc=4))['error']['message']
    assert f'{first.name} is' in why
    wait_until_settled(cluster, first, 'good')
    assert cluster.owner() is owner
    work.look('an update of the node that does not serve')
    with work.cut_off():
        update(owner, file)
    cluster.wait_for_owner(first)
    work.more(20)
    wait_until_settled(cluster, owner, 'good')
    work.check()
    assert cluster.owner() is first
    for node in cluster.nodes:
        assert status(node) == {'version': version, 'slot': 'b', 'update_version': version, 'update_state': 'good'}


def test_a_version_that_does_not_join_goes_back(cluster, work, disk):
    """The node is in the cluster again with the one before, the other has served, and may boot next."""
    file, version = disk('2', JOINS_NOT)
    owner = cluster.owner()
    node = cluster.other(owner)
    before = status(node)
    update(node, file)
    wait_until_settled(cluster, node, 'back')
    assert cluster.owner() is owner
    work.check()
    found = status(node)
    assert (found['version'], found['slot'], found['update_version']) == (before['version'], before['slot'], version)
    assert 'is not online in its cluster' in found['update_reason']
    wait_until(lambda: owner.does(f'! cibadmin --query --xpath "{CLAIM}"'), 120, 'no boot is claimed')

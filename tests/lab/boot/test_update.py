# SPDX-License-Identifier: LGPL-3.0-or-later
"""`millrace node update`: a good version stays, with pool, configuration and identities, also when the
power is cut; one that crashes, does not start or does not serve goes back to the one before; bad files
change nothing."""

import contextlib
import os

import pytest

import variant
from harness.host import wait_until
from node import make_disk_of

KEPT = ('cat /etc/machine-id', 'cat /etc/nvme/hostid', 'cat /etc/nvme/hostnqn',
        'cat /etc/ssh/ssh_host_ed25519_key.pub', 'hostname', 'cat /state/config/millrace.conf')


def kept(node):
    return [node.run(command) for command in KEPT]


def status(node):
    return node.json('millrace node status')['node']


def wait_until_served(node):
    """The pool, with its share."""
    wait_until(lambda: ':2049 ' in node.run('ss -ltn'), 600, 'the pool is served', 1)
    assert node.json('millrace pool status tank')['pool']['state'] == 'served'
    assert node.json('millrace share list')['shares'][0]['name'] == 'tank/models'


@contextlib.contextmanager
def disk_in(node, disk):
    """DISK is put into the node; gives where its files are."""
    yield node.mount_disk(disk)
    node.take_disk_out()


def update(node, disk):
    """Say `node update`; returns the boot in which it was said."""
    with disk_in(node, disk) as path:
        node.run(f'millrace node update {path}/new.update --later', timeout=1800)
    assert status(node)['update_state'] == 'written'
    return node.boot_id()


def reboot(node):
    node.run('sync; systemctl --no-block reboot')


def another_boot(boot):
    """A command that succeeds in another boot than BOOT."""
    return f'! grep -qx {boot} /proc/sys/kernel/random/boot_id'


def settled(node, state):
    wait_until(lambda: status(node).get('update_state') == state, 1800, f'the update is {state}', 2)


def test_a_good_version_stays(serving, updates):
    """It is booted by a power cut: what a node is, has and serves is there after that too."""
    node, before, (disk, version) = serving, kept(serving), updates('good', {})
    assert all(before) and len(set(before)) == len(KEPT)
    update(node, disk)
    node.run('sync')
    node.power_off()
    node.start()
    settled(node, 'good')
    assert status(node) == {'version': version, 'slot': 'b', 'update_version': version, 'update_state': 'good'}
    assert kept(node) == before
    wait_until_served(node)
    assert 'good=b\ntrial=\n' in grubenv(node)


def grubenv(node):
    return node.run('mkdir -p /run/esp && mount -o ro PARTLABEL=esp /run/esp && cat /run/esp/grub/grubenv; '
                    'umount /run/esp')


@pytest.mark.parametrize('name,changes', [
    pytest.param('panics', variant.PANICS),
    pytest.param('starts-not', variant.STARTS_NOT, marks=pytest.mark.long),
    pytest.param('finds-no-init', variant.FINDS_NO_INIT, marks=pytest.mark.long),
    pytest.param('serves-not', variant.SERVES_NOT, marks=pytest.mark.long)])
def test_a_bad_version_goes_back(serving, updates, name, changes):
    node, before, now = serving, kept(serving), status(serving)
    disk, version = updates(name, changes)
    boot, at = update(node, disk), len(node.console.text)
    reboot(node)
    node.wait_through_resets(f'grep -q millrace.slot={now["slot"]} /proc/cmdline && {another_boot(boot)}')
    other = 'a' if now['slot'] == 'b' else 'b'
    node.console.expect(f'Millrace: slot {other} millrace.trial', after=at, timeout=10)
    settled(node, 'back')
    found = status(node)
    assert (found['slot'], found['version'], found['update_version']) == (now['slot'], now['version'], version)
    assert found['update_reason']
    assert kept(node) == before
    wait_until_served(node)


@pytest.mark.long
def test_a_power_cut_in_the_trial_goes_back(serving, updates):
    node, now, (disk, _) = serving, status(serving), updates('good-too', {})
    boot, at = update(node, disk), len(node.console.text)
    reboot(node)
    wait_until(lambda: not node.is_on(), 600, 'it reboots')
    node.power_on()
    node.console.expect('millrace.trial', after=at)
    node.power_off()
    node.power_on()
    node.wait_through_resets(another_boot(boot))
    settled(node, 'back')
    assert status(node)['slot'] == now['slot']
    wait_until_served(node)


def test_bad_files_are_refused(serving, updates, tmp_path):
    node, before, (disk, _) = serving, status(serving), updates('good', {})
    os.mkdir(tmp_path / 'cut')
    with open(disk[:-len('.disk')] + '/new.update', 'rb') as whole, open(tmp_path / 'cut' / 'cut.update', 'wb') as cut:
        cut.write(whole.read(20 << 20))
    make_disk_of(tmp_path / 'cut', os.fspath(tmp_path / 'disk'))
    with disk_in(node, os.fspath(tmp_path / 'disk')) as path:
        answer = node.json(f'millrace node update {path}/cut.update', rc=4)
    assert answer['error']['code'] == 'refused' and 'cut short' in answer['error']['message']
    assert status(node) == before

# SPDX-License-Identifier: LGPL-3.0-or-later
"""`millrace node update`: a good version stays, with pool, configuration and identities; one that
crashes, does not start or does not serve goes back to the one before; bad files change nothing."""

import os

import pytest

import variant
from appliance import wait_until

KEPT = ('cat /etc/machine-id', 'cat /etc/nvme/hostid', 'cat /etc/ssh/ssh_host_ed25519_key.pub', 'hostname',
        'cat /state/config/millrace.conf')


@pytest.fixture(scope='module')
def node(alpha):
    """One that serves a pool."""
    alpha.serve_pool()
    return alpha


def kept(node):
    return [node.run(command) for command in KEPT]


def status(node):
    return node.json('millrace node status')['node']


def is_served(node):
    return node.json('millrace pool status tank')['pool']['state'] == 'served'


def update(node, path, *options):
    """Put the file there and say `node update`; returns the boot in which it was said."""
    node.put(path, '/state/new.update')
    before = node.boot_id()
    node.run(f'millrace node update /state/new.update --later {" ".join(options)}', timeout=1800)
    return before


def boot_now(node, before):
    node.run('systemctl --no-block reboot')
    node.wait_for_another_boot(before)


def settled(node, state):
    wait_until(lambda: status(node).get('update_state') == state, 1800, f'the update is {state}', 5)


def test_a_good_version_stays(node, updates):
    before, (path, version) = kept(node), updates('good', {})
    boot = update(node, path)
    assert status(node)['update_state'] == 'written'
    boot_now(node, boot)
    settled(node, 'good')
    assert status(node) == {'version': version, 'slot': 'b', 'update_version': version, 'update_state': 'good'}
    assert kept(node) == before and is_served(node)
    assert 'good=b\ntrial=\n' in grubenv(node)


def grubenv(node):
    return node.run('mkdir -p /run/esp && mount -o ro PARTLABEL=esp /run/esp && cat /run/esp/grub/grubenv; '
                    'umount /run/esp')


@pytest.mark.parametrize('name,changes', [
    pytest.param('panics', variant.PANICS),
    pytest.param('starts-not', variant.STARTS_NOT, marks=pytest.mark.long),
    pytest.param('finds-no-init', variant.FINDS_NO_INIT, marks=pytest.mark.long),
    pytest.param('serves-not', variant.SERVES_NOT, marks=pytest.mark.long)])
def test_a_bad_version_goes_back(node, updates, name, changes):
    before, now = kept(node), status(node)
    path, version = updates(name, changes)
    boot = update(node, path)
    at = len(node.console.text)
    boot_now(node, boot)
    other = 'a' if now['slot'] == 'b' else 'b'
    node.console.expect(f'slot {other} +millrace.trial|millrace.slot={other} millrace.trial', after=at)
    wait_until(lambda: status(node)['slot'] == now['slot'], 1800, 'it is back', 10)
    settled(node, 'back')
    found = status(node)
    assert (found['version'], found['update_version']) == (now['version'], version)
    assert found['update_reason']
    assert kept(node) == before
    wait_until(lambda: is_served(node), 600, 'the pool is served')


@pytest.mark.long
def test_a_power_cut_in_the_trial_goes_back(node, updates):
    now, (path, _) = status(node), updates('good-too', {})
    boot = update(node, path)
    at = len(node.console.text)
    node.run('systemctl --no-block reboot')
    node.console.expect('millrace.trial', after=at)
    node.cut_power()
    node.wait_for_another_boot(boot)
    settled(node, 'back')
    assert status(node)['slot'] == now['slot'] and is_served(node)


def test_bad_files_are_refused(node, updates, tmp_path):
    path, _ = updates('good', {})
    before = status(node)
    cut = os.fspath(tmp_path / 'cut')
    with open(path, 'rb') as whole, open(cut, 'wb') as file:
        file.write(whole.read(20 << 20))
    node.put(cut, '/state/cut.update')
    answer = node.json('millrace node update /state/cut.update', rc=4)
    assert answer['error']['code'] == 'refused' and 'cut short' in answer['error']['message']
    assert status(node) == before

# SPDX-License-Identifier: LGPL-3.0-or-later
"""The image boots through firmware and GRUB, by BIOS and by UEFI; nothing of a node is in the image;
a drive labelled MILLRACE is obeyed, or the console asks; drives with foreign data stay as they are."""

import hashlib
import json
import os
import re
import subprocess

import pytest

from appliance import wait_until

IDENTITIES = ('cat /etc/machine-id', 'cat /etc/nvme/hostid', 'cat /etc/nvme/hostnqn',
              'cat /etc/ssh/ssh_host_ed25519_key.pub')
MIB = 1 << 20


def identities(node):
    return [node.run(command).strip() for command in IDENTITIES]


def digest(path):
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def foreign_drives(directory):
    """Drives as other systems leave them: a file system that was not unmounted, and the heads of an
    LVM physical volume, a member of an MD array and a swap area."""
    paths = [os.path.join(directory, f'foreign{i}') for i in range(4)]
    for path in paths:
        with open(path, 'wb') as file:
            file.truncate(16 * MIB)
    subprocess.run(['mke2fs', '-q', '-t', 'ext4', '-L', 'data', paths[0]], check=True)
    subprocess.run(['debugfs', '-w', '-R', 'feature needs_recovery', paths[0]], check=True, capture_output=True)
    for path, offset, head in ((paths[1], 512, b'LABELONE' + (1).to_bytes(8, 'little') + bytes(8) + b'LVM2 001'),
                               (paths[2], 4096, bytes.fromhex('fc4e2ba9') + (1).to_bytes(4, 'little')),
                               (paths[3], 4086, b'SWAPSPACE2')):
        with open(path, 'r+b') as file:
            file.seek(offset)
            file.write(head)
    return paths


@pytest.fixture(scope='module')
def foreign(tmp_path_factory):
    paths = foreign_drives(tmp_path_factory.mktemp('foreign'))
    return {path: digest(path) for path in paths}


@pytest.fixture(scope='module')
def alpha(node_of, public_key, foreign):
    """By UEFI, with a configuration, three NVMe drives, and drives of others."""
    node = node_of('alpha', firmware='uefi', drives=3, disks=list(foreign), address='10.0.2.77', configuration=f'''
# Of this node.
hostname=alpha
address=10.0.2.77/24
gateway=10.0.2.2
ntp=10.0.2.2
ssh_key={public_key}
rdma=rxe
''')
    node.wait_for_ssh()
    return node


@pytest.fixture(scope='module')
def beta(node_of):
    """By BIOS, with nothing."""
    node = node_of('beta', firmware='bios')
    node.console.expect('Choice: ')
    return node


def test_the_configuration_is_obeyed(alpha):
    assert alpha.run('hostname').strip() == 'alpha'
    assert '10.0.2.77/24' in alpha.run('ip -brief address')
    assert 'via 10.0.2.2' in alpha.run('ip route show default')
    assert '10.0.2.2' in alpha.run('chronyc -n sources')
    alpha.run('test -d /sys/firmware/efi')
    wait_until(lambda: 'rxe_' in alpha.run('rdma link show'), 300, 'a soft RDMA device')


def test_all_of_it_comes_up(alpha, version):
    wait_until(lambda: alpha.run('systemctl is-system-running --wait || true').strip() == 'running', 600, 'running')
    assert alpha.json('millrace node status')['node'] == {'version': version, 'slot': 'a'}
    assert version in alpha.run('millrace --version')


def test_only_what_is_served_is_open(alpha):
    rules = json.loads(alpha.run('nft --json list ruleset'))['nftables']
    sets = {rule['set']['name']: rule['set'].get('elem', []) for rule in rules if 'set' in rule}
    assert sorted(sets['tcp_served']) == [22, 2049, 20049] and sets['udp_served'] == [4791]
    policies = {rule['chain']['name']: rule['chain']['policy'] for rule in rules if 'chain' in rule}
    assert policies == {'input': 'drop', 'forward': 'drop'}


def test_nobody_knows_a_password(alpha):
    hashes = {line.split(':')[1] for line in alpha.run('cat /etc/shadow').splitlines()}
    assert hashes <= {'*', '!', '!*'}
    assert 'passwordauthentication no' in alpha.run('sshd -T')


def test_the_root_file_system_is_not_written(alpha):
    alpha.run('touch /usr/x', rc=1)
    assert ' ro,' in alpha.run("findmnt -no OPTIONS / | sed 's/^/ /'")


def test_drives_with_foreign_data_are_not_touched(alpha, foreign):
    assert not alpha.run('cat /proc/mdstat 2>/dev/null | grep ^md || true; swapon --show --noheadings')
    assert alpha.run("lsblk -nro TYPE | sort -u").split() == ['disk', 'part']
    for path, before in foreign.items():
        assert digest(path) == before


def test_a_pool_is_made_and_served(alpha):
    drives = ' '.join(f'/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_alpha{i}' for i in range(3))
    alpha.json(f'millrace pool create tank --data 2 --parity 1 {drives}')
    alpha.json('millrace share create tank/models')
    alpha.json('millrace share set tank/models nfs.clients=*:rw')
    alpha.json('millrace serve tank --enable')
    assert alpha.json('millrace pool status tank')['pool']['state'] == 'served'
    assert ':2049 ' in alpha.run('ss -ltn')


def test_identities_and_service_are_there_after_a_power_cut(alpha, beta):
    before = identities(alpha)
    assert all(before) and len(set(before)) == 4
    alpha.run('sync')
    alpha.cut_power()
    alpha.wait_for_ssh()
    assert identities(alpha) == before
    assert alpha.run('hostname').strip() == 'alpha'
    wait_until(lambda: ':2049 ' in alpha.run('ss -ltn'), 600, 'the pool is served again')
    assert alpha.json('millrace share list')['shares'][0]['name'] == 'tank/models'


def test_by_bios_the_console_asks_for_what_is_missing(beta, public_key):
    console = beta.console
    assert 'neither a key nor a password' in console.text
    assert re.search(r'\n  Name       millrace-[0-9a-f]{8}\n  \S+ +10\.0\.2\.15/24', console.text)
    at = 0
    for choice, asked, answer in (('1', 'Name: ', 'beta'), ('2', 'or dhcp: ', 'dhcp'),
                                  ('3', 'in one line: ', public_key)):
        at = console.expect('Choice: ', after=at)
        console.send(choice + '\n')
        at = console.expect(asked, after=at)
        console.send(answer + '\n')
        at = console.expect('Done', after=at)
    console.expect('Log in by SSH', after=at)
    beta.wait_for_ssh()
    assert beta.run('hostname').strip() == 'beta'
    beta.run('test -d /sys/firmware/efi', rc=1)


def test_two_nodes_have_nothing_in_common(alpha, beta):
    assert not set(identities(alpha)) & set(identities(beta))

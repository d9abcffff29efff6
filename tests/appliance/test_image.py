# SPDX-License-Identifier: LGPL-3.0-or-later
"""The image: its partitions, what is in them, and what must not be."""

import os
import re
import subprocess

import pytest

from conftest import IMAGES, ROOT

ABSENT = {'lvm2', 'mdadm', 'multipath-tools', 'os-prober', 'cryptsetup', 'grub-pc', 'cloud-init'}


def packages(root):
    return set(re.findall(r'^Package: (\S+)\nStatus: install ok installed', root.read('/var/lib/dpkg/status'), re.M))


def test_partitions(partitions):
    assert [part['name'] for part in partitions] == ['bios', 'esp', 'root-a', 'root-b', 'state']
    types = [part['type'][:8] for part in partitions]
    assert types == ['21686148', 'C12A7328', '0FC63DAF', '0FC63DAF', '0FC63DAF']
    assert partitions[2]['size'] == partitions[3]['size']


def test_it_has_what_it_needs_and_nothing_that_looks_for_drives(root):
    found = packages(root)
    assert found >= {'millrace', 'chrony', 'nftables', 'rdma-core', 'nvme-cli', 'openssh-server', 'udev'}
    assert not found & ABSENT
    kernel = root.names('/usr/lib/modules').pop()
    for module in ('drivers/infiniband/sw/rxe/rdma_rxe', 'drivers/nvme/host/nvme', 'drivers/watchdog/softdog'):
        assert root.exists(f'/usr/lib/modules/{kernel}/kernel/{module}.ko.xz'), module


def test_it_has_no_identity(root, state):
    assert root.exists('/etc/machine-id') and root.read('/etc/machine-id') == ''
    assert not [name for name in root.names('/etc/ssh') if name.startswith('ssh_host')]
    assert not root.names('/etc/nvme') & {'hostid', 'hostnqn'}
    assert not root.names('/var/lib/pcsd') and not root.names('/var/lib/pacemaker/cib')
    for path in ('/etc/hostname', '/var/lib/dbus/machine-id', '/var/lib/systemd/random-seed', '/etc/corosync/authkey',
                 '/etc/corosync/corosync.conf', '/etc/pacemaker/authkey'):
        assert not root.exists(path), path
    assert state.names('/') == {'lost+found'}


def test_it_is_in_no_cluster_until_it_is_put_into_one(root):
    assert packages(root) >= {'corosync', 'pacemaker', 'pcs', 'resource-agents', 'sbd', 'fence-agents-sbd'}
    cluster = {f'{name}.service' for name in ('corosync', 'pacemaker', 'pcsd', 'sbd', 'millrace-cluster')}
    for unit in ('multi-user.target.wants', 'corosync.service.requires', 'pacemaker.service.requires'):
        if root.exists(f'/etc/systemd/system/{unit}'):
            assert not root.names(f'/etc/systemd/system/{unit}') & cluster, unit
    assert root.names('/var/log') >= {'pcsd', 'pacemaker'}


def test_logs_do_not_grow_for_ever(root):
    assert root.exists('/etc/systemd/system/timers.target.wants/logrotate.timer')
    assert '/var/lib/millrace/log/*.log {' in root.read('/etc/logrotate.d/millrace')
    assert 'maxsize' in root.read('/etc/logrotate.d/pacemaker')


def test_nobody_can_log_in_by_a_password(root):
    hashes = {line.split(':')[0]: line.split(':')[1] for line in root.read('/etc/shadow').splitlines()}
    assert hashes['root'] == '*' and set(hashes.values()) <= {'*', '!', '!*'}
    assert not root.exists('/root/.ssh/authorized_keys')


def test_it_does_not_tell_where_it_was_built(root):
    assert 'sources.list' not in root.names('/etc/apt')
    assert not root.names('/etc/apt/apt.conf.d') & {'99mmdebstrap'}
    assert not root.exists('/etc/apt/sources.list.d')


def test_the_boot_loader_knows_both_slots(disk, partitions):
    at = f'{disk}@@{partitions[1]["start"] * 512}'
    config = subprocess.run(['mtype', '-i', at, '::/grub/grub.cfg'], check=True, capture_output=True, text=True).stdout
    for number in (2, 3):
        assert partitions[number]['uuid'].lower() in config
    grubenv = subprocess.run(['mtype', '-i', at, '::/grub/grubenv'], check=True, capture_output=True).stdout
    assert len(grubenv) == 1024
    assert grubenv.startswith(b'# GRUB Environment Block\ngood=a\ntrial=\n#')


def test_the_server_lies_apart_from_debians(root):
    assert root.names('/usr/lib/millrace') >= {'ganesha.nfsd', 'libfsalnvme.so', 'lib', 'node', 'setup', 'version'}
    assert not root.exists('/usr/bin/ganesha.nfsd')


def digest(path):
    return subprocess.run(['sha256sum', path], check=True, capture_output=True, text=True).stdout.split()[0]


@pytest.mark.long
def test_built_again_it_has_the_same_bytes(version, tmp_path):
    subprocess.run([os.path.join(ROOT, 'appliance/build'), tmp_path], check=True)
    with open(tmp_path / 'version') as file:
        assert file.read().strip() == version
    for kind in ('raw', 'qcow2', 'update'):
        name = f'millrace-{version}.{kind}'
        assert digest(tmp_path / name) == digest(os.path.join(IMAGES, name)), name

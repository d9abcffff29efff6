# SPDX-License-Identifier: LGPL-3.0-or-later
"""A node that went through firmware and GRUB, update files, and drives of other systems."""

import os
import subprocess

import pytest

import variant
from node import MIB, Node, digest, make_disk_of


@pytest.fixture(scope='session')
def updates(version, update_file, tmp_path_factory):
    """Makes a disk with an update file, new.update: updates(NAME, CHANGES) -> (disk, version). Later
    ones are newer."""
    directory = tmp_path_factory.mktemp('updates')
    made = {}

    def make(name, changes):
        if name not in made:
            newer = f'{version}+{len(made) + 1}'
            os.mkdir(directory / name)
            variant.make(update_file, newer, changes, os.fspath(directory / name / 'new.update'))
            disk = os.fspath(directory / f'{name}.disk')
            make_disk_of(directory / name, disk)
            made[name] = disk, newer
        return made[name]

    return make


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


@pytest.fixture(scope='session')
def foreign(tmp_path_factory):
    paths = foreign_drives(tmp_path_factory.mktemp('foreign'))
    return {path: digest(path) for path in paths}


@pytest.fixture(scope='session')
def alpha(lab, image, key, public_key, foreign):
    """By UEFI, with a configuration, three NVMe drives, and drives of others."""
    node = lab.add(Node, 'alpha', image=image, key=key, firmware='uefi', drives=3, disks=list(foreign), cpus=2,
                   control_address='10.0.2.77', configuration=f'''
# Of this node.
hostname=alpha
address=10.0.2.77/24
gateway=10.0.2.2
ntp=10.0.2.2
ssh_key={public_key}
rdma=rxe
''')
    node.start()
    return node


def serve_pool(node):
    """Pool tank of all its NVMe drives with share tank/models, now and after each boot."""
    if node.does('test -e /etc/systemd/system/millrace-tank.service'):
        return
    drives = ' '.join(drive.path for drive in node.drives)
    node.json(f'millrace pool create tank --data {len(node.drives) - 1} --parity 1 {drives}')
    node.json('millrace share create tank/models')
    node.json('millrace share set tank/models nfs.clients=*:rw')
    node.json('millrace serve tank --enable')


@pytest.fixture(scope='session')
def serving(alpha):
    serve_pool(alpha)
    return alpha

# SPDX-License-Identifier: LGPL-3.0-or-later
"""The image, and nodes of it; what their consoles said is shown when a test fails."""

import os
import subprocess
import sys

import pytest

import variant
from appliance import MIB, Node, digest

sys.dont_write_bytecode = True

IMAGES = os.environ.get('MILLRACE_IMAGE', os.path.join(variant.ROOT, 'build', 'appliance'))
SHOWN = 6000  # characters of a console


@pytest.fixture(scope='session')
def version():
    with open(os.path.join(IMAGES, 'version')) as file:
        return file.read().strip()


@pytest.fixture(scope='session')
def image(version):
    return os.path.join(IMAGES, f'millrace-{version}.raw')


@pytest.fixture(scope='session')
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp('key') / 'key'
    subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', path], check=True)
    return os.fspath(path)


@pytest.fixture(scope='session')
def public_key(key):
    with open(key + '.pub') as file:
        return file.read().strip()


@pytest.fixture(scope='session')
def updates(version, tmp_path_factory):
    """Makes an update file: updates(NAME, CHANGES) -> (path, version). Later ones are newer."""
    directory = tmp_path_factory.mktemp('updates')
    made = {}

    def make(name, changes):
        if name not in made:
            root, path = directory / 'root', os.fspath(directory / name)
            variant.root_of(os.path.join(IMAGES, f'millrace-{version}.update'), root)
            newer = f'{version}+{len(made) + 1}'
            variant.make(root, newer, changes, path)
            made[name] = path, newer
        return made[name]

    return make


nodes = []


@pytest.fixture(scope='session')
def node_of(image, key, tmp_path_factory):
    """Makes a node; all end with the run."""
    directory = tmp_path_factory.mktemp('nodes')
    made = []

    def make(name, **options):
        made.append(Node(directory, name, image, key=key, **options))
        nodes.append(made[-1])
        return made[-1]

    yield make
    for node in made:
        node.kill()
        nodes.remove(node)
        os.unlink(node.disk)


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


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed:
        for node in nodes:
            if node.console:
                report.sections.append((f'console of {node.name}', node.console.text[-SHOWN:]))

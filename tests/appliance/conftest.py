# SPDX-License-Identifier: LGPL-3.0-or-later
"""What appliance/build made, looked at without booting it."""

import json
import os
import subprocess
import sys

import pytest

sys.dont_write_bytecode = True

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
IMAGES = os.environ.get('MILLRACE_IMAGE', os.path.join(ROOT, 'build', 'appliance'))
PROGRAMS = os.path.join(ROOT, 'appliance', 'root', 'usr', 'lib', 'millrace')


def pytest_addoption(parser):
    parser.addoption('--all', action='store_true', help='build the image again, too')


def pytest_collection_modifyitems(config, items):
    if not config.getoption('--all'):
        long = [item for item in items if item.get_closest_marker('long')]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope='session')
def version():
    with open(os.path.join(IMAGES, 'version')) as file:
        return file.read().strip()


@pytest.fixture(scope='session')
def disk(version):
    return os.path.join(IMAGES, f'millrace-{version}.raw')


@pytest.fixture(scope='session')
def update(version):
    return os.path.join(IMAGES, f'millrace-{version}.update')


@pytest.fixture(scope='session')
def partitions(disk):
    """The partition table, as sfdisk reads it."""
    done = subprocess.run(['sfdisk', '--json', disk], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)['partitiontable']['partitions']


class FileSystem:
    """An ext4 file system in a part of the disk, read by debugfs."""

    def __init__(self, disk, start):
        self.image = f'{disk}?offset={start * 512}'

    def ask(self, request):
        done = subprocess.run(['debugfs', '-R', request, self.image], check=True, capture_output=True, text=True)
        return done.stdout

    def read(self, path):
        return self.ask(f'cat {path}')

    def exists(self, path):
        return 'Inode:' in self.ask(f'stat {path}')

    def names(self, path):
        """What a directory has."""
        lines = self.ask(f'ls -p {path}').splitlines()
        return {line.split('/')[5] for line in lines if line} - {'.', '..'}


@pytest.fixture(scope='session')
def root(disk, partitions):
    return FileSystem(disk, partitions[2]['start'])


@pytest.fixture(scope='session')
def state(disk, partitions):
    return FileSystem(disk, partitions[4]['start'])

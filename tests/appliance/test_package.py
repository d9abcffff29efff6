# SPDX-License-Identifier: LGPL-3.0-or-later
"""The package: where its files are, what it depends on, that no path of the build is in it."""

import os
import subprocess

import pytest

from conftest import ROOT


@pytest.fixture(scope='module')
def package(version):
    return os.path.join(ROOT, 'build', 'packages', f'millrace_{version}_amd64.deb')


@pytest.fixture(scope='module')
def files(package, tmp_path_factory):
    directory = tmp_path_factory.mktemp('package')
    subprocess.run(['dpkg-deb', '-x', package, directory], check=True)
    return {os.path.relpath(os.path.join(base, name), directory): os.path.join(base, name)
            for base, _, names in os.walk(directory) for name in names}


def test_fence_agent(files):
    assert os.readlink(files['usr/sbin/fence_millrace']) == '../lib/millrace/fence'


def test_files(files):
    own = 'usr/lib/millrace/'
    expected = {'usr/bin/millrace', own + 'ganesha.nfsd', own + 'libfsalnvme.so', own + 'lib/libganesha_nfsd.so.6.5',
                own + 'lib/libntirpc.so.6.3', 'usr/share/man/man8/millrace.8.gz',
                'usr/share/bash-completion/completions/millrace', 'usr/share/doc/millrace/copyright',
                'usr/lib/ocf/lib/millrace/functions', 'usr/lib/ocf/resource.d/millrace/server',
                'usr/lib/ocf/resource.d/millrace/reader', own + 'common', own + 'connections', own + 'areas', own + 'changes', own + 'client', own + 'conf', own + 'departures', own + 'handover',
                own + 'cluster', own + 'qnetd', own + 'service', own + 'drives', own + 'fencing', own + 'fence', own + 'reservations', 'usr/sbin/fence_millrace',
                'usr/lib/systemd/system/millrace-cluster.service', 'usr/lib/systemd/system/millrace-fencing.service',
                'usr/lib/systemd/system/millrace-drives.service',
                'usr/lib/systemd/system/corosync-qdevice.service.d/millrace.conf',
                'usr/lib/systemd/system/corosync.service.d/millrace.conf',
                'usr/lib/systemd/system/sbd.service.d/millrace.conf'}
    assert expected <= set(files)
    rest = set(files) - expected
    assert rest and all(path.startswith('usr/share/doc/millrace/json/') for path in rest)


def test_scripts_can_be_run(files):
    for name in ('ocf/resource.d/millrace/server', 'ocf/resource.d/millrace/reader', 'millrace/cluster',
                 'millrace/client', 'millrace/service', 'millrace/drives', 'millrace/fence', 'millrace/fencing', 'millrace/reservations'):
        assert os.access(files[f'usr/lib/{name}'], os.X_OK)


def test_what_it_depends_on(package):
    depends = subprocess.run(['dpkg-deb', '-f', package, 'Depends'], check=True, capture_output=True, text=True).stdout
    named = {part.split()[0] for part in depends.split(',')}
    assert named >= {'libc6', 'libibverbs1', 'librdmacm1t64', 'liburing2', 'liblmdb0', 'libisal2', 'libjansson4'}
    assert not {name for name in named if 'ganesha' in name or 'ntirpc' in name}


def test_no_path_of_the_build(files):
    for path in files.values():
        with open(path, 'rb') as file:
            content = file.read()
        assert b'/millrace/build' not in content and b'/millrace/fsal_nvme' not in content, path

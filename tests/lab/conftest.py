# SPDX-License-Identifier: LGPL-3.0-or-later
"""Fixtures of the lab. Two machines and a served pool are kept for the whole run."""

import os
import signal
import sys

import pytest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, 'rdma'), os.path.join(HERE, '..', 'nfs')]

from harness import host  # noqa: E402
from machine import Lab  # noqa: E402
from service import Service  # noqa: E402

SERVER_MODULES = ('nvme', 'rdma_ucm', 'ib_uverbs', 'rdma_rxe')
CLIENT_MODULES = ('nfsv4', 'rpcrdma', 'rdma_ucm', 'ib_uverbs', 'rdma_rxe')


def pytest_addoption(parser):
    parser.addoption('--all', action='store_true', help='the long tests too, and more of everything')


def pytest_configure(config):
    config.addinivalue_line('markers', 'long: only with --all')
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all is torn down


def pytest_collection_modifyitems(config, items):
    if not config.getoption('--all'):
        kept = [item for item in items if not item.get_closest_marker('long')]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if not report.failed:
        return
    for log in host.logs:
        report.sections.append((f'end of {os.path.basename(log)}', host.tail(log)))
    for machine in getattr(item.session, 'lab_machines', []):
        if machine.qmp:
            ends = machine.run('dmesg | tail -n 40; tail -n 60 /tmp/server.log 2>/dev/null', check=False)
            report.sections.append((f'logs of {machine.name}', ends.stdout.decode(errors='replace')))


@pytest.fixture(scope='session')
def lab(request, tmp_path_factory):
    with Lab(tmp_path_factory.mktemp('lab')) as lab:
        request.session.lab_machines = lab.machines
        yield lab


@pytest.fixture(scope='session')
def pair(lab):
    """The server with its drives, one more than the pool has, and the client."""
    server = lab.machine('server', drives=7, product=True, modules=SERVER_MODULES, memory_mib=3072)
    client = lab.machine('client', product=True, modules=CLIENT_MODULES)
    for machine in (server, client):
        machine.run('rdma link add rxe0 type rxe netdev lab')
    return server, client


@pytest.fixture(scope='session')
def client(pair):
    return pair[1]


@pytest.fixture(scope='session')
def service(pair):
    return Service(pair[0]).start()


@pytest.fixture
def share(service, request):
    """The name of a fresh share."""
    name = ''.join(c if c.isalnum() else '-' for c in request.node.name[5:50]).strip('-')
    service.create_share(name)
    yield name
    if service.alive():
        service.destroy_share(name)


@pytest.fixture
def mount(service, client, share):
    """Mounts the test's share: mount('rdma', minor=2) returns where."""
    mounted = []

    def mount(transport, minor=1, options=''):
        path = f'/mnt/{len(mounted)}'
        service.mount(client, share, path, transport, minor, options)
        mounted.append(path)
        return path

    yield mount
    client.kill_commands()
    for path in mounted:
        client.run(f'! mountpoint -q {path} || umount -i {path}', timeout=120)

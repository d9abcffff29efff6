# SPDX-License-Identifier: LGPL-3.0-or-later
"""Fixtures of the lab: the image, a key that opens its nodes; a node that serves a pool, and a client,
kept for the whole run."""

import os
import signal
import subprocess
import sys

import pytest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, 'boot'), os.path.join(HERE, 'rdma'), os.path.join(HERE, 'cluster'), os.path.join(HERE, '..', 'nfs')]
sys.path.append(os.path.join(HERE, '..', 'cli'))  # of which schemas.py serves here too

from harness import host  # noqa: E402
from guest import Guest  # noqa: E402
from machine import ROOT, Lab  # noqa: E402
from node import Node, kernel_of  # noqa: E402
from results import Results, shard  # noqa: E402
from service import Service  # noqa: E402
from soft import Soft  # noqa: E402

IMAGES = os.path.abspath(os.environ.get('MILLRACE_IMAGE', os.path.join(ROOT, 'build', 'appliance')))
SOFT = ['rxe', 'siw']
SERVER, CLIENT = '192.0.2.1', '192.0.2.2'


def version_of(images):
    with open(os.path.join(images, 'version')) as file:
        return file.read().strip()


def pytest_addoption(parser):
    parser.addoption('--all', action='store_true', help='the long tests too, more of everything, and all soft devices')
    parser.addoption('--soft', choices=SOFT, help='with this kind of soft RDMA device [rxe]')
    parser.addoption('--over', choices=['rdma', 'tcp', 'both'], help="which of a cluster's clients write [rdma; both with --all]")
    parser.addoption('--rounds', type=int, default=1, metavar='N', help='each event of a cluster so many times')
    parser.addoption('--shard', type=shard, default=(1, 1), metavar='I/N', help='the I-th of N parts')
    parser.addoption('--results', metavar='FILE', help='add what comes of each test to FILE (results.py)')
    parser.addoption('--resume', action='store_true', help='leave out what has passed, as --results says')


def pytest_configure(config):
    config.addinivalue_line('markers', 'long: only with --all')
    config.addinivalue_line('markers', 'one_node: of a cluster, where another may still boot, but with --all, for its figures')
    config.addinivalue_line('markers', 'xdist_group(name): tests of one process, where pytest-xdist is used')
    config.addinivalue_line('markers', 'rxe: needs soft RoCE, and is not run with soft iWARP')
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all is torn down
    config.results = None
    if config.getoption('--results'):
        image = f'{os.path.relpath(IMAGES, ROOT)} {version_of(IMAGES)}'
        config.results = Results(config.getoption('--results'), ROOT, image, config.getoption('--all'), config.getoption('--over'))
    elif config.getoption('--resume'):
        raise pytest.UsageError('--resume needs --results')


@pytest.fixture
def number():
    """Of the round."""
    return 1


def pytest_generate_tests(metafunc):
    rounds = metafunc.config.getoption('--rounds')
    if rounds > 1 and 'number' in metafunc.fixturenames:
        metafunc.parametrize('number', range(1, rounds + 1))


def pytest_itemcollected(item):
    """With `-n 2 --dist loadgroup` a cluster, which waits a lot, and machines that boot through firmware are beside the others."""
    folder = item.path.parent.name
    item.add_marker(pytest.mark.xdist_group(folder if folder in ('boot', 'cluster') else 'others'))


def is_wanted(item, every, softs):
    if item.get_closest_marker('long') and not every:
        return False
    soft = item.callspec.params.get('soft', SOFT[0]) if hasattr(item, 'callspec') else SOFT[0]
    return soft in softs and (soft == 'rxe' or not item.get_closest_marker('rxe'))


def pytest_collection_modifyitems(config, items):
    every, soft = config.getoption('--all'), config.getoption('--soft')
    softs = [soft] if soft else SOFT if every else SOFT[:1]
    kept = [item for item in items if is_wanted(item, every, softs)]
    part, parts = config.getoption('--shard')
    kept = kept[len(kept) * (part - 1) // parts:len(kept) * part // parts]
    if config.getoption('--resume'):
        kept = [item for item in kept if not config.results.has_passed(item.nodeid)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def logs_of(machine):
    """The ends of what a machine that still runs has logged."""
    try:
        if isinstance(machine, Guest):
            return machine.run('dmesg | tail -n 40', check=False).stdout.decode(errors='replace')
        return machine.attempt('dmesg | tail -n 40; journalctl -q -o cat -u "millrace-*" | grep -m 1 -A 30 "ERROR: AddressSanitizer"; '
                               'journalctl -q -o cat -n 60 -u "millrace-*"', 60).stdout
    except Exception as error:  # the test's own failure is what must be told
        return f'not to be had: {error!r}'


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if item.config.results:
        item.config.results.add(report)
    if not report.failed:
        return
    for log in host.logs:
        report.sections.append((f'end of {os.path.basename(log)}', host.tail(log)))
    lab = getattr(item.session, 'lab', None)
    for machine in lab.machines if lab else []:
        if machine.is_on():
            report.sections.append((f'logs of {machine.name}', logs_of(machine)))


@pytest.fixture(scope='session')
def lab(request, tmp_path_factory):
    with Lab(tmp_path_factory.mktemp('lab')) as lab:
        request.session.lab = lab
        yield lab


@pytest.fixture(scope='session')
def version():
    return version_of(IMAGES)


@pytest.fixture(scope='session')
def image(version):
    return os.path.join(IMAGES, f'millrace-{version}.raw')


@pytest.fixture(scope='session')
def update_file(version):
    return os.path.join(IMAGES, f'millrace-{version}.update')


@pytest.fixture(scope='session')
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp('key') / 'key'
    subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', path], check=True)
    return os.fspath(path)


@pytest.fixture(scope='session')
def public_key(key):
    with open(key + '.pub') as file:
        return file.read().strip()


# --- a node that serves a pool over RDMA, and clients --------------------------------------------------

@pytest.fixture(scope='session', params=SOFT)
def soft(request):
    """The kind of RDMA device that both have."""
    return Soft(request.param)


@pytest.fixture(scope='session')
def pair(lab, image, key, public_key, soft):
    """The server, a node with one drive more than its pool has, and a client of it."""
    server = lab.add(Node, 'server', image=image, key=key, kernel=kernel_of(image, lab.workdir), drives=7,
                     memory_mib=3072, networks={'lan': f'{SERVER}/24'},
                     configuration=f'hostname=server\nssh_key={public_key}\nrdma={soft.configuration}\n')
    client = lab.add(Guest, 'client', server_address=SERVER, soft=soft, networks={'lan': f'{CLIENT}/24'})
    for machine in (server, client):
        machine.power_on()
    for machine in (client, server):
        machine.wait_until_up()
    if soft.kind == 'siw':
        soft.add(server, server.device('lan'))
    yield server, client
    for machine in (client, server):
        lab.remove(machine)


@pytest.fixture(scope='session')
def client(pair):
    return pair[1]


@pytest.fixture(scope='session')
def service(pair):
    return Service(pair[0], SERVER).start()


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

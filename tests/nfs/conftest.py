# SPDX-License-Identifier: LGPL-3.0-or-later
"""Fixtures of the NFS tests. A missing client or server is an error of every test, not a skip."""

import os
import signal
import sys

import pytest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import host, stuck  # noqa: E402
from harness.client import make_client  # noqa: E402
from harness.mounted import Mounted, Place  # noqa: E402
from harness.protocol import Client  # noqa: E402
from harness.wire import Session  # noqa: E402

OPTIONS = 'vers=4.1,proto=tcp'


def pytest_addoption(parser):
    parser.addoption('--backend', choices=('millrace', 'vfs'), default='millrace',
                     help='vfs: run the tests against nfs-ganesha over directories instead')
    parser.addoption('--large', type=int, default=1000000, metavar='N',
                     help='how many names the large directory of test_scale.py has, and files its tree')
    parser.addoption('--seed', type=int, default=int.from_bytes(os.urandom(4), 'big'), metavar='N',
                     help='repeats what a failed test at random did with the seed that it printed')


def pytest_configure():
    host.own_mounts()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all is torn down


def pytest_collection_modifyitems(config, items):
    if config.getoption('--backend') == 'vfs':
        kept = [item for item in items if not item.get_closest_marker('millrace')]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed:
        for log in host.logs:
            report.sections.append((f'end of {os.path.basename(log)}', host.tail(log)))
        if call.excinfo.errisinstance(host.Timeout) and 'site' in item.funcargs:
            report.sections.extend(stuck.of_server(item.funcargs['site'].server))


class Site:
    """A pool and its server, running."""

    def __init__(self, backend, address, workdir, **geometry):
        make_pool, make_server = backend
        self.pool = make_pool(workdir, **geometry)
        self.server = None
        try:
            self.pool.create()
            self.server = make_server(self.pool, address)
            self.server.start()
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.server:
            self.server.close()
        self.pool.close()


@pytest.fixture(scope='session')
def backend(request):
    if request.config.getoption('--backend') == 'vfs':
        from harness.reference import ReferencePool, ReferenceServer
        return ReferencePool, ReferenceServer
    from harness.server import Pool, Server
    return Pool, Server


@pytest.fixture(scope='session')
def client(tmp_path_factory):
    """One client for the whole run: it starts in seconds, the tests are many."""
    with make_client(workdir=tmp_path_factory.mktemp('client')) as client:
        yield client


@pytest.fixture(scope='session')
def make_site(backend, client, tmp_path_factory):
    """Makes a Site; the caller closes it."""
    def make(**geometry):
        return Site(backend, client.server_address, tmp_path_factory.mktemp('site'), **geometry)
    return make


@pytest.fixture(scope='module')
def site(make_site):
    """A 4+2 pool of six devices and its server, for all tests of a module."""
    site = make_site()
    yield site
    site.close()


@pytest.fixture
def make_share(client, site, request):
    """Makes a share with the options of Pool.create_share and mounts it; gone after the test."""
    made = []

    def make(options=getattr(request.module, 'OPTIONS', OPTIONS), **properties):
        name = f'{request.node.originalname[5:50]}-{len(made)}'
        site.pool.create_share(name, **properties)
        made.append(Mounted(client, site, name))
        return made[-1].mount(options)

    yield make
    client.kill_commands()
    for share in made:
        share.close()
        if site.server.alive():
            site.pool.destroy_share(share.volume)


@pytest.fixture
def share(make_share):
    """A fresh share, mounted: read-write, root is root, mode 0755."""
    return make_share()


@pytest.fixture(scope='module')
def common(client, site, request):
    """One share for all tests of a module, mounted: read-write for everybody, root is root."""
    site.pool.create_share('common', mode=0o777)
    share = Mounted(client, site, 'common').mount(getattr(request.module, 'OPTIONS', OPTIONS))
    yield share
    client.kill_commands()
    share.close()


@pytest.fixture
def place(common, request):
    """A fresh directory of the module's share, mode 0777: for tests that need no share alone."""
    yield Place(common, request.node.name[5:])
    common.client.kill_commands()


@pytest.fixture
def connect(site, request):
    """Sessions by hand; of the module's MINOR version, else 1."""
    made = []

    def connect(minor=getattr(request.module, 'MINOR', 1), **options):
        made.append(Session(site, minor=minor, **options))
        return made[-1]

    yield connect
    if site.server.alive():
        for session in made:
            session.end()


@pytest.fixture
def volume(site, request):
    """The name of a fresh share, not mounted: mode 0777, root is root."""
    name = request.node.originalname[5:50]
    site.pool.create_share(name, mode=0o777)
    yield name
    if site.server.alive():
        site.pool.destroy_share(name)


@pytest.fixture
def newcomer(site):
    """Makes clients that the server has not met; it outlives them."""
    made = []

    def make(**options):
        made.append(Client(site, **options))
        return made[-1]

    yield make
    assert site.server.alive()
    for client in made:
        client.close()

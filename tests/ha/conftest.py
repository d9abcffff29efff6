# SPDX-License-Identifier: LGPL-3.0-or-later
"""Fixtures of the tests of pacemaker's agents: a pool of files, and an agent as pacemaker runs it."""

import os
import subprocess
import sys

import pytest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'nfs'))
sys.path.append(os.path.join(HERE, '..', 'cli'))  # of which schemas.py serves here too

from harness import host  # noqa: E402
from harness.server import MILLRACE, ROOT, Pool, free_port  # noqa: E402

SYSTEM = os.path.join(ROOT, 'build', 'debian13', 'root')  # scripts/debian13 makes it; this machine needs no agents
OCF_ROOT = os.path.join(SYSTEM, 'usr', 'lib', 'ocf')
ADDRESS = '127.0.0.1'
SUCCESS, GENERIC, UNIMPLEMENTED, PERMISSION, INSTALLED, CONFIGURED, NOT_RUNNING = 0, 1, 3, 4, 5, 6, 7
ACTION_TIMEOUT = 300
LONGEST = ['test_failover', 'test_planned']  # first, as xdist hands files out in order


def pytest_addoption(parser):
    parser.addoption('--all', action='store_true', help='the long tests too')


def pytest_configure(config):
    config.addinivalue_line('markers', 'long: only with --all')


def pytest_collection_modifyitems(config, items):
    if not config.getoption('--all'):
        kept = [item for item in items if not item.get_closest_marker('long')]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    report = (yield).get_result()
    if report.failed:
        for log in host.logs:
            report.sections.append((f'end of {os.path.basename(log)}', host.tail(log)))


class Agent:
    """ocf:millrace:NAME for a pool; what it says is in `said`."""

    def __init__(self, name, pool, **parameters):
        self.name = name
        self.path = os.path.join(ROOT, 'ha/ocf/resource.d/millrace', name)
        self.pool = pool
        self.said = ''
        self.parameters = {'pool': pool.name, 'address': ADDRESS, 'port': free_port(ADDRESS), 'command': MILLRACE,
                           'state_dir': pool.state_dir, 'run_dir': pool.run_dir, **parameters}

    def run(self, action, timeout=60, **more):
        """Its exit code. TIMEOUT, in seconds, is what pacemaker would allow; parameters of None are left out."""
        parameters = {**self.parameters, 'CRM_meta_timeout': timeout * 1000, **more}
        environment = {f'OCF_RESKEY_{name}': str(value) for name, value in parameters.items() if value is not None}
        environment |= {'OCF_ROOT': OCF_ROOT, 'OCF_RESOURCE_INSTANCE': f'{self.pool.name}-{self.name}'}
        done = subprocess.run([self.path, action], env={**os.environ, **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ACTION_TIMEOUT)
        self.said = done.stdout + done.stderr
        with open(self.pool.log, 'a') as log:
            log.write(f'$ {os.path.basename(self.path)} {action}\n{self.said}exit {done.returncode}\n')
        return done.returncode

    def pid(self):
        where = 'reader/' if self.path.endswith('reader') else ''
        with open(f'{self.pool.run_dir}/{where}{self.pool.name}/pid') as file:
            return int(file.read())


@pytest.fixture
def pool(tmp_path):
    pool = Pool(tmp_path, device_bytes=256 << 20).create()
    yield pool
    pool.close()


@pytest.fixture
def make_agent(pool):
    made = []

    def make(name, **parameters):
        made.append(Agent(name, pool, **parameters))
        return made[-1]

    yield make
    for agent in made:
        agent.run('stop', timeout=40)


@pytest.fixture(params=['server', 'reader'])
def agent(request, make_agent):
    return make_agent(request.param)

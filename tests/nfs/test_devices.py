# SPDX-License-Identifier: LGPL-3.0-or-later
"""Two of the six devices of a 4+2 pool are lost."""

import json
import os
import random

import pytest

from harness.host import wait_until
from harness.mounted import Mounted
from harness.tree import describe, make_tree

pytestmark = pytest.mark.millrace


@pytest.fixture
def site(make_site):
    """A pool of the test's own, since it is hurt."""
    site = make_site()
    yield site
    site.close()


def lose(site, *devices):
    """The server dies, devices go, it comes back."""
    site.server.kill9()
    for device in devices:
        site.pool.lose_device(device)
    site.server.start()


def write(path, name, seed):
    with open(f'{path}/{name}', 'wb') as file:
        file.write(random.Random(seed).randbytes(9999999))
        os.fsync(file.fileno())


def intact(path, name, seed):
    with open(f'{path}/{name}', 'rb') as file:
        return file.read() == random.Random(seed).randbytes(9999999)


def test_a_dataset_outlives_two_devices(client, site, tmp_path):
    make_tree(tmp_path)
    site.pool.ingest('everything', tmp_path)
    dataset = Mounted(client, site, 'everything').mount()
    lose(site, 1, 4)
    client.drop_caches()
    found = dataset.call(describe, timeout=600)
    wanted = describe(tmp_path)
    dataset.close()
    assert [path for path in sorted({*wanted, *found}) if wanted.get(path) != found.get(path)] == []


def test_a_share_outlives_two_devices(site, share):
    share.call(write, 'file', 1)
    lose(site, 0, 5)
    share.remount()
    assert share.call(intact, 'file', 1, timeout=600)


def test_a_share_can_be_written_with_two_devices_lost(site, share):
    lose(site, 2, 3)
    share.call(write, 'file', 2, timeout=600)
    site.server.kill9()
    site.server.start()
    share.remount()
    assert share.call(intact, 'file', 2, timeout=600)


def test_what_was_written_with_two_devices_lost_outlives_two_more(site, share):
    """Rows written with four devices have two data cells and two parity cells."""
    lose(site, 0, 1)
    share.call(write, 'file', 3, timeout=600)
    lose(site, 2, 3)
    share.remount()
    assert share.call(intact, 'file', 3, timeout=600)
    share.close()
    site.server.kill9()  # the pool is read-only now: its share cannot be removed


def test_the_pool_says_that_devices_are_lost(site):
    assert site.pool.status()['health'] == 'healthy'
    lose(site, 1, 2)
    pool = site.pool.status()
    assert pool['health'] == 'degraded' and pool['devices_active'] == 4
    assert [device['id'] for device in pool['devices'] if device['state'] != 'active'] == [1, 2]
    told = [row['what'] for row in pool['advice']]
    assert '2 of 6 devices are gone, one more would lose data' in told[0]
    assert [n for n in range(6) if any(f'device {n} ' in what for what in told)] == [1, 2]
    assert site.pool.verb('status', check=False).returncode == 5


def is_dropped(site, *devices):
    states = [device['state'] for device in site.pool.status()['devices']]
    return all(states[number] == 'dropped' for number in devices)


def test_devices_come_back_to_a_server_and_others_go(site, share):
    """Those that missed writes are whole again before the client has noticed, and make up for others then."""
    share.call(write, 'before', 4)
    for device in (1, 4):
        site.pool.lose_device(device)
    wait_until(lambda: is_dropped(site, 1, 4), 60, 'both are dropped')
    share.call(write, 'meanwhile', 5, timeout=600)
    for device in (1, 4):
        site.pool.return_device(device)
    told = json.loads(site.pool.verb('pool', 'attach', site.pool.name, *(site.pool.devices[i] for i in (1, 4)), '--json').stdout)
    assert told['resilver']['whole'] and told['resilver']['devices'] == 2
    assert site.pool.status()['health'] == 'healthy'
    share.call(write, 'behind', 6, timeout=600)
    lose(site, 0, 5)
    share.remount()
    for name, seed in (('before', 4), ('meanwhile', 5), ('behind', 6)):
        assert share.call(intact, name, seed, timeout=600)

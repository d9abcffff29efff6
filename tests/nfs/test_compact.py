# SPDX-License-Identifier: LGPL-3.0-or-later
"""A dataset is moved under those who read it."""

import hashlib
import os

import pytest

from harness.mounted import Mounted

FILES, SIZE = 240, 300_000

pytestmark = pytest.mark.millrace


def write(path, seed):
    with open(path, 'wb') as file:
        file.write(hashlib.shake_128(str(seed).encode()).digest(SIZE))
    os.utime(path, (seed, seed))


@pytest.fixture(scope='module')
def sparse(site, tmp_path_factory):
    """A sealed dataset of segments of which files need a quarter, and its source."""
    top = tmp_path_factory.mktemp('source')
    name = f'{site.pool.name}/sparse'
    site.pool.verb('pool', 'set', site.pool.name, 'compact.rate=0')
    for i in range(FILES):
        write(top / f'f{i}', i)
    site.pool.verb('dataset', 'ingest', name, top, '--no-seal', '--threads', '1')
    for i in range(FILES):
        if i % 4:
            write(top / f'f{i}', 1000 + i)
    site.pool.verb('dataset', 'ingest', name, top, '--resume', '--threads', '1')
    site.pool.set('dataset', 'sparse', 'nfs.squash', 'none')
    site.pool.set('dataset', 'sparse', 'nfs.clients', '*:ro')
    yield top
    site.pool.verb('pool', 'set', site.pool.name, 'compact.rate=')


def digests(path):
    return {name: hashlib.sha256(open(f'{path}/{name}', 'rb').read()).hexdigest()
            for name in sorted(os.listdir(path))}


def test_a_dataset_is_read_while_it_is_moved(client, site, sparse):
    def waiting():
        return site.pool.status()['space']['waiting']

    wanted, before = digests(sparse), waiting()
    assert before > FILES * SIZE / 2
    mounted = Mounted(client, site, 'sparse').mount()
    try:
        assert mounted.call(digests, timeout=600) == wanted
        site.pool.verb('pool', 'set', site.pool.name, 'cache.size=0', 'compact.rate=16M')
        rounds = 0
        while waiting() > before / 2:
            client.drop_caches()
            assert mounted.call(digests, timeout=600) == wanted
            rounds += 1
            assert rounds < 200
        assert rounds
        site.server.restart()
        client.drop_caches()
        assert mounted.call(digests, timeout=600) == wanted
    finally:
        mounted.close()
        site.pool.verb('pool', 'set', site.pool.name, 'cache.size=')
    site.pool.verb('dataset', 'verify', f'{site.pool.name}/sparse')

# SPDX-License-Identifier: LGPL-3.0-or-later
"""The server's block cache: what the client reads again comes from it, as the pool's counters say."""

import hashlib
import os
import random

import pytest

from harness.mounted import Mounted

pytestmark = pytest.mark.millrace

SMALL = [(f'{i:02}', 3000 + 4321 * i) for i in range(40)]
LARGE = ('large', 12_345_678)
BYTES = sum(size for _, size in [*SMALL, LARGE])


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp('source')
    for i, (name, size) in enumerate([*SMALL, LARGE]):
        (root / name).write_bytes(random.Random(i).randbytes(size))
    return root


@pytest.fixture(scope='module')
def dataset(client, site, source):
    site.pool.ingest('data', source)
    mounted = Mounted(client, site, 'data').mount()
    yield mounted
    mounted.close()


def hashes(path):
    found = {}
    for name in sorted(os.listdir(path)):
        with open(f'{path}/{name}', 'rb') as file:
            found[name] = hashlib.sha256(file.read()).hexdigest()
    return found


def read(client, dataset, source):
    """All of it, from the server; returns the bytes that it had in its cache, and that it had not."""
    before = dataset.site.pool.status()
    client.drop_caches()
    assert dataset.call(hashes, timeout=600) == hashes(source)
    after = dataset.site.pool.status()
    return tuple(after[name] - before[name] for name in ('cache_hits', 'cache_misses'))


def set_size(site, value):
    site.pool.verb('pool', 'set', site.pool.name, f'cache.size={value}')


def test_what_fits_is_read_from_devices_once(client, site, dataset, source):
    set_size(site, '64M')
    assert site.pool.status()['cache_size'] == 64 << 20
    hits, misses = read(client, dataset, source)
    assert hits + misses == BYTES and misses >= BYTES - 4096 * 100
    assert BYTES <= site.pool.status()['cache_used'] <= 64 << 20
    assert read(client, dataset, source) == (BYTES, 0)


def test_reading_a_large_file_leaves_small_ones_there(client, site, dataset, source):
    """The large one is larger than the cache, the small ones fit."""
    def names(path, wanted):
        return [len(open(f'{path}/{name}', 'rb').read()) for name in wanted]

    def misses(wanted):
        before = site.pool.status()['cache_misses']
        client.drop_caches()
        assert dataset.call(names, wanted) == [(source / name).stat().st_size for name in wanted]
        return site.pool.status()['cache_misses'] - before

    small = [name for name, _ in SMALL]
    set_size(site, '0')
    set_size(site, '8M')
    for _ in range(3):
        misses(small)
    assert misses(small) == 0
    for _ in range(2):
        assert misses([LARGE[0]]) > LARGE[1] // 2
        assert misses(small) == 0


def test_its_size_changes_while_it_is_served(client, site, dataset, source):
    set_size(site, '1M')
    read(client, dataset, source)
    assert site.pool.status()['cache_used'] <= 1 << 20
    set_size(site, '0')
    assert site.pool.status()['cache_used'] == 0
    assert read(client, dataset, source) == (0, 0)
    set_size(site, '64M')
    read(client, dataset, source)
    assert read(client, dataset, source) == (BYTES, 0)


def test_its_size_is_kept_over_a_restart(client, site, dataset, source):
    set_size(site, '32M')
    site.server.restart()
    assert site.pool.status()['cache_size'] == 32 << 20
    read(client, dataset, source)
    assert read(client, dataset, source) == (BYTES, 0)
    set_size(site, '')
    assert site.pool.status()['cache_size'] > 64 << 20
    assert read(client, dataset, source) == (BYTES, 0)


def test_what_is_written_is_read(client, site, make_share):
    """Over blocks that are in the cache."""
    def rewrite(path, seed):
        with open(f'{path}/file', 'wb' if seed == 0 else 'r+b') as file:
            file.seek(seed * 50_000)
            file.write(random.Random(seed).randbytes(200_000))
            os.fsync(file.fileno())

    def content(path):
        with open(f'{path}/file', 'rb') as file:
            return hashlib.sha256(file.read()).hexdigest()

    share, wanted = make_share(), bytearray()
    for seed in range(6):
        share.call(rewrite, seed)
        wanted[seed * 50_000:seed * 50_000 + 200_000] = random.Random(seed).randbytes(200_000)
        for _ in range(2):
            client.drop_caches()
            assert share.call(content) == hashlib.sha256(wanted).hexdigest()

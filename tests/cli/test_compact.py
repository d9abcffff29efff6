# SPDX-License-Identifier: LGPL-3.0-or-later
"""What a server does by itself to win space."""

import os

from conftest import wait_until

FILES, SIZE = 600, 30_000


def write(path, seed):
    with open(path, 'wb') as file:
        file.write(bytes((seed + i // 7) % 251 for i in range(1000)) * (SIZE // 1000))
    os.utime(path, (seed, seed))


def make_sparse(site, *options):
    """Three quarters of what an ingest has written are not needed after the next one."""
    top = site.path('source')
    os.mkdir(top)
    for i in range(FILES):
        write(os.path.join(top, f'f{i}'), i)
    site('dataset', 'ingest', 'tank/set', top, '--no-seal', '--threads', '1')
    for i in range(FILES):
        if i % 4:
            write(os.path.join(top, f'f{i}'), 1000 + i)
    site('dataset', 'ingest', 'tank/set', top, '--resume', '--threads', '1', *options)


def space(site):
    return site.json('pool', 'status', 'tank')['pool']['space']


def test_waste_is_compacted_at_a_rate_that_may_change(pool):
    pool('pool', 'set', 'tank', 'compact.rate=0')
    make_sparse(pool, '--no-seal')
    before = space(pool)
    assert before['waiting'] > FILES * SIZE / 2
    pool('serve', 'tank')
    assert space(pool)['waiting'] >= before['waiting'] / 2
    pool('pool', 'set', 'tank', 'compact.rate=1G')
    wait_until(lambda: space(pool)['waiting'] < before['waiting'] / 2, 'it is compacted', 120)
    after = space(pool)
    assert after['data'] == before['data'] and after['free'] > before['free']
    pool('dataset', 'verify', 'tank/set')
    pool('serve', 'tank', '--stop')
    pool('dataset', 'verify', 'tank/set')
    assert pool.json('pool', 'check', 'tank')['check']['wrong_live'] == 0


def test_a_sealed_dataset_is_moved(pool):
    pool('pool', 'set', 'tank', 'compact.rate=0')
    empty = space(pool)
    make_sparse(pool)
    before = space(pool)
    pool('serve', 'tank')
    pool('pool', 'set', 'tank', 'compact.rate=1G')
    wait_until(lambda: space(pool)['waiting'] < before['waiting'] / 2, 'it is moved', 120)
    # What it has left is nobody's before readers can know of it.
    wait_until(lambda: space(pool)['free'] > before['free'], 'it is free', 120)
    assert pool.json('dataset', 'verify', 'tank/set')['verify']['files'] == FILES
    pool('serve', 'tank', '--stop')
    assert pool.json('dataset', 'verify', 'tank/set')['verify']['bad_files'] == 0
    check = pool.json('pool', 'check', 'tank')['check']
    assert check['wrong_live'] == check['bad_blocks'] == 0
    os.rename(pool.devices_of_tank[2], pool.devices_of_tank[2] + '.away')
    pool('dataset', 'verify', 'tank/set')
    os.rename(pool.devices_of_tank[2] + '.away', pool.devices_of_tank[2])
    pool('dataset', 'destroy', 'tank/set', '--yes')
    after = space(pool)
    assert after['data'] == after['waiting'] == after['parity'] == 0
    assert after['free'] == empty['free']

# SPDX-License-Identifier: LGPL-3.0-or-later
"""`serve --reader`: what is refused before anything starts. tests/nfs/test_reader.py has the rest."""

import os
import shutil

import pytest

from conftest import NOT_FOUND, REFUSED, USAGE, wait_until


def test_a_reader_has_places_of_its_own(pool):
    pool('serve', 'tank')
    try:
        pool.fails(NOT_FOUND, 'serve', 'tank', '--reader', '--stop')
        assert os.path.exists(pool.path('run', 'tank.sock'))
    finally:
        pool('serve', 'tank', '--stop')


@pytest.mark.parametrize('options', [(), ('--foreground',)])
def test_too_few_devices_are_refused(pool, options):
    for device in pool.devices_of_tank[:2]:
        os.rename(device, f'{device}.away')
    error = pool.fails(1, 'serve', 'tank', '--reader', *options)
    assert 'missing' in error['message']


def test_another_hosts_pool_may_be_read(pool):
    pool('pool', 'export', 'tank')
    pool('pool', 'import', 'tank', '--host', 'other', '--device-dir', pool.devices_dir)
    assert 'other' in pool.fails(REFUSED, 'serve', 'tank')['message']
    config = pool.path('run', 'reader', 'tank', 'ganesha.conf')
    assert not os.path.exists(config)
    pool.run('serve', 'tank', '--reader', '--wait', '1')
    text = open(config).read()
    assert 'reader = true' in text and 'Graceless = true' in text and '-reader-' in text
    pool.run('serve', 'tank', '--reader', '--stop')


# --- devices that come back, while nobody has the pool ----------------------------------------------

@pytest.fixture
def read(pool):
    """A dataset, and a reader."""
    pool('dataset', 'ingest', 'tank/set', pool.tree())
    pool('serve', 'tank', '--reader')
    yield pool
    pool('serve', 'tank', '--reader', '--stop')


def lose(site, *numbers):
    for number in numbers:
        os.rename(site.devices_of_tank[number], f'{site.devices_of_tank[number]}.away')
    wait_until(lambda: [states(site)[number] for number in numbers] == ['missing'] * len(numbers), 'the reader has looked')


def find(site, number):
    """As another file, as a drive that is plugged in again is another device."""
    path = site.devices_of_tank[number]
    shutil.copy(f'{path}.away', path)
    os.unlink(f'{path}.away')


def states(site):
    return [device['state'] for device in site.json('pool', 'status', 'tank')['pool']['devices']]


def returned(site):
    return site.json('pool', 'attach', 'tank', '--reader', '--returned')


def test_nothing_is_away(read):
    told = returned(read)
    assert told['not_whole'] == 0 and told['message'] == 'No device is away.' and 'resilver' not in told


def test_what_returns_is_read_again(read):
    lose(read, 0, 2)
    advice = read.json('pool', 'status', 'tank')['pool']['advice']
    assert any('pool attach tank --reader --returned' in row['next'] for row in advice)
    told = returned(read)
    assert told['not_whole'] == 2 and 'None' in told['message']
    find(read, 2)
    told = returned(read)
    assert told['not_whole'] == 2 and '1 of 2' in told['message']
    assert states(read) == ['missing', 'active', 'active', 'active']
    find(read, 0)
    assert '1 of 1' in returned(read)['message'] and states(read) == ['active'] * 4
    lose(read, 1)
    read('dataset', 'verify', 'tank/set')
    assert not any('control: pool attach' in line for line in read.log('tank@reader'))


def test_what_has_anothers_place_is_read(read):
    """The owner has replaced it; what comes back of that is nobody's."""
    lose(read, 1)
    spare = read.device('spare')
    read('pool', 'replace', 'tank', '1', spare)
    find(read, 1)
    wait_until(lambda: 'Taken back: 1 of 1' in returned(read)['message'], 'the reader has seen the label')
    lose(read, 3)
    read('dataset', 'verify', 'tank/set')
    assert read.json('pool', 'status', 'tank')['pool']['devices'][1]['path'] == spare


def test_what_a_reader_does_not_do(pool):
    assert 'goes with --returned' in pool.fails(USAGE, 'pool', 'attach', 'tank', '--reader')['message']
    pool.fails(USAGE, 'pool', 'attach', 'tank', '--reader', pool.devices_of_tank[0])
    pool.fails(USAGE, 'pool', 'attach', 'tank', '--reader', '--returned', pool.devices_of_tank[0])
    for words in (('--rebooted', 'host:01234567-89ab-4def-8123-456789abcdef'), ('--gone', 'host')):
        pool.fails(USAGE, 'pool', 'attach', 'tank', '--reader', *words)
        assert words[0] in pool.fails(USAGE, 'pool', 'attach', 'tank', '--reader', '--returned', *words)['message']
    assert 'not being served' in pool.fails(NOT_FOUND, 'pool', 'attach', 'tank', '--reader', '--returned')['message']
    assert 'not being served' in pool.fails(NOT_FOUND, 'pool', 'attach', 'tank', '--returned')['message']

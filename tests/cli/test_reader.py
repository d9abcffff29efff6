# SPDX-License-Identifier: LGPL-3.0-or-later
"""`serve --reader`: what is refused before anything starts. tests/nfs/test_reader.py has the rest."""

import os

import pytest

from conftest import NOT_FOUND, REFUSED


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

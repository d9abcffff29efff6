# SPDX-License-Identifier: LGPL-3.0-or-later
"""What is refused: bad arguments and bad devices, each with its exit code, and nothing changed."""

import os
import re
import signal
import subprocess

import pytest

from conftest import NOT_FOUND, OK, REFUSED, ROOT, USAGE, contents, verbs


@pytest.mark.parametrize('args', [
    (), ('none',), ('pool',), ('pool', 'none'), ('pool', 'status'), ('pool', 'status', 'a', 'b'),
    ('pool', 'status', 'a/b'), ('--none', 'status'), ('status', '--none'), ('status', 'x'),
    ('pool', 'create', 'a', '--data', 'x', '--parity', '1', 'd'),
    ('pool', 'create', 'a', '--data', '2', 'd'), ('pool', 'create', 'a', '--data', '2', '--parity', '1'),
    ('share', 'create', 'p/a', '--mode', '0999'), ('share', 'create', 'p/a', '--mode', '10000'),
    ('share', 'create', 'p/a', '--owner', 'nobody-of-this-name'),
    ('serve', 'p', '--port', '65536'), ('serve', 'p', '--port', '0'), ('serve', 'p', '--listen', 'x'),
    ('serve', 'p', '--stop', '--enable'), ('dataset', 'ingest', 'p/a'), ('dataset', 'ingest', 'p/a', ''), ('share', 'set', 'p/a'),
    ('status', '--host', 'x' * 64), ('status', ''), ('status', '--host', ''), ('node', 'drain', ''),
    ('cluster', 'remove', '', '--yes'), ('cluster', 'create', '--address', '', '--pool', 'p')])
def test_usage(site, args):
    error = site.fails(USAGE, *args)
    assert error['code'] == 'usage' and error['errno'] == 'EINVAL'


def test_version(site):
    with open(os.path.join(ROOT, 'CMakeLists.txt')) as file:
        project = re.search(r'^project\(millrace VERSION (\S+)', file.read(), re.M)[1]
    done = subprocess.run([site.program, '--version'], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (OK, f'millrace {project}\n')
    site.fails(USAGE, 'status', '--version')


def test_bytes_that_are_no_utf8(site):
    done = subprocess.run([os.fsencode(site.program), b'share', b'get', b'p/\xff', b'--json'],
                          capture_output=True)
    assert done.returncode == USAGE and b'UTF-8' in done.stdout


@pytest.mark.parametrize('args', [('--help',), ('status',), ('pool', 'list', '--json'), ('pool', 'list')])
def test_an_answer_that_is_not_written_is_no_answer(site, args):
    with open('/dev/full', 'w') as full:
        done = subprocess.run(site.argv(*args), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and 'could be written' in done.stderr


def test_who_does_not_read_on_ends_it_quietly(site):
    process = subprocess.Popen(site.argv('--help'), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ''
    process.stderr.close()
    assert process.wait(60) in (OK, -signal.SIGPIPE)


def refused(site, rc, devices, *args, name='new'):
    before = contents(devices)
    error = site.fails(rc, 'pool', 'create', name, '--cell', '4K', *args)
    assert contents(devices) == before
    assert not os.path.exists(site.path('state', 'pools', f'{name}.json'))
    return error


@pytest.mark.parametrize('data,parity', [(0, 1), (2, 0), (3, 2), (31, 2), (33, 1)])
def test_wrong_code(site, data, parity):
    devices = site.devices(4)
    refused(site, USAGE, devices, '--data', str(data), '--parity', str(parity), *devices)


def test_wrong_cell(site):
    devices = site.devices(4)
    for cell in ('1', '4097', '12K', '8M', '4X', '-4K', '1T'):
        site.fails(USAGE, 'pool', 'create', 'new', '--data', '2', '--parity', '1', '--cell', cell,
                   *devices)


CODE = ('--data', '2', '--parity', '1')


def test_wrong_pool_names(site):
    devices = site.devices(4)
    for name in ('a/b', 'x' * 64, 'x' * 256, '.a', '1 a', ''):
        before = contents(devices)
        site.fails(USAGE, 'pool', 'create', name, *CODE, '--cell', '4K', *devices)
        assert contents(devices) == before


def test_a_device_too_small(site):
    devices = site.devices(3) + [site.device('small', 1 << 20)]
    error = refused(site, USAGE, devices, *CODE, *devices)
    assert error['object'] == devices[3]


def test_a_device_given_twice(site):
    devices = site.devices(3)
    os.link(devices[0], site.path('devices', 'hard'))
    os.symlink(devices[1], site.path('devices', 'soft'))
    for twice in (devices[0], site.path('devices', 'hard'), site.path('devices', 'soft')):
        error = refused(site, USAGE, devices, *CODE, *devices, twice)
        assert 'twice' in error['message'] and 'neither' not in error['message']


def test_a_device_that_is_none(site):
    devices = site.devices(3)
    refused(site, NOT_FOUND, devices, *CODE, *devices, site.path('none'))
    refused(site, USAGE, devices, *CODE, *devices, site.devices_dir)
    error = refused(site, USAGE, devices, *CODE, *devices, '/dev/null')
    assert 'neither' in error['message'] and 'twice' not in error['message']


@pytest.mark.parametrize('domain', ['a b', 'a\tb', 'x' * 32], ids=ascii)
def test_names_of_domains(site, domain):
    devices = site.devices(3)
    error = refused(site, USAGE, devices, *CODE, f'{devices[0]}@{domain}', *devices[1:])
    assert 'domain' in error['message']


def test_an_option_takes_no_other_for_its_value(site):
    assert 'must be a whole number' in site('pool', 'create', 'a', '--data', rc=USAGE).stderr


@pytest.mark.parametrize('args, name, told', [
    (('serve', 'p', '--port', '-1'), '--port', "'-1': it must be a whole number"),
    (('pool', 'create', 'a', '--data', '4', '--data', '3', '--parity', '1', 'd'), '--data',
     'more than once'),
    (('status', '--host', 'a', '--host', 'b'), '--host', 'more than once'),
    (('share', 'create', 'p/a', '--mode', '10000'), 'mode', '10000 (octal) is not from 0 to 7777')])
def test_the_option_is_named(site, args, name, told):
    error = site.fails(USAGE, *args)
    assert error['object'] == name and told in error['message']


@pytest.mark.parametrize('name', ['a"b', 'a$b', 'a\\b', 'a\nb'], ids=ascii)
def test_a_path_that_the_server_cannot_be_given(site, name):
    devices = site.devices(3) + [site.device(name)]
    error = refused(site, USAGE, devices, *CODE, *devices)
    assert 'cannot be given a path' in error['message']


def test_a_device_of_another_pool(pool):
    devices = pool.devices(3)
    error = refused(pool, REFUSED, devices + pool.devices_of_tank, *CODE, *devices,
                    pool.devices_of_tank[2])
    assert error['object'] == pool.devices_of_tank[2] and 'tank' in error['message']
    pool('pool', 'status', 'tank')
    pool('pool', 'create', 'new', *CODE, '--cell', '4K', '--force', *devices, pool.devices_of_tank[2])
    pool('pool', 'status', 'new')


def test_a_device_with_a_file_system(site):
    devices = site.devices(4)
    subprocess.run(['/sbin/mkfs.ext4', '-q', devices[1]], check=True)
    error = refused(site, REFUSED, devices, *CODE, *devices)
    assert error['object'] == devices[1] and 'ext4' in error['message']
    site('pool', 'create', 'new', '--cell', '4K', '--force', *CODE, *devices)
    site('pool', 'status', 'new')


def test_a_name_that_is_taken(pool):
    devices = pool.devices(4)
    before = contents(devices)
    pool.fails(REFUSED, 'pool', 'create', 'tank', *CODE, '--cell', '4K', *devices)
    assert contents(devices) == before


def test_nothing_is_destroyed_unasked(pool):
    pool('share', 'create', 'tank/a')
    before = contents(pool.devices_of_tank)
    for args in (('pool', 'destroy', 'tank'), ('share', 'destroy', 'tank/a'),
                 ('dataset', 'destroy', 'tank/b')):
        assert '--yes' in pool.fails(REFUSED, *args)['message']
    assert contents(pool.devices_of_tank) == before


def test_a_missing_device_directory(site):
    site.fails(NOT_FOUND, 'pool', 'import', '--device-dir', site.path('none'))


# --- help -----------------------------------------------------------------------------------------

def test_help_is_everywhere(site):
    table = verbs(site)
    assert len(table) >= 22 and ('pool', 'create') in table and ('status',) in table
    for words in table:
        done = subprocess.run([site.program, *words, '--help'], capture_output=True, text=True)
        assert done.returncode == OK and done.stdout.startswith(f'Usage: millrace {" ".join(words)}')
        assert max(map(len, done.stdout.splitlines()[2:])) <= 100

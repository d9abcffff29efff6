# SPDX-License-Identifier: LGPL-3.0-or-later
"""Devices that were dropped are taken back, or replaced, by an idle pool and by a served one."""

import os
import shutil
import socket
import uuid

import pytest

from conftest import DEGRADED, FAILED, NOT_FOUND, REFUSED, SMALL, USAGE, wait_until


@pytest.fixture
def tank(site):
    """A 2+2 pool of six that holds a dataset; `away` is where devices go."""
    site.devices_of_tank = site.pool(data=2, parity=2, count=6)
    site('dataset', 'ingest', 'tank/before', site.tree())
    site.away = site.path('away')
    os.mkdir(site.away)
    return site


@pytest.fixture(params=['idle', 'served'])
def missed(request, tank):
    """It has dropped devices 1 and 3, which are there again, and holds a dataset that they lack."""
    if request.param == 'served':
        tank('serve', 'tank')
    detach(tank, 1, 3)
    if request.param == 'served':
        wait_until(lambda: states(tank)[1] == states(tank)[3] == 'dropped', 'both are dropped')
    tank('dataset', 'ingest', 'tank/meanwhile', tank.path('tree'))
    attach(tank, 1, 3)
    yield tank
    if request.param == 'served':
        tank('serve', 'tank', '--stop')


def detach(site, *numbers):
    for number in numbers:
        os.rename(site.devices_of_tank[number], os.path.join(site.away, str(number)))


def attach(site, *numbers):
    """As another file, as a drive that is plugged in again is another device."""
    for number in numbers:
        shutil.copy(os.path.join(site.away, str(number)), site.devices_of_tank[number])
        os.unlink(os.path.join(site.away, str(number)))


def devices(site):
    return site.json('pool', 'status', 'tank')['pool']['devices']


def states(site):
    return [device['state'] for device in devices(site)]


def whole(site):
    return [device['id'] for device in devices(site) if device['whole']]


def test_what_is_found_is_taken_back(missed):
    assert states(missed) == ['active', 'dropped', 'active', 'dropped', 'active', 'active']
    advice = missed.json('status', rc=DEGRADED)['advice']
    assert any('millrace pool attach tank' in row['next'] for row in advice)
    told = missed.json('pool', 'attach', 'tank')['resilver']
    assert told['whole'] and told['devices'] == 2 and told['lost_blocks'] == told['waiting_segments'] == 0
    assert states(missed) == ['active'] * 6 and whole(missed) == list(range(6))
    assert missed.json('status')['degraded'] is False
    checked = missed.json('pool', 'check', 'tank')['check']
    assert checked['bad_blocks'] == checked['missing_chunks'] == 0


def test_any_two_others_may_go_then(tank):
    detach(tank, 1, 3)
    tank('dataset', 'ingest', 'tank/meanwhile', tank.path('tree'))
    attach(tank, 1, 3)
    tank('pool', 'attach', 'tank')
    detach(tank, 0, 5)
    for name in ('before', 'meanwhile'):
        tank('dataset', 'verify', f'tank/{name}')
    assert whole(tank) == [1, 2, 3, 4]


def test_one_by_name(missed):
    path = missed.devices_of_tank[3]
    assert missed.json('pool', 'attach', 'tank', path)['resilver']['devices'] == 1
    assert states(missed)[3] == 'active' and states(missed)[1] == 'dropped'
    assert missed.json('pool', 'attach', 'tank', path)['resilver']['devices'] == 0
    assert missed.json('pool', 'attach', 'tank')['resilver']['devices'] == 1
    assert whole(missed) == list(range(6))


def test_what_is_not_of_the_pool(missed):
    other = missed.device('other')
    assert 'no device of pool tank' in missed.fails(FAILED, 'pool', 'attach', 'tank', other)['message']
    missed.fails(NOT_FOUND, 'pool', 'attach', 'tank', missed.path('none'))
    assert states(missed)[1] == 'dropped'


def test_nothing_to_do(tank):
    assert tank.json('pool', 'attach', 'tank')['resilver'] == {
        'devices': 0, 'segments': 0, 'blocks': 0, 'written_blocks': 0, 'lost_blocks': 0, 'waiting_segments': 0, 'whole': True}


# --- behind a failover -----------------------------------------------------------------------------

def this_boot():
    with open('/proc/sys/kernel/random/boot_id') as file:
        return f'{socket.gethostname()}:{file.read().strip()}'


def another_boot():
    return f'{socket.gethostname()}:{uuid.uuid4()}'


@pytest.fixture(params=['idle', 'served'])
def taken(request, tank):
    """This host's server has lost device 1 and died; host beta has the pool, and the device is there again."""
    pid = tank.json('serve', 'tank')['pid']
    detach(tank, 1)
    wait_until(lambda: states(tank)[1] == 'dropped', 'it is dropped')
    tank.kill_server(pid)
    tank('pool', 'import', 'tank', '--force', '--host', 'beta', '--device-dir', tank.devices_dir)
    attach(tank, 1)
    if request.param == 'served':
        tank('serve', 'tank', '--host', 'beta')
    yield tank
    if request.param == 'served':
        tank('serve', 'tank', '--stop')


def test_an_owner_that_may_still_write(taken):
    for more in ((), ('--rebooted', this_boot()), ('--rebooted', f'other:{uuid.uuid4()}')):
        assert 'may still write' in taken.fails(REFUSED, 'pool', 'attach', 'tank', '--host', 'beta', *more)['message']
    assert states(taken)[1] == 'dropped'


def test_an_owner_whose_host_has_booted_since(taken):
    words = ('pool', 'attach', 'tank', '--host', 'beta', '--rebooted', f'other:{uuid.uuid4()}', '--rebooted', another_boot())
    assert taken.json(*words)['resilver']['whole']
    assert whole(taken) == list(range(6))
    assert taken.json(*words)['resilver']['devices'] == 0


def test_replaced_when_its_owner_has_booted_since(taken):
    spare = taken.device('spare')
    words = ('pool', 'replace', 'tank', '1', spare, '--host', 'beta')
    taken.fails(REFUSED, *words)
    assert taken.json(*words, '--rebooted', another_boot())['resilver']['whole']
    assert devices(taken)[1]['path'] == spare


@pytest.mark.parametrize('verb', ['attach', 'replace'])
def test_an_owner_whose_host_is_gone(taken, verb):
    words = ['pool', verb, 'tank', *(['1', taken.device('spare')] if verb == 'replace' else []), '--host', 'beta', '--gone']
    taken.fails(REFUSED, *words, 'other')
    assert 'and have booted' in taken.fails(USAGE, *words, os.uname().nodename, '--rebooted', this_boot())['message']
    assert taken.json(*words, os.uname().nodename)['resilver']['whole']
    assert whole(taken) == list(range(6))


def test_two_hosts_of_one_name(taken):
    """One of them runs under the very boot that had the pool."""
    words = ('pool', 'attach', 'tank', '--host', 'beta', '--rebooted', this_boot(), '--rebooted', another_boot())
    assert 'same name' in taken.fails(USAGE, *words)['message']
    assert states(taken)[1] == 'dropped'


BOOT = '01234567-89ab-4def-8123-456789abcdef'


@pytest.mark.parametrize('pair', ['', 'host', 'host:', f':{BOOT}', f'host:{uuid.UUID(int=0)}', 'host:0123', f'host:{BOOT}0',
                                  f'{"x" * 64}:{BOOT}'])
def test_what_is_no_host_and_boot(tank, pair):
    words = ('pool', 'attach', 'tank', '--rebooted', f'host:{BOOT}', '--rebooted', pair)
    assert 'HOST:BOOT' in tank.fails(USAGE, *words)['message']


# --- what a cluster says by itself ------------------------------------------------------------------

@pytest.fixture
def watched(tank):
    """A served pool, of which a cluster takes devices back."""
    tank('serve', 'tank')
    yield tank
    tank('serve', 'tank', '--stop')


def lose(site, *numbers):
    detach(site, *numbers)
    wait_until(lambda: all(states(site)[number] == 'dropped' for number in numbers), 'they are dropped')


def returned(site):
    return site.json('pool', 'attach', 'tank', '--returned')


def test_nothing_is_away(watched):
    told = returned(watched)
    assert told['not_whole'] == 0 and 'whole' in told['message'] and 'resilver' not in told


def test_nothing_is_found(watched):
    lose(watched, 1, 3)
    told = returned(watched)
    assert told['not_whole'] == 2 and 'None' in told['message'] and 'resilver' not in told
    assert not any('control: pool attach' in line for line in watched.log())


def test_what_returns_is_taken_back(watched):
    lose(watched, 1, 3)
    attach(watched, 1)
    told = returned(watched)
    assert told['not_whole'] == 2 and told['resilver']['devices'] == 1 and told['resilver']['whole']
    assert whole(watched) == [0, 1, 2, 4, 5]
    attach(watched, 3)
    assert returned(watched)['resilver']['whole'] and whole(watched) == list(range(6))


def test_what_comes_and_goes_is_left_alone(watched):
    for _ in range(2):
        lose(watched, 1)
        attach(watched, 1)
        told = returned(watched)
    assert 'resilver' not in told and any('left alone for 1 min' in note for note in told['notes'])
    assert states(watched)[1] == 'dropped'
    assert watched.json('pool', 'attach', 'tank')['resilver']['whole'] and whole(watched) == list(range(6))
    lose(watched, 1)
    attach(watched, 1)
    assert returned(watched)['resilver']['whole']


def test_returned_is_about_a_served_pool(tank):
    assert 'not being served' in tank.fails(NOT_FOUND, 'pool', 'attach', 'tank', '--returned')['message']
    tank.fails(USAGE, 'pool', 'attach', 'tank', '--returned', tank.devices_of_tank[1])


# --- another device in the place of one that is lost ------------------------------------------------

@pytest.mark.parametrize('by', ['number', 'path'])
def test_replaced(missed, by):
    spare = missed.device('spare', SMALL + (8 << 20))
    old = '3' if by == 'number' else devices(missed)[3]['path']
    told = missed.json('pool', 'replace', 'tank', old, spare)['resilver']
    assert told['whole'] and told['devices'] == 1 and told['written_blocks'] >= told['blocks'] > 0
    assert devices(missed)[3]['path'] == spare and devices(missed)[3]['whole']
    assert 'no device of pool tank' in missed.fails(FAILED, 'pool', 'attach', 'tank', missed.devices_of_tank[3])['message']
    missed('pool', 'attach', 'tank')
    checked = missed.json('pool', 'check', 'tank')['check']
    assert checked['bad_blocks'] == checked['missing_chunks'] == 0


def test_one_that_never_comes_back_is_replaced_and_others_go(tank):
    detach(tank, 2)
    tank('pool', 'replace', 'tank', '2', tank.device('spare'))
    assert whole(tank) == list(range(6))
    detach(tank, 0, 1)
    tank('dataset', 'verify', 'tank/before')


def test_what_is_not_taken_for_another(missed):
    small, used = missed.device('small', SMALL // 2), missed.device('used')
    with open(used, 'r+b') as file:  # a swap area
        file.truncate(SMALL)
        file.seek(4096 - 10)
        file.write(b'SWAPSPACE2')
        file.seek(1024)
        file.write((1).to_bytes(4, 'little') + (SMALL // 4096 - 1).to_bytes(4, 'little'))
    assert 'too small' in missed.fails(FAILED, 'pool', 'replace', 'tank', '3', small)['message']
    assert 'it holds swap data' in missed.fails(REFUSED, 'pool', 'replace', 'tank', '3', used)['message']
    assert 'in use' in missed.fails(REFUSED, 'pool', 'replace', 'tank', '0', missed.device('spare'))['message']
    for number in ('6', '4294967299'):  # that one would be 3 in 32 bits
        missed.fails(NOT_FOUND, 'pool', 'replace', 'tank', number, missed.device('spare'))
    assert 'by its number' in missed.fails(NOT_FOUND, 'pool', 'replace', 'tank', '/dev/none', missed.device('spare'))['message']
    missed('pool', 'replace', 'tank', '--force', '3', used)
    assert 3 in whole(missed)

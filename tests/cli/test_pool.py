# SPDX-License-Identifier: LGPL-3.0-or-later
"""Pools: made, looked at, given away and destroyed."""

import itertools
import os
import subprocess

import pytest

from conftest import DEGRADED, FAILED, NOT_FOUND, OK, REFUSED, SMALL, USAGE, Done, contents, damage


def test_create_status_list(pool):
    status = pool.json('pool', 'status', 'tank')['pool']
    assert status['name'] == 'tank' and status['health'] == 'healthy'
    assert status['state'] == 'idle' and (status['data'], status['parity']) == (2, 1)
    assert [d['state'] for d in status['devices']] == ['active'] * 4
    assert [d['path'] for d in status['devices']] == pool.devices_of_tank
    assert status['advice'] == []
    assert status['size'] > 0 and status['free'] <= status['size']
    listed = pool.json('pool', 'list')['pools']
    assert [p['name'] for p in listed] == ['tank']
    assert 'tank' in pool('pool', 'list').stdout
    assert 'Nothing is to be done' in pool('pool', 'status', 'tank').stdout


@pytest.mark.parametrize('name', ['cluster', 'update', 'reader', 'setup'])
def test_what_a_part_of_millrace_is_called(site, name):
    """millrace-cluster.service is no pool's."""
    assert 'choose another name' in site.fails(USAGE, 'pool', 'create', name, '--data', '1', '--parity', '1', *site.devices(2))['message']
    site('pool', 'create', f'{name}s', '--data', '1', '--parity', '1', *site.devices(2))


def test_status_writes_nothing(pool):
    before = contents(pool.devices_of_tank)
    pool('pool', 'status', 'tank')
    pool('pool', 'get', 'tank')
    pool('share', 'list', 'tank')
    pool('pool', 'check', 'tank')
    assert contents(pool.devices_of_tank) == before


def test_status_of_nothing(site):
    answer = site.json('status')
    assert answer['pools'] == [] and answer['degraded'] is False
    assert 'No pools' in site('status').stdout


def test_domains_are_kept(site):
    devices = site.devices(4)
    named = [f'{path}@host{i // 2}' for i, path in enumerate(devices)]
    site('pool', 'create', 'tank', '--data', '1', '--parity', '1', '--cell', '4K', *named)
    status = site.json('pool', 'status', 'tank')['pool']
    assert [d['domain'] for d in status['devices']] == ['host0', 'host0', 'host1', 'host1']
    assert status['domain_may_die'] is True


def test_a_path_may_have_an_at_sign(site):
    devices = [site.device(f'a@b{i}') for i in range(3)]
    site('pool', 'create', 'tank', '--data', '2', '--parity', '1', '--cell', '4K', *devices)
    status = site.json('pool', 'status', 'tank')['pool']
    assert [d['path'] for d in status['devices']] == devices


def test_a_missing_device_degrades(pool):
    os.unlink(pool.devices_of_tank[1])
    answer = pool.json('status', rc=DEGRADED)
    assert answer['degraded'] is True
    assert answer['pools'][0]['health'] == 'degraded'
    assert any('device 1' in row['what'] for row in answer['advice'])
    text = pool('status', rc=DEGRADED).stdout
    assert 'degraded' in text and 'attach' in text
    status = pool.json('pool', 'status', 'tank')['pool']
    assert status['devices'][1]['state'] == 'missing'


def test_too_many_missing_devices(pool):
    for path in pool.devices_of_tank[:2]:
        os.unlink(path)
    error = pool.fails(1, 'pool', 'status', 'tank')
    assert 'missing' in error['message']
    answer = pool.json('status', rc=DEGRADED)
    assert answer['pools'][0]['state'] == 'unavailable'


@pytest.fixture
def degraded(site):
    """A 2+2 pool of six that has dropped a device, and holds a dataset from before."""
    site.devices_of_tank = site.pool(data=2, parity=2, count=6)
    site('dataset', 'ingest', 'tank/set', site.tree())
    site.away = site.path('away')
    os.mkdir(site.away)
    detach(site, 3)
    site('share', 'create', 'tank/a')
    attach(site)
    return site


def detach(site, *numbers):
    for number in numbers:
        os.rename(site.devices_of_tank[number], os.path.join(site.away, f'tank-{number}'))


def attach(site):
    for name in os.listdir(site.away):
        os.rename(os.path.join(site.away, name), os.path.join(site.devices_dir, name))


def dropped_devices(site):
    devices = site.json('pool', 'status', 'tank')['pool']['devices']
    return [d['id'] for d in devices if d['state'] == 'dropped']


def test_an_outage_is_not_permanent(degraded):
    """What is dropped besides serves what it has when it is back, and is not written again."""
    detach(degraded, 0, 1)
    answer = degraded.json('status', rc=DEGRADED)
    assert any('attach what is missing' in row['next'] for row in answer['advice'])
    degraded('share', 'create', 'tank/b')
    attach(degraded)
    assert dropped_devices(degraded) == [0, 1, 3]
    degraded('dataset', 'verify', 'tank/set')
    advice = degraded.json('status', rc=DEGRADED)['advice']
    assert any('more than the 2 of parity' in row['what'] for row in advice)
    assert not any('attach what is missing' in row['next'] for row in advice)


def test_a_pool_of_too_few_devices_is_read_only(degraded):
    """It says so, and which device to attach; not that it is full, or has stopped."""
    detach(degraded, 0, 1)
    degraded('share', 'create', 'tank/c')
    detach(degraded, 2)
    error = degraded.fails(REFUSED, 'share', 'create', 'tank/b')
    assert 'read-only' in error['message'] and 'pool status tank' in error['message']
    pool = degraded.json('pool', 'status', 'tank')['pool']
    assert pool['health'] == 'degraded' and pool['read_only'] is True
    text = str(pool['advice'])
    assert 'the pool is read-only: 2 devices are in use' in text and 'attach device 2 (' in text
    assert 'full' not in text and 'has stopped' not in text


def test_a_pool_is_destroyed_without_devices_that_hold_data(degraded):
    detach(degraded, 0, 1)
    degraded('pool', 'destroy', 'tank', '--yes')
    degraded.fails(NOT_FOUND, 'pool', 'status', 'tank')


def importable(site):
    """By uuid: the machine may have pools of its own."""
    found = site.json('pool', 'import', '--device-dir', site.devices_dir)['pools']
    return {pool['uuid']: pool for pool in found}


def test_export_and_import(pool):
    pool('share', 'create', 'tank/a')
    uuid = pool.json('pool', 'status', 'tank')['pool']['uuid']
    pool('pool', 'export', 'tank')
    pool.fails(NOT_FOUND, 'pool', 'status', 'tank')
    listed = importable(pool)
    assert (listed[uuid]['name'], listed[uuid]['state']) == ('tank', 'exported')
    assert listed[uuid]['devices_found'] == 4
    error = pool.fails(REFUSED, 'share', 'create', 'tank/b', '--device-dir', pool.devices_dir)
    assert 'import' in error['message']
    pool('pool', 'import', 'tank', '--device-dir', pool.devices_dir)
    assert [s['name'] for s in pool.json('share', 'list')['shares']] == ['tank/a']


def test_a_pool_that_is_gone_can_be_forgotten(pool):
    for path in pool.devices_of_tank:
        with open(path, 'wb') as file:
            file.truncate(192 << 20)
    for args in (('pool', 'destroy', 'tank', '--yes'), ('pool', 'export', 'tank')):
        assert 'pool export --force' in pool.fails(NOT_FOUND, *args)['message']
    assert 'pool export --force tank' in pool.json('status', rc=DEGRADED)['advice'][0]['next']
    assert 'forgotten' in pool('pool', 'export', 'tank', '--force').stdout
    assert pool.json('status')['pools'] == []
    pool.fails(NOT_FOUND, 'pool', 'export', 'tank', '--force')
    pool('pool', 'create', 'tank', '--data', '2', '--parity', '1', '--cell', '4K', *pool.devices_of_tank)


def test_forgetting_touches_no_device(pool):
    before = contents(pool.devices_of_tank)
    pool('pool', 'export', 'tank', '--force')
    assert contents(pool.devices_of_tank) == before
    pool('pool', 'import', 'tank', '--device-dir', pool.devices_dir)
    pool('share', 'create', 'tank/a')


def test_import_rebuilds_what_is_remembered(pool):
    os.unlink(pool.path('state', 'pools', 'tank.json'))
    pool.fails(NOT_FOUND, 'pool', 'status', 'tank')
    pool('pool', 'status', 'tank', '--device-dir', pool.devices_dir)
    pool('pool', 'import', 'tank', '--device-dir', pool.devices_dir)
    pool('pool', 'status', 'tank')


def test_what_is_remembered_may_be_garbage(pool):
    path = pool.path('state', 'pools', 'tank.json')
    for garbage in (b'', b'{', b'[]', b'\xff\xfe', b'{"uuid":"x","devices":[1,{}]}',
                    b'{"uuid":"00000000-0000-0000-0000-000000000000","devices":["/dev/null"]}'):
        with open(path, 'wb') as file:
            file.write(garbage)
        pool.fails(NOT_FOUND, 'pool', 'status', 'tank')
    pool('pool', 'import', 'tank', '--device-dir', pool.devices_dir)
    pool('pool', 'status', 'tank')


def test_import_with_too_few_devices_changes_nothing(pool):
    cache = pool.path('state', 'pools', 'tank.json')
    os.unlink(cache)
    for path in pool.devices_of_tank[:2]:
        os.unlink(path)
    before = contents(pool.devices_of_tank[2:])
    for args in ((), ('--host', 'other', '--force'), ('--owner-dead',)):
        error = pool.fails(1, 'pool', 'import', 'tank', '--device-dir', pool.devices_dir, *args)
        assert '2 of 4 active devices are missing' in error['message']
    assert contents(pool.devices_of_tank[2:]) == before and not os.path.exists(cache)


def test_devices_with_new_names_are_not_missing(pool):
    moved = pool.path('elsewhere')
    os.mkdir(moved)
    for path in pool.devices_of_tank[:3]:
        os.rename(path, os.path.join(moved, os.path.basename(path)))
    pool('share', 'create', 'tank/a', '--device-dir', moved)
    status = pool.json('pool', 'status', 'tank')['pool']
    assert status['health'] == 'healthy' and status['devices'][0]['path'].startswith(moved)


def test_another_hosts_pool(pool):
    error = pool.fails(REFUSED, 'share', 'create', 'tank/a', '--host', 'other')
    assert 'force' in error['message']
    pool.fails(REFUSED, 'pool', 'import', 'tank', '--device-dir', pool.devices_dir, '--host', 'other')
    status = pool.json('pool', 'status', 'tank', '--host', 'other')['pool']
    assert status['state'] == 'other host'
    pool('pool', 'import', 'tank', '--device-dir', pool.devices_dir, '--host', 'other', '--force')
    pool('share', 'create', 'tank/a', '--host', 'other')
    pool.fails(REFUSED, 'share', 'create', 'tank/b')
    pool('pool', 'import', 'tank', '--device-dir', pool.devices_dir, '--owner-dead')
    pool('share', 'create', 'tank/b')
    pool('pool', 'import', 'tank', '--device-dir', pool.devices_dir, '--owner-dead')


def test_destroy_leaves_devices_free(pool):
    uuid = pool.json('pool', 'status', 'tank')['pool']['uuid']
    assert uuid in importable(pool)
    pool.fails(REFUSED, 'pool', 'destroy', 'tank')
    pool('pool', 'destroy', 'tank', '--yes')
    pool.fails(NOT_FOUND, 'pool', 'status', 'tank')
    assert uuid not in importable(pool)
    pool('pool', 'create', 'again', '--data', '2', '--parity', '1', '--cell', '4K',
         *pool.devices_of_tank)


def test_big_devices_with_the_default_cell(site):
    site('pool', 'create', 'big', '--data', '4', '--parity', '2',
         *site.devices(6, size=1200 << 20))
    assert site.json('pool', 'status', 'big')['pool']['size'] > 3 << 30


def test_what_is_kept_for_fencing_is_told_and_not_touched(site):
    """Whoever fences the hosts writes there while the pool is served."""
    devices = site.devices(4, size=1 << 30)
    site('pool', 'create', 'big', '--data', '2', '--parity', '1', *devices)
    found = site.json('pool', 'import', '--device-dir', site.devices_dir)['pools'][0]
    areas = found['fencing']
    assert sorted(found['paths']) == devices
    assert sorted(area['path'] for area in areas) == devices and len({area['device'] for area in areas}) == 4
    others = {path: os.urandom(areas[0]['size']) for path in devices}
    for area in areas:
        with open(area['path'], 'r+b') as file:
            file.seek(area['offset'])
            file.write(others[area['path']])
    site('serve', 'big')
    site('dataset', 'ingest', 'big/set', site.tree())
    site('serve', 'big', '--stop')
    site('pool', 'check', 'big', '--repair')
    site('pool', 'export', 'big')
    for area in areas:
        with open(area['path'], 'rb') as file:
            file.seek(area['offset'])
            assert file.read(area['size']) == others[area['path']]


def as_member(site, tmp_path, fencing, *words):
    """What `millrace WORDS` says on a node whose cluster fences by what FENCING is a line of."""
    for name in ('changes', 'work'):
        (tmp_path / name).mkdir(exist_ok=True)
    script = (f'set -e; mount -t overlay -o lowerdir=/etc,upperdir={tmp_path}/changes,workdir={tmp_path}/work etc /etc; '
              f'mkdir -p /etc/millrace; touch /etc/millrace/cluster; printf "/dev/another\\n{fencing}\\n" >/etc/millrace/fencing; exec "$@"')
    argv = ['unshare', '--mount', 'sh', '-c', script, 'sh', *site.argv(*words, '--json')]
    return Done(argv, subprocess.run(argv, capture_output=True, text=True, check=False))


def test_what_fences_a_cluster_is_not_destroyed(site, tmp_path):
    """Not even by force, be it of a pool, or a device of its own that has several names."""
    devices = site.devices(4, size=1 << 30)
    site('pool', 'create', 'big', '--data', '2', '--parity', '1', *devices)
    uuid = site.json('pool', 'import', '--device-dir', site.devices_dir)['pools'][0]['fencing'][2]['device']
    destroy = ('pool', 'destroy', 'big', '--yes')
    create = ('pool', 'create', 'new', '--data', '2', '--parity', '1', '--force', *devices)
    alone = site.device('alone', 1 << 30)
    os.symlink(alone, f'{tmp_path}/alone')

    def refused(fencing, *words):
        done = as_member(site, tmp_path, fencing, *words)
        return done.rc == REFUSED and 'are fenced over it' in done.error['message']

    assert refused(uuid, *destroy) and refused(uuid, *create)
    assert refused(f'{tmp_path}/alone', 'pool', 'replace', 'big', '3', alone, '--force')
    assert refused(f'{tmp_path}/alone', 'pool', 'create', 'new', '--data', '2', '--parity', '1', *devices[:2], alone, '--force')
    assert site.json('pool', 'status', 'big')['pool']['health'] == 'healthy'
    assert as_member(site, tmp_path, uuid[:-1], *destroy).rc == OK


def test_what_fences_a_cluster_is_replaced_when_it_is_gone(site, tmp_path):
    """Else nodes would not find it when they boot."""
    devices = site.devices(4, size=1 << 30)
    site('pool', 'create', 'big', '--data', '2', '--parity', '1', *devices)
    uuid = site.json('pool', 'import', '--device-dir', site.devices_dir)['pools'][0]['fencing'][2]['device']
    replace = ('pool', 'replace', 'big', '2', site.device('new', 1 << 30))
    os.rename(devices[2], f'{tmp_path}/away')
    site('share', 'create', 'big/a')
    os.rename(f'{tmp_path}/away', devices[2])
    refused = as_member(site, tmp_path, uuid, *replace)
    assert refused.rc == REFUSED and 'pull it first' in refused.error['message'] and refused.error['object'] == devices[2]
    os.rename(devices[2], f'{tmp_path}/away')
    assert as_member(site, tmp_path, uuid, *replace).rc == OK
    assert site.json('pool', 'status', 'big')['pool']['health'] == 'healthy'


def test_small_devices_keep_nothing_for_fencing(pool):
    pool('pool', 'export', 'tank')
    assert pool.json('pool', 'import', '--device-dir', pool.devices_dir)['pools'][0]['fencing'] == []


def test_check(pool):
    pool('share', 'create', 'tank/a')
    report = pool.json('pool', 'check', 'tank')['check']
    assert report['segments'] > 0 and report['bad_blocks'] == 0 and report['wrong_live'] == 0


def test_check_finds_and_repairs(site):
    devices = site.pool(data=2, parity=2, count=5)
    site('dataset', 'ingest', 'tank/set', site.tree())
    damage(devices[1])
    report = site.json('pool', 'check', 'tank', rc=1)
    assert report['check']['bad_blocks'] > 0 and '--repair' in report['error']['message']
    assert report['check']['bad_files'] == 0 and any('checksums' in note for note in report['notes'])
    report = site.json('pool', 'check', 'tank', '--repair')['check']
    assert report['repaired_blocks'] > 0 and report['lost_blocks'] == 0
    assert site.json('pool', 'check', 'tank')['check']['bad_blocks'] == 0
    site('dataset', 'verify', 'tank/set')


def test_check_of_a_degraded_pool(site):
    """Any two devices of a 4+2 pool may be away, those with all parity of a segment too."""
    devices = site.pool(data=4, parity=2, count=6)
    site('dataset', 'ingest', 'tank/set', site.tree())
    away = site.path('away')
    os.mkdir(away)
    for pair in itertools.combinations(devices, 2):
        for path in pair:
            os.rename(path, os.path.join(away, os.path.basename(path)))
        answer = site.json('pool', 'check', 'tank')
        assert answer['check']['missing_blocks'] > 0
        assert answer['check']['bad_blocks'] == answer['check']['lost_blocks'] == 0
        assert any('can be rebuilt' in note for note in answer['notes'])
        for path in pair:
            os.rename(os.path.join(away, os.path.basename(path)), path)
    assert site.json('pool', 'check', 'tank')['check']['missing_blocks'] == 0
    for path in devices[:2]:
        os.unlink(path)
    site('pool', 'check', 'tank', '--repair')
    for device in devices[2:4]:
        damage(device)
    answer = site.json('pool', 'check', 'tank', rc=FAILED)
    assert answer['check']['bad_blocks'] > 0 and answer['check']['lost_blocks'] > 0


LABELS = (4096, 128 << 10)  # offset and bytes of area A; area B stands before the last block
HEADERS = (0, SMALL - 4096)


def wipe(device, *places, length=4096):
    with open(device, 'r+b') as file:
        for place in places:
            file.seek(place)
            file.write(bytes(length))


def block(device, place):
    with open(device, 'rb') as file:
        file.seek(place)
        return file.read(4096)


def test_bad_headers_are_named_and_mended(pool):
    device = pool.devices_of_tank[1]
    before = [block(device, place) for place in HEADERS]
    assert before[0] == before[1]
    for place in HEADERS:
        wipe(device, place)
        found = pool.json('pool', 'check', 'tank', rc=FAILED)
        assert found['check']['bad_blocks'] == 1 and '--repair' in found['error']['message']
        assert any(f'{device}: its header' in note for note in found['notes'])
        status = pool.json('pool', 'status', 'tank')['pool']
        assert status['devices'][1]['checksum_errors'] == 1 and '--repair' in status['advice'][0]['next']
        pool('pool', 'check', 'tank', '--repair')
        assert [block(device, place) for place in HEADERS] == before
        assert pool.json('pool', 'check', 'tank')['check']['bad_blocks'] == 0


def test_a_header_is_mended_while_served(served):
    device = served.devices_of_tank[1]
    before = block(device, 0)
    wipe(device, *HEADERS)
    served.json('pool', 'check', 'tank', rc=FAILED)
    assert served.json('pool', 'check', 'tank', '--repair')['check']['repaired_blocks'] == 2
    assert served.json('pool', 'status', 'tank')['pool']['devices'][1]['repaired'] == 2
    assert [block(device, place) for place in HEADERS] == [before] * 2


def test_a_device_without_labels_is_not_missing(pool):
    device = pool.devices_of_tank[1]
    wipe(device, LABELS[0], SMALL - 4096 - LABELS[1], length=LABELS[1])
    status = pool.json('pool', 'status', 'tank', '--device-dir', pool.devices_dir)['pool']
    assert status['health'] == 'healthy' and status['devices'][1]['path'] == device
    pool('pool', 'check', 'tank', rc=FAILED)
    pool('pool', 'check', 'tank', '--repair')
    assert pool.json('pool', 'check', 'tank')['check']['bad_blocks'] == 0


def test_a_device_without_headers_is_named(pool):
    """By its label; and when that is gone too, by what was remembered."""
    device = pool.devices_of_tank[1]
    for more in ((), (LABELS[0], SMALL - 4096 - LABELS[1])):
        wipe(device, *HEADERS)
        wipe(device, *more, length=LABELS[1])
        status = pool.json('pool', 'status', 'tank')['pool']
        assert status['devices'][1]['state'] == 'missing'
        what = [row['what'] for row in status['advice'] if 'device 1' in row['what']]
        assert f'{device}: its header cannot be read' in what[0]
        listed = pool.json('pool', 'import', '--device-dir', pool.devices_dir)
        named = [note for note in listed.get('notes', ()) if f'{device}: its header' in note]
        assert bool(named) == (not more)


def test_another_drive_at_the_place_of_one_is_not_named(pool):
    """Its name has moved to a drive that holds something else, as the kernel's do."""
    device = pool.devices_of_tank[1]
    with open(device + '.new', 'wb') as file:
        file.write(b'the first block of somebody else')
        file.truncate(SMALL)
    os.replace(device + '.new', device)
    status = pool.json('pool', 'status', 'tank')['pool']
    assert status['devices'][1]['state'] == 'missing'
    assert not [row for row in status['advice'] if 'header cannot be read' in row['what']]
    assert any(f'last seen as {device}' in row['what'] for row in status['advice'])


def test_importing_what_is_known_and_not_in_dev(pool):
    error = pool.fails(NOT_FOUND, 'pool', 'import', 'tank')
    assert '`millrace pool status tank`' in error['message']

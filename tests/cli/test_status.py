# SPDX-License-Identifier: LGPL-3.0-or-later
"""What `pool status` and `status` say is wrong, and what they say to type; and progress."""

import concurrent.futures
import fcntl
import os
import pty
import re
import subprocess

from conftest import DEGRADED, FAILED, NOT_FOUND, OK, damage, wait_until


def advice(site, *args, **options):
    """(state, what is wrong and what to do as one text)."""
    pool = site.json('pool', 'status', 'tank', *args, **options)['pool']
    text = '\n'.join(f'{row["what"]} -> {row["next"]}' for row in pool['advice'])
    shown = site('pool', 'status', 'tank', *args).stdout
    assert all(row['what'] in shown and row['next'] in shown for row in pool['advice'])
    return pool['state'], text


def test_a_missing_and_a_dropped_device(pool):
    lost = pool.devices_of_tank[1]
    os.rename(lost, lost + '.away')
    text = advice(pool)[1]
    assert '1 of 4 devices are gone, one more would lose data' in text
    assert 'device 1' in text and '`millrace pool import tank`' in text
    assert f'last seen as {lost}' in text
    pool('share', 'create', 'tank/a')
    os.rename(lost + '.away', lost)
    text = advice(pool)[1]
    assert 'missed writes and is not used any more' in text and 'last seen' not in text


def test_it_is_asked_while_others_change_the_pool(pool):
    pool('share', 'create', 'tank/a')
    with concurrent.futures.ThreadPoolExecutor() as executor:
        changes = executor.submit(lambda: [pool('share', 'set', 'tank/a', f'nfs.squash={how}') for how in ('none', 'root') * 40])
        asked = 0
        while not changes.done():
            pool('pool', 'status', 'tank')
            asked += 1
        assert len(changes.result()) == 80 and asked > 5


def test_space_adds_up(either):
    before = either.json('pool', 'status', 'tank')['pool']['space']
    either('dataset', 'ingest', 'tank/set', either.tree(files=40))
    either('share', 'create', 'tank/a')
    pool = either.json('pool', 'status', 'tank')['pool']
    space = pool['space']
    assert sum(n for name, n in space.items() if name != 'raw') == space['raw'] == pool['raw']
    assert space['raw'] == sum(device['size'] for device in pool['devices'])
    assert space['data'] == pool['live'] > 0 and before['data'] == 0
    assert space['parity'] >= space['data'] / 2 and space['free'] < before['free']
    either('dataset', 'destroy', 'tank/set', '--yes')
    either('share', 'destroy', 'tank/a', '--yes')
    shown = either('pool', 'status', 'tank').stdout
    assert all(f'{what}: ' in shown for what in ('to be compacted', 'free, with parity', 'reserved'))
    assert either.json('pool', 'status', 'tank')['pool']['space']['data'] == 0


def test_whose_it_is(pool):
    assert advice(pool) == ('idle', '')
    state, text = advice(pool, '--host', 'other')
    assert state == 'other host' and '`millrace pool import --force tank`' in text
    pool('pool', 'export', 'tank')
    pool.fails(NOT_FOUND, 'pool', 'status', 'tank')
    state, text = advice(pool, '--device-dir', pool.devices_dir)
    assert state == 'exported' and '`millrace pool import tank`' in text


def crash(site, *host):
    site.kill_server(site.json('serve', 'tank', *host)['pid'], 'tank', *host)


def test_not_closed_or_in_use(pool):
    crash(pool)
    assert '`millrace serve tank`' in advice(pool)[1]
    with open(pool.path('run/tank.lock'), 'r+') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert advice(pool) == ('in use', '')
    pool('share', 'create', 'tank/a')
    assert advice(pool) == ('idle', '')


def test_an_owner_that_may_still_write(pool):
    crash(pool)
    pool('pool', 'import', 'tank', '--force', '--host', 'other', '--device-dir', pool.devices_dir)
    pool('share', 'create', 'tank/a', '--host', 'other')
    state, text = advice(pool, '--host', 'other')
    assert state == 'idle' and 'may still write' in text
    assert '`millrace pool import --owner-dead tank`' in text
    pool('pool', 'import', 'tank', '--owner-dead', '--host', 'other', '--device-dir',
         pool.devices_dir)
    assert advice(pool, '--host', 'other') == ('idle', '')


def test_errors_and_repairs(site):
    devices = site.pool(data=2, parity=2, count=5)
    site('dataset', 'ingest', 'tank/set', site.tree(files=100))
    damage(devices[1])
    site('serve', 'tank')
    site('dataset', 'verify', 'tank/set')
    pool = site.json('pool', 'status', 'tank')['pool']  # one look: repairs may still go on
    device, text = pool['devices'][1], str(pool['advice'])
    assert f'{device["checksum_errors"]} checksum errors' in text and device['checksum_errors'] > 0
    assert f'{device["repaired"]} blocks were rebuilt and repaired' in text
    assert '`millrace pool check tank --repair`' in text and f'smartctl -a {devices[1]}' in text
    site('serve', 'tank', '--stop')


def test_a_full_pool(either):
    size = either.json('pool', 'status', 'tank')['pool']['size']
    top = either.path('big')
    os.mkdir(top)
    with open(os.path.join(top, 'f'), 'wb') as file:
        file.write(os.urandom(size * 2))
    either('dataset', 'ingest', 'tank/set', top, rc=FAILED)
    text = advice(either)[1]
    assert re.search('the pool is (nearly )?full', text) and '`millrace dataset list tank`' in text
    either('dataset', 'destroy', 'tank/set', '--yes')


def test_a_pool_that_has_stopped(pool):
    """More of its devices have gone than it can be without, while it was served."""
    def health():
        return pool.json('pool', 'status', 'tank')['pool']['health']

    pool('serve', 'tank')
    for path in pool.devices_of_tank:
        os.unlink(path)
    wait_until(lambda: health() == 'failed', 'it has noticed')
    state, text = advice(pool)
    assert state == 'served' and 'the pool has stopped' in text
    assert '`millrace serve tank --stop`' in text and pool.path('state', 'log', 'tank.log') in text
    assert pool.run('status').rc == DEGRADED
    pool('serve', 'tank', '--stop')


def test_what_cannot_be_opened(pool):
    for path in pool.devices_of_tank[:2]:
        os.unlink(path)
    rows = pool.json('status', rc=DEGRADED)['advice']
    assert len(rows) == 1 and 'missing' in rows[0]['what'] and 'pool import' in rows[0]['next']


# --- progress -------------------------------------------------------------------------------------

def lines_on_a_terminal(site, *args):
    """What a verb writes to stderr when that is a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(site.argv(*args), stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    data = b''
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:  # nobody has the other end any more
            break
        data += more
    os.close(master)
    assert process.wait() == OK
    return [line for line in re.split(r'\r\n|\r\x1b\[K', data.decode()) if line]


def test_progress_on_a_terminal(either):
    tree = either.tree()
    bytes_ = r'\d+(\.\d)?[KMG]?'
    first = lines_on_a_terminal(either, 'dataset', 'ingest', 'tank/set', tree)
    assert re.match(rf'ingest tank/set: \d+ files, {bytes_}( of {bytes_})?, {bytes_}/s', first[0])
    assert re.match(r'seal tank/set: 0:00', first[-1])
    for words in (('dataset', 'verify', 'tank/set'), ('pool', 'check', 'tank')):
        first = lines_on_a_terminal(either, *words)
        assert re.match(rf'{words[1]} {words[2]}: {bytes_} of {bytes_}, {bytes_}/s, \d+%', first[0])


def test_progress_of_starting(pool):
    assert 'start the server of tank: 0:00' in lines_on_a_terminal(pool, 'serve', 'tank')
    pool('serve', 'tank', '--stop')


def test_what_has_no_measure_shows_its_time(pool):
    """Here the opening: the host that has the pool is watched for a sign of life, for 10 s."""
    pool('pool', 'export', 'tank')
    pool('pool', 'import', 'tank', '--device-dir', pool.devices_dir, '--host', 'other')
    crash(pool, '--host', 'other')
    lines = lines_on_a_terminal(pool, 'pool', 'import', 'tank', '--force', '--device-dir',
                                pool.devices_dir)
    times = {line for line in lines if re.fullmatch(r'import tank: 0:\d\d', line)}
    assert len(times) >= 2

# SPDX-License-Identifier: LGPL-3.0-or-later
"""pool iostat: what is counted, by whom, and how it is told."""

import json
import os
import signal
import socket
import subprocess
import threading

from conftest import FAILED, NOT_FOUND, OK, USAGE, wait_until
from schemas import validate_answer


def told(site, *words):
    """The answers of one run of the command."""
    done = subprocess.run(site.argv('pool', 'iostat', *words, '--json'), check=True, timeout=120,
                          capture_output=True, text=True)
    assert done.stderr == ''
    return documents(done.stdout)


def documents(text):
    """JSON documents one after the other."""
    decoder, found = json.JSONDecoder(), []
    while text.strip():
        document, end = decoder.raw_decode(text.lstrip())
        text = text.lstrip()[end:]
        validate_answer(['pool', 'iostat'], document)
        found.append(document)
    return found


def volume(answer, name):
    return next(row for row in answer['volumes'] if row['name'] == name)


def test_since_the_pool_was_opened(served):
    answer = served.json('pool', 'iostat', 'tank')
    assert [row['name'] for row in answer['pools']] == ['tank']
    assert [(row['id'], row['path']) for row in answer['devices']] == \
        list(enumerate(served.devices_of_tank))
    assert answer['volumes'] == []
    pool = answer['pools'][0]
    assert pool['seconds'] > 0
    for key in ('reads', 'read_bytes', 'writes', 'write_bytes', 'flushes', 'errors', 'queue'):
        assert pool[key] == sum(row[key] for row in answer['devices'])
    assert pool['read_bytes'] > 0 and pool['write_bytes'] > 0 and pool['read_wait'] > 0


def test_what_an_ingest_writes_is_counted(served):
    before = served.json('pool', 'iostat', 'tank')
    served('dataset', 'ingest', 'tank/set', served.tree())
    after = served.json('pool', 'iostat', 'tank')
    for was, now in zip(before['devices'], after['devices']):
        assert all(now[key] >= was[key] for key in ('reads', 'read_bytes', 'writes', 'write_bytes'))
    size = sum(i * 1000 for i in range(20))
    written = after['pools'][0]['write_bytes'] - before['pools'][0]['write_bytes']
    assert written >= size * 3 // 2  # 2+1: data and parity
    assert volume(after, 'tank/set')['transactions'] > 0


def test_reads_are_counted_where_they_are(served):
    served('dataset', 'ingest', 'tank/set', served.tree())
    before = served.json('pool', 'iostat', 'tank')['pools'][0]['read_bytes']
    served('dataset', 'verify', 'tank/set')
    assert served.json('pool', 'iostat', 'tank')['pools'][0]['read_bytes'] - before >= 100000


def test_a_missing_device_has_none(pool):
    os.unlink(pool.devices_of_tank[2])
    pool('serve', 'tank')
    row = pool.json('pool', 'iostat', 'tank')['devices'][2]
    assert (row['state'], row['path'], row['reads'], row['writes']) == ('dropped', '', 0, 0)
    pool('serve', 'tank', '--stop')


def test_the_second_answer_is_of_what_went_on_meanwhile(served):
    first, second = told(served, 'tank', '1', '2')
    assert second['pools'][0]['seconds'] > 0
    assert second['pools'][0]['read_bytes'] < first['pools'][0]['read_bytes']
    row = second['devices'][0]
    assert abs(row['reads'] / row['seconds'] - row['read_rate']) <= 0.5


def test_without_a_pool_it_is_all_that_are_served(served):
    served.pool('idle')
    for words in ((), ('1', '1')):
        assert [row['name'] for row in served.json('pool', 'iostat', *words)['pools']] == ['tank']
    assert len(told(served, '1', '2')) == 2


def test_a_server_that_does_not_answer_hides_no_other(served):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(served.path('run', 'mute.sock'))
        listener.listen()

        def hang_up():
            try:
                while True:
                    listener.accept()[0].close()
            except OSError:
                pass

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        answer = served.json('pool', 'iostat', rc=FAILED)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)
    os.unlink(served.path('run', 'mute.sock'))
    assert answer['error']['object'] == 'mute'
    assert [row['name'] for row in answer['pools']] == ['tank']


def test_as_text(served):
    served('share', 'create', 'tank/a')
    lines = served('pool', 'iostat', 'tank').stdout.splitlines()
    assert [line.split()[0] for line in lines if line] == \
        ['POOL', 'tank', 'ID', '0', '1', '2', '3', 'VOLUME', 'tank/a']
    for line in (lines[1], lines[4]):
        assert len(line.split()) in (10, 12)


def test_it_goes_on_until_it_is_interrupted(served):
    with open(served.path('told'), 'w') as file:
        process = subprocess.Popen(served.argv('pool', 'iostat', 'tank', '1', '--json'), stdout=file,
                                   stderr=subprocess.PIPE, text=True)

    def text():
        with open(file.name) as again:
            return again.read()

    wait_until(lambda: text().count('"schema"') >= 2, 'two answers')
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == OK
    assert process.stderr.read() == ''
    process.stderr.close()
    assert len(documents(text())) >= 2


def test_it_ends_with_its_reader(served):
    """As in `millrace pool iostat 1 | head`."""
    process = subprocess.Popen(served.argv('pool', 'iostat', 'tank', '1'), stdout=subprocess.PIPE,
                               text=True)
    assert process.stdout.readline().startswith('POOL')
    process.stdout.close()
    process.wait(60)


def test_it_says_when_the_server_has_gone(pool):
    pool('serve', 'tank')
    process = subprocess.Popen(pool.argv('pool', 'iostat', 'tank', '1'), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith('POOL')
    pool('serve', 'tank', '--stop')
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == NOT_FOUND and 'it is not being served' in stderr


def test_an_idle_pool(pool):
    error = pool.fails(NOT_FOUND, 'pool', 'iostat', 'tank')
    assert 'it is not being served' in error['message'] and '`millrace serve' in error['message']
    assert 'no such pool' in pool.fails(NOT_FOUND, 'pool', 'iostat', 'none')['message']
    assert 'No pool is being served' in pool('pool', 'iostat').stdout
    assert pool.json('pool', 'iostat')['pools'] == []


def test_wrong_usage(pool):
    for words in (('tank', '0'), ('tank', 'x'), ('tank', '1', '0'), ('tank', '1', '1', '1')):
        pool.fails(USAGE, 'pool', 'iostat', *words)

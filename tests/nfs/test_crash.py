# SPDX-License-Identifier: LGPL-3.0-or-later
"""kill -9 of the server, and a clean restart, under a client that goes on working."""

import mmap
import os
import random
import sys
import threading

import pytest

from test_locks import Range, attempt

RECOVERY_TIMEOUT = 600


def record(number, size):
    """Record NUMBER: its own bytes, unlike those of any other."""
    line = b'record %d\n' % number
    return (line * (size // len(line) + 1))[:size]


def write_records(path, size):
    """Append records for ever; print the number of each one when it is stable."""
    with open(path, 'ab', buffering=0) as file:
        number = 0
        while True:
            assert file.write(record(number, size)) == size
            os.fsync(file.fileno())
            print(number, flush=True)
            number += 1


def check_records(path, size, count):
    """The numbers below COUNT whose record is not what was written."""
    with open(path, 'rb') as file:
        return [number for number in range(count) if file.read(size) != record(number, size)]


@pytest.mark.parametrize('size', (100, 5000, 300000))
@pytest.mark.parametrize('times', (1, 3))
def test_every_fsynced_record_outlives_kill9(site, share, size, times):
    path = f'{share.path}/records'
    writer = share.client.spawn_call(write_records, path, size, helpers=[record])
    for _ in range(times):
        writer.wait_for_lines(len(writer.lines()) + 20, RECOVERY_TIMEOUT)
        site.server.kill9()
        site.server.start()
    acknowledged = len(writer.wait_for_lines(len(writer.lines()) + 20, RECOVERY_TIMEOUT))
    site.server.kill9()
    writer.kill()
    site.server.start()
    writer.wait(RECOVERY_TIMEOUT, check=False)
    share.remount()
    assert share.client.call(check_records, path, size, acknowledged, helpers=[record]) == []


def test_every_created_name_outlives_kill9(site, share):
    def create(path):
        number = 0
        while True:
            os.close(os.open(f'{path}/{number}', os.O_CREAT | os.O_WRONLY))
            print(number, flush=True)
            number += 1

    writer = share.spawn_call(create)
    writer.wait_for_lines(100, RECOVERY_TIMEOUT)
    site.server.kill9()
    site.server.start()
    acknowledged = writer.wait_for_lines(len(writer.lines()) + 100, RECOVERY_TIMEOUT)
    writer.kill()
    writer.wait(check=False)
    share.remount()
    names = share.client.run(['ls', share.path]).stdout.decode().split()
    assert set(acknowledged) <= set(names)


def test_written_but_not_yet_committed_bytes_are_sent_again(site, share):
    def write(path):
        with open(f'{path}/file', 'wb') as file:
            for number in range(64):
                file.write(bytes([number]) * (1 << 20))
                file.flush()
                print(number, flush=True)
                if number == 48:
                    sys.stdin.readline()
            os.fsync(file.fileno())
        return True

    def read(path):
        with open(f'{path}/file', 'rb') as file:
            return all(file.read(1 << 20) == bytes([n]) * (1 << 20) for n in range(64))

    writer = share.spawn_call(write)
    writer.wait_for_lines(49, RECOVERY_TIMEOUT)
    site.server.kill9()
    writer.write(b'\n')
    site.server.start()
    writer.wait(RECOVERY_TIMEOUT)
    share.remount()
    assert share.call(read)


def test_a_clean_restart_goes_unnoticed(site, share):
    path = f'{share.path}/records'
    writer = share.client.spawn_call(write_records, path, 5000, helpers=[record])
    writer.wait_for_lines(20, RECOVERY_TIMEOUT)
    site.server.restart()
    acknowledged = len(writer.wait_for_lines(len(writer.lines()) + 20, RECOVERY_TIMEOUT))
    writer.kill()
    writer.wait(check=False)
    share.remount()
    assert share.client.call(check_records, path, 5000, acknowledged, helpers=[record]) == []


def test_open_files_and_locks_outlive_kill9(site, share, client):
    path = f'{share.path}/file'
    client.run(f'echo text > {path}')
    again = f'{share.mount_again()}/file'
    held = Range(client, path, 0, 10)
    site.server.kill9()
    site.server.start()
    assert not client.call(attempt, again, 5, 1, True, timeout=RECOVERY_TIMEOUT)
    assert client.call(attempt, again, 10, 1, True, timeout=RECOVERY_TIMEOUT)
    held.release()
    assert client.call(attempt, again, 5, 1, True, timeout=RECOVERY_TIMEOUT)


def test_commits_that_wait_do_not_stop_reads(share, client):
    """As many COMMITs at once as the session has slots, while another reads past its cache."""
    def prepare(path):
        with open(f'{path}/read me', 'wb') as file:
            file.write(random.Random(1).randbytes(8 << 20))

    def write(path, files, steps):
        def one(number):
            with open(f'{path}/{number}', 'wb', buffering=0) as file:
                for step in range(steps):
                    file.write(b'%d %d\n' % (number, step) * 300)
                    os.fsync(file.fileno())

        writers = [threading.Thread(target=one, args=(number,)) for number in range(files)]
        for writer in writers:
            writer.start()
        print('writing', flush=True)
        for writer in writers:
            writer.join()

    def read(path):
        wanted = random.Random(1).randbytes(8 << 20)
        file = os.open(f'{path}/read me', os.O_RDONLY | os.O_DIRECT)
        back = mmap.mmap(-1, 65536)
        for _ in range(200):
            at = random.randrange(128) * 65536
            assert os.preadv(file, [back], at) == 65536 and back[:] == wanted[at:at + 65536]

    def check(path, files, steps):
        return [number for number in range(files)
                if open(f'{path}/{number}', 'rb').read() != b''.join(
                    b'%d %d\n' % (number, step) * 300 for step in range(steps))]

    share.call(prepare)
    writers = share.spawn_call(write, 200, 10)
    writers.wait_for_lines(1, 300)
    share.call(read, timeout=300)
    writers.wait(600)
    share.remount()
    assert share.call(check, 200, 10) == []

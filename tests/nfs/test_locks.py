# SPDX-License-Identifier: LGPL-3.0-or-later
"""Byte-range locks. A second mount that shares nothing with the first is another lock owner to the
server; within one mount the client settles conflicts itself."""

import errno
import fcntl
import os
import sys
import time

import pytest

from harness.callback import locks_asked_for
from harness.host import wait_until


def hold(path, start, length, exclusive):
    """Lock a range of PATH, say so, hold it until there is input."""
    with open(path, 'r+b') as file:
        fcntl.lockf(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, length, start)
        print('locked', flush=True)
        sys.stdin.readline()


def attempt(path, start, length, exclusive):
    """Whether a range of PATH can be locked now."""
    with open(path, 'r+b') as file:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.lockf(file, kind | fcntl.LOCK_NB, length, start)
            return True
        except OSError as error:
            assert error.errno in (errno.EAGAIN, errno.EACCES), error
            return False


class Range:
    """A range held by a process of its own."""

    def __init__(self, client, path, start, length, exclusive=True):
        self._holder = client.spawn_call(hold, path, start, length, exclusive)
        self._holder.wait_for_lines(1, 60)

    def release(self):
        self._holder.close_input()
        self._holder.wait()

    def die(self):
        self._holder.kill()
        self._holder.wait(check=False)


@pytest.fixture
def paths(share):
    """One file under two mounts."""
    share.client.run(f'echo text > {share.path}/file')
    return f'{share.path}/file', f'{share.mount_again()}/file'


@pytest.mark.parametrize('other', (0, 1), ids=('same mount', 'other mount'))
def test_a_locked_range_is_refused_and_what_is_beside_it_is_not(client, paths, other):
    held = Range(client, paths[0], 100, 50)
    assert not client.call(attempt, paths[other], 149, 10, True)
    assert not client.call(attempt, paths[other], 0, 0, False)
    assert client.call(attempt, paths[other], 150, 10, True)
    assert client.call(attempt, paths[other], 0, 100, True)
    held.release()
    assert client.call(attempt, paths[other], 0, 0, True)


@pytest.mark.parametrize('other', (0, 1), ids=('same mount', 'other mount'))
def test_readers_share_and_writers_do_not(client, paths, other):
    held = Range(client, paths[0], 0, 0, exclusive=False)
    assert client.call(attempt, paths[other], 0, 0, False)
    assert not client.call(attempt, paths[other], 0, 0, True)
    held.release()


def test_a_waiting_lock_is_granted_after_the_release(client, paths):
    held = Range(client, paths[0], 0, 10)
    waiter = client.spawn_call(hold, paths[1], 0, 10, True)
    assert not client.call(attempt, paths[1], 5, 1, True)
    assert not waiter.lines()
    held.release()
    waiter.wait_for_lines(1, 300)
    waiter.close_input()
    waiter.wait()


@pytest.mark.millrace
def test_a_client_that_waits_is_called_and_does_not_ask_again(client, paths):
    """Its own next attempt would be after 30 seconds; one that is not to be called makes them after 1, 2, 4 and so on."""
    held = Range(client, paths[0], 0, 10)
    waiter = client.spawn_call(hold, paths[1], 0, 10, True)
    wait_until(lambda: client.call(locks_asked_for, os.path.dirname(paths[1])) == 1, 60, 'the client asks')
    time.sleep(8)
    held.release()
    waiter.wait_for_lines(1, 20)
    assert client.call(locks_asked_for, os.path.dirname(paths[1])) == 2
    waiter.close_input()
    waiter.wait()


def test_the_lock_of_a_dead_process_is_gone(client, paths):
    held = Range(client, paths[0], 0, 10)
    held.die()
    assert client.call(attempt, paths[1], 0, 10, True)


@pytest.mark.parametrize('other', (0, 1), ids=('same mount', 'other mount'))
def test_flock_excludes(client, paths, other):
    def hold_file(path):
        with open(path, 'r+b') as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            print('locked', flush=True)
            sys.stdin.readline()

    def attempt_file(path):
        with open(path, 'r+b') as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return False

    holder = client.spawn_call(hold_file, paths[0])
    holder.wait_for_lines(1, 60)
    assert not client.call(attempt_file, paths[other])
    holder.close_input()
    holder.wait()
    assert client.call(attempt_file, paths[other])


def test_locks_split_and_merge(client, paths):
    def change(path):
        file = open(path, 'r+b')
        fcntl.lockf(file, fcntl.LOCK_EX, 100, 0)
        fcntl.lockf(file, fcntl.LOCK_UN, 20, 40)
        fcntl.lockf(file, fcntl.LOCK_SH, 10, 0)
        print('locked', flush=True)
        sys.stdin.readline()

    holder = client.spawn_call(change, paths[0])
    holder.wait_for_lines(1, 60)
    found = [client.call(attempt, paths[1], start, length, exclusive)
             for start, length, exclusive in (
                 (0, 10, False), (0, 10, True), (10, 30, False), (40, 20, True), (60, 1, False))]
    assert found == [True, False, False, True, False]
    holder.close_input()
    holder.wait()


def test_a_counter_under_a_lock_loses_no_step(client, paths):
    def count(path, steps):
        for _ in range(steps):
            with open(path, 'r+b') as file:
                fcntl.lockf(file, fcntl.LOCK_EX)
                value = int(file.read() or b'0')
                file.seek(0)
                file.write(b'%d' % (value + 1))
                file.flush()
                fcntl.lockf(file, fcntl.LOCK_UN)

    client.run(f': > {paths[0]}')
    counters = [client.spawn_call(count, path, 10) for path in paths]
    for counter in counters:
        counter.wait(600)
    assert client.run(['cat', paths[0]]).stdout == b'20'

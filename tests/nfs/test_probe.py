# SPDX-License-Identifier: LGPL-3.0-or-later
"""`serve --probe` and `serve --stop --force`: what a cluster manager asks of a server, whatever state it is in."""

import contextlib
import os
import resource
import signal
import socket

import pytest

from harness.host import wait_until
from harness.server import VerbFailed

pytestmark = pytest.mark.millrace

NOT_FOUND, TIMEOUT = 3, 7


def fails(site, rc, *argv):
    with pytest.raises(VerbFailed) as failed:
        site.pool.verb('serve', site.pool.name, *argv)
    assert failed.value.rc == rc
    return failed.value.stderr


@pytest.fixture
def stopped(site):
    """The server takes no turn; it goes on when the test has ended."""
    site.server.signal(signal.SIGSTOP)
    yield site
    if site.server.alive():
        site.server.signal(signal.SIGCONT)


@pytest.fixture
def served_again(site):
    yield site
    site.server.kill9()
    site.server.start()


def test_a_server_that_works(site):
    site.pool.create_share('probed')
    answer = site.pool.ask('serve', site.pool.name, '--probe')
    assert answer['address'] == site.server.address and answer['port'] == site.server.port
    assert 'answers' in answer['message']


def test_one_that_has_many_connections(site):
    """Of 64 clients with `nconnect=16`: who looks whether it answers finds a place."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
        for _ in range(1100):
            stack.enter_context(socket.create_connection((site.server.address, site.server.port)))
        assert 'answers' in site.pool.ask('serve', site.pool.name, '--probe')['message']


def test_one_that_takes_no_turn(stopped):
    assert 'in time' in fails(stopped, TIMEOUT, '--probe', '--wait', '2')


def test_its_socket_may_be_full(stopped):
    """Each leaves a connection behind that waits; the last ones find no room, and wait no longer."""
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(300)]
    for one in waiting:
        one.setblocking(False)
        if one.connect_ex(stopped.server.socket_path()):
            break
    else:
        pytest.fail('it took 300 connections')
    assert 'too many' in fails(stopped, TIMEOUT, '--probe', '--wait', '2')
    for one in waiting:
        one.close()


def test_force_ends_it_all_the_same(served_again):
    served_again.server.signal(signal.SIGSTOP)
    pid = served_again.server.pid()
    done = served_again.pool.verb('serve', served_again.pool.name, '--stop', '--force', '--wait', '1')
    assert 'killed' in done.stdout
    wait_until(lambda: not served_again.server.alive(), 60, 'the server has ended')
    fails(served_again, NOT_FOUND, '--probe')
    fails(served_again, NOT_FOUND, '--stop', '--force')
    assert not os.path.exists(f'/proc/{pid}/exe')


def test_force_is_polite_first(served_again):
    done = served_again.pool.verb('serve', served_again.pool.name, '--stop', '--force')
    assert 'has stopped' in done.stdout
    assert served_again.pool.status()['state'] == 'idle'


def test_a_server_without_a_control_socket(served_again):
    """As one that starts, or ends."""
    os.rename(served_again.server.socket_path(), served_again.server.socket_path() + '.away')
    assert 'starting, or stopping' in fails(served_again, 4, '--probe')
    served_again.server.signal(signal.SIGSTOP)
    served_again.pool.verb('serve', served_again.pool.name, '--stop', '--force', '--wait', '1')
    wait_until(lambda: not served_again.server.alive(), 60, 'the server has ended')

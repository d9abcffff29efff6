# SPDX-License-Identifier: LGPL-3.0-or-later
"""`serve --listen ADDRESS --listen-wait SECONDS`: a server whose address comes behind it."""

import os
import subprocess

import pytest

from harness.host import Daemon, command, tail, wait_until
from harness.rpc import answers_null
from harness.server import MILLRACE, Pool, free_port

pytestmark = pytest.mark.millrace

PORT_OF = '127.0.0.1'  # one that is free there is free at an address that is not there yet


@pytest.fixture(params=['192.0.2.77/32', '2001:db8::77/128'])
def address(request):
    """Of nobody's, until `bring` is called with it."""
    words = ('ip', 'address', 'delete', request.param, 'dev', 'lo')
    subprocess.run(words, capture_output=True)
    yield request.param
    subprocess.run(words, capture_output=True)


def bring(address):
    command('ip', 'address', 'add', address, 'dev', 'lo', *['nodad'] * (':' in address))


@pytest.fixture
def pool(tmp_path):
    pool = Pool(tmp_path, name='granary').create()
    pool.create_share('share')
    yield pool
    pool.close()


@pytest.fixture
def begin(pool):
    """Begins a server, and returns when it waits."""
    log = os.path.join(pool.workdir, 'server.log')
    begun = []

    def begin(address, port, seconds=60):
        daemon = Daemon([MILLRACE, 'serve', pool.name, '--foreground', '--listen', address.split('/')[0], '--listen-wait', str(seconds),
                         '--port', str(port), '--state-dir', pool.state_dir, '--run-dir', pool.run_dir], log)
        begun.append(daemon)
        wait_until(lambda: pool.status()['state'] == 'served' or not daemon.alive(), 60, 'the pool is open')
        assert daemon.alive(), tail(log)
        return daemon

    yield begin
    for daemon in begun:
        daemon.kill()


def test_it_comes_when_the_pool_is_open(pool, begin, address):
    """Meanwhile the server says so, and does what it is told."""
    port = free_port(PORT_OF)
    server = begin(address, port)
    host = address.split('/')[0]
    answer = pool.ask('serve', pool.name, '--probe')
    assert answer['message'] == 'The server waits for its address.' and 'address' not in answer
    assert answer['probe']['not_whole'] == 0 and not answers_null(host, port)
    pool.create_share('meanwhile')
    bring(address)
    wait_until(lambda: answers_null(host, port), 20, 'it is served there')
    answer = wait_until(lambda: probed(pool), 20, 'and it says so')
    assert (answer['address'], answer['port']) == (host, port)
    assert server.terminate(60) == 0
    assert pool.status()['state'] == 'idle'


def probed(pool):
    answer = pool.ask('serve', pool.name, '--probe')
    return answer if 'address' in answer else None


def test_it_does_not_come(pool, begin, address):
    """The pool is closed: whoever has the address may take it."""
    host, port = address.split('/')[0], free_port(PORT_OF)
    done = pool.verb('serve', pool.name, '--listen', host, '--port', str(port), check=False)
    assert done.returncode == 1 and f'not served: {host}: no interface of this host has it; its log' in done.stderr
    assert pool.status()['state'] == 'idle'
    server = begin(address, port, 1)
    assert server.process.wait(timeout=20) == 2
    assert f'not served: {host}: no interface of this host has it, still' in tail(server.log)
    assert pool.status()['state'] == 'idle'


def test_the_command_does_not_wait_for_it(pool, address):
    words = ('--listen', address.split('/')[0], '--listen-wait', '60', '--port', str(free_port(PORT_OF)))
    assert 'as soon as this host has the address' in pool.ask('serve', pool.name, *words)['message']
    assert 'waits' in pool.ask('serve', pool.name, '--probe')['message']
    pool.verb('serve', pool.name, '--stop')
    assert pool.status()['state'] == 'idle'


def test_a_server_that_waits_is_told_to_end(pool, begin, address):
    server = begin(address, free_port(PORT_OF))
    assert server.terminate(20) == 0
    assert pool.status()['state'] == 'idle'

# SPDX-License-Identifier: LGPL-3.0-or-later
"""`serve --listen ADDRESS --listen-wait SECONDS`: a server whose address comes behind it."""

import os
import subprocess
import time
from types import SimpleNamespace

import pytest

from harness.host import Daemon, command, tail, wait_until
from harness.protocol import RECLAIM, Client, creating, exchange_id, open_as, reclaim_complete
from harness.rpc import answers_null
from harness.server import MILLRACE, Pool, VerbFailed, free_port
from harness.wire import GETFH, OK, PUTROOTFH, Connection, lookup, putfh, u32

pytestmark = pytest.mark.millrace

PORT_OF = '127.0.0.1'  # one that is free there is free at an address that is not there yet
LEASE = 5  # seconds
GRACE = 1.5 * LEASE


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
    pool.create_share('share', mode=0o777)
    yield pool
    pool.close()


@pytest.fixture
def begin(pool):
    """Begins a server, and returns when it waits."""
    log = os.path.join(pool.workdir, 'server.log')
    begun = []

    def begin(address, port, seconds=60):
        daemon = Daemon([MILLRACE, 'serve', pool.name, '--foreground', '--listen', address.split('/')[0], '--listen-wait', str(seconds),
                         '--port', str(port), '--lease', str(LEASE), '--state-dir', pool.state_dir, '--run-dir', pool.run_dir], log)
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
    assert answer['probe']['not_whole'] == 0
    pool.create_share('meanwhile')
    with pytest.raises(VerbFailed, match='waits for its address'):
        pool.verb('share', 'destroy', '--yes', 'granary/meanwhile')
    bring(address)
    wait_until(lambda: answers_null(host, port), 20, 'it is served there')
    answer = wait_until(lambda: probed(pool), 20, 'and it says so')
    assert (answer['address'], answer['port']) == (host, port)
    pool.verb('share', 'destroy', '--yes', 'granary/meanwhile')
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
    server = begin(address, port, 5)
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
    """It leaves no sign of one that failed."""
    server, pid = begin(address, free_port(PORT_OF)), os.path.join(pool.run_dir, pool.name, 'pid')
    assert os.path.exists(pid)
    assert server.terminate(20) == 0
    assert pool.status()['state'] == 'idle' and not os.path.exists(pid)


def test_one_whose_pool_is_taken_over(pool, begin, address):
    server = begin(address, free_port(PORT_OF))
    pool.take_over()
    assert server.process.wait(timeout=20) == 3
    assert 'belongs to another host now' in tail(server.log)


def test_a_client_of_two_addresses_is_one(pool):
    """Of a server that has them all."""
    port = free_port(PORT_OF)
    sites = [SimpleNamespace(pool=pool, server=SimpleNamespace(address=host, port=port)) for host in (PORT_OF, '127.0.0.2', '::1')]
    pool.ask('serve', pool.name, '--port', str(port), '--lease', str(LEASE))
    try:
        one = Client(sites[0]).ready()
        for site in sites[1:]:
            again = Client(site)
            again.name, again.boot = one.name, one.boot
            assert again.call(exchange_id(again.name, again.boot))[0][0] == one.clientid
            again.connection.close()
        assert one.tell(PUTROOTFH) == OK
        one.close()
    finally:
        pool.verb('serve', pool.name, '--stop')


def test_clients_have_all_of_the_grace_period(pool, begin, address):
    """It has passed while the server waited."""
    host, port = address.split('/')[0], free_port(PORT_OF)
    bring(address)
    server = begin(address, port)
    wait_until(lambda: answers_null(host, port), 20, 'it is served there')
    client = Client(SimpleNamespace(pool=pool, server=SimpleNamespace(address=host, port=port))).ready()
    root = client.do(PUTROOTFH, lookup(pool.name), lookup('share'), GETFH)
    client.do(putfh(root), open_as(client.clientid, b'owner', **creating('kept')))
    file = client.do(putfh(root), lookup('kept'), GETFH)
    server.kill()
    client.connection.close()
    command('ip', 'address', 'delete', address, 'dev', 'lo')
    begin(address, port)
    time.sleep(GRACE + 2)
    bring(address)
    wait_until(lambda: answers_null(host, port), 20, 'it is served again')
    client.connection = Connection(client.site.server)
    client.introduce()
    time.sleep(GRACE / 2)
    assert client.tell(putfh(file), open_as(client.clientid, b'owner', u32(RECLAIM, 0))) == OK
    client.do(reclaim_complete())

# SPDX-License-Identifier: LGPL-3.0-or-later
"""A change of names whose answer the client did not get before the server died: as tests/nfs/test_done_before.py, over
RDMA."""

import contextlib
from types import SimpleNamespace

import pytest

from harness.changes import FILES, KINDS, change, comes_to
from harness.host import command, wait_until
from harness.wire import GETFH, OK, PUTROOTFH, Session, lookup, putfh
from service import PORTS

OBSERVER = '192.0.2.9'  # this machine's


@pytest.fixture
def look(service, share):
    """look(NAME): what LOOKUP tells, over TCP, until the server ends."""
    command('ip', 'address', 'add', f'{OBSERVER}/24', 'dev', 'lan')
    session = Session(SimpleNamespace(server=SimpleNamespace(address=service.address, port=PORTS['tcp'])))
    here = putfh(session.compound(PUTROOTFH, lookup(service.pool), lookup(share), GETFH))
    yield lambda name: session.status(here, lookup(name))
    session.end()
    command('ip', 'address', 'delete', f'{OBSERVER}/24', 'dev', 'lan')


def address_of(machine):
    return machine.networks['lan'].split('/')[0]


@contextlib.contextmanager
def unheard(server, client):
    """What SERVER sends to CLIENT is lost."""
    there = f'{address_of(client)} dev {server.device("lan")}'
    server.run(f'ip neighbour replace {there} lladdr 02:00:00:00:00:01 nud permanent')
    try:
        yield
    finally:
        server.run(f'ip neighbour delete {there}')


@pytest.mark.parametrize('kind', KINDS)
def test_a_client_of_linux_is_told(pair, rdma, service, mount, look, client, kind):
    path = mount('rdma')
    client.run(f'cd {path}; {FILES}')
    name, there = comes_to(kind)
    changing = client.spawn_call(change, kind, path)
    changing.wait_for_lines(1, 60)
    with unheard(pair[0], client):
        wait_until(lambda: look(name) == there, 60, 'the server has done it')
        pid = service.pid()
        service.kill()
        # The kernel's end of soft iWARP, which is TCP, would go on sending what the server had answered.
        pair[0].run(f'while kill -0 {pid} 2>&-; do sleep 0.1; done; '
                    f'ss --kill --tcp dst {address_of(client)} sport = :{PORTS["rdma"]}')
    service.wait_until_served()
    assert changing.wait(timeout=180).rc == 0
    assert client.does(f'test -e {path}/{name}') == (there == OK)

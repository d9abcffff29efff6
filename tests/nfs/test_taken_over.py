# SPDX-License-Identifier: LGPL-3.0-or-later
"""A server that stood still while another host took its pool over: it tells nobody that their session, or they, are not
known. A client that it reaches all the same would take that for a restart, and give up what the other one keeps for it."""

import os
import signal

import pytest

from harness.host import wait_until
from harness.protocol import (
    Client, bind_connection, create_session, destroy_clientid, destroy_session, exchange_id, sequence)

pytestmark = pytest.mark.millrace

UNKNOWN = bytes(range(16))


@pytest.fixture
def site(make_site):
    site = make_site()
    yield site
    site.close()


def is_over(client):
    """Whether its connection ends with nothing answered."""
    client.connection.socket.settimeout(60)
    try:
        return client.connection.socket.recv(1) == b''
    except ConnectionResetError:
        return True


def test_what_has_no_session_is_not_answered(site):
    known = Client(site).ready()
    calls = (exchange_id(b'a new one', os.urandom(8)), exchange_id(known.name, known.boot), create_session(known.clientid + 1, 1),
             sequence(UNKNOWN, 1), bind_connection(UNKNOWN), destroy_session(UNKNOWN), destroy_clientid(known.clientid + 1))
    clients = [Client(site) for _ in calls]
    site.server.signal(signal.SIGSTOP)
    site.pool.take_over()
    for client, call in zip(clients, calls):
        client.connection.send(client.message([call]))
    site.server.signal(signal.SIGCONT)
    assert all(map(is_over, clients))
    wait_until(lambda: not site.server.alive(), 60, 'it ends')
    with open(site.server.log) as log:
        assert 'belongs to another host now' in log.read()

# SPDX-License-Identifier: LGPL-3.0-or-later
"""A server that stood still while another host took its pool over: it tells nobody that their session, or they, are not
known. A client that it reaches all the same would take that for a restart, and give up what the other one keeps for it."""

import os
import signal
import subprocess

import pytest

from harness.host import wait_until
from harness.protocol import (
    Client, bind_connection, create_session, destroy_clientid, destroy_session, exchange_id, sequence)
from harness.server import MILLRACE

pytestmark = pytest.mark.millrace

LABELS = 1 << 20  # bytes that have them, and are the first of each device
UNKNOWN = bytes(range(16))


@pytest.fixture
def site(make_site):
    site = make_site()
    yield site
    site.close()


def take_over(site):
    """What another host would do, by copies of the devices: then these get its labels."""
    pool = site.pool
    devices = os.path.join(pool.workdir, 'copies')
    subprocess.run(['cp', '-a', '--sparse=always', pool.device_dir, devices], check=True)
    subprocess.run([MILLRACE, 'pool', 'import', pool.name, '--force', '--host', 'other', '--device-dir', devices,
                    '--state-dir', pool.workdir, '--run-dir', pool.workdir], check=True, timeout=120)
    for name in os.listdir(devices):
        with open(os.path.join(devices, name), 'rb') as taken, open(os.path.join(pool.device_dir, name), 'r+b') as device:
            device.write(taken.read(LABELS))


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
    take_over(site)
    for client, call in zip(clients, calls):
        client.connection.send(client.message([call]))
    site.server.signal(signal.SIGCONT)
    assert all(map(is_over, clients))
    wait_until(lambda: not site.server.alive(), 60, 'it ends')
    with open(site.server.log) as log:
        assert 'belongs to another host now' in log.read()

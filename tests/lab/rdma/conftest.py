# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the tests of RDMA ask of the server, and of the client."""

import os

import pytest

import raw
from held import Rdma
from machine import ROOT


@pytest.fixture(scope='session')
def rdma(service):
    """The server's side; it serves RDMA by now."""
    rdma = Rdma(service)
    service.wait_for_rdma()
    return rdma


@pytest.fixture(autouse=True)
def the_server_lives(request):
    """Whatever a test of it does, it does not end but when it is told to."""
    yield
    if 'service' in request.fixturenames:
        assert request.getfixturevalue('service').alive()


@pytest.fixture
def raw_client(client):
    """The client, with raw.c's program."""
    if client.run(['test', '-x', raw.PROGRAM], check=False).rc:
        client.put(os.path.join(ROOT, 'build', 'bin', 'rdma_raw'), raw.PROGRAM)
    return client

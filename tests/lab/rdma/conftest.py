# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the tests of RDMA ask of the server, and of the client."""

import os

import pytest

import raw
from harness.host import wait_until
from held import Rdma
from machine import ROOT


@pytest.fixture(scope='session')
def rdma(service):
    """The server's side; it serves RDMA by now."""
    rdma = Rdma(service)
    wait_until(lambda: 'RDMA is served' in service.log(), 120, 'the server serves RDMA', interval=1)
    return rdma


@pytest.fixture
def raw_client(client):
    """The client, with raw.c's program."""
    if client.run(['test', '-x', raw.PROGRAM], check=False).rc:
        client.put(os.path.join(ROOT, 'build', 'bin', 'rdma_raw'), raw.PROGRAM)
    return client

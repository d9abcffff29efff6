# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the tests of RDMA ask of the server's machine."""

import collections
import os
import re

import pytest

import raw
from harness.host import wait_until
from machine import ROOT

Held = collections.namedtuple('Held', 'regions pairs pinned threads')
GONE_TIMEOUT = 240
WORKERS = 16  # RPC_Ioq_ThrdMax


class Rdma:
    """What the server holds for its connections over RDMA."""

    def __init__(self, service):
        self.service = service

    def held(self):
        """Memory regions, queue pairs, pinned kB and threads of the server's process."""
        told = self.service.node.run(
            'pid=$(pidof -s ganesha.nfsd); rdma resource show mr | grep -c ganesha.nfsd; '
            'rdma resource show qp | grep -c ganesha.nfsd; grep VmPin /proc/$pid/status; '
            'grep Threads /proc/$pid/status')
        return Held(*map(int, re.findall(r'\d+', told)))

    def wait_for(self, held):
        """Wait until no more is held than HELD says, but for workers that stay for a while."""
        most = held._replace(threads=held.threads + WORKERS)
        wait_until(lambda: all(now <= then for now, then in zip(self.held(), most)), GONE_TIMEOUT,
                   f'the server holds no more than {held}', interval=1)


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

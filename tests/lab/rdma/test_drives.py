# SPDX-License-Identifier: LGPL-3.0-or-later
"""Drives that go while a client writes over RDMA: the pool is without them from there on."""

from writer import Writer


def test_two_drives_pulled_while_a_client_writes(rdma, pair, service, mount, client):
    server = pair[0]
    writer = Writer(client, mount('rdma'))
    writer.more(5)
    server.pull_drive(1)
    writer.more(5)
    server.pull_drive(4)
    writer.more(10)
    writer.check()

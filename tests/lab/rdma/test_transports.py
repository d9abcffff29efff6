# SPDX-License-Identifier: LGPL-3.0-or-later
"""A client is its name, whichever transport it comes by: what it had by one it reclaims by the other."""

import os

import pytest

from harness.protocol import RECLAIM, creating, exchange_id, lock, open_as, reclaim_complete
from harness.wire import GETFH, PUTROOTFH, lookup, putfh, u32
from raw import Raw, RawSession

PORT = 2049


def relay(address, port):
    """Sends each record that comes as a line of hexadecimal digits to the server, over TCP, and prints its answer likewise."""
    import socket
    with socket.create_connection((address, port), 60) as server, server.makefile('rb') as answers:
        print('connected', flush=True)
        for line in sys.stdin:
            record = bytes.fromhex(line)
            server.sendall((1 << 31 | len(record)).to_bytes(4, 'big') + record)
            data, mark = b'', 0
            while not mark >> 31:
                mark = int.from_bytes(answers.read(4), 'big')
                data += answers.read(mark & 0x7fffffff)
            print(data.hex(), flush=True)


class Relayed:
    """A TCP connection of CLIENT's to the server at ADDRESS."""

    def __init__(self, client, address):
        self._remote = client.spawn_call(relay, address, PORT)
        self._remote.wait_for_lines(1, 60)

    def send(self, message):
        self._wanted = len(self._remote.lines()) + 1
        self._remote.write(message.hex().encode() + b'\n')

    def receive(self):
        self._remote.wait_for_lines(self._wanted, 60)
        return bytes.fromhex(self._remote.lines()[self._wanted - 1])

    def close(self):
        self._remote.close_input()
        assert self._remote.wait(timeout=60).rc == 0


def come_back(session, connection):
    """By another CONNECTION, after a restart, as far as that it may reclaim."""
    session.connection.close()
    session.connection, session.numbers = connection, [0] * session.slots
    session.clientid = session.call([exchange_id(session.name, session.boot)])[0][0]
    session.id = session.create_session()


@pytest.mark.long
@pytest.mark.parametrize('first', ('rdma', 'tcp'))
def test_what_it_had_by_one_it_reclaims_by_the_other(rdma, service, raw_client, share, first):
    by = {'rdma': lambda: Raw(raw_client, service.address), 'tcp': lambda: Relayed(raw_client, service.address)}
    session = RawSession(raw_client, service.address)
    if first == 'tcp':
        session.boot = os.urandom(8)  # it has booted
        come_back(session, by['tcp']())
        session.compound(reclaim_complete())
    root = session.compound(PUTROOTFH, lookup(service.pool), lookup(share), GETFH)
    mine = session.compound(putfh(root), open_as(session.clientid, b'owner', **creating('file')))
    file = session.compound(putfh(root), lookup('file'), GETFH)
    session.compound(putfh(file), lock(mine, 0, 10, b'locker'))
    service.kill()
    service.wait_until_served()
    service.wait_for_rdma()
    come_back(session, by['tcp' if first == 'rdma' else 'rdma']())
    back = session.compound(putfh(file), open_as(session.clientid, b'owner', u32(RECLAIM, 0)))
    session.compound(putfh(file), lock(back, 0, 10, b'locker', reclaim=True))
    session.compound(reclaim_complete())
    session.end()

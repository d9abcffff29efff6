# SPDX-License-Identifier: LGPL-3.0-or-later
"""NFSv4.1 over RDMA by hand (RFC 8166, RFC 8267): the harness's end of raw.c."""

import struct

from harness.wire import Session, u32, u64

PROGRAM = '/tmp/rdma_raw'
TIMEOUT = 120
MESSAGE, NO_MESSAGE, ERROR = 0, 1, 4
ERR_VERS, ERR_CHUNK = 1, 2


class Answer:
    """A message of the server: its header's fields, its chunks as lists of lengths, what follows."""

    def __init__(self, data):
        self.xid, self.version, self.credits, self.kind = struct.unpack_from('>4I', data)
        self.words = struct.unpack(f'>{len(data[16:]) // 4}I', data[16:])
        if self.kind == ERROR:
            self.error = self.words[0]
            return
        at = 1
        assert self.words[0] == 0, 'a read list in a reply'
        self.writes = []
        while self.words[at]:
            at, lengths = self._chunk(at + 1)
            self.writes.append(lengths)
        at += 1
        self.reply = None
        if self.words[at]:
            at, self.reply = self._chunk(at + 1)
        else:
            at += 1
        self.body = data[16 + 4 * at:]

    def _chunk(self, at):
        count = self.words[at]
        return at + 1 + 4 * count, [self.words[at + 2 + 4 * i] for i in range(count)]


class Raw:
    """A connection from CLIENT, which says that it takes messages of KIB KiB, or nothing of that; `takes` is what the server
    says. Chunks lie in one buffer of 2 MiB: (offset, length) there."""

    def __init__(self, client, address, port=20049, wait=True, kib=None):
        self.remote = client.spawn([PROGRAM, address, str(port)] + ([str(kib)] if kib else []))
        self.lines = 1
        if wait:
            self.wait_until_connected()

    def wait_until_connected(self):
        """Or refused."""
        told = self.remote.wait_for_lines(1, TIMEOUT)[0].split()
        self.refused = told[0] == 'refused'
        if not self.refused:
            self.key, self.address, self.takes = int(told[1], 16), int(told[2], 16), int(told[3])

    def _tell(self, line):
        self.remote.write(line.encode() + b'\n')

    def _answer(self):
        self.lines += 1
        return self.remote.wait_for_lines(self.lines, TIMEOUT)[self.lines - 1].split()

    def segment(self, offset, length):
        return u32(self.key, length) + u64(self.address + offset)

    def chunk(self, *segments):
        return u32(len(segments)) + b''.join(self.segment(*segment) for segment in segments)

    def header(self, xid, kind=MESSAGE, reads=(), writes=(), reply=None, version=1, credits=128):
        """READS are (position, offset, length); WRITES lists of segments, REPLY one of them."""
        return (u32(xid, version, credits, kind) +
                b''.join(u32(1, position) + self.segment(offset, length)
                         for position, offset, length in reads) + u32(0) +
                b''.join(u32(1) + self.chunk(*chunk) for chunk in writes) + u32(0) +
                (u32(1) + self.chunk(*reply) if reply else u32(0)))

    def send_bytes(self, data):
        self._tell(f'send {data.hex()}')

    def fill(self, data):
        self._tell(f'fill {data.hex()}')

    def dump(self, count):
        self._tell(f'dump {count}')
        return bytes.fromhex(self._answer()[1])

    def receive_answer(self):
        """The next message as an Answer; None when the server has ended the connection."""
        self._tell('receive')
        told = self._answer()
        assert told[0] != 'silence', 'the server neither answers nor ends the connection'
        return Answer(bytes.fromhex(told[1])) if told[0] == 'message' else None

    # As harness.wire.Connection, for messages that need no chunk

    def send(self, message):
        self.send_bytes(self.header(struct.unpack_from('>I', message)[0]) + message)

    def receive(self):
        return self.receive_answer().body

    def close(self):
        self.remote.close_input()
        self.remote.join(TIMEOUT)


class RawSession(Session):
    """A session over RDMA."""

    def __init__(self, client, address, kib=None, **options):
        self.client, self.address, self.kib = client, address, kib
        super().__init__(None, **options)

    def connect(self):
        self.xid, self.numbers = 0, [0] * self.slots
        self.connection = Raw(self.client, self.address, kib=self.kib)
        self.clientid = self.exchange_id()
        self.id = self.create_session()
        self.compound((58, u32(0), lambda reply: None))

    def reach_again(self):
        """The session goes on with another connection."""
        self.connection.close()
        self.connection = Raw(self.client, self.address, kib=self.kib)

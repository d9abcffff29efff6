# SPDX-License-Identifier: LGPL-3.0-or-later
"""Byte-range locks by hand, and what the server calls a client for: that one is free (RFC 8881, section 20.11)."""

import struct

from harness.wire import OK, Refused, Reply, lookup, opaque, u32, u64

WRITE_LT, WRITEW_LT = 2, 4  # W: whoever asks waits
DENIED = 10010
MAY_NOTIFY_LOCK = 0x20  # of OPEN's result
CB_SEQUENCE, CB_NOTIFY_LOCK = 11, 13


def open_told(owner, name, how):
    """As wire.open_; -> state, what its result says of it."""
    def opened(reply):
        stateid = reply.fixed(16)
        reply.change_info()
        told = reply.u32()
        reply.words()
        if reply.u32() == 3 and reply.u32() in (1, 2):
            reply.u32()
        return stateid, told
    return (18, u32(0, 3 | 0x400, 0) + u64(0) + opaque(owner) + u32(1) + how + u32(0) +
            opaque(name.encode()), opened)


def lock(session, opened, owner, start, length, kind=WRITEW_LT):
    """The first one of OWNER; -> its state."""
    return (12, u32(kind, 0) + u64(start, length) + u32(1, 0) + opened + u32(0) +
            u64(session.clientid) + opaque(owner), lambda r: r.fixed(16))


def unlock(stateid, start, length):
    return 14, u32(WRITE_LT, 0) + stateid + u64(start, length), lambda r: r.fixed(16)


class Callback:
    """A call of the server: CB_SEQUENCE, and CB_NOTIFY_LOCK."""

    def __init__(self, record):
        reply = Reply(record)
        self.xid = reply.u32()
        assert [reply.u32() for _ in range(5)] == [0, 2, 0x40000000, 1, 1]  # a call of CB_COMPOUND
        for _ in ('credential', 'verifier'):
            reply.u32(), reply.opaque()
        reply.opaque()
        self.minor, _, count, operation = (reply.u32() for _ in range(4))
        assert (count, operation) == (2, CB_SEQUENCE)
        self.session = reply.fixed(16)
        self.number, self.slot, self.highest, _, referring = (reply.u32() for _ in range(5))
        assert referring == 0 and reply.u32() == CB_NOTIFY_LOCK
        self.handle = reply.opaque()
        self.clientid, self.owner = reply.u64(), reply.opaque()
        assert reply.at == len(record)

    def answer(self, status=OK, tag=b'', more=b''):
        """STATUS of CB_SEQUENCE, which then is all; MORE results behind the two."""
        head = u32(self.xid, 1, 0, 0, 0, 0) + u32(status) + opaque(tag)
        if status != OK:
            return head + u32(1, CB_SEQUENCE, status)
        return (head + u32(2 + len(more) // len(self.one)) + u32(CB_SEQUENCE, OK) + self.session +
                u32(self.number, self.slot, self.highest, self.highest) + u32(CB_NOTIFY_LOCK, OK) + more)

    one = u32(CB_NOTIFY_LOCK, OK)  # a result


class Contended:
    """A file of which HOLDER, a session, has locked ranges of ten bytes that WAITER, another one, asks for."""

    def __init__(self, holder, waiter, reach, name, make, count=1):
        """REACH leads to its directory, MAKE is how it is opened."""
        self.holder, self.waiter, self.count = holder, waiter, count
        self.reach = [*reach, lookup(name)]
        held, _ = holder.compound(*reach, open_told(b'holder', name, make))
        self.held = [holder.compound(*self.reach, lock(holder, held, b'held %d' % i, 10 * i, 10, WRITE_LT))
                     for i in range(count)]
        self.opened, self.told = waiter.compound(*reach, open_told(b'waiter', name, make))

    def owner(self, i):
        return b'waiting %d' % i

    def ask(self, i=0):
        """The status of the waiter's LOCK of range I, and its state."""
        operation = lock(self.waiter, self.opened, self.owner(i), 10 * i, 10)
        try:
            return OK, self.waiter.compound(*self.reach, operation)
        except Refused as refused:
            return refused.status, None

    def ask_all(self):
        """The statuses of all LOCKs."""
        return {self.ask(i)[0] for i in range(self.count)}

    def denied(self, i=0, length=10):
        """What the answer to ask() says of the lock that is in the way: offset, length, kind, client, length
        of the owner."""
        operation = lock(self.waiter, self.opened, self.owner(i), 10 * i, length)
        self.waiter.numbers[0] += 1
        self.waiter.connection.send(self.waiter.message(
            [self.waiter.sequence(self.waiter.numbers[0]), *self.reach, operation]))
        record = self.waiter.connection.receive()
        at = record.index(u32(12, DENIED)) + 8
        return struct.unpack_from('>QQIQI', record, at)

    def free(self, i=0):
        self.holder.compound(*self.reach, unlock(self.held[i], 10 * i, 10))

    def free_all(self):
        for i in range(self.count):
            self.free(i)


def locks_asked_for(path):
    """On a Linux client: LOCK calls of what is mounted at PATH."""
    with open('/proc/self/mountstats') as file:
        mounts = file.read().split('\ndevice ')
    told, = (told for told in mounts if f' mounted on {path} with ' in told)
    return int(told.split(' LOCK: ')[1].split()[0])

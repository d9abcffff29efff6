# SPDX-License-Identifier: LGPL-3.0-or-later
"""More of NFSv4.1 (RFC 8881) by hand: clients, sessions and states, also where they are wrong."""

import os

from harness.wire import (
    BOTH, OK, Connection, Refused, Reply, attributes, bitmap, nothing, opaque, opened, results, u32,
    u64)

BADCHAR, BADNAME, BADSESSION, BADSLOT, BADXDR = 10040, 10041, 10052, 10053, 10036
BAD_COOKIE, BAD_STATEID, CLIENTID_BUSY, CLID_INUSE, COMPLETE_ALREADY = 10003, 10025, 10074, 10017, 10054
CONN_NOT_BOUND, DENIED, EXPIRED, LOCKS_HELD, MINOR_VERS_MISMATCH = 10055, 10010, 10011, 10037, 10021
NOFILEHANDLE, NOT_ONLY_OP, NOT_SAME, NO_GRACE, OLD_STATEID = 10020, 10081, 10027, 10033, 10024
OP_ILLEGAL, OP_NOT_IN_SESSION, RECLAIM_BAD, REP_TOO_BIG = 10044, 10071, 10034, 10066
REP_TOO_BIG_TO_CACHE, REQ_TOO_BIG, RETRY_UNCACHED_REP = 10067, 10065, 10068
SEQUENCE_POS, SEQ_FALSE_RETRY, STALE_CLIENTID, TOO_MANY_OPS = 10064, 10076, 10022, 10070
ATTRNOTSUPP, BAD_RANGE, NOTDIR, UNSAFE = 10032, 10042, 20, 10069
RESOURCE = 10018

GARBAGE = -4  # RFC 5531's GARBAGE_ARGS
RESTOREFH = (31, b'', nothing)
READ_LOCK, WRITE_LOCK = 1, 2
WHOLE = (1 << 64) - 1  # the length of a range that has no end
CURRENT = u32(1) + bytes(12)  # the stateid that the compound has made last
BYPASS = b'\xff' * 16


# --- operations, as in wire.py ---

def exchange_id(name, boot, flags=0, protection=u32(0)):
    """-> clientid, the number of its first CREATE_SESSION, flags"""
    return (42, boot + opaque(name) + u32(flags) + protection + u32(0),
            lambda r: (r.u64(), r.u32(), r.u32()))


def channel(requests=8, operations=16, request=1 << 20, response=1 << 20, cached=8192):
    return u32(0, request, response, cached, operations, requests, 0)


def create_session(clientid, number, fore=channel(), back=channel(), flags=0):
    """-> id, the slots that it has"""
    def result(reply):
        session = reply.fixed(16)
        reply.u32(), reply.u32()
        return session, [reply.u32() for _ in range(6)][5]
    return 43, u64(clientid) + u32(number, flags) + fore + back + u32(0x40000000, 1, 0), result


def destroy_session(session):
    return 44, session, nothing


def destroy_clientid(clientid):
    return 57, u64(clientid), nothing


def bind_connection(session, direction=3):
    return 41, session + u32(direction, 0), lambda r: (r.fixed(16), r.u32(), r.u32())


def sequence(session, number, slot=0, cache=False):
    return 53, session + u32(number, slot, 0, cache), lambda r: r.fixed(36)


def reclaim_complete():
    return 58, u32(0), nothing


def open_as(clientid, owner, claim, access=BOTH, how=None, deny=0):
    """OPEN with any CLAIM, encoded."""
    return (18, u32(0, access, deny) + u64(clientid) + opaque(owner) +
            (u32(0) if how is None else u32(1) + how) + claim, opened)


BY_NAME, RECLAIM, BY_HANDLE = 0, 1, 4


def by_name(name):
    return u32(BY_NAME) + opaque(name if isinstance(name, bytes) else name.encode())


def denied(reply):
    return (reply.u64(), reply.u64(), reply.u32(), reply.u64(), reply.opaque())


def lock(stateid, start, length, owner=None, kind=WRITE_LOCK, reclaim=False):
    """The first lock of OWNER with the open file STATEID; None: another with its lock STATEID."""
    first = u32(0) + stateid + u32(0) if owner is None else (
        u32(1, 0) + stateid + u32(0) + u64(0) + opaque(owner))
    return 12, u32(kind, reclaim) + u64(start, length) + first, lambda r: r.fixed(16)


def lock_test(start, length, owner, kind=WRITE_LOCK):
    return 13, u32(kind) + u64(start, length) + u64(0) + opaque(owner), nothing


def unlock(stateid, start, length):
    return 14, u32(WRITE_LOCK, 0) + stateid + u64(start, length), lambda r: r.fixed(16)


def states_of(*stateids):
    return 55, u32(len(stateids)) + b''.join(stateids), Reply.words


def free_stateid(stateid):
    return 45, stateid, nothing


def readdir(cookie=0, verifier=bytes(8), room=65536):
    """-> verifier, (cookie, name) of each entry, whether these are the last"""
    def result(reply):
        verifier, entries = reply.fixed(8), []
        while reply.u32():
            cookie, name = reply.u64(), reply.opaque()
            reply.words(), reply.opaque()
            entries.append((cookie, name))
        return verifier, entries, bool(reply.u32())
    return 26, u64(cookie) + verifier + u32(room, room) + bitmap(), result


def getattrs(*bits):
    """-> the attributes that are there"""
    words = [0] * 3
    for bit in bits:
        words[bit // 32] |= 1 << bit % 32

    def result(reply):
        found = reply.words()
        reply.opaque()
        return [32 * i + bit for i, word in enumerate(found) for bit in range(32)
                if word >> bit & 1]
    return 9, u32(3, *words), result


def setattr_of(bit, value):
    words = [0] * 3
    words[bit // 32] = 1 << bit % 32
    return 34, bytes(16) + u32(3, *words) + opaque(value), Reply.words


# --- a client that does as it is told ---

class Client:
    """A TCP connection and whatever identity a test gives it; no session of its own."""

    count = 0

    def __init__(self, site, uid=0, minor=1):
        Client.count += 1
        self.site, self.uid, self.minor, self.xid = site, uid, minor, 0
        self.name = b'client %d %d' % (os.getpid(), Client.count)
        self.boot = os.urandom(8)
        self.connection = Connection(site.server)
        self.clientid = self.session = None
        self.number = 0

    def message(self, operations, minor=None, count=None, credential=None):
        self.xid += 1
        if credential is None:
            credential = u32(1) + opaque(u32(0) + opaque(b'wire') + u32(self.uid, self.uid, 0))
        return (u32(self.xid, 0, 2, 100003, 4, 1) + credential + u32(0, 0) + opaque(b'') +
                u32(self.minor if minor is None else minor,
                    len(operations) if count is None else count) +
                b''.join(u32(number) + body for number, body, _ in operations))

    def record(self, operations, **options):
        """The record that answers these OPERATIONS, with no SEQUENCE added."""
        self.connection.send(self.message(operations, **options))
        return self.connection.receive()

    def call(self, *operations, **options):
        """The results of all; Refused with the first status that is not OK, GARBAGE when none of
        them was understood."""
        record = self.record(operations, **options)
        if record[20:24] == u32(4):
            raise Refused(GARBAGE, 0)
        return results(record, self.xid, operations)

    def status(self, *operations, **options):
        try:
            self.call(*operations, **options)
        except Refused as refused:
            return refused.status
        return OK

    def introduce(self, **options):
        """EXCHANGE_ID and CREATE_SESSION: `clientid`, `session`, and the number of its slot 0."""
        self.clientid, number, _ = self.call(exchange_id(self.name, self.boot))[0]
        self.session, _ = self.call(create_session(self.clientid, number, **options))[0]
        self.number = 0
        return self

    def ready(self, **options):
        """Introduced, and nothing to reclaim."""
        self.introduce(**options)
        self.do(reclaim_complete())
        return self

    def next(self, **options):
        """The SEQUENCE of the next request on slot 0."""
        self.number += 1
        return sequence(self.session, self.number, **options)

    def do(self, *operations):
        """The result of the last one, in the session."""
        return self.call(self.next(), *operations)[-1]

    def tell(self, *operations):
        """The status of OPERATIONS in the session."""
        status = self.status(self.next(), *operations)
        self.number -= status == GARBAGE  # its SEQUENCE was not seen
        return status

    def reconnect(self):
        self.connection.close()
        self.connection = Connection(self.site.server)

    def close(self):
        """Leave nothing behind on a server that still runs: who comes back after a restart of his
        own has lost what he had open."""
        self.reconnect()
        self.boot = os.urandom(8)
        self.ready()
        assert self.status(destroy_session(self.session)) == OK
        assert self.status(destroy_clientid(self.clientid)) == OK
        self.connection.close()


def creating(name, mode=0o644):
    """The claim and the way of an OPEN that makes NAME."""
    return {'claim': by_name(name), 'how': u32(0) + attributes(mode)}

# SPDX-License-Identifier: LGPL-3.0-or-later
"""NFSv4.1 (RFC 8881) and what 4.2 adds (RFC 7862, 8276) without a client: compounds by hand over TCP, sessions and their slots."""

import os
import select
import socket
import struct
import time

OK, PERM, NOENT, IO, ACCESS, EXIST, INVAL, ROFS = 0, 1, 2, 5, 13, 17, 22, 30
STALE, BADHANDLE, NOTSUPP, DELAY, LOCKED, SHARE_DENIED = 70, 10001, 10004, 10008, 10012, 10015
SERVERFAULT, GRACE, SEQ_MISORDERED = 10006, 10013, 10063
SYMLINK, WRONG_TYPE = 10029, 10083
NXIO, ISDIR, FBIG, NOSPC, DQUOT, OPENMODE, UNION_NOTSUPP = 6, 21, 27, 28, 69, 10038, 10090
TOOSMALL, NAMETOOLONG, NOXATTR, XATTR2BIG = 10005, 63, 10095, 10096
READ, WRITE, BOTH = 1, 2, 3
UNSTABLE, FILE_SYNC = 0, 2
ANONYMOUS = bytes(16)
SIZE, CHANGE, NUMLINKS, MODE, OWNER, GROUP, RAWDEV, USED = 4, 3, 35, 33, 36, 37, 41, 45
BLOCK, CHARACTER, SOCKET, FIFO = 3, 4, 6, 7


def u32(*values):
    return struct.pack(f'>{len(values)}I', *values)


def u64(*values):
    return struct.pack(f'>{len(values)}Q', *values)


def opaque(data):
    return u32(len(data)) + data + bytes(-len(data) % 4)


def bitmap(*bits):
    words = [0, 0]
    for bit in bits:
        words[bit // 32] |= 1 << bit % 32
    return u32(2, *words)


class Reply:
    """Bytes of a reply, taken from the front."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def fixed(self, length):
        self.at += length
        assert self.at <= len(self.data)
        return self.data[self.at - length:self.at]

    def u32(self):
        return struct.unpack('>I', self.fixed(4))[0]

    def u64(self):
        return struct.unpack('>Q', self.fixed(8))[0]

    def opaque(self):
        data = self.fixed(self.u32())
        self.fixed(-len(data) % 4)
        return data

    def words(self):
        return [self.u32() for _ in range(self.u32())]

    def change_info(self):
        return self.u32(), self.u64(), self.u64()


# --- operations: (number, arguments, what the result holds after its status) ---

def nothing(reply):
    return None


PUTROOTFH = (24, b'', nothing)
SAVEFH = (32, b'', nothing)
GETFH = (10, b'', Reply.opaque)


def putfh(handle):
    return 22, opaque(handle), nothing


def lookup(name):
    return 15, opaque(name.encode()), nothing


def getattr_(bit):
    """One attribute of 32 or 64 bits."""
    def value(reply):
        reply.words()
        return int.from_bytes(reply.opaque(), 'big')
    return 9, bitmap(bit), value


def setattr_(bit, value, stateid=ANONYMOUS):
    return 34, stateid + bitmap(bit) + opaque(value), Reply.words


def remove(name):
    return 28, opaque(name.encode()), Reply.change_info


def rename(old, new):
    return 29, opaque(old.encode()) + opaque(new.encode()), lambda r: (r.change_info(), r.change_info())


def link(name):
    return 11, opaque(name.encode()), Reply.change_info


def attributes(mode, owner=None, group=None):
    """What is to be made shall have; None: what the server gives."""
    given = {bit: opaque(str(value).encode())
             for bit, value in ((OWNER, owner), (GROUP, group)) if value is not None}
    return bitmap(MODE, *given) + opaque(u32(mode) + b''.join(given.values()))


def mkdir(name, mode=0o755, **who):
    return (6, u32(2) + opaque(name.encode()) + attributes(mode, **who),
            lambda r: (r.change_info(), r.words()))


def mknod(name, kind, mode=0o644, **who):
    """Device nodes are 8:1."""
    device = u32(8, 1) if kind in (BLOCK, CHARACTER) else b''
    return (6, u32(kind) + device + opaque(name.encode()) + attributes(mode, **who),
            lambda r: (r.change_info(), r.words()))


def opened(reply):
    stateid = reply.fixed(16)
    reply.change_info(), reply.u32(), reply.words()
    if reply.u32() == 3 and reply.u32() in (1, 2):  # no delegation, and why
        reply.u32()
    return stateid


def open_(owner, name, access=BOTH, deny=0, how=None):
    """HOW: None to open what is there, or the way it is created, encoded."""
    return (18, u32(0, access | 0x400, deny) + u64(0) + opaque(owner) +
            (u32(0) if how is None else u32(1) + how) + u32(0) + opaque(name.encode()), opened)


def unchecked(mode=0o644, **who):
    return u32(0) + attributes(mode, **who)


def cutting():
    """Created, or what is there is cut."""
    return u32(0) + bitmap(SIZE) + opaque(u64(0))


def guarded(mode=0o644):
    return u32(1) + bitmap(MODE) + opaque(u32(mode))


def exclusive(verifier, mode=0o644):
    return u32(3) + verifier + bitmap(MODE) + opaque(u32(mode))


def downgrade(stateid, access, deny=0):
    return 21, stateid + u32(0, access, deny), lambda r: r.fixed(16)


def close(stateid):
    return 4, u32(0) + stateid, lambda r: r.fixed(16)


def read(stateid, offset, length):
    return 25, stateid + u64(offset) + u32(length), lambda r: (bool(r.u32()), r.opaque())


def read_plus(stateid, offset, length):
    return 68, stateid + u64(offset) + u32(length), nothing


def write(stateid, offset, data, stable=UNSTABLE):
    """-> count, how stable, verifier"""
    return (38, stateid + u64(offset) + u32(stable) + opaque(data),
            lambda r: (r.u32(), r.u32(), r.fixed(8)))


def commit():
    return 5, u64(0) + u32(0), lambda r: r.fixed(8)


DATA, HOLE = 0, 1


def seek(offset, what, stateid=ANONYMOUS):
    """-> whether that is the end, where it is"""
    return 69, stateid + u64(offset) + u32(what), lambda r: (bool(r.u32()), r.u64())


def allocate(offset, length, stateid=ANONYMOUS):
    return 59, stateid + u64(offset, length), nothing


def deallocate(offset, length, stateid=ANONYMOUS):
    return 62, stateid + u64(offset, length), nothing


def getxattr(name):
    return 72, opaque(name.encode()), Reply.opaque


EITHER, CREATE, REPLACE = 0, 1, 2


def setxattr(name, value, how=EITHER):
    return 73, u32(how) + opaque(name.encode()) + opaque(value), Reply.change_info


def listxattrs(cookie=0, room=65536):
    """-> cookie, names, whether these are all"""
    return (74, u64(cookie) + u32(room),
            lambda r: (r.u64(), [r.opaque().decode() for _ in range(r.u32())], bool(r.u32())))


def removexattr(name):
    return 75, opaque(name.encode()), Reply.change_info


class Refused(Exception):
    def __init__(self, status, done):
        super().__init__(f'status {status} after {done} operations')
        self.status = status


class Connection:
    """A TCP connection to the server: records (RFC 5531, section 11) there and back."""

    def __init__(self, server, timeout=60, source=None):
        self.socket = socket.create_connection(
            (server.address, server.port), timeout, (source, 0) if source else None)

    def send(self, message):
        self.socket.sendall(u32(1 << 31 | len(message)) + message)

    def receive(self):
        data, last = b'', False
        while not last:
            mark, = struct.unpack('>I', self._receive(4))
            data += self._receive(mark & 0x7fffffff)
            last = mark >> 31
        return data

    def _receive(self, length):
        data = b''
        while len(data) < length:
            more = self.socket.recv(length - len(data))
            if not more:
                raise ConnectionResetError('the server closed the connection')
            data += more
        return data

    def quiet(self):
        """Whether nothing has come, not even the end."""
        return not select.select([self.socket], [], [], 0)[0]

    def close(self):
        self.socket.close()


def results(record, xid, operations):
    """What RECORD, the reply to call XID, says of all OPERATIONS; Refused when one failed."""
    reply = Reply(record)
    assert reply.u32() == xid and (reply.u32(), reply.u32()) == (1, 0)
    reply.u32(), reply.opaque()
    assert reply.u32() == 0
    status = reply.u32()
    reply.opaque()
    found = []
    for (_, _, result), _ in zip(operations, range(reply.u32())):
        reply.u32()
        if reply.u32() == OK:
            found.append(result(reply))
    if status != OK:
        raise Refused(status, len(found))
    return found


RECLAIM_COMPLETE = 58, u32(0), nothing


class Session:
    """One client with one session, as user UID; BACK: the server may call it."""

    count = 0

    def __init__(self, site, uid=0, minor=1, slots=8, back=False):
        self.site, self.uid, self.minor, self.slots, self.back = site, uid, minor, slots, back
        Session.count += 1
        self.name = b'wire %d %d' % (os.getpid(), Session.count)
        self.boot = os.urandom(8)
        self.connect()

    def connect(self):
        """Again, after a restart of the server, as the client that it was: grace need not last."""
        self.introduce()
        self.compound(RECLAIM_COMPLETE)

    def introduce(self):
        self.xid, self.numbers = 0, [0] * self.slots
        self.connection = Connection(self.site.server)
        self.clientid = self.exchange_id()
        self.id = self.create_session()

    def connect_again(self):
        """And no more: to the server, which may be another one, it says nothing of itself."""
        self.connection.close()
        self.connection = Connection(self.site.server)

    def exchange_id(self):
        body = self.boot + opaque(self.name) + u32(0, 0, 0)
        return self.call([(42, body, Reply.u64)])[0]

    def create_session(self):
        channel = u32(0, 2 << 20, 2 << 20, 8192, 16, self.slots, 0)
        flags = 2 if self.back else 0  # CONN_BACK_CHAN
        body = u64(self.clientid) + u32(1, flags) + channel + channel + u32(0x40000000, 1, 0)
        return self.call([(43, body, lambda r: r.fixed(16))])[0]

    def message(self, operations):
        """A call of the next xid."""
        self.xid += 1
        credential = u32(0) + opaque(b'wire') + u32(self.uid, self.uid, 0)
        return (u32(self.xid, 0, 2, 100003, 4, 1, 1) + opaque(credential) + u32(0, 0) +
                opaque(b'') + u32(self.minor, len(operations)) +
                b''.join(u32(number) + body for number, body, _ in operations))

    def call(self, operations, connection=None):
        """The results of all; Refused with the first status that is not OK."""
        connection = connection or self.connection
        connection.send(self.message(operations))
        return results(connection.receive(), self.xid, operations)

    def sequence(self, number, slot=0, cache=False):
        """The first operation of a request: its NUMBER on the slot; CACHE to keep its reply."""
        return 53, self.id + u32(number, slot, 0, cache), lambda r: r.fixed(36)

    def bind(self):
        """The connection for calls in both directions (BIND_CONN_TO_SESSION)."""
        self.call([(41, self.id + u32(3, 0), lambda r: r.fixed(24))])

    def flags(self):
        """What SEQUENCE says of the session."""
        self.numbers[0] += 1
        return struct.unpack('>I', self.call([self.sequence(self.numbers[0])])[0][-4:])[0]

    def compound(self, *operations):
        """The result of the last one."""
        while True:
            self.numbers[0] += 1
            try:
                return self.call([self.sequence(self.numbers[0]), *operations])[-1]
            except Refused as refused:
                if refused.status not in (DELAY, GRACE):
                    raise
                time.sleep(0.05)

    def status(self, *operations):
        try:
            self.compound(*operations)
        except Refused as refused:
            return refused.status
        return OK

    def root(self, volume):
        """The handle of a volume's root."""
        return self.compound(PUTROOTFH, *map(lookup, self.site.pool.export(volume)[1:].split('/')),
                             GETFH)

    def create(self, directory, name, data=b'', owner=b'maker'):
        """The handle of a new file that holds DATA."""
        self.compound(putfh(directory), open_(owner, name, how=unchecked()))
        handle = self.compound(putfh(directory), lookup(name), GETFH)
        if data:
            self.compound(putfh(handle), write(ANONYMOUS, 0, data, FILE_SYNC))
        return handle

    def kill9(self):
        """The server, which starts again."""
        self.site.server.kill9()
        self.site.server.start()
        self.reconnect()

    def reconnect(self):
        self.connection.close()
        self.connect()

    def end(self):
        """Leave nothing behind: who comes back after a restart of his own has lost what he had
        open."""
        self.boot = os.urandom(8)
        self.reconnect()
        self.call([(44, self.id, nothing)])  # DESTROY_SESSION
        self.call([(57, u64(self.clientid), nothing)])  # DESTROY_CLIENTID
        self.connection.close()


class Request:
    """OPERATIONS on slot SLOT of SESSION, which can be sent once more."""

    def __init__(self, session, *operations, slot=1):
        session.numbers[slot] += 1
        self._session = session
        self._operations = [session.sequence(session.numbers[slot], slot), *operations]

    def send(self):
        """The last result."""
        return self._session.call(self._operations)[-1]

    def status(self):
        try:
            self.send()
        except Refused as refused:
            return refused.status
        return OK


class Call:
    """A request on a slot of its own whose reply is awaited later, or never; see replies()."""

    def __init__(self, session, slot, *operations):
        session.numbers[slot] += 1
        self.session, self.slot, self.number = session, slot, session.numbers[slot]
        self.operations = [session.sequence(self.number, slot, cache=True), *operations]
        self.message = session.message(self.operations)
        self.xid = session.xid

    def send(self, connection=None):
        """Once more, on another connection if one is given."""
        (connection or self.session.connection).send(self.message)
        return self

    def result(self, record):
        """Of the last operation."""
        return results(record, self.xid, self.operations)[-1]

    def status(self, record):
        try:
            self.result(record)
        except Refused as refused:
            return refused.status
        return OK

    def is_under_way(self, connection):
        """Whether the server works on it. Asked on another CONNECTION with a number that the slot
        takes in no case, unless the call is over: as long as it is not, the answer is "later"."""
        after = self.session.sequence(self.number + 1, self.slot)
        try:
            self.session.call([after], connection)
        except Refused as refused:
            assert refused.status in (DELAY, SEQ_MISORDERED)
            return refused.status == DELAY
        raise AssertionError('the call is over')


def replies(calls):
    """The records that answer CALLS of one session, in their order: each came exactly once."""
    wanted, found = {call.xid for call in calls}, {}
    while len(found) < len(wanted):
        record = calls[0].session.connection.receive()
        xid, = struct.unpack('>I', record[:4])
        assert xid in wanted and xid not in found
        found[xid] = record
    return [found[call.xid] for call in calls]

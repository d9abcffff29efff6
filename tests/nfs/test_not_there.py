# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the README says is not there: ACLs, labels, COPY and CLONE, delegations, layouts, Kerberos. A
client is told so, and does without."""

import errno

import pytest

from harness.protocol import (
    ATTRNOTSUPP, BAD_STATEID, OP_ILLEGAL, Client, creating, exchange_id, getattrs, open_as, setattr_of)
from harness.wire import (
    GETFH, MODE, NOTSUPP, OK, PUTROOTFH, SAVEFH, Reply, lookup, nothing, opaque, putfh, u32, u64)

pytestmark = pytest.mark.millrace
OPTIONS = 'vers=4.2,proto=tcp'
WORD = (1 << 32) - 1


# --- through a client ---

def test_what_a_client_is_told(place):
    def tries(path):
        os.chdir(path)
        for name in ('file', 'copy'):
            with open(name, 'wb') as file:
                file.write(name.encode() * 100000)
        clone, lease = 0x40049409, 1024  # FICLONE, F_SETLEASE
        source, target = os.open('file', os.O_RDONLY), os.open('copy', os.O_RDWR)
        acl = struct.pack('>4I', 1, 0, 0, 0x1601ff) + struct.pack('>I', 6) + b'OWNER@\0\0'
        calls = {
            'clone': lambda: fcntl.ioctl(target, clone, source),
            'lease': lambda: fcntl.fcntl(source, lease, fcntl.F_RDLCK),
            'acl': lambda: os.setxattr('file', 'system.nfs4_acl', acl),
            'look at an acl': lambda: os.getxattr('file', 'system.nfs4_acl'),
            'posix acl': lambda: os.setxattr('file', 'system.posix_acl_access', struct.pack('<I', 2)),
            'label': lambda: os.setxattr('file', 'security.selinux', b'a:b:c:d'),
            'trusted': lambda: os.setxattr('file', 'trusted.x', b'x'),
        }
        found = {}
        for name, call in calls.items():
            try:
                call()
                found[name] = 0
            except OSError as error:
                found[name] = error.errno
        return [found, os.listxattr('file'), open('copy', 'rb').read() == b'copy' * 100000]

    no = errno.EOPNOTSUPP
    assert place.call(tries) == [{
        'clone': no, 'lease': errno.EAGAIN, 'acl': no, 'look at an acl': no, 'posix acl': no,
        'label': no, 'trusted': no}, [], True]


def test_a_client_copies_by_reading_and_writing(place):
    """copy_file_range() and cp, which ask for COPY and CLONE first."""
    def copy(path):
        os.chdir(path)
        data = random.Random(1).randbytes(3000001)
        with open('file', 'wb') as file:
            file.write(data)
        source, target = os.open('file', os.O_RDONLY), os.open('copy', os.O_RDWR | os.O_CREAT)
        done = 0
        while done < len(data):
            done += os.copy_file_range(source, target, len(data) - done)
        subprocess.run(['cp', '--reflink=auto', 'file', 'another'], check=True)
        refused = subprocess.run(['cp', '--reflink=always', 'file', 'third'], capture_output=True)
        os.fsync(target)
        return [open(name, 'rb').read() == data for name in ('copy', 'another')] + [refused.returncode]

    assert place.call(copy) == [True, True, 1]


# --- by hand ---

@pytest.fixture(scope='module')
def root(site):
    """The handle of a share's root."""
    site.pool.create_share('without', mode=0o777)
    maker = Client(site).ready()
    handle = maker.do(PUTROOTFH, *map(lookup, (site.pool.name, 'without')), GETFH)
    maker.close()
    return handle


LAYOUT = u64(0, 4096) + bytes(16)  # a range, a stateid
LAYOUTS = {
    47: bytes(16) + u32(1, 4096, 0),                                  # GETDEVICEINFO
    48: u32(1, 10) + u64(0) + bytes(8),                               # GETDEVICELIST
    49: u64(0, 4096) + u32(0) + bytes(16) + u32(0, 0, 1) + opaque(b''),  # LAYOUTCOMMIT
    50: u32(0, 1, 1) + u64(0, 4096, 4096) + bytes(16) + u32(4096),    # LAYOUTGET
    51: u32(0, 1, 3, 1) + LAYOUT + opaque(b''),                       # LAYOUTRETURN, of a file
}
# By minor version and number, with arguments that are right as far as they go.
NOT_THERE = {
    1: {7: u64(0),                                      # DELEGPURGE
        35: u64(0) + opaque(b'n') + u32(0, 0, 0, 0), 36: bytes(16), 20: bytes(16) + u32(0),
        30: u64(0), 39: u64(0) + opaque(b'o'),          # of 4.0: SETCLIENTID to RELEASE_LOCKOWNER
        40: u32(0, 0),                                  # BACKCHANNEL_CTL
        46: bytes(40),                                  # GET_DIR_DELEGATION
        56: u32(0, 4),                                  # WANT_DELEGATION
        **LAYOUTS},
    2: {60: bytes(32) + u64(0, 0, 0) + u32(1, 1, 0),    # COPY
        61: bytes(16) + u32(1) + opaque(b'server'),     # COPY_NOTIFY
        64: LAYOUT + u32(1) + bytes(16) + u32(5, 25),   # LAYOUTERROR
        65: LAYOUT + u32(0) + u64(0) + u32(0) + u64(0) + bytes(16) + u32(1) + opaque(b''),  # LAYOUTSTATS
        66: bytes(16), 67: bytes(16),                   # OFFLOAD_CANCEL, OFFLOAD_STATUS
        70: bytes(16) + u32(0) + u64(0, 512, 1, 0) + u32(0) + u64(0) + opaque(b''),  # WRITE_SAME
        71: bytes(32) + u64(0, 0, 0),                   # CLONE
        46: bytes(40), 56: u32(0, 4), 40: u32(0, 0), **LAYOUTS},
}


@pytest.mark.parametrize('minor', NOT_THERE)
def test_operations_that_are_not_there(newcomer, root, minor):
    one, found = newcomer(minor=minor).ready(), {}
    for number, body in NOT_THERE[minor].items():
        found[number] = one.tell(putfh(root), SAVEFH, (number, body, nothing))
    assert found == dict.fromkeys(found, NOTSUPP)
    assert one.tell(PUTROOTFH) == OK


def test_operations_that_nobody_knows(newcomer, root):
    """And in 4.1 those of 4.2."""
    one = newcomer().ready()
    for number, body in ((5000, b''), (0, b''), (1, b''), (2, b''), (WORD, b''),
                         (59, bytes(16) + u64(0, 0)), (71, NOT_THERE[2][71])):
        assert one.tell(putfh(root), SAVEFH, (number, body, nothing)) == OP_ILLEGAL, number
    assert one.tell(PUTROOTFH) == OK


@pytest.mark.parametrize('bit', (12, 58, 59, 80), ids=('acl', 'dacl', 'sacl', 'label'))
def test_attributes_that_are_not_there(newcomer, root, bit):
    one = newcomer(minor=2).ready()
    assert one.do(putfh(root), getattrs(bit, MODE)) == [MODE]
    assert one.tell(putfh(root), setattr_of(bit, u32(0))) == ATTRNOTSUPP


@pytest.mark.parametrize('minor', (1, 2))
def test_what_an_exclusive_create_may_set(newcomer, root, minor):
    """Of what is supported: no more than is told of that."""
    one = newcomer(minor=minor).ready()
    both = (9, u32(3, 1, 0, 1 << 11), lambda reply: (reply.words(), reply.opaque()))
    alone = (9, u32(3, 0, 0, 1 << 11), both[2])
    for place in (PUTROOTFH, putfh(root)):
        value = Reply(one.do(place, both)[1])
        supported, settable = value.words(), value.words()
        assert settable and settable[1] & 1 << MODE - 32
        assert [word & ~allowed for word, allowed in zip(settable, supported + [0])] == [0] * len(settable)
        assert Reply(one.do(place, alone)[1]).words() == settable


def test_no_layouts_are_offered(newcomer, root):
    non_pnfs, pnfs = 0x10000, 0x20000 | 0x40000
    layout_types = 62
    one = newcomer()
    flags = one.call(exchange_id(one.name, one.boot))[0][2]
    assert flags & (non_pnfs | pnfs) == non_pnfs
    types = (9, u32(2, 0, 1 << layout_types - 32), lambda reply: (reply.words(), reply.opaque()))
    words, value = one.ready().do(putfh(root), types)
    assert not any(words) or value == u32(0)


def test_no_delegation_is_given(newcomer, root):
    """However it is asked for, and by whom alone the file is open."""
    one = newcomer().ready()
    one.do(putfh(root), open_as(one.clientid, b'owner', **creating('alone')))

    def kind(reply):
        reply.fixed(16), reply.change_info(), reply.u32(), reply.words()
        return reply.u32()

    for want in (0, 0x100, 0x200, 0x300, 0x400, 0x500):
        number, body, _ = open_as(one.clientid, b'owner', **creating('alone'))
        asked = number, u32(0, 3 | want) + body[8:], kind
        assert one.do(putfh(root), asked) in (0, 3), hex(want)  # none, none and why
    file = one.do(putfh(root), lookup('alone'), GETFH)
    assert one.tell(putfh(file), (8, bytes(12) + b'none', nothing)) == BAD_STATEID  # DELEGRETURN


# --- Kerberos ---

NONE, SYS, GSS = 0, 1, 6


def flavors(reply):
    """Of a SECINFO."""
    found = []
    for _ in range(reply.u32()):
        found.append(reply.u32())
        if found[-1] == GSS:
            reply.opaque(), reply.u32(), reply.u32()
    return found


def test_numbers_are_the_only_security(newcomer, root, site):
    """In a share, and on the way to it, where nothing is but names."""
    one = newcomer().ready()
    one.do(putfh(root), open_as(one.clientid, b'owner', **creating('file')))
    for asked in ((33, opaque(b'file'), flavors), (52, u32(0), flavors)):
        assert one.do(putfh(root), asked) == [SYS]
    assert set(one.do(putfh(root), (52, u32(1), flavors))) == {NONE, SYS}
    assert set(one.do(PUTROOTFH, (33, opaque(site.pool.name.encode()), flavors))) == {NONE, SYS}


def test_kerberos_is_refused_to_a_client(newcomer, site):
    one = newcomer().introduce()
    init = u32(GSS) + opaque(u32(1, 1, 0, 1) + opaque(b''))  # RPCSEC_GSS, to begin a context
    one.connection.send(one.message([one.next(), PUTROOTFH], credential=init))
    reply = Reply(one.connection.receive())
    reply.u32()
    assert (reply.u32(), reply.u32(), reply.u32()) == (1, 1, 1)  # a reply, denied, AUTH_ERROR
    assert newcomer().introduce().tell(PUTROOTFH) == OK and site.server.alive()

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Clients, sessions and slots (RFC 8881, 18.35 to 18.46) with what no good client sends: each gets
its answer, changes nothing, and the server goes on."""

import os
import random
import struct

import pytest

from harness.host import wait_until
from harness.protocol import (
    BADSESSION, BADSLOT, CLID_INUSE, CLIENTID_BUSY, COMPLETE_ALREADY, CONN_NOT_BOUND, GARBAGE,
    MINOR_VERS_MISMATCH, NOFILEHANDLE, NOT_ONLY_OP, NOT_SAME, OP_NOT_IN_SESSION, REP_TOO_BIG,
    REP_TOO_BIG_TO_CACHE, REQ_TOO_BIG, RESOURCE, RETRY_UNCACHED_REP, SEQUENCE_POS,
    SEQ_FALSE_RETRY, STALE_CLIENTID, TOO_MANY_OPS, Client, bind_connection, channel,
    create_session, creating, destroy_clientid, destroy_session, exchange_id, open_as,
    reclaim_complete, sequence)
from harness.server import LEASE
from harness.wire import (
    ANONYMOUS, EXIST, FILE_SYNC, GETFH, INVAL, MODE, NOENT, OK, PUTROOTFH, SAVEFH, SEQ_MISORDERED,
    SIZE, TOOSMALL, Connection, Refused, getattr_, lookup, mkdir, putfh, read, remove, u32,
    write)

pytestmark = pytest.mark.millrace


@pytest.fixture(scope='module')
def root(site):
    """The handle of a share's root."""
    site.pool.create_share('sessions', mode=0o777)
    maker = Client(site).ready()
    handle = maker.do(PUTROOTFH, *map(lookup, (site.pool.name, 'sessions')), GETFH)
    maker.close()
    return handle


# --- clients ---

def test_a_client_is_known_again(newcomer):
    one = newcomer().introduce()
    clientid, _, flags = one.call(exchange_id(one.name, one.boot))[0]
    assert clientid == one.clientid and flags & 0x80000000
    assert one.tell(reclaim_complete()) == OK


def test_a_client_that_has_restarted_ends_what_it_was(newcomer):
    old = newcomer().introduce()
    again = newcomer()
    again.name = old.name
    clientid, number, flags = again.call(exchange_id(again.name, again.boot))[0]
    assert clientid != old.clientid and not flags & 0x80000000
    assert old.tell(PUTROOTFH) == OK  # until it is confirmed
    again.clientid, (again.session, _) = clientid, again.call(create_session(clientid, number))[0]
    assert old.tell(PUTROOTFH) == BADSESSION
    assert again.tell(PUTROOTFH) == OK
    assert again.status(create_session(old.clientid, 1)) == STALE_CLIENTID


def test_an_unconfirmed_client_is_replaced(newcomer):
    one = newcomer()
    first, number, _ = one.call(exchange_id(one.name, one.boot))[0]
    second, number, _ = one.call(exchange_id(one.name, os.urandom(8)))[0]
    assert first != second
    assert one.status(create_session(first, 1)) == STALE_CLIENTID
    assert one.status(create_session(second, number)) == OK
    one.clientid = second


def test_exchange_id_with_odd_arguments(newcomer):
    update, odd = 0x40000000, 0x00800000
    one, none = newcomer().introduce(), newcomer()
    tries = {
        'flags': (INVAL, none, exchange_id(none.name, none.boot, flags=odd)),
        'update of nobody': (NOENT, none, exchange_id(none.name, none.boot, flags=update)),
        'update': (OK, one, exchange_id(one.name, one.boot, flags=update)),
        'update of another boot': (NOT_SAME, one, exchange_id(one.name, b'notboot!', flags=update)),
    }
    assert {name: who.status(operation) for name, (_, who, operation) in tries.items()} == \
        {name: wanted for name, (wanted, _, _) in tries.items()}
    # protection by machine credentials, which needs Kerberos, and by a shared secret
    def protected_by(reply):
        reply.u64(), reply.u32(), reply.u32()
        return reply.u32()

    for protection in (u32(1) + u32(1, 1 << 31) + u32(0), u32(2) + bytes(4 * 8)):
        number, body, _ = exchange_id(none.name, none.boot, protection=protection)
        assert none.call((number, body, protected_by))[0] == 0  # it is told that there is none
    assert none.status(exchange_id(none.name, none.boot, protection=u32(77))) == GARBAGE
    none.reconnect()
    for length in (0, 1024, 1025, 100000):
        status = none.status(exchange_id(b'n' * length, none.boot))
        assert (status == OK) == (length <= 1024), length
        none.reconnect()
    assert one.tell(PUTROOTFH) == OK


def test_a_name_in_use_by_another_user(newcomer, root):
    mine, theirs = newcomer(uid=0).ready(), newcomer(uid=1000)
    mine.do(putfh(root), open_as(mine.clientid, b'o', **creating('held')))
    theirs.name = mine.name
    assert theirs.status(exchange_id(theirs.name, theirs.boot)) == CLID_INUSE
    assert mine.tell(PUTROOTFH) == OK


def test_a_client_with_a_session_is_not_destroyed(newcomer):
    one = newcomer().introduce()
    assert one.status(destroy_clientid(one.clientid)) == CLIENTID_BUSY
    assert one.tell(PUTROOTFH) == OK
    assert one.status(destroy_session(one.session)) == OK
    assert one.status(destroy_clientid(one.clientid)) == OK
    assert one.status(destroy_clientid(one.clientid)) == STALE_CLIENTID
    assert one.status(destroy_clientid((1 << 64) - 1)) == STALE_CLIENTID


# --- sessions ---

def test_create_session_with_odd_arguments(newcomer):
    one = newcomer()
    clientid, number, _ = one.call(exchange_id(one.name, one.boot))[0]
    one.clientid = clientid
    tries = {
        'number': (SEQ_MISORDERED, create_session(clientid, number + 1)),
        'client': (STALE_CLIENTID, create_session(clientid ^ 1 << 40, number)),
        'flags': (INVAL, create_session(clientid, number, flags=0x100)),
        'requests': (TOOSMALL, create_session(clientid, number, fore=channel(requests=0))),
        'request': (TOOSMALL, create_session(clientid, number, fore=channel(request=100))),
        'response': (TOOSMALL, create_session(clientid, number, fore=channel(response=100))),
        'operations': (TOOSMALL, create_session(clientid, number, fore=channel(operations=1))),
    }
    assert {name: one.status(operation) for name, (_, operation) in tries.items()} == \
        {name: wanted for name, (wanted, _) in tries.items()}
    many = create_session(clientid, number, fore=channel(1 << 20, 1 << 20, WORD, WORD, WORD))
    one.session, slots = one.call(many)[0]
    assert slots <= 64
    assert one.call(many)[0] == (one.session, slots)  # the answer is kept
    assert one.status(sequence(one.session, 1, slot=slots)) == BADSLOT
    assert one.status(create_session(clientid, number + 5)) == SEQ_MISORDERED


WORD = (1 << 32) - 1


def test_a_session_for_rdma_is_told_again(newcomer):
    """The same, to the byte; what the request says of RDMA is not kept."""
    one = newcomer()
    one.clientid, number, _ = one.call(exchange_id(one.name, one.boot))[0]
    depth = channel()[:-4] + u32(1, 57)  # of the inbound read queue
    records = []
    for _ in range(3):
        records.append(one.record([create_session(one.clientid, number, depth, depth)])[4:])
        one.status(create_session(one.clientid, number + 5, depth[:-4] + u32(91), depth))
    assert records[0][20:24] == u32(OK) and records == records[:1] * 3
    none = newcomer()
    none.clientid, number, _ = none.call(exchange_id(none.name, none.boot))[0]
    assert len(none.record([create_session(none.clientid, number)])[4:]) == len(records[0])


def test_who_is_not_confirmed_is_forgotten(newcomer):
    """When its lease has ended. To ask is to confirm, so that each is asked once."""
    one = newcomer()
    waiting = [one.call(exchange_id(b'%s %d' % (one.name, n), one.boot))[0] for n in range(20)]

    def is_forgotten():
        clientid, number, _ = waiting.pop()
        try:
            session, _ = one.call(create_session(clientid, number))[0]
        except Refused as refused:
            return refused.status == STALE_CLIENTID
        one.call(destroy_session(session))
        one.call(destroy_clientid(clientid))

    assert not is_forgotten()
    wait_until(is_forgotten, 3 * LEASE, 'a client is forgotten', interval=LEASE / 4)


def test_a_session_ends_once(newcomer):
    one, other = newcomer().introduce(), newcomer()
    assert other.status(destroy_session(one.session)) == CONN_NOT_BOUND
    assert one.tell(destroy_session(one.session), PUTROOTFH) == NOT_ONLY_OP
    assert one.tell(PUTROOTFH) == OK
    assert other.status(bind_connection(one.session)) == OK
    assert other.status(destroy_session(one.session)) == OK
    for who in (one, other):
        assert who.status(destroy_session(one.session)) == BADSESSION
        assert who.status(bind_connection(one.session)) == BADSESSION
    assert one.tell(PUTROOTFH) == BADSESSION


def test_a_session_ends_while_its_requests_are_under_way(newcomer, site, root):
    one = newcomer().ready(fore=channel(requests=8))
    for slot in range(1, 8):
        operations = [sequence(one.session, 1, slot), putfh(root), mkdir(f'under-way-{slot}')]
        one.connection.send(one.message(operations))
    one.connection.send(one.message([destroy_session(one.session)]))
    for _ in range(8):
        one.connection.receive()
    assert one.status(sequence(one.session, 2, 1)) == BADSESSION
    assert site.server.alive()


def test_reclaim_is_complete_once(newcomer):
    one = newcomer().introduce()
    assert one.tell(reclaim_complete()) == OK
    assert one.tell(reclaim_complete()) == COMPLETE_ALREADY


# --- slots ---

def test_numbers_that_a_slot_does_not_take(newcomer):
    one = newcomer().introduce()
    one.do(PUTROOTFH)
    for number in (0, 3, 100, WORD):
        assert one.status(sequence(one.session, number)) == SEQ_MISORDERED, number
    assert one.status(sequence(one.session, 1, slot=8)) == BADSLOT
    assert one.status(sequence(one.session, 1, slot=WORD)) == BADSLOT
    assert one.status(sequence(os.urandom(16), 1)) == BADSESSION
    assert one.status(sequence(bytes(16), 1)) == BADSESSION
    assert one.tell(PUTROOTFH) == OK


def test_a_replay_gets_the_same_reply_and_is_not_done_again(newcomer, root):
    one = newcomer().ready()
    one.number += 1
    request = one.message([sequence(one.session, one.number, cache=True), putfh(root),
                           mkdir('once'), GETFH])
    one.connection.send(request)
    first = one.connection.receive()
    other = newcomer().ready()
    other.do(putfh(root), remove('once'))
    for _ in range(3):
        one.connection.send(request)
        assert one.connection.receive() == first
    one.reconnect()
    one.connection.send(request)
    assert one.connection.receive() == first
    assert other.tell(putfh(root), lookup('once')) == NOENT
    assert one.tell(PUTROOTFH) == OK


def test_a_replay_of_a_read(newcomer, root):
    """The bytes that were read are kept as well."""
    one, other = newcomer().ready(fore=channel(cached=100000)), newcomer().ready()
    file = one.do(putfh(root), open_as(one.clientid, b'o', **creating('kept')), GETFH)
    data = os.urandom(30001)
    one.do(putfh(file), write(ANONYMOUS, 0, data + bytes(70000), FILE_SYNC))
    request = one.message([one.next(cache=True), putfh(file), read(ANONYMOUS, 0, len(data))])
    one.connection.send(request)
    first = one.connection.receive()
    assert data in first
    for _ in range(20):
        for length in (1000, len(data), 100000):
            other.do(putfh(file), read(ANONYMOUS, 30002, length))
        one.connection.send(request)
        assert one.connection.receive() == first
    assert one.do(putfh(file), read(ANONYMOUS, 0, len(data))) == (False, data)


def test_a_replay_of_what_was_not_kept(newcomer, root):
    one = newcomer().ready()
    operations = [one.next(), putfh(root), mkdir('not kept')]
    assert one.status(*operations) == OK
    assert one.status(*operations) == RETRY_UNCACHED_REP
    assert one.tell(putfh(root), remove('not kept')) == OK
    assert one.tell(putfh(root), lookup('not kept')) == NOENT


def test_another_request_under_an_old_number_is_not_done(newcomer, root):
    one = newcomer().ready()
    head = one.next(cache=True)
    first = one.record([head, putfh(root), mkdir('first')])
    other = one.record([head, putfh(root), remove('first')])
    assert other[4:] == first[4:] or struct.unpack('>I', other[24:28])[0] == SEQ_FALSE_RETRY
    assert one.tell(putfh(root), lookup('first')) == OK


def test_an_error_is_kept_as_well(newcomer, root):
    one = newcomer().ready()
    one.do(putfh(root), mkdir('there'))
    operations = [one.next(cache=True), putfh(root), mkdir('there')]
    assert one.status(*operations) == EXIST
    other = newcomer().ready()
    other.do(putfh(root), remove('there'))
    assert one.status(*operations) == EXIST
    assert one.tell(putfh(root), lookup('there')) == NOENT


# --- compounds ---

def test_operations_out_of_their_place(newcomer, root):
    one = newcomer().introduce()
    tries = {
        'without a session': (OP_NOT_IN_SESSION, [PUTROOTFH]),
        'in a session, late': (SEQUENCE_POS, [one.next(), PUTROOTFH,
                                              sequence(one.session, one.number + 1)]),
        'not the only one': (NOT_ONLY_OP, [exchange_id(one.name, one.boot), PUTROOTFH]),
        'of no file': (NOFILEHANDLE, [one.next(), GETFH]),
        'nothing': (OK, []),
        'a session alone': (OK, [one.next()]),
    }
    assert {name: one.status(*operations) for name, (_, operations) in tries.items()} == \
        {name: wanted for name, (wanted, _) in tries.items()}


@pytest.mark.parametrize('minor', (0, 3, 4, 99, WORD))
def test_minor_versions_that_are_not_served(newcomer, minor):
    one = newcomer().introduce()
    record = one.record([one.next(), PUTROOTFH], minor=minor)
    assert struct.unpack('>III', record[24:28] + record[-8:]) == \
        (MINOR_VERS_MISMATCH, 0, 0), record.hex()


@pytest.mark.parametrize('program, version, procedure, wanted', (
    (100003, 3, 1, 2), (100003, 5, 1, 2), (100003, 4, 2, 3), (100003, 4, WORD, 3),
    (100005, 3, 1, 1), (0, 0, 0, 1), (WORD, WORD, WORD, 1)))
def test_programs_that_are_not_there(newcomer, program, version, procedure, wanted):
    one = newcomer().introduce()
    call = u32(77, 0, 2, program, version, procedure, 0, 0, 0, 0)
    one.connection.send(call)
    record = one.connection.receive()
    assert struct.unpack('>6I', record[:24]) == (77, 1, 0, 0, 0, wanted)
    assert one.tell(PUTROOTFH) == OK


def test_too_many_operations(newcomer, site, root):
    one = newcomer().introduce(fore=channel(operations=8))
    assert one.tell(*[PUTROOTFH] * 7) == OK
    assert one.tell(*[PUTROOTFH] * 8) == TOO_MANY_OPS
    for count in (99, 100, 101, 1000, 20000):
        many = newcomer().introduce(fore=channel(operations=WORD))
        record = many.record([many.next(), *[PUTROOTFH] * count])
        accepted, = struct.unpack('>I', record[20:24])
        assert accepted == (0 if count < 2000 else 4), count  # SUCCESS; GARBAGE_ARGS
        if count < 2000:
            assert struct.unpack('>I', record[24:28])[0] == (OK if count < 100 else RESOURCE), count
        assert one.tell(PUTROOTFH) == OK
    # fewer than are told
    for count in (3, 100, 1 << 20, WORD):
        send_odd(one, one.message([one.next(), PUTROOTFH], count=count))
        one.reconnect()
        assert newcomer().introduce().tell(PUTROOTFH) == OK


def test_requests_and_replies_larger_than_agreed(newcomer, root):
    one = newcomer().ready(fore=channel(request=1000, response=2000, cached=500))
    file = one.do(putfh(root), open_as(one.clientid, b'o', **creating('file')), GETFH)
    operations = [putfh(file), write(ANONYMOUS, 0, b'')]
    room = 1000 - len(one.message([sequence(one.session, 0), *operations])) & ~3
    assert one.tell(putfh(file), write(ANONYMOUS, 0, bytes(room))) == OK
    assert one.tell(putfh(file), write(ANONYMOUS, 0, bytes(room + 4))) == REQ_TOO_BIG
    one.number -= 1  # its slot has not seen it
    assert one.do(putfh(file), getattr_(SIZE)) == room
    another = newcomer().ready()
    another.do(putfh(file), write(ANONYMOUS, 0, bytes(100000), FILE_SYNC))
    assert one.tell(putfh(file), read(ANONYMOUS, 0, 1000)) == OK
    assert one.tell(putfh(file), read(ANONYMOUS, 0, 50000)) == REP_TOO_BIG
    assert one.status(one.next(cache=True), putfh(file), read(ANONYMOUS, 0, 1000)) == \
        REP_TOO_BIG_TO_CACHE
    assert one.tell(putfh(file), getattr_(SIZE)) == OK


def most_memory(site):
    """Bytes of address space that the server has had at most."""
    with open(f'/proc/{site.server.pid()}/status') as file:
        return 1024 * int(next(line for line in file if line.startswith('VmPeak:')).split()[1])


def test_a_write_of_more_bytes_than_there_are(newcomer, site, root):
    one = newcomer().ready()
    file = one.do(putfh(root), open_as(one.clientid, b'o', **creating('announced')), GETFH)
    number, body, result = write(ANONYMOUS, 0, b'', FILE_SYNC)
    before = most_memory(site)
    for length in (1, 1 << 20, 1 << 30, WORD - 3, WORD):
        assert one.tell(putfh(file), (number, body[:-4] + u32(length), result)) == GARBAGE, length
        one.reconnect()
    assert most_memory(site) < before + (1 << 30)
    assert one.do(putfh(file), getattr_(SIZE)) == 0


# --- bytes that are no request ---

def request_of(client, root):
    """A request with something of everything in it."""
    return client.message([
        client.next(cache=True), putfh(root), SAVEFH,
        open_as(client.clientid, b'owner', **creating('odd')), GETFH,
        write(ANONYMOUS, 0, b'bytes'), getattr_(MODE), putfh(root), mkdir('odd directory'),
        putfh(root), lookup('odd')])


def send_odd(client, message):
    """A message that may be answered, ignored, or cost the connection; a NULL behind it tells when
    the server is done with it."""
    try:
        client.connection.send(message)
        client.connection.send(u32(77, 0, 2, 100003, 4, 0, 0, 0, 0, 0))
        while client.connection.receive()[:4] != u32(77):
            pass
    except OSError:
        client.reconnect()


def test_requests_cut_short(newcomer, root, site):
    one = newcomer().ready()
    whole = request_of(one, root)
    for length in range(0, len(whole), 4):
        send_odd(one, whole[:length])
    assert site.server.alive()
    assert newcomer().introduce().tell(PUTROOTFH) == OK


def test_requests_with_odd_words(newcomer, root, site, pytestconfig):
    """Every word of a request by turns is what it is not; and several at once, at random."""
    seed = pytestconfig.getoption('--seed')
    print(f'--seed={seed}')
    chance = random.Random(seed)
    one = newcomer().ready()
    whole = request_of(one, root)
    for at in range(24, len(whole), 4):
        for word in (WORD, 0x7fffffff, 0x10000, 1, 0):
            send_odd(one, whole[:at] + u32(word) + whole[at + 4:])
    for _ in range(500):
        odd = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            odd[chance.randrange(24, len(odd))] = chance.randrange(256)
        send_odd(one, bytes(odd))
    assert site.server.alive()
    assert newcomer().introduce().tell(PUTROOTFH) == OK


def test_records_that_are_none(newcomer, site):
    """Lengths that are lies, fragments without end, and noise."""
    chance = random.Random(1)
    heads = [b'\xff\xff\xff\xff', b'\x7f\xff\xff\xff', b'\x80\x40\x00\x00', b'\x80\x00\x00\x00',
             b'\x00\x00\x00\x00' * 1000, b'\x00\x00\x00\x04abcd' * 1000, b'\x80\x00\x00\x02ab',
             chance.randbytes(5000)]
    held = []
    for head in heads:
        connection = Connection(site.server)
        try:
            connection.socket.sendall(head + chance.randbytes(1000))
        except OSError:
            pass
        held.append(connection)
    for _ in range(50):  # a connection each, that says nothing or half a word
        held.append(Connection(site.server))
        held[-1].socket.sendall(b'\x80')
    large = Connection(site.server)  # a record larger than any that is taken
    with pytest.raises(OSError):
        large.send(bytes(64 << 20))
        large.receive()
    assert newcomer().introduce().tell(PUTROOTFH) == OK
    for connection in [*held, large]:
        connection.close()
    assert site.server.alive()

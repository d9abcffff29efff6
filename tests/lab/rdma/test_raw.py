# SPDX-License-Identifier: LGPL-3.0-or-later
"""What a Linux client never sends: headers that are wrong, chunks in other places, replays."""

import os

import pytest

from harness.wire import (
    PUTROOTFH, SIZE, getattr_, lookup, open_, read, results, u32, unchecked, write)
from held import ARENA_KB, CONNECTION_KB, SLAB_KB, WORKERS
from raw import ERR_CHUNK, ERR_VERS, ERROR, MESSAGE, NO_MESSAGE, Raw, RawSession
from wire import READ_LAST, READ_ONLY, READ_REQUEST

NULL = u32(2, 100003, 4, 0, 0, 0, 0, 0)


@pytest.fixture
def connect(rdma, service, raw_client):
    made = []

    def connect():
        made.append(Raw(raw_client, service.address))
        return made[-1]

    yield connect
    for raw in made:
        raw.close()


def answers(raw, xid=77):
    raw.send(u32(xid, 0) + NULL)
    answer = raw.receive_answer()
    return answer.kind == MESSAGE and answer.xid == xid


def test_credits_are_granted(connect):
    raw = connect()
    raw.send_bytes(raw.header(5, credits=1000) + u32(5, 0) + NULL)
    assert raw.receive_answer().credits == 64
    raw.send_bytes(raw.header(6, version=7, credits=1000))
    assert raw.receive_answer().credits == 64


def test_another_version_is_told_ours(connect):
    raw = connect()
    raw.send_bytes(raw.header(5, version=2) + u32(5, 0) + NULL)
    answer = raw.receive_answer()
    assert (answer.xid, answer.kind, answer.words) == (5, ERROR, (ERR_VERS, 1, 1))
    assert answers(raw)


def wrong_headers(raw):
    """Headers that are answered with ERR_CHUNK."""
    call = u32(5, 0) + NULL
    segment = raw.segment(0, 64)
    return {
        'an unknown type': raw.header(5, kind=2) + call,
        'no message anywhere': raw.header(5, kind=NO_MESSAGE),
        'two messages': raw.header(5, reads=[(0, 0, 64)]) + call,
        'a read list without an end': u32(5, 1, 9, 0) + (u32(1, 40) + segment) * 100,
        'a write list without an end': u32(5, 1, 9, 0, 0) + (u32(1, 1) + segment) * 100,
        'a chunk of very many segments': u32(5, 1, 9, 0, 0, 1, 0xffffffff) + segment,
        'a chunk of no segment': raw.header(5, writes=[[]]) + call,
        'a position that is not aligned': raw.header(5, reads=[(42, 0, 64)]) + call,
        'a position behind the message': raw.header(5, reads=[(400, 0, 64)]) + call,
        'positions backwards': raw.header(5, reads=[(40, 0, 64), (36, 0, 64)]) + call,
        'more than there is room for': raw.header(5, reads=[(40, 0, 2000000)]) + call,
        'lengths that overflow': raw.header(5, reads=[(40, 0, 0xfffffff0), (40, 0, 64)]) + call,
        'a truth that is neither': u32(5, 1, 9, 0, 2, 0, 0) + call,
        'an end within a segment': raw.header(5, reads=[(40, 0, 64)])[:30],
        'no message at all': raw.header(5),
    }


def test_wrong_headers_are_answered_and_the_connection_goes_on(connect):
    raw = connect()
    for name, data in wrong_headers(raw).items():
        raw.send_bytes(data)
        answer = raw.receive_answer()
        assert answer and (answer.kind, answer.xid) == (ERROR, 5) and answer.error == ERR_CHUNK, name
        assert answers(raw), f'after {name}'


def test_what_is_no_header_is_dropped(connect):
    raw = connect()
    for data in (b'', u32(5), u32(5, 1, 9), raw.header(5, kind=ERROR), raw.header(5, kind=3)):
        if data:
            raw.send_bytes(data)
        assert answers(raw)


def test_what_is_no_call_ends_the_connection_alone(connect):
    raw, other = connect(), connect()
    raw.send_bytes(raw.header(5) + u32(5, 9, 9, 9))
    assert raw.receive_answer() is None
    assert answers(other)


@pytest.fixture
def start_session(rdma, service, raw_client):
    """start_session(KIB): of a client that says that it takes messages of that size."""
    started = []

    def start(kib=None):
        started.append(RawSession(raw_client, service.address, kib=kib))
        return started[-1]

    yield start
    for session in started:
        session.connection.close()


@pytest.fixture
def session(start_session):
    return start_session()


def call(session, operations, **chunks):
    """The answer to a compound whose header has CHUNKS."""
    message = session.message(operations)
    session.connection.send_bytes(session.connection.header(session.xid, **chunks) + message)
    return session.connection.receive_answer()


@pytest.fixture
def file(session, share):
    """A file of the share: (the operations that reach it, its open state)."""
    stateid = session.compound(PUTROOTFH, lookup('tank'), lookup(share),
                               open_(b'raw', 'file', how=unchecked(0o666)))
    return [PUTROOTFH, lookup('tank'), lookup(share), lookup('file')], stateid


def next_sequence(session):
    session.numbers[0] += 1
    return session.sequence(session.numbers[0])


def test_chunks_anywhere_in_a_call(session, file, client):
    """Two WRITEs, each with its data in a read chunk and operations behind it; odd lengths."""
    reach, stateid = file
    first, second = os.urandom(601), os.urandom(2)
    session.connection.fill(first + second)
    whole = [next_sequence(session), *reach, write(stateid, 0, first), getattr_(SIZE),
             write(stateid, 601, second), getattr_(SIZE)]
    message = session.message(whole)
    one, two = message.index(first), message.index(second + bytes(2))
    inline = message[:one] + message[one + 604:two] + message[two + 4:]
    header = session.connection.header(
        session.xid, reads=[(one, 0, 300), (one, 300, 301), (two, 601, 2)])
    session.connection.send_bytes(header + inline)
    found = results(session.connection.receive(), session.xid, whole)
    assert [found[-4][0], found[-3], found[-2][0], found[-1]] == [601, 601, 2, 603]
    _, data = session.compound(*reach, read(stateid, 0, 2000))
    assert data == first + second


def test_a_call_that_is_a_chunk(session, file):
    reach, stateid = file
    whole = [next_sequence(session), *reach, write(stateid, 0, b'x' * 700), getattr_(SIZE)]
    message = session.message(whole)
    session.connection.fill(message)
    header = session.connection.header(
        session.xid, kind=NO_MESSAGE, reads=[(0, 0, 100), (0, 100, len(message) - 100)])
    session.connection.send_bytes(header)
    assert results(session.connection.receive(), session.xid, whole)[-1] == 700


def test_write_chunks_take_the_data_of_reads(session, file):
    """Two READs, two chunks and a third that stays empty; what is around them comes inline."""
    reach, stateid = file
    data = os.urandom(1501)
    session.compound(*reach, write(stateid, 0, data))
    answer = call(session, [next_sequence(session), *reach, read(stateid, 0, 1501), read(stateid, 5, 100)],
                  writes=[[(0, 1000), (1000, 1000)], [(4000, 600)], [(9000, 8)]])
    assert (answer.kind, answer.writes) == (MESSAGE, [[1000, 501], [100], [0]])
    assert session.connection.dump(4100)[:1501] == data
    assert session.connection.dump(4100)[4000:] == data[5:105]


def test_a_reply_that_has_no_room(session, file):
    reach, stateid = file
    session.compound(*reach, write(stateid, 0, os.urandom(2000)))
    asked = [*reach, read(stateid, 0, 2000)]
    answer = call(session, [next_sequence(session), *asked])
    assert (answer.kind, answer.error) == (ERROR, ERR_CHUNK)
    answer = call(session, [next_sequence(session), *asked], writes=[[(0, 1999)]])
    assert (answer.kind, answer.error) == (ERROR, ERR_CHUNK)
    answer = call(session, [next_sequence(session), *asked], reply=[(0, 3000)])
    assert answer.kind == NO_MESSAGE and 2000 < sum(answer.reply) < 3000


@pytest.mark.parametrize('kib, most', [(None, 1), (1, 1), (2, 2), (4, 4), (64, 4)])
def test_each_end_says_how_much_it_takes(start_session, share, kib, most):
    """A reply without a chunk is as long as the client takes, and the server has."""
    session = start_session(kib)
    assert session.connection.takes == 4
    reach = [PUTROOTFH, lookup('tank'), lookup(share)]
    stateid = session.compound(*reach, open_(b'raw', 'file', how=unchecked(0o666)))
    session.compound(*reach, lookup('file'), write(stateid, 0, bytes(3000)))
    session.compound(*reach, lookup('file'), write(stateid, 3000, bytes(2000)))
    asked = [*reach, lookup('file')]
    for length, kind in (((most << 10) - 300, MESSAGE), (most << 10, ERROR)):
        answer = call(session, [next_sequence(session), *asked, read(stateid, 0, length)])
        assert (answer.kind, length) == (kind, length)


def test_a_reply_is_replayed(session, file):
    reach, stateid = file
    data = os.urandom(900)
    session.compound(*reach, write(stateid, 0, data))
    session.numbers[0] += 1
    asked = [session.sequence(session.numbers[0], cache=True), *reach, read(stateid, 0, 900)]
    for _ in range(3):
        session.connection.fill(bytes(900))
        answer = call(session, asked, writes=[[(0, 900)]])
        assert answer.writes == [[900]] and session.connection.dump(900) == data


@pytest.mark.long  # to switch a tracepoint on changes the code of a kernel that runs, on which one with two processors died in QEMU
@pytest.mark.rxe  # what a post writes is known
def test_a_reply_is_posted_at_once(rdma, session, file):
    """Eight RDMA WRITEs and the message behind them are one chain."""
    reach, stateid = file
    data = os.urandom(8 * 300)
    session.compound(*reach, write(stateid, 0, data))
    with rdma.posts() as posts:
        answer = call(session, [next_sequence(session), *reach, read(stateid, 0, len(data))],
                      writes=[[(1000 * i, 300) for i in range(8)]])
    assert answer.writes == [[300] * 8] and posts.count == 1
    with rdma.posts() as posts:
        session.compound(*reach, getattr_(SIZE))
        session.compound(*reach, getattr_(SIZE))
    assert posts.count == 2


@pytest.mark.rxe  # its packets are known
def test_data_is_fetched_by_several_reads_at_once(session, file, pair):
    """The more are under way, the less a WRITE waits for the network: no answer is back before the last is asked."""
    reach, stateid = file
    server, client = pair
    data = os.urandom(8 * 4096)
    session.connection.fill(data)
    whole = [next_sequence(session), *reach, write(stateid, 0, data), getattr_(SIZE)]
    message = session.message(whole)
    at = message.index(data)
    header = session.connection.header(session.xid, reads=[(at, i * 4096, 4096) for i in range(8)])
    with server.wire('lan') as wire, client.delayed(0.5):
        session.connection.send_bytes(header + message[:at] + message[at + len(data):])
        assert results(session.connection.receive(), session.xid, whole)[-1] == len(data)
    under_way = most = 0
    for packet in wire.packets:
        under_way += packet.operation == READ_REQUEST
        under_way -= packet.operation in (READ_LAST, READ_ONLY)
        most = max(most, under_way)
    assert under_way == 0 and most == 8


def test_a_connection_takes_little_memory(rdma, connect):
    """What is large is the server's, not the connection's."""
    none = rdma.held_by_none()
    assert answers(connect())
    before = rdma.held()
    assert before.pinned - none.pinned <= ARENA_KB + SLAB_KB + CONNECTION_KB
    made = [connect() for _ in range(8)]
    assert all(answers(raw) for raw in made)
    now = rdma.held()
    assert now.pairs == before.pairs + 8
    assert now.pinned - before.pinned <= 8 * CONNECTION_KB
    assert now.threads <= before.threads + WORKERS


def test_connections_that_come_together(rdma, service, raw_client):
    """All are asked for before the first is answered."""
    made = [Raw(raw_client, service.address, wait=False) for _ in range(8)]
    for raw in made:
        raw.wait_until_connected()
    assert not any(raw.refused for raw in made) and all(answers(raw) for raw in made)
    for raw in made:
        raw.close()


def test_clients_that_do_not_wait_for_replies(rdma, connect):
    """They go while calls run: what these still post, on a queue pair that has failed, no device need complete."""
    before = rdma.held_by_none()
    for _ in range(8):
        raw = connect()
        for xid in range(32):
            raw.send(u32(xid, 0) + NULL)
        raw.close()
    rdma.wait_for(before)


def test_connections_come_and_go_in_silence(rdma, service, connect):
    before = service.lines_logged()
    for _ in range(4):
        raw = connect()
        assert answers(raw)
        raw.close()
    assert service.lines_logged() - before <= 4

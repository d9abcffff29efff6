# SPDX-License-Identifier: LGPL-3.0-or-later
"""The back channel: the server calls its clients over the connections that they have made (RFC 8167)."""

import fcntl
import sys
import time

import pytest

from harness.callback import DENIED, MAY_NOTIFY_LOCK, WRITE_LT, Callback, Contended, lock, locks_asked_for, open_told, unlock
from harness.host import wait_until
from harness.wire import OK, PUTROOTFH, lookup, u32, unchecked
from raw import ERR_CHUNK, ERROR, MESSAGE, RawSession

NULL = u32(2, 100003, 4, 0, 0, 0, 0, 0)
AGAIN = 30  # seconds after which a Linux client that is not called asks again
MAKE = unchecked(0o666)


@pytest.fixture
def connect(rdma, service, raw_client):
    """Sessions by hand, over RDMA."""
    made = []

    def connect(**options):
        made.append(RawSession(raw_client, service.address, **options))
        return made[-1]

    yield connect
    for session in made:
        session.end()


@pytest.fixture
def reach(share):
    return [PUTROOTFH, lookup('tank'), lookup(share)]


@pytest.fixture
def contended(connect, reach):
    def contended(count=1, back=True):
        return Contended(connect(), connect(back=back), reach, 'file', MAKE, count)

    return contended


def called(session):
    """The next message, which is a call of the server's."""
    answer = session.connection.receive_answer()
    call = Callback(answer.body)
    assert (answer.kind, answer.xid, answer.credits) == (MESSAGE, call.xid, 16)
    assert not answer.writes and answer.reply is None
    return call


def reply(session, xid, message, credits=16, **header):
    session.connection.send_bytes(session.connection.header(xid, credits=credits, **header) + message)


def answer(session, call, credits=16):
    reply(session, call.xid, call.answer(), credits)


def is_quiet(session):
    """Whether what comes next is the reply to what is asked now, several times."""
    raw = session.connection
    for xid in range(70, 75):
        raw.send(u32(xid, 0) + NULL)
        if raw.receive_answer().xid != xid:
            return False
    return True


def test_whoever_waits_is_called(contended):
    file = contended()
    assert file.told & MAY_NOTIFY_LOCK
    assert file.ask()[0] == DENIED and is_quiet(file.waiter)
    file.free()
    call = called(file.waiter)
    assert (call.session, call.clientid, call.owner) == (file.waiter.id, file.waiter.clientid, file.owner(0))
    answer(file.waiter, call)
    assert file.ask()[0] == OK


def test_who_cannot_be_called_is_not_told_so(contended):
    file = contended(back=False)
    assert not file.told & MAY_NOTIFY_LOCK
    assert file.ask()[0] == DENIED
    file.free()
    assert file.ask()[0] == OK


@pytest.mark.parametrize('credits', [0, 1, 2])
def test_no_more_calls_than_are_granted(contended, credits):
    """One, until the first reply has told."""
    file = contended(count=4)
    assert file.ask_all() == {DENIED}
    file.free_all()
    under_way, left = [called(file.waiter)], 3
    while under_way:
        assert is_quiet(file.waiter)
        answer(file.waiter, under_way.pop(0), credits)
        more = min(max(credits, 1) - len(under_way), left)
        under_way += [called(file.waiter) for _ in range(more)]
        left -= more
    assert left == 0 and is_quiet(file.waiter)


def test_replies_that_nobody_waits_for(contended):
    """Of calls that were never made, with chunks, and the same one several times."""
    file = contended()
    raw = file.waiter.connection
    for xid in range(20):
        raw.send_bytes(raw.header(xid) + u32(xid, 1, 0, 0, 0, 0, 0, 0, 0))
    raw.send_bytes(raw.header(4, writes=[[(0, 64)]]) + u32(4, 1, 0, 0, 0, 0, 0, 0, 0))
    assert file.ask()[0] == DENIED
    file.free()
    call = called(file.waiter)
    for _ in range(5):
        answer(file.waiter, call)
    assert file.ask()[0] == OK


def test_replies_that_are_none(contended):
    """With more results than there is room for, a long tag, chunks, or an error instead: each makes room for the next call."""
    file = contended(count=6)
    assert file.ask_all() == {DENIED}
    file.free_all()
    for how in (lambda call: reply(file.waiter, call.xid, call.answer(more=400 * Callback.one), 1),
                lambda call: reply(file.waiter, call.xid, call.answer(tag=bytes(3000)), 1),
                lambda call: reply(file.waiter, call.xid, call.answer()[:-8], 1),
                lambda call: reply(file.waiter, call.xid, call.answer(), 1, writes=[[(0, 64)]]),
                lambda call: reply(file.waiter, call.xid, u32(ERR_CHUNK), 1, kind=ERROR)):
        how(called(file.waiter))
    answer(file.waiter, called(file.waiter))
    assert file.ask_all() == {OK}


def test_replies_that_come_before_their_calls(contended):
    """The next xid is no secret."""
    count = 20
    file = contended(count=count)
    assert file.ask_all() == {DENIED}
    for i in range(count):
        for xid in range(i + 1, i + 4):
            reply(file.waiter, xid, u32(xid, 1, 0, 0, 0, 0, OK, 0, 0))
        file.free(i)
    file.waiter.reach_again()
    assert file.ask_all() == {OK}


def test_connections_that_end_while_they_are_called(rdma, contended):
    """Unanswered calls, and those that wait for them, go with their connection; the session goes on with another."""
    wait_until(lambda: rdma.held().pairs == 0, 240, 'no connection is left', interval=1)
    file = contended(count=8)
    before = rdma.held()
    assert file.ask_all() == {DENIED}
    file.free_all()
    called(file.waiter)
    file.waiter.reach_again()
    assert file.ask_all() == {OK}
    rdma.wait_for(before)


def hold(path):
    """On the client: wait for the lock, say so, hold it until there is input."""
    with open(path, 'r+b') as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        print('locked', flush=True)
        sys.stdin.readline()


def is_called(client, path, holder, reach):
    """A Linux client waits for a lock of HOLDER's, is called, and asks just once more."""
    opened, _ = holder.compound(*reach, open_told(b'holder', 'linux', MAKE))
    held = holder.compound(*reach, lookup('linux'), lock(holder, opened, b'held', 0, 1, WRITE_LT))
    before = client.call(locks_asked_for, path)
    waiter = client.spawn_call(hold, f'{path}/linux')
    wait_until(lambda: client.call(locks_asked_for, path) == before + 1, 60, 'the client asks', interval=1)
    time.sleep(5)  # one that is not to be called would ask after 1, 2, 4 seconds
    holder.compound(*reach, lookup('linux'), unlock(held, 0, 1))
    waiter.wait_for_lines(1, AGAIN - 10)
    assert client.call(locks_asked_for, path) == before + 2
    waiter.close_input()
    waiter.wait(timeout=60)


@pytest.mark.parametrize('transport', ['rdma', 'tcp'])
def test_a_linux_client_is_called(rdma, service, client, connect, mount, reach, transport):
    path = mount(transport)
    is_called(client, path, connect(), reach)


@pytest.mark.long
@pytest.mark.rxe  # as test_connections.py: test_a_network_that_is_gone_for_long
def test_a_linux_client_is_called_over_the_next_connection(rdma, service, client, connect, mount, reach):
    path = mount('rdma')
    client.run(f'echo 1 >{path}/file')
    client.lose('lan')
    try:
        wait_until(lambda: rdma.held().pairs == 0, 240, 'the connection is given up', 1)
    finally:
        client.find('lan')
    client.run(f'echo 2 >{path}/file', timeout=300)
    is_called(client, path, connect(), reach)

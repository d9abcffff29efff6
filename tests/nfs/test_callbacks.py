# SPDX-License-Identifier: LGPL-3.0-or-later
"""The server calls back whoever waits for a lock, once it is free."""

import threading
import time

import pytest

from harness.callback import DENIED, MAY_NOTIFY_LOCK, WRITE_LT, Callback, Contended
from harness.host import wait_until
from harness.protocol import RETRY_UNCACHED_REP
from harness.wire import GETFH, OK, PUTROOTFH, Connection, lookup, opaque, u32, unchecked

CB_PATH_DOWN = 1  # of SEQUENCE's flags
END = 0xffffffffffffffff

pytestmark = pytest.mark.millrace


@pytest.fixture
def contended(connect, site, volume):
    def contended(back=True, count=1, **options):
        reach = [PUTROOTFH, *map(lookup, site.pool.export(volume)[1:].split('/'))]
        return Contended(connect(), connect(back=back, **options), reach, 'file', unchecked(0o666), count)

    return contended


def test_whoever_waits_is_called(contended):
    file = contended()
    connection = file.waiter.connection
    assert file.told & MAY_NOTIFY_LOCK
    assert file.ask()[0] == DENIED
    assert connection.quiet()
    file.free()
    call = Callback(connection.receive())
    assert (call.session, call.clientid, call.owner) == (file.waiter.id, file.waiter.clientid, file.owner(0))
    assert call.handle == file.holder.compound(*file.reach, GETFH)
    connection.send(call.answer())
    assert file.ask()[0] == OK


def test_each_of_several_is_called(contended):
    """Each call on a slot of its own, answered in another order."""
    file = contended(count=5)
    connection = file.waiter.connection
    assert file.ask_all() == {DENIED}
    file.free_all()
    calls = [Callback(connection.receive()) for _ in range(5)]
    assert sorted(call.owner for call in calls) == [file.owner(i) for i in range(5)]
    assert len({call.slot for call in calls}) == 5
    for call in reversed(calls):
        connection.send(call.answer())
    assert file.ask_all() == {OK}


def test_who_cannot_be_called_is_not_told_so(contended):
    file = contended(back=False)
    assert not file.told & MAY_NOTIFY_LOCK
    assert file.ask()[0] == DENIED
    file.free()
    assert file.ask()[0] == OK


def test_what_a_lock_waits_for(contended):
    """The range in the answer is that which was asked for, each time, and nothing that lay about; the owner is no longer
    than Linux has room for."""
    file = contended()
    assert file.denied(length=END)[:2] == (0, END)
    for _ in range(3):
        offset, length, kind, clientid, owner = file.denied()
        assert (offset, length, kind, clientid) == (0, 10, WRITE_LT, 0) and owner <= 20


def test_replies_that_nobody_waits_for(contended, site):
    """Of calls that were never made, and the same one three times."""
    file = contended()
    connection = file.waiter.connection
    for xid in range(20):
        connection.send(u32(xid, 1, 0, 0, 0, 0, 0, 0, 0))
    assert file.ask()[0] == DENIED
    file.free()
    answer = Callback(connection.receive()).answer()
    for _ in range(3):
        connection.send(answer)
    assert file.ask()[0] == OK
    assert site.server.alive()


def test_replies_that_are_none(contended, site):
    """With more results than there is room for, of things that were not asked, cut off, with a long tag; and locks are
    granted all the same."""
    file = contended(count=6)
    connection = file.waiter.connection
    assert file.ask_all() == {DENIED}
    file.free_all()
    calls = [Callback(connection.receive()) for _ in range(6)]
    connection.send(calls[0].answer(more=500 * Callback.one))
    connection.send(calls[1].answer(more=Callback.one))
    connection.send(calls[2].answer(tag=bytes(8000)))
    connection.send(calls[3].answer()[:-8])
    connection.send(u32(calls[4].xid, 1, 0, 0, 0, 0, OK, 0, 1, 3, OK, 1, 0xffffffff) + opaque(bytes(1000)))  # CB_GETATTR
    connection.send(u32(calls[5].xid, 1, 1, 1, 5))  # the credential is refused
    assert file.ask_all() == {OK}
    assert site.server.alive()


def test_replies_that_come_before_their_calls(contended, site):
    """The next xid is no secret. Whatever the server makes of them, it goes on, and locks are granted."""
    count = 40
    file = contended(count=count)
    connection = file.waiter.connection
    assert file.ask_all() == {DENIED}

    def forge():
        while not done.is_set():
            for xid in range(1, count + 1):
                connection.send(u32(xid, 1, 0, 0, 0, 0, OK, 0, 0))

    done = threading.Event()
    forger = threading.Thread(target=forge)
    forger.start()
    try:
        file.free_all()
    finally:
        done.set()
        forger.join()
    connection.close()
    file.waiter.connection = Connection(site.server)
    assert file.ask_all() == {OK}
    assert site.server.alive()


def free_and_take(file, i):
    file.free(i)
    return Callback(file.waiter.connection.receive())


def test_calls_that_are_not_answered(contended, site):
    """Nor is the connection there when they expire. The slot works again: its number was not moved on."""
    file = contended(count=4)
    assert file.ask_all() == {DENIED}
    lost = free_and_take(file, 0)
    file.waiter.connection.close()
    file.waiter.connection = Connection(site.server)
    assert file.ask(0)[0] == OK
    file.waiter.bind()
    wait_until(lambda: not file.waiter.flags() & CB_PATH_DOWN, 60, 'the session has a back channel')
    time.sleep(4)  # a call that is not answered expires
    again = free_and_take(file, 1)
    assert (again.slot, again.number) == (lost.slot, lost.number)
    file.waiter.connection.send(again.answer(status=RETRY_UNCACHED_REP))
    assert file.ask(1)[0] == OK
    after = free_and_take(file, 2)
    assert (after.slot, after.number) == (lost.slot, lost.number + 1)
    file.waiter.connection.send(after.answer())
    assert file.ask(2)[0] == OK


def test_a_session_has_sixteen_slots(contended):
    """Of 20 calls that are not answered 16 are made, and nobody waits for the others."""
    file = contended(count=20, slots=64)
    connection = file.waiter.connection
    assert file.ask_all() == {DENIED}
    file.free_all()
    calls = [Callback(connection.receive()) for _ in range(16)]
    assert connection.quiet()
    for call in calls:
        connection.send(call.answer())
    assert file.ask_all() == {OK}

# SPDX-License-Identifier: LGPL-3.0-or-later
"""The server calls back whoever waits for a lock, once it is free."""

import pytest

from harness.callback import DENIED, MAY_NOTIFY_LOCK, WRITE_LT, Callback, Contended
from harness.wire import GETFH, OK, PUTROOTFH, Connection, lookup, u32, unchecked

pytestmark = pytest.mark.millrace


@pytest.fixture
def contended(connect, site, volume):
    def contended(back=True, count=1):
        reach = [PUTROOTFH, *map(lookup, site.pool.export(volume)[1:].split('/'))]
        return Contended(connect(), connect(back=back), reach, 'file', unchecked(0o666), count)

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
    assert [file.ask(i)[0] for i in range(5)] == [DENIED] * 5
    for i in range(5):
        file.free(i)
    calls = [Callback(connection.receive()) for _ in range(5)]
    assert sorted(call.owner for call in calls) == [file.owner(i) for i in range(5)]
    assert len({call.slot for call in calls}) == 5
    for call in reversed(calls):
        connection.send(call.answer())
    assert [file.ask(i)[0] for i in range(5)] == [OK] * 5


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


def test_calls_that_are_not_answered(contended, site):
    """Nor is the connection there when they expire."""
    file = contended(count=3)
    assert [file.ask(i)[0] for i in range(3)] == [DENIED] * 3
    for i in range(3):
        file.free(i)
    Callback(file.waiter.connection.receive())
    file.waiter.connection.close()
    file.waiter.connection = Connection(site.server)
    assert file.ask(1)[0] == OK
    assert site.server.alive()

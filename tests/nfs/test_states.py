# SPDX-License-Identifier: LGPL-3.0-or-later
"""Open files, locks and their stateids (RFC 8881, sections 8 and 9) with odd arguments, and what is
claimed again after a restart of the server."""

import os

import pytest

from harness.protocol import (
    BADCHAR, BADNAME, BADXDR, BAD_RANGE, BAD_STATEID, BY_HANDLE, BYPASS, CLIENTID_BUSY,
    COMPLETE_ALREADY, CURRENT,
    DENIED, EXPIRED, GARBAGE, LOCKS_HELD, NOTDIR, NO_GRACE, OLD_STATEID, READ_LOCK, RECLAIM, RECLAIM_BAD,
    WHOLE, Client, by_name, creating, destroy_clientid, destroy_session, free_stateid, lock, lock_test, open_as, reclaim_complete,
    states_of, unlock)
from harness.wire import (
    ANONYMOUS, BADHANDLE, BOTH, GETFH, GRACE, INVAL, ISDIR, LOCKED, NAMETOOLONG, NOENT,
    NOTSUPP, OK, OPENMODE, PUTROOTFH, READ, SIZE, STALE, WRITE, close, commit, downgrade,
    lookup, mkdir, opaque, putfh, read, setattr_, u32, u64, write)

pytestmark = pytest.mark.millrace


@pytest.fixture(scope='module')
def root(site):
    """The handle of a share's root; of a site that lives on."""
    site.pool.create_share('states', mode=0o777)
    maker = Client(site).ready()
    handle = maker.do(PUTROOTFH, *map(lookup, (site.pool.name, 'states')), GETFH)
    maker.close()
    return handle


def make(client, root, name, owner=b'owner', access=BOTH):
    """A new open file: its stateid and its handle."""
    stateid = client.do(putfh(root), open_as(client.clientid, owner, access=access, **creating(name)))
    return stateid, client.do(putfh(root), lookup(name), GETFH)


def numbered(stateid, number):
    return u32(number) + stateid[4:]


def number_of(stateid):
    return int.from_bytes(stateid[:4], 'big')


# --- stateids ---

def uses(stateid):
    """What is done with a stateid of an open file, and may fail with it."""
    return {
        'read': read(stateid, 0, 10), 'write': write(stateid, 0, b'odd'),
        'cut': setattr_(SIZE, u64(0), stateid), 'downgrade': downgrade(stateid, READ),
        'lock': lock(stateid, 0, 10, b'locker'), 'close': close(stateid),
    }


def test_stateids_that_are_none(newcomer, root):
    one, other = newcomer().ready(), newcomer().ready()
    mine, file = make(one, root, 'mine')
    one.do(putfh(file), write(mine, 0, b'bytes'))
    beside, _ = make(one, root, 'beside')
    theirs, _ = make(other, root, 'theirs')
    closed, _ = make(one, root, 'closed')
    one.do(putfh(root), lookup('closed'), close(closed))
    wrong = {
        'noise': os.urandom(16), 'of another file': beside, 'of another client and file': theirs,
        'from the future': numbered(mine, number_of(mine) + 7),
        'never made': mine[:12] + bytes([mine[12] ^ 0x40]) + mine[13:],
        'of a closed file': closed,
    }
    found = {(name, use): one.tell(putfh(file), operation)
             for name, stateid in wrong.items() for use, operation in uses(stateid).items()}
    odd = {key: status for key, status in found.items() if status != BAD_STATEID}
    # a client that has lost the reply may close again: nothing is closed by that
    for key in (('never made', 'close'), ('of a closed file', 'close'), ('noise', 'close')):
        assert odd.pop(key, OK) in (OK, EXPIRED)
    assert {key: status for key, status in odd.items() if status != EXPIRED} == {}
    assert one.do(putfh(file), read(mine, 0, 10)) == (True, b'bytes')


def test_a_stateid_of_another_client(newcomer, root):
    """What one client has open is not another's to use."""
    one, other = newcomer().ready(), newcomer().ready()
    mine, file = make(one, root, 'of one client')
    one.do(putfh(file), write(mine, 0, b'bytes'))
    found = {use: other.tell(putfh(file), operation) for use, operation in uses(mine).items()}
    assert found == dict.fromkeys(found, BAD_STATEID)
    assert one.do(putfh(file), read(mine, 0, 10)) == (True, b'bytes')


def test_an_old_stateid(newcomer, root):
    one = newcomer().ready()
    first, file = make(one, root, 'old', access=READ)
    second = one.do(putfh(root), open_as(one.clientid, b'owner', by_name('old'), access=WRITE))
    assert number_of(second) == number_of(first) + 1 and second[4:] == first[4:]
    found = {use: one.tell(putfh(file), operation) for use, operation in uses(first).items()}
    assert found == dict.fromkeys(found, OLD_STATEID)
    latest = numbered(first, 0)  # in 4.1 the one of now, whatever its number is
    assert one.tell(putfh(file), write(latest, 0, b'bytes')) == OK
    assert one.do(putfh(file), read(second, 0, 10)) == (True, b'bytes')


def test_special_stateids(newcomer, root):
    one = newcomer().ready()
    mine, file = make(one, root, 'special')
    assert one.tell(putfh(file), write(ANONYMOUS, 0, b'bytes')) == OK
    assert one.do(putfh(file), read(BYPASS, 0, 10)) == (True, b'bytes')
    for stateid in (ANONYMOUS, BYPASS, CURRENT, u32(2) + bytes(12), u32(5) + b'\xff' * 12):
        assert one.tell(putfh(file), close(stateid)) == BAD_STATEID
        assert one.tell(putfh(file), downgrade(stateid, READ)) == BAD_STATEID
    for stateid in (CURRENT, u32(2) + bytes(12), u32(5) + b'\xff' * 12):
        assert one.tell(putfh(file), read(stateid, 0, 10)) == BAD_STATEID
    # the current one is what the compound has opened
    again = open_as(one.clientid, b'owner', by_name('special'))
    assert one.do(putfh(root), again, read(CURRENT, 0, 10)) == (True, b'bytes')
    assert one.tell(putfh(root), again, PUTROOTFH, putfh(file), read(CURRENT, 0, 10)) == BAD_STATEID
    assert one.tell(putfh(root), again, close(CURRENT)) == OK
    assert one.tell(putfh(file), read(mine, 0, 10)) == BAD_STATEID


def test_stateids_that_are_asked_about(newcomer, root):
    one = newcomer().ready()
    first, file = make(one, root, 'asked', access=READ)
    second = one.do(putfh(root), open_as(one.clientid, b'owner', by_name('asked'), access=WRITE))
    assert one.do(states_of(second, first, os.urandom(16), ANONYMOUS, BYPASS)) == \
        [OK, OLD_STATEID, BAD_STATEID, BAD_STATEID, BAD_STATEID]
    assert one.do(states_of()) == []
    assert one.tell(free_stateid(second)) == LOCKS_HELD
    assert one.tell(free_stateid(os.urandom(16))) == BAD_STATEID
    locked = one.do(putfh(file), lock(second, 0, 10, b'locker'))
    assert one.tell(free_stateid(locked)) == LOCKS_HELD
    left = one.do(putfh(file), unlock(locked, 0, 10))
    assert one.tell(free_stateid(left)) == OK
    assert one.tell(free_stateid(left)) == BAD_STATEID
    assert one.do(states_of(left, second)) == [BAD_STATEID, OK]


def test_a_file_with_locks_is_not_closed(newcomer, root):
    """Or its locks go with it; no lock outlives its open file."""
    one, other = newcomer().ready(), newcomer().ready()
    mine, file = make(one, root, 'locked')
    locked = one.do(putfh(file), lock(mine, 0, 10, b'locker'))
    status = one.tell(putfh(file), close(mine))
    assert status in (OK, LOCKS_HELD)
    if status == LOCKS_HELD:
        one.do(putfh(file), unlock(locked, 0, WHOLE))
        one.do(putfh(file), close(mine))
    assert one.tell(putfh(file), unlock(locked, 0, 10)) == BAD_STATEID
    assert other.tell(putfh(file), lock_test(0, WHOLE, b'other')) == OK


# --- locks ---

def test_ranges_that_are_none(newcomer, root):
    one = newcomer().ready()
    mine, file = make(one, root, 'ranges')
    for start, length in ((0, 0), (10, WHOLE - 9), (WHOLE, 2), (1 << 63, 1 << 63 | 1)):
        status = one.tell(putfh(file), lock(mine, start, length, b'locker'))
        assert status in (INVAL, BAD_RANGE), (start, length)
        assert one.tell(putfh(file), lock_test(start, length, b'other')) in (INVAL, BAD_RANGE)
    locked = one.do(putfh(file), lock(mine, 5, WHOLE, b'locker'))
    assert one.tell(putfh(file), lock_test(0, 5, b'other')) == OK
    assert one.tell(putfh(file), lock_test(0, 6, b'other')) == DENIED
    assert one.tell(putfh(file), lock_test(WHOLE - 1, 1, b'other')) == DENIED
    assert one.tell(putfh(file), unlock(locked, 7, 0)) in (INVAL, BAD_RANGE)
    assert one.tell(putfh(file), unlock(locked, 0, WHOLE)) == OK
    assert one.tell(putfh(file), lock_test(0, WHOLE, b'other')) == OK


def test_locks_need_the_right_open(newcomer, root):
    one = newcomer().ready()
    mine, file = make(one, root, 'to read', access=READ)
    assert one.tell(putfh(file), lock(mine, 0, 10, b'locker')) == OPENMODE
    assert one.tell(putfh(file), lock(mine, 0, 10, b'locker', READ_LOCK)) == OK
    assert one.tell(putfh(file), lock(mine, 0, 10, b'locker', 9)) in (INVAL, BADXDR, GARBAGE)
    assert one.tell(putfh(root), lock(mine, 0, 10, b'locker', READ_LOCK)) in (ISDIR, INVAL, BAD_STATEID)
    assert one.tell(putfh(root), lock_test(0, 10, b'other')) in (ISDIR, INVAL)
    assert one.tell(putfh(file), lock(mine, 0, 10, b'second', READ_LOCK, reclaim=True)) == NO_GRACE


def test_a_lock_of_another_client_is_told(newcomer, root):
    one, other = newcomer().ready(), newcomer().ready()
    mine, file = make(one, root, 'told')
    theirs = other.do(putfh(root), open_as(other.clientid, b'owner', by_name('told')))
    one.do(putfh(file), lock(mine, 100, 50, b'locker'))
    assert other.tell(putfh(file), lock_test(149, 1, b'locker')) == DENIED
    assert other.tell(putfh(file), lock(theirs, 0, WHOLE, b'locker', READ_LOCK)) == DENIED
    assert other.tell(putfh(file), lock(theirs, 0, 100, b'locker')) == OK
    assert one.tell(putfh(file), lock_test(0, 1, b'locker')) == DENIED


def test_a_client_with_locks_does_not_go_without_them(newcomer, root):
    one, other = newcomer().ready(), newcomer().ready()
    mine, file = make(one, root, 'goodbye')
    one.do(putfh(file), lock(mine, 0, WHOLE, b'locker'))
    assert one.status(destroy_session(one.session)) == OK
    assert one.status(destroy_clientid(one.clientid)) == CLIENTID_BUSY
    assert other.tell(putfh(file), lock_test(0, WHOLE, b'other')) == DENIED
    one.close()
    assert other.tell(putfh(file), lock_test(0, WHOLE, b'other')) == OK


def test_a_client_that_has_closed_its_files_goes_at_once(newcomer, root):
    one = newcomer().ready()
    mine, file = make(one, root, 'closed at last')
    locked = one.do(putfh(file), lock(mine, 0, WHOLE, b'locker'))
    one.do(putfh(file), unlock(locked, 0, WHOLE))
    one.do(putfh(file), close(mine))
    assert one.status(destroy_session(one.session)) == OK
    assert one.status(destroy_clientid(one.clientid)) == OK


# --- opening ---

def test_opens_with_odd_arguments(newcomer, root):
    one = newcomer().ready()
    one.do(putfh(root), mkdir('directory'))
    make(one, root, 'file')
    file = one.do(putfh(root), lookup('file'), GETFH)

    def opening(name, **options):
        return open_as(one.clientid, b'owner', by_name(name), **options)

    malformed = INVAL, BADXDR, GARBAGE
    tries = {
        'no access': (malformed, root, opening('file', access=0)),
        'odd access': (malformed, root, opening('file', access=9)),
        'directory': ((ISDIR,), root, opening('directory')),
        'nameless': ((INVAL,), root, opening('')),
        'dot': ((BADNAME,), root, opening('.')),
        'dots': ((BADNAME,), root, opening('..')),
        'slash': ((BADNAME, BADCHAR), root, opening('a/b')),
        'zero': ((BADCHAR,), root, opening(b'file\0b')),
        'long': ((NAMETOOLONG,), root, opening('n' * 256, how=creating('x')['how'])),
        'missing': ((NOENT,), root, opening('missing')),
        'in a file': ((NOTDIR,), file, opening('x')),
        'odd way': (malformed, root, opening('x', how=u32(7))),
        'odd claim': (malformed, root, open_as(one.clientid, b'owner', u32(77))),
        'delegated': ((NOTSUPP, BAD_STATEID, INVAL), root, open_as(
            one.clientid, b'owner', u32(2) + bytes(16) + opaque(b'file'))),
        'delegated before': ((NOTSUPP, NOENT), root, open_as(
            one.clientid, b'owner', u32(3) + opaque(b'file'))),
        'reclaimed': ((NO_GRACE,), file, open_as(one.clientid, b'owner', u32(RECLAIM, 0))),
        'directory by handle': ((ISDIR, INVAL), root, open_as(one.clientid, b'owner', u32(BY_HANDLE))),
        'no handle': ((STALE, BADHANDLE), b'none at all', opening('file')),
    }
    found = {name: one.tell(putfh(handle), operation) for name, (_, handle, operation) in tries.items()}
    assert {name: status for name, status in found.items() if status not in tries[name][0]} == {}
    assert one.tell(putfh(file), open_as(one.clientid, b'owner', u32(BY_HANDLE))) == OK
    assert one.tell(putfh(root), lookup('x')) == NOENT


def test_owners_of_any_name(newcomer, root):
    one = newcomer().ready()
    for owner in (b'', b'o', bytes(1024), os.urandom(1024)):
        mine = one.do(putfh(root), open_as(one.clientid, owner, **creating('owned')))
        assert one.tell(putfh(root), lookup('owned'), close(mine)) == OK
    assert one.tell(putfh(root), open_as(one.clientid, bytes(1025), **creating('owned'))) != OK
    one.reconnect()
    assert newcomer().ready().tell(PUTROOTFH) == OK


def test_an_open_that_is_repeated_is_one(newcomer, root):
    """One open of an owner, however often it is opened: one CLOSE closes it."""
    one = newcomer().ready()
    first, file = make(one, root, 'repeated')
    for step in range(1, 20):
        again = one.do(putfh(root), open_as(one.clientid, b'owner', by_name('repeated')))
        assert again == numbered(first, number_of(first) + step)
    assert one.tell(putfh(file), close(again)) == OK
    assert one.tell(putfh(file), read(numbered(first, 0), 0, 1)) == BAD_STATEID


def test_a_client_that_ends_leaves_nothing(newcomer, root):
    one, other = newcomer().ready(), newcomer().ready()
    mine, file = make(one, root, 'left')
    one.do(putfh(file), lock(mine, 0, WHOLE, b'locker'))
    one.do(putfh(file), write(mine, 0, b'bytes'), commit())
    number, body, result = open_as(one.clientid, b'denier', **creating('denied'))
    one.do(putfh(root), (number, u32(0, READ, WRITE) + body[12:], result))
    denied = one.do(putfh(root), lookup('denied'), GETFH)
    assert other.tell(putfh(denied), write(ANONYMOUS, 0, b'no')) == LOCKED
    again = newcomer()  # the same client, after a restart of its own
    again.name = one.name
    again.ready()
    assert other.tell(putfh(file), lock_test(0, WHOLE, b'other')) == OK
    assert other.tell(putfh(denied), write(ANONYMOUS, 0, b'other')) == OK


# --- after a restart ---

def test_reclaim(newcomer, site, root):
    """In grace a client gets back what it had, and nobody what he had not; it ends when all have it."""
    one, other = newcomer().ready(), newcomer().ready()
    mine, file = make(one, root, 'reclaimed')
    one.do(putfh(file), lock(mine, 0, 100, b'locker'))
    one.do(putfh(file), write(mine, 0, b'bytes'), commit())
    make(other, root, 'not reclaimed')
    stranger = newcomer()
    site.server.kill9()
    site.server.start()
    for client in (one, other, stranger):
        client.reconnect()
        assert not client.session or client.tell(PUTROOTFH) != OK
        client.introduce()
    assert one.tell(putfh(file), read(mine, 0, 10)) == BAD_STATEID

    def claim(client, owner=b'owner'):
        return client.tell(putfh(file), open_as(client.clientid, owner, u32(RECLAIM, 0)))

    # nothing new for anybody
    for client in (one, other, stranger):
        assert client.tell(putfh(root), open_as(client.clientid, b'n', **creating('new'))) == GRACE
    assert claim(stranger) in (NO_GRACE, RECLAIM_BAD)
    back = one.do(putfh(file), open_as(one.clientid, b'owner', u32(RECLAIM, 0)))
    assert one.tell(putfh(file), lock(back, 0, 100, b'locker', reclaim=True)) == OK
    assert one.do(putfh(file), read(back, 0, 10)) == (True, b'bytes')
    for client in (one, other, stranger):
        client.do(reclaim_complete())
        assert client.tell(reclaim_complete()) == COMPLETE_ALREADY
        assert claim(client, b'late') in (NO_GRACE, RECLAIM_BAD)

    assert other.tell(putfh(root), open_as(other.clientid, b'owner', **creating('new'))) == OK
    assert other.tell(putfh(file), lock_test(50, 1, b'other')) == DENIED
    assert other.tell(putfh(file), lock_test(100, 1, b'other')) == OK


def test_reclaim_after_two_crashes(newcomer, site, root):
    """The second one within grace: who is known from before both is waited for once."""
    one, other = newcomer().ready(), newcomer().ready()
    _, file = make(one, root, 'twice')
    make(other, root, 'beside')
    for _ in range(2):
        site.server.kill9()
        site.server.start()
        one.reconnect()
        one.introduce()
        back = one.do(putfh(file), open_as(one.clientid, b'owner', u32(RECLAIM, 0)))
    other.reconnect()
    other.introduce()
    assert other.tell(putfh(root), open_as(other.clientid, b'owner', **creating('late'))) == GRACE
    for client in (one, other):
        client.do(reclaim_complete())
    assert other.tell(putfh(root), open_as(other.clientid, b'owner', **creating('late'))) == OK
    assert one.tell(putfh(file), write(back, 0, b'bytes')) == OK


def test_who_completes_twice_ends_nobodys_grace(newcomer, site, root):
    """A client that has reclaimed, goes, and comes back has nothing more to reclaim, and counts once."""
    one, other = newcomer().ready(), newcomer().ready()
    _, first = make(one, root, 'completed')
    _, file = make(other, root, 'awaited')
    site.server.kill9()
    site.server.start()
    one.reconnect()
    one.introduce()
    one.do(putfh(first), open_as(one.clientid, b'owner', u32(RECLAIM, 0)))
    one.do(reclaim_complete())
    one.reconnect()
    one.boot = os.urandom(8)
    for _ in range(2):
        one.ready()
        assert one.status(destroy_session(one.session)) == OK
        assert one.status(destroy_clientid(one.clientid)) == OK
    one.introduce()
    assert one.tell(putfh(first), open_as(one.clientid, b'owner', u32(RECLAIM, 0))) in (NO_GRACE, RECLAIM_BAD)
    one.do(reclaim_complete())
    assert one.tell(putfh(root), open_as(one.clientid, b'owner', **creating('early'))) == GRACE
    other.reconnect()
    other.introduce()
    back = other.do(putfh(file), open_as(other.clientid, b'owner', u32(RECLAIM, 0)))
    assert one.tell(putfh(root), open_as(one.clientid, b'owner', **creating('early'))) == GRACE
    other.do(reclaim_complete())
    assert one.tell(putfh(root), open_as(one.clientid, b'owner', **creating('late'))) == OK
    assert other.tell(putfh(file), write(back, 0, b'bytes')) == OK

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Who may reclaim what it had after a restart (RFC 8881, section 8.4.3): the pool knows, and nothing else."""

import os
import shutil
import signal
import time

import pytest

from harness import held
from harness.host import wait_until
from harness.protocol import (
    BY_HANDLE, BYPASS, DENIED, NO_GRACE, RECLAIM, RECLAIM_BAD, Client, by_name, create_session, creating, exchange_id, lock,
    open_as, reclaim_complete)
from harness.server import LEASE
from harness.wire import (
    ANONYMOUS, BOTH, DELAY, GETFH, GRACE, LOCKED, OK, PUTROOTFH, READ, SERVERFAULT, SHARE_DENIED, WRITE, Connection, lookup, putfh,
    read, u32, write)

pytestmark = pytest.mark.millrace

GRACE_PERIOD = LEASE * 3 / 2


@pytest.fixture(scope='module')
def root(site):
    site.pool.create_share('states', mode=0o777)
    maker = Client(site).ready()
    handle = maker.do(PUTROOTFH, *map(lookup, (site.pool.name, 'states')), GETFH)
    maker.close()
    return handle


def make(client, root, name):
    """A new open file: its stateid and its handle."""
    stateid = client.do(putfh(root), open_as(client.clientid, b'owner', **creating(name)))
    return stateid, client.do(putfh(root), lookup(name), GETFH)


def create(client, root, name):
    return client.tell(putfh(root), open_as(client.clientid, b'new owner', **creating(name)))


def come_back(client, source=None):
    """After a restart, from the address SOURCE, as far as that the client may reclaim."""
    client.connection.close()
    client.connection = Connection(client.site.server, source=source)
    client.introduce()


def claim(client, file):
    return putfh(file), open_as(client.clientid, b'owner', u32(RECLAIM, 0))


def crash(site):
    site.server.kill9()
    site.server.start()


def test_the_devices_are_enough(newcomer, site, root):
    one = newcomer().ready()
    mine, file = make(one, root, 'kept')
    one.do(putfh(file), lock(mine, 0, 10, b'locker'))
    site.server.kill9()
    for place in (site.pool.state_dir, site.pool.run_dir):
        shutil.rmtree(place)
        os.mkdir(place)
    site.pool.verb('pool', 'import', site.pool.name, '--device-dir', site.pool.device_dir)
    site.server.start()
    come_back(one)
    assert create(one, root, 'early') == GRACE
    back = one.do(*claim(one, file))
    assert one.tell(putfh(file), lock(back, 0, 10, b'locker', reclaim=True)) == OK
    one.do(reclaim_complete())
    assert create(one, root, 'late') == OK


def test_from_another_address(newcomer, site, root):
    one = newcomer().ready()
    _, file = make(one, root, 'moved')
    crash(site)
    come_back(one, '127.0.0.77')
    assert one.tell(*claim(one, file)) == OK
    one.do(reclaim_complete())


def test_by_another_family_of_addresses(newcomer, site, root):
    """The server's address may have become one of IPv6, and the client's with it."""
    one = newcomer().ready()
    mine, file = make(one, root, 'families')
    one.do(putfh(file), lock(mine, 0, 10, b'locker'))
    before, site.server.address = site.server.address, '::1'
    try:
        crash(site)
        come_back(one)
        back = one.do(*claim(one, file))
        assert one.tell(putfh(file), lock(back, 0, 10, b'locker', reclaim=True)) == OK
        one.do(reclaim_complete())
        one.connection.close()
    finally:
        site.server.address = before
        crash(site)


def test_who_was_answered_is_recorded(newcomer, site, root):
    """Each is waited for, also who has nothing yet."""
    known = [newcomer().ready() for _ in range(8)]
    crash(site)
    for client in known:
        come_back(client)
        assert create(client, root, 'early') == GRACE
        client.do(reclaim_complete())
    assert create(known[0], root, 'when all are there') == OK


def test_who_cannot_be_recorded_is_refused(newcomer, site, root):
    """The pool takes no name without a byte: such a client is never confirmed, also when it asks again, and harms nobody."""
    known, nameless = newcomer().ready(), newcomer()
    _, file = make(known, root, 'beside')
    for _ in range(3):
        clientid, number, _ = nameless.call(exchange_id(b'', nameless.boot))[0]
        assert [nameless.status(create_session(clientid, number)) for _ in range(2)] == [SERVERFAULT] * 2
    assert create(known, root, 'at once') == OK
    crash(site)
    come_back(known)
    known.do(*claim(known, file))
    known.do(reclaim_complete())  # nobody else is waited for
    assert create(newcomer().ready(), root, 'another') == OK


def test_who_has_left_is_not_waited_for(newcomer, site, root):
    leaver = Client(site).ready()
    make(leaver, root, 'left')
    leaver.close()
    crash(site)
    assert create(newcomer().ready(), root, 'at once') == OK


def test_who_stayed_away_has_lost_it(newcomer, site, root):
    """The grace period has ended without it: others may have what it had, also after the next crash."""
    away, there = newcomer().ready(), newcomer().ready()
    _, lost = make(away, root, 'lost')
    _, file = make(there, root, 'had')
    crash(site)
    come_back(there)
    there.do(*claim(there, file))
    there.do(reclaim_complete())
    wait_until(lambda: create(there, root, 'after grace') == OK, 3 * LEASE, 'grace ends', interval=1)
    come_back(away)  # and is cut off again, before it has said that it has nothing to reclaim
    crash(site)
    for client in (away, there):
        come_back(client)
    assert away.tell(*claim(away, lost)) in (NO_GRACE, RECLAIM_BAD)
    assert there.tell(*claim(there, file)) == OK
    for client in (away, there):
        client.do(reclaim_complete())


def test_who_has_not_reclaimed_has_lost_it(newcomer, site, root):
    """It came back in the grace period, and was cut off before it could: others may have what it had, also after the next crash
    (RFC 8881, section 8.4.3, the second edge condition). As long as that period lasts nobody has, also after a crash."""
    cut, other = newcomer().ready(), newcomer().ready()
    mine, file = make(cut, root, 'not reclaimed')
    cut.do(putfh(file), lock(mine, 0, 10, b'locker'))
    for _ in range(2):
        crash(site)
        come_back(cut)
    assert cut.tell(*claim(cut, file)) == OK
    crash(site)
    for client in (cut, other):
        come_back(client)
    other.do(reclaim_complete())
    assert site.pool.ask('serve', site.pool.name, '--end-grace')['grace_ended'] is True
    his = other.do(putfh(file), open_as(other.clientid, b'owner', u32(BY_HANDLE)))
    other.do(putfh(file), lock(his, 0, 10, b'locker'))
    crash(site)
    for client in (cut, other):
        come_back(client)
    assert cut.tell(*claim(cut, file)) in (NO_GRACE, RECLAIM_BAD)
    back = other.do(*claim(other, file))
    assert other.tell(putfh(file), lock(back, 0, 10, b'locker', reclaim=True)) == OK
    for client in (cut, other):
        client.do(reclaim_complete())


def test_nobody_reads_without_an_open_before_grace_ends(newcomer, site, root):
    """Who is still away may have denied it."""
    away, other = newcomer().ready(), newcomer().ready()
    away.do(putfh(root), open_as(away.clientid, b'owner', deny=BOTH, **creating('denied')))
    file = away.do(putfh(root), lookup('denied'), GETFH)
    crash(site)
    come_back(other)
    for stateid in (ANONYMOUS, BYPASS):
        assert other.tell(putfh(file), read(stateid, 0, 10)) == GRACE
    assert other.tell(putfh(file), write(ANONYMOUS, 0, b'early')) == GRACE
    come_back(away)
    assert away.tell(putfh(file), open_as(away.clientid, b'owner', u32(RECLAIM, 0), deny=BOTH)) == OK
    for client in (away, other):
        client.do(reclaim_complete())
    assert other.tell(putfh(file), read(ANONYMOUS, 0, 10)) == LOCKED


def test_a_dataset_is_read_while_grace_lasts(newcomer, site, root, tmp_path):
    """Nobody can have had anything of it that another is to wait for."""
    (tmp_path / 'file').write_bytes(b'sealed')
    site.pool.ingest('still', tmp_path)
    away, one = newcomer().ready(), newcomer().ready()
    file = one.do(PUTROOTFH, *map(lookup, (site.pool.name, 'still', 'file')), GETFH)
    crash(site)
    come_back(one)
    assert create(one, root, 'early') == GRACE  # for `away`
    assert one.tell(putfh(file), read(ANONYMOUS, 0, 6)) == OK
    opened = one.do(putfh(file), open_as(one.clientid, b'reader', u32(BY_HANDLE), access=READ))
    assert one.tell(putfh(file), read(opened, 0, 6)) == OK
    come_back(away)
    for client in (away, one):
        client.do(reclaim_complete())


def test_behind_what_it_has_said_nothing_is_reclaimed(newcomer, site, root):
    """As it is with opens, while grace lasts for others."""
    away, one = newcomer().ready(), newcomer().ready()
    mine, file = make(one, root, 'its own')
    one.do(putfh(file), lock(mine, 0, 10, b'locker'))
    crash(site)
    come_back(one)
    back = one.do(*claim(one, file))
    one.do(reclaim_complete())
    assert one.tell(putfh(file), lock(back, 0, 10, b'locker', reclaim=True)) == NO_GRACE
    assert one.tell(*by_handle(one, file)) == GRACE  # for `away`
    come_back(away)
    away.do(reclaim_complete())
    assert one.tell(*by_handle(one, file)) == OK


@pytest.mark.parametrize('locks', [False, True], ids=['open', 'lock'])
def test_what_is_reclaimed_as_grace_ends(newcomer, site, root, locks):
    """While the request waits for its turn another may have got it, and given it back."""
    away, one = newcomer().ready(), newcomer().ready()
    mine, file = make(one, root, f'late {locks}')
    one.do(putfh(file), lock(mine, 0, 10, b'locker'))
    crash(site)
    come_back(one)
    late = claim(one, file)
    if locks:
        back = one.do(*late)
        late = putfh(file), lock(back, 0, 10, b'new locker', reclaim=True)
    with held.at(site.server, 'create_nfs4_owner' if locks else 'open4_ex', 'nfs_lift_grace()'):
        assert one.tell(*late) == NO_GRACE
    come_back(away)
    for client in (away, one):
        client.do(reclaim_complete())


def by_handle(client, file):
    return putfh(file), open_as(client.clientid, b'owner', u32(BY_HANDLE))


def test_what_is_given_before_it_has_said_so_is_on_record(newcomer, site, root):
    """Linux may open by handle, and lock, and say RECLAIM_COMPLETE never: where the server ends while it recovers without grace."""
    maker, opens, locks = newcomer().ready(), newcomer(), newcomer().ready()
    _, file = make(maker, root, 'given')
    _, other = make(locks, root, 'locked')
    assert opens.introduce().tell(*by_handle(opens, file)) == OK
    crash(site)
    for client in (maker, opens, locks):
        come_back(client)
    assert opens.tell(*claim(opens, file)) == OK
    back = locks.do(*claim(locks, other))
    for client in (maker, opens):
        client.do(reclaim_complete())
    assert site.pool.ask('serve', site.pool.name, '--end-grace')['grace_ended'] is True  # `locks` has lost its record
    assert locks.tell(putfh(other), lock(back, 0, 10, b'locker')) == OK
    crash(site)
    for client in (maker, opens, locks):
        come_back(client)
    back = locks.do(*claim(locks, other))
    assert locks.tell(putfh(other), lock(back, 0, 10, b'locker', reclaim=True)) == OK
    for client in (maker, opens, locks):
        client.do(reclaim_complete())


def test_grace_begins_when_volumes_are_loaded(newcomer, site, root):
    """That may take longer than it. Both of its beginnings are in the log: before, so that nobody is given anything, and behind it."""
    one = newcomer().ready()
    site.server.kill9()
    before = os.path.getsize(site.server.log)
    site.server.start()
    with open(site.server.log) as file:
        file.seek(before)
        assert file.read().count('NFS Server Now IN GRACE') == 2
    come_back(one)
    one.do(reclaim_complete())


def test_grace_stands_still_with_the_server(newcomer, site, root):
    """Also to who is the first to ask when it goes on."""
    other, one = newcomer().ready(), newcomer().ready()
    _, file = make(one, root, 'paused')
    crash(site)
    for client in (other, one):
        come_back(client)
    site.server.signal(signal.SIGSTOP)
    time.sleep(GRACE_PERIOD + 5)
    site.server.signal(signal.SIGCONT)
    other.do(reclaim_complete())
    assert one.tell(*claim(one, file)) == OK
    one.do(reclaim_complete())


def test_an_admin_ends_grace(newcomer, site, root):
    """Without waiting for who stays away, and that one has lost what it had."""
    away, there = newcomer().ready(), newcomer().ready()
    _, lost = make(away, root, 'ended')
    crash(site)
    come_back(there)
    there.do(reclaim_complete())
    assert create(there, root, 'not yet') == GRACE
    assert site.pool.ask('serve', site.pool.name, '--end-grace')['grace_ended'] is True
    assert create(there, root, 'now') == OK
    come_back(away)
    assert away.tell(*claim(away, lost)) in (NO_GRACE, RECLAIM_BAD)
    away.do(reclaim_complete())
    assert site.pool.ask('serve', site.pool.name, '--end-grace')['grace_ended'] is False


def test_what_was_given_to_another_is_his(newcomer, site, root):
    """The first one's lease has ended, and his record with it, before the lock was the second one's."""
    silent, other = newcomer().ready(), newcomer().ready()
    mine, file = make(silent, root, 'contended')
    silent.do(putfh(file), lock(mine, 0, 10, b'locker'))
    his = other.do(putfh(file), open_as(other.clientid, b'owner', u32(BY_HANDLE)))

    def is_given():
        status = other.tell(putfh(file), lock(his, 0, 10, b'locker'))
        assert status in (OK, DENIED)
        return status == OK

    wait_until(is_given, 4 * LEASE, 'the lock is free', interval=1)
    come_back(silent)  # and is cut off again, before it has said that it has nothing to reclaim
    crash(site)
    for client in (silent, other):
        come_back(client)
    assert silent.tell(*claim(silent, file)) in (NO_GRACE, RECLAIM_BAD)
    back = other.do(*claim(other, file))
    assert other.tell(putfh(file), lock(back, 0, 10, b'locker', reclaim=True)) == OK
    for client in (silent, other):
        client.do(reclaim_complete())


def test_what_a_silent_client_denies_to_others_ends(newcomer, root):
    """Behind its lease, when another wants it: by name, by handle, or beside what he has."""
    other = newcomer().ready()
    for name in ('named', 'held', 'raised'):
        silent = newcomer().ready()
        silent.do(putfh(root), open_as(silent.clientid, b'owner', deny=WRITE, **creating(name)))
    held, raised = [other.do(putfh(root), lookup(name), GETFH) for name in ('held', 'raised')]
    other.do(putfh(raised), open_as(other.clientid, b'owner', u32(BY_HANDLE), access=READ))

    def open_status(place, what):
        status = other.tell(putfh(place), open_as(other.clientid, b'owner', what))
        assert status in (OK, SHARE_DENIED, DELAY)
        return status

    wants = ((root, by_name('named')), (held, u32(BY_HANDLE)), (raised, u32(BY_HANDLE)))
    for wanted in wants:
        assert open_status(*wanted) == SHARE_DENIED
    for wanted in wants:
        wait_until(lambda wanted=wanted: open_status(*wanted) == OK, 4 * LEASE, 'it may be opened', interval=1)

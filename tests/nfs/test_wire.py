# SPDX-License-Identifier: LGPL-3.0-or-later
"""What a Linux client never sends, sent by hand: NFSv4.1 compounds (RFC 8881) over TCP."""

import os
import threading

import pytest

from harness.host import wait_until
from harness.wire import (
    ACCESS, ANONYMOUS, BADHANDLE, BLOCK, BOTH, CHANGE, CHARACTER, EXIST, FBIG, FIFO, FILE_SYNC,
    GETFH, GROUP, INVAL, LOCKED, MODE, NOENT, NOTSUPP, NUMLINKS, OK, OPENMODE, PERM, READ, ROFS,
    SAVEFH, SHARE_DENIED, SIZE, SOCKET, STALE, UNSTABLE, USED, WRITE, bitmap, close,
    commit, cutting, downgrade, exclusive, getattr_, guarded, link, lookup, mkdir, mknod, opaque,
    open_, putfh, read, read_plus, remove, rename, setattr_, u32, u64, unchecked, write)

pytestmark = pytest.mark.millrace


# --- handles ---

def test_a_handle_opens_nothing_in_another_volume(connect, volume, site):
    site.pool.create_share('other', mode=0o777)
    session = connect()
    here, there = session.root(volume), session.root('other')
    file = session.create(here, 'secret', b'secret')
    assert len(here) == len(there) == len(file)
    head = next(n for n in range(len(here)) if here[n] != there[n]) + 2  # behind the export's id
    for forged in (there[:head] + here[head:], there[:head] + file[head:]):
        assert forged not in (here, there, file)
        assert session.status(putfh(forged), getattr_(SIZE)) in (STALE, BADHANDLE)
        assert session.status(putfh(forged), read(ANONYMOUS, 0, 6)) in (STALE, BADHANDLE)
    assert session.compound(putfh(file), read(ANONYMOUS, 0, 6)) == (True, b'secret')
    site.pool.destroy_share('other')


def test_any_broken_handle_is_refused(connect, volume):
    session = connect()
    file = session.create(session.root(volume), 'file', b'bytes')
    for bit in range(8 * len(file)):
        broken = bytearray(file)
        broken[bit // 8] ^= 1 << bit % 8
        if bit // 8 == 1:  # ganesha's own flags, which mean nothing here
            continue
        # the last 8 bytes are an inode's number
        allowed = (STALE, BADHANDLE) if bit // 8 < len(file) - 8 else (STALE, BADHANDLE, OK)
        assert session.status(putfh(bytes(broken)), getattr_(SIZE)) in allowed, f'bit {bit}'
    for length in range(len(file)):
        assert session.status(putfh(file[:length]), getattr_(SIZE)) != OK, f'{length} bytes'
    for more in (1, 16, 128 - len(file)):
        assert session.status(putfh(file + bytes(more)), getattr_(SIZE)) != OK, f'{more} more'
    assert session.compound(putfh(file), getattr_(SIZE)) == 5


def test_a_handle_holds_over_restarts(connect, volume, site):
    session = connect()
    file = session.create(session.root(volume), 'file', b'bytes')
    site.server.restart()
    session.connect()
    assert session.compound(putfh(file), read(ANONYMOUS, 0, 100)) == (True, b'bytes')
    session.kill9()
    assert session.compound(putfh(file), read(ANONYMOUS, 0, 100)) == (True, b'bytes')


def test_a_handle_of_a_removed_file_is_stale(connect, volume):
    session = connect()
    root = session.root(volume)
    session.compound(putfh(root), mkdir('gone'))
    handle = session.compound(putfh(root), lookup('gone'), GETFH)
    session.compound(putfh(root), remove('gone'))
    assert session.status(putfh(handle), getattr_(SIZE)) == STALE


# --- opening ---

def test_share_reservations(connect, volume):
    session = connect()
    root = session.root(volume)
    file = session.create(root, 'file', b'bytes')
    one, two = b'one', b'two'
    session.compound(putfh(root), remove('file'))
    file = session.compound(putfh(root), open_(one, 'file', READ, how=unchecked()), GETFH)
    mine = session.compound(putfh(root), open_(one, 'file', READ, deny=WRITE))
    assert session.status(putfh(root), open_(two, 'file', WRITE)) == SHARE_DENIED
    assert session.status(putfh(root), open_(two, 'file', READ, deny=READ)) == SHARE_DENIED
    assert session.status(putfh(file), write(ANONYMOUS, 0, b'no')) == LOCKED
    assert session.status(putfh(file), setattr_(SIZE, u64(9))) == LOCKED
    theirs = session.compound(putfh(root), open_(two, 'file', READ))
    session.compound(putfh(file), close(mine))
    assert session.status(putfh(file), write(ANONYMOUS, 0, b'yes')) == OK
    assert session.status(putfh(root), open_(one, 'file', WRITE, deny=READ)) == SHARE_DENIED
    session.compound(putfh(file), close(theirs))
    mine = session.compound(putfh(root), open_(one, 'file', WRITE, deny=READ))
    assert session.status(putfh(file), read(ANONYMOUS, 0, 9)) == LOCKED
    session.compound(putfh(file), close(mine))
    assert session.compound(putfh(file), read(ANONYMOUS, 0, 9)) == (True, b'yes')


def test_what_a_downgrade_gives_up_is_gone(connect, volume):
    mine, theirs = connect(), connect()
    here = putfh(mine.root(volume))
    mine.compound(here, open_(b'o', 'file', READ, how=unchecked()))
    both = mine.compound(here, open_(b'o', 'file', WRITE))
    file = mine.compound(here, lookup('file'), GETFH)
    assert mine.status(putfh(file), write(both, 0, b'bytes')) == OK
    left = mine.compound(putfh(file), downgrade(both, READ))
    theirs.compound(here, open_(b'p', 'file', READ, WRITE))
    assert mine.status(putfh(file), write(left, 0, b'lost')) == OPENMODE
    assert mine.status(putfh(file), setattr_(SIZE, u64(0), left)) == OPENMODE
    assert mine.compound(putfh(file), read(left, 0, 10)) == (True, b'bytes')
    assert mine.status(putfh(file), downgrade(left, WRITE)) == INVAL


def test_a_downgrade_needs_no_permission(connect, volume):
    owner, root = connect(uid=1000), connect()
    here = putfh(root.root(volume))
    owner.compound(here, open_(b'o', 'file', READ, how=unchecked()))
    both = owner.compound(here, open_(b'o', 'file', BOTH))
    file = owner.compound(here, lookup('file'), GETFH)
    root.compound(putfh(file), setattr_(MODE, u32(0)))
    assert owner.status(putfh(file), downgrade(both, READ)) == OK


@pytest.mark.parametrize('name', ('file', 'another name'))
def test_cutting_a_file_is_writing_to_it(connect, volume, site, name):
    session, other = connect(), connect()
    root = session.root(volume)
    file = session.create(root, 'file', b'bytes')
    session.compound(putfh(file), SAVEFH, putfh(root), link('another name'))
    site.server.restart()  # which knows no names then
    session.connect(), other.connect()
    mine = session.compound(putfh(root), open_(b'mine', 'file', BOTH, deny=WRITE))
    for access in (READ, WRITE):
        cut = open_(b'theirs', name, access, how=cutting())
        assert other.status(putfh(root), cut) == SHARE_DENIED
        assert session.compound(putfh(file), read(mine, 0, 9)) == (True, b'bytes')
    session.compound(putfh(file), close(mine))
    assert other.status(putfh(root), cut) == OK
    assert session.compound(putfh(file), getattr_(SIZE)) == 0
    assert session.compound(putfh(file), read(ANONYMOUS, 0, 9)) == (True, b'')


def test_an_exclusive_create_is_known_again(connect, volume, site):
    verifier, other = b'verifier', b'\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8'
    session = connect()
    root = session.root(volume)
    for name, mine in (('one', verifier), ('two', other)):
        create = open_(b'owner', name, how=exclusive(mine))
        assert session.status(putfh(root), create) == OK
        assert session.status(putfh(root), create) == OK
        assert session.status(putfh(root), open_(b'owner', name, how=exclusive(b'another!'))) == EXIST
        assert session.status(putfh(root), open_(b'owner', name, how=guarded())) == EXIST
    session.kill9()
    for name, mine in (('one', verifier), ('two', other)):
        assert session.status(putfh(root), open_(b'owner', name, how=exclusive(mine))) == OK
        assert session.status(putfh(root), open_(b'owner', name, how=exclusive(b'another!'))) == EXIST


def test_an_open_file_lives_on_without_a_name(connect, volume):
    session = connect()
    root = session.root(volume)
    stateid = session.compound(putfh(root), open_(b'owner', 'file', how=unchecked()))
    file = session.compound(putfh(root), lookup('file'), GETFH)
    data = os.urandom(1 << 20)
    session.compound(putfh(file), write(stateid, 0, data))
    session.compound(putfh(root), remove('file'))
    assert session.status(putfh(root), lookup('file')) == NOENT
    session.compound(putfh(file), commit())
    assert session.compound(putfh(file), getattr_(NUMLINKS)) == 0
    assert session.compound(putfh(file), read(stateid, 0, 1 << 20)) == (True, data)
    session.compound(putfh(file), close(stateid))
    assert session.status(putfh(file), getattr_(SIZE)) == STALE


# --- reading and writing ---

def test_reads_at_the_end_and_of_nothing(connect, volume):
    session = connect()
    file = session.create(session.root(volume), 'file', b'0123456789')

    def get(offset, length):
        return session.compound(putfh(file), read(ANONYMOUS, offset, length))

    assert get(0, 10) == (True, b'0123456789')
    assert get(0, 9) == (False, b'012345678')
    assert get(7, 100) == (True, b'789')
    assert get(10, 1) == get(11, 4096) == get(1 << 62, 1) == (True, b'')
    for offset in ((1 << 63) - 1, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1):
        assert get(offset, 4096) == (True, b'')
    assert get(3, 0)[1] == b''


def test_a_write_of_nothing_changes_nothing(connect, volume):
    session = connect()
    file = session.create(session.root(volume), 'file', b'bytes')
    before = session.compound(putfh(file), getattr_(CHANGE))
    assert session.compound(putfh(file), write(ANONYMOUS, 100, b'', FILE_SYNC))[0] == 0
    assert session.compound(putfh(file), getattr_(SIZE)) == 5
    assert session.compound(putfh(file), getattr_(CHANGE)) == before


def test_a_stable_write_outlives_kill9(connect, volume, site):
    session = connect()
    file = session.create(session.root(volume), 'file')
    data = os.urandom(100000)
    count, stable, _ = session.compound(putfh(file), write(ANONYMOUS, 17, data, FILE_SYNC))
    assert (count, stable) == (len(data), FILE_SYNC)
    session.kill9()
    assert session.compound(putfh(file), read(ANONYMOUS, 17, 200000)) == (True, data)


def test_the_write_verifier_changes_with_the_server(connect, volume, site):
    session = connect()
    file = session.create(session.root(volume), 'file')
    _, stable, first = session.compound(putfh(file), write(ANONYMOUS, 0, b'x'))
    assert stable == UNSTABLE
    assert session.compound(putfh(file), commit()) == first
    assert session.compound(putfh(file), write(ANONYMOUS, 0, b'x'))[2] == first
    session.kill9()
    assert session.compound(putfh(file), commit()) != first


def test_the_space_that_a_file_uses(connect, volume):
    """Also where the cache keeps what was shown before the bytes had their place."""
    session = connect()
    root = session.root(volume)
    small, sparse = session.create(root, 'small'), session.create(root, 'sparse')

    def used(file, *change):
        return session.compound(putfh(file), *change, getattr_(USED))

    assert used(small) == 0
    assert used(small, write(ANONYMOUS, 0, b'y' * 100)) == 4096
    assert used(small, commit()) == 4096
    used(sparse, setattr_(SIZE, u64(1 << 30)))
    assert used(sparse, write(ANONYMOUS, 0, b'q' * 102400, FILE_SYNC)) == 102400
    assert used(sparse, write(ANONYMOUS, 0, b'r' * 102400, FILE_SYNC)) >= 102400
    assert used(sparse) == 102400
    for n in range(700):
        session.compound(putfh(sparse), write(ANONYMOUS, n * 16384, b'q' * 5000))
    session.compound(putfh(sparse), commit())
    assert used(sparse, setattr_(SIZE, u64(10))) == 4096
    session.compound(putfh(sparse), setattr_(SIZE, u64(0)))
    wait_until(lambda: used(sparse) == 0, 60, 'nothing is left')


def test_read_plus_is_not_there(connect, volume):
    session = connect(minor=2)
    file = session.create(session.root(volume), 'file', b'bytes')
    assert session.status(putfh(file), read_plus(ANONYMOUS, 0, 5)) == NOTSUPP
    assert session.compound(putfh(file), read(ANONYMOUS, 0, 5)) == (True, b'bytes')


def test_files_end_at_2_to_the_62(connect, volume):
    session = connect()
    file = session.create(session.root(volume), 'file')
    end = 1 << 62
    assert session.compound(putfh(file), write(ANONYMOUS, end - 1, b'z', FILE_SYNC))[0] == 1
    assert session.compound(putfh(file), read(ANONYMOUS, end - 3, 9)) == (True, b'\0\0z')
    for offset in (end, end - 1, (1 << 63) - 1, (1 << 64) - 1):
        assert session.status(putfh(file), write(ANONYMOUS, offset, b'zz')) == FBIG
    assert session.compound(putfh(file), getattr_(SIZE)) == end


def test_a_file_is_made_with_its_size_or_not_at_all(connect, volume):
    session = connect()
    here = putfh(session.root(volume))

    def sized(size):
        return u32(0) + bitmap(SIZE) + opaque(u64(size))

    assert session.status(here, open_(b'o', 'large', how=sized((1 << 62) + 1))) == FBIG
    assert session.status(here, lookup('large')) == NOENT
    session.compound(here, open_(b'o', 'file', how=sized(100000)))
    assert session.compound(here, lookup('file'), getattr_(SIZE)) == 100000
    assert session.compound(here, lookup('file'), read(ANONYMOUS, 99990, 20)) == (True, bytes(10))


# --- permission ---

def test_nothing_changes_in_a_dataset_whatever_its_rule_says(connect, site, tmp_path):
    (tmp_path / 'file').write_bytes(b'bytes')
    (tmp_path / 'directory').mkdir()
    site.pool.ingest('sealed', tmp_path, clients='*:rw')
    session = connect()
    root = session.root('sealed')
    file = session.compound(putfh(root), lookup('file'), GETFH)
    here, there = putfh(root), putfh(file)
    changes = {
        'open': [here, open_(b'owner', 'file', WRITE)],
        'create': [here, open_(b'owner', 'new', how=unchecked())],
        'mkdir': [here, mkdir('new')],
        'remove': [here, remove('file')],
        'rename': [here, SAVEFH, here, rename('file', 'new')],
        'link': [there, SAVEFH, here, link('new')],
        'mode': [there, setattr_(MODE, u32(0o777))],
        'size': [there, setattr_(SIZE, u64(0))],
        'write': [there, write(ANONYMOUS, 0, b'no')],
    }
    assert {name: session.status(*change) for name, change in changes.items()} == \
        dict.fromkeys(changes, ROFS)
    assert session.compound(there, read(ANONYMOUS, 0, 9)) == (True, b'bytes')


def test_names_belong_to_who_may_write_the_directory(connect, volume):
    root_user, user, other = connect(), connect(uid=1000), connect(uid=1001)
    root = root_user.root(volume)
    user.compound(putfh(root), mkdir('mine'))
    mine = user.compound(putfh(root), lookup('mine'), GETFH)
    user.create(mine, 'file')
    file = user.compound(putfh(mine), lookup('file'), GETFH)
    other.create(root, 'theirs')
    here, there = putfh(mine), putfh(root)
    tries = {
        'create': [here, open_(b'owner', 'new', how=unchecked())],
        'mkdir': [here, mkdir('new')],
        'remove': [here, remove('file')],
        'rename away': [here, SAVEFH, there, rename('file', 'stolen')],
        'rename into': [there, SAVEFH, here, rename('theirs', 'new')],
        'rename over': [there, SAVEFH, here, rename('theirs', 'file')],
        'link into': [putfh(file), SAVEFH, here, link('new')],
    }
    assert {name: other.status(*operations) for name, operations in tries.items()} == \
        dict.fromkeys(tries, ACCESS)
    assert other.status(here, open_(b'owner', 'file', READ, how=unchecked())) == OK
    assert other.status(here, open_(b'owner', 'file', WRITE, how=unchecked())) == ACCESS


def test_devices_and_what_belongs_to_others_are_made_by_root_alone(connect, volume, site):
    admin, user = connect(), connect(uid=1000)
    root = admin.root(volume)
    here = putfh(root)
    tries = {
        'block': mknod('block', BLOCK),
        'character': mknod('character', CHARACTER),
        'owner': mkdir('owner', owner=0),
        'group': mkdir('group', group=0),
        'fifo': mknod('fifo', FIFO, owner=1001),
        'file': open_(b'owner', 'file', how=unchecked(owner=1001)),
    }
    none = dict.fromkeys(tries, NOENT)

    def found():
        return {name: admin.status(here, lookup(name)) for name in tries}

    assert {name: user.status(here, made) for name, made in tries.items()} == \
        dict.fromkeys(tries, PERM)
    assert found() == none
    site.pool.set('share', volume, 'nfs.squash', 'root')
    assert {name: admin.status(here, made) for name, made in tries.items()} == \
        dict.fromkeys(tries, PERM)
    assert found() == none
    for made in (mkdir('mine', owner=1000, group=1000), mknod('pipe', FIFO), mknod('plug', SOCKET)):
        assert user.status(here, made) == OK
    site.pool.set('share', volume, 'nfs.squash', 'none')
    assert {name: admin.status(here, made) for name, made in tries.items()} == \
        dict.fromkeys(tries, OK)


def test_a_set_gid_directory_gives_its_group_and_not_its_privilege(connect, volume):
    admin, user = connect(), connect(uid=1000)
    root = admin.root(volume)
    admin.compound(putfh(root), mkdir('theirs', 0o777))
    theirs = admin.compound(putfh(root), lookup('theirs'), GETFH)
    admin.compound(putfh(theirs), setattr_(GROUP, opaque(b'5000')))
    admin.compound(putfh(theirs), setattr_(MODE, u32(0o2777)))

    def mode(session, name, made):
        session.compound(putfh(theirs), made)
        return session.compound(putfh(theirs), lookup(name), getattr_(MODE))

    assert mode(user, 'file', open_(b'owner', 'file', how=unchecked(0o2755))) == 0o755
    assert mode(user, 'fifo', mknod('fifo', FIFO, 0o2755)) == 0o755
    assert mode(user, 'directory', mkdir('directory')) == 0o2755
    assert mode(user, 'given', mkdir('given', group=5000)) == 0o2755
    assert mode(admin, 'admin', open_(b'owner', 'admin', how=unchecked(0o2755))) == 0o2755
    admin.compound(putfh(theirs), setattr_(GROUP, opaque(b'1000')))
    assert mode(user, 'own', open_(b'owner', 'own', how=unchecked(0o2755))) == 0o2755
    assert user.status(putfh(theirs), mkdir('no', group=5000)) == PERM


def test_a_sticky_directory_protects_names_from_rename(connect, volume):
    session, user, other = connect(), connect(uid=1000), connect(uid=1001)
    root = session.root(volume)
    session.compound(putfh(root), mkdir('sticky'))
    sticky = session.compound(putfh(root), lookup('sticky'), GETFH)
    session.compound(putfh(sticky), setattr_(MODE, u32(0o1777)))
    user.create(sticky, 'mine')
    other.create(sticky, 'theirs')
    here = putfh(sticky)
    for change in ([remove('mine')], [rename('mine', 'new')], [rename('theirs', 'mine')]):
        assert other.status(here, SAVEFH, here, *change) in (PERM, ACCESS)
    assert other.status(here, SAVEFH, here, rename('theirs', 'new')) == OK
    assert user.status(here, remove('mine')) == OK
    assert session.status(here, remove('new')) == OK


@pytest.mark.parametrize('change', ('write', 'cut'))
def test_who_changes_a_file_takes_its_privileges_away(connect, volume, change):
    session, user = connect(), connect(uid=1000)
    root = session.root(volume)
    file = session.create(root, 'file', b'bytes')
    changes = {'write': write(ANONYMOUS, 0, b'other'), 'cut': setattr_(SIZE, u64(1))}
    for mode, left in ((0o6777, 0o777), (0o2767, 0o2767), (0o1777, 0o1777)):
        session.compound(putfh(file), setattr_(MODE, u32(mode)))
        session.compound(putfh(file), changes[change])
        assert session.compound(putfh(file), getattr_(MODE)) == mode
        user.compound(putfh(file), changes[change])
        assert session.compound(putfh(file), getattr_(MODE)) == left


def test_no_write_that_comes_later_leaves_a_privilege(connect, volume):
    """However busy the file is with writes that had nothing to take."""
    owner, user, busy = connect(), connect(uid=1000), connect(uid=1000)
    file = owner.create(owner.root(volume), 'file', b'bytes')
    owner.compound(putfh(file), setattr_(MODE, u32(0o777)))
    over = threading.Event()

    def keep_writing():
        while not over.is_set():
            busy.compound(putfh(file), write(ANONYMOUS, 0, b'z'))

    thread = threading.Thread(target=keep_writing)
    thread.start()
    left = []
    for _ in range(1000):
        owner.compound(putfh(file), setattr_(MODE, u32(0o4777)))
        user.compound(putfh(file), write(ANONYMOUS, 0, b'y'))
        left.append(user.compound(putfh(file), getattr_(MODE)))
    over.set()
    thread.join()
    assert set(left) == {0o777}

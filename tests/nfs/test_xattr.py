# SPDX-License-Identifier: LGPL-3.0-or-later
"""Extended attributes (RFC 8276): through a real client, and what it never sends."""

import errno
import os

import pytest

from harness.mounted import Mounted
from harness.wire import (
    ACCESS, CHANGE, CREATE, EXIST, FIFO, GETFH, INVAL, NAMETOOLONG, NOXATTR, OK, PERM, REPLACE,
    ROFS, STALE, TOOSMALL, XATTR2BIG, Refused, getattr_, getxattr, listxattrs, lookup,
    mkdir, mknod, putfh, remove, removexattr, setattr_, setxattr, u32, MODE)

pytestmark = pytest.mark.millrace
OPTIONS, MINOR = 'vers=4.2,proto=tcp', 2


# --- through a client ---

def read_all(path, names):
    """What the attributes of these hold, as text."""
    return {name: {key: os.getxattr(f'{path}/{name}', key).decode('latin1')
                   for key in os.listxattr(f'{path}/{name}')} for name in names}


def test_attributes_hold(share, site):
    def change(path):
        open(f'{path}/file', 'w').close()
        os.mkdir(f'{path}/directory')
        for name in ('file', 'directory'):
            os.setxattr(f'{path}/{name}', 'user.one', b'first')
            os.setxattr(f'{path}/{name}', 'user.two', b'second')
            os.setxattr(f'{path}/{name}', 'user.empty', b'')
            os.setxattr(f'{path}/{name}', 'user.one', b'another')
            os.removexattr(f'{path}/{name}', 'user.two')

    held = {'user.empty': '', 'user.one': 'another'}
    wanted = {'file': held, 'directory': held}
    share.call(change)
    share.remount()
    assert share.call(read_all, ['file', 'directory']) == wanted
    site.server.kill9()
    site.server.start()
    share.remount()
    assert share.call(read_all, ['file', 'directory']) == wanted


@pytest.mark.parametrize('length', (1023, 1025, 8191, 8192, 60000, 65536))
def test_values_up_to_64_kib(share, length):
    def write(path, length):
        open(f'{path}/file', 'w').close()
        os.setxattr(f'{path}/file', 'user.large', random.Random(length).randbytes(length))

    def is_same(path, length):
        found = os.getxattr(f'{path}/file', 'user.large')
        return found == random.Random(length).randbytes(length)

    share.call(write, length)
    share.remount()
    assert share.call(is_same, length)


def test_a_thousand_attributes(share):
    def write(path):
        open(f'{path}/file', 'w').close()
        for i in range(1000):
            os.setxattr(f'{path}/file', f'user.attribute_{i}', b'%d' % i)

    def count(path):
        found = os.listxattr(f'{path}/file')
        return len(found), len(set(found))

    def take(path):
        os.unlink(f'{path}/file')

    share.call(write, timeout=300)
    share.remount()
    assert share.call(count) == [1000, 1000]
    share.call(take)


def test_errors_are_linuxs(share):
    def tries(path):
        open(f'{path}/file', 'w').close()
        os.mkfifo(f'{path}/fifo')
        os.setxattr(f'{path}/file', 'user.one', b'first')

        def error(call, *args, **options):
            try:
                call(*args, **options)
            except OSError as caught:
                return caught.errno
            return 0

        file, fifo = f'{path}/file', f'{path}/fifo'
        return {
            'create': error(os.setxattr, file, 'user.one', b'', os.XATTR_CREATE),
            'replace': error(os.setxattr, file, 'user.none', b'', os.XATTR_REPLACE),
            'get': error(os.getxattr, file, 'user.none'),
            'remove': error(os.removexattr, file, 'user.none'),
            'long value': error(os.setxattr, file, 'user.long', bytes(65537)),
            'special file': error(os.setxattr, fifo, 'user.one', b''),
        }

    assert share.call(tries) == {
        'create': errno.EEXIST, 'replace': errno.ENODATA, 'get': errno.ENODATA,
        'remove': errno.ENODATA, 'long value': errno.E2BIG, 'special file': errno.EPERM}


def test_permission_is_that_of_the_file(make_share):
    share = make_share(OPTIONS, mode=0o777)

    def make(path):
        for name, mode in (('public', 0o644), ('private', 0o600), ('open', 0o666)):
            open(f'{path}/{name}', 'w').close()
            os.setxattr(f'{path}/{name}', 'user.one', b'first')
            os.chmod(f'{path}/{name}', mode)
        os.mkdir(f'{path}/sticky')
        os.chmod(f'{path}/sticky', 0o1777)

    def tries(path):
        def error(call, *args):
            try:
                call(*args)
            except OSError as caught:
                return caught.errno
            return 0

        names = ('public', 'private', 'open', 'sticky')
        return [[error(os.getxattr, f'{path}/{name}', 'user.one') for name in names],
                [error(os.setxattr, f'{path}/{name}', 'user.one', b'x') for name in names]]

    share.call(make)
    denied = errno.EACCES
    assert share.call(tries, user=1000) == [
        [0, denied, 0, errno.ENODATA], [denied, denied, 0, errno.EPERM]]


def test_another_client_sees_the_change(share):
    other = share.mount_again(options=OPTIONS + ',noac')

    def prepare(path):
        open(f'{path}/file', 'w').close()
        os.setxattr(f'{path}/file', 'user.one', b'first')

    def watch(other):
        print(os.getxattr(f'{other}/file', 'user.one').decode(), flush=True)
        sys.stdin.readline()
        print(os.getxattr(f'{other}/file', 'user.one').decode(), flush=True)
        sys.stdin.readline()
        print(len(os.listxattr(f'{other}/file')), flush=True)

    def set_(path):
        os.setxattr(f'{path}/file', 'user.one', b'second')

    def take(path):
        os.removexattr(f'{path}/file', 'user.one')

    share.call(prepare)
    watcher = share.client.spawn_call(watch, other)
    assert watcher.wait_for_lines(1, timeout=60) == ['first']
    share.call(set_)
    watcher.write(b'\n')
    assert watcher.wait_for_lines(2, timeout=60)[1] == 'second'
    share.call(take)
    watcher.write(b'\n')
    assert watcher.wait_for_lines(3, timeout=60)[2] == '0'


def test_a_dataset_has_those_of_its_source(site, client, tmp_path):
    (tmp_path / 'directory').mkdir()
    (tmp_path / 'directory/file').write_bytes(b'bytes')
    os.setxattr(tmp_path / 'directory', 'user.kind', b'images')
    os.setxattr(tmp_path / 'directory/file', 'user.label', b'horse')
    site.pool.ingest('tagged', tmp_path)
    dataset = Mounted(client, site, 'tagged').mount(OPTIONS)

    def change(path):
        try:
            os.setxattr(f'{path}/directory/file', 'user.label', b'cow')
        except OSError as error:
            return error.errno

    assert dataset.call(read_all, ['directory', 'directory/file']) == {
        'directory': {'user.kind': 'images'}, 'directory/file': {'user.label': 'horse'}}
    assert dataset.call(change) in (errno.EROFS, errno.EACCES)
    dataset.close()


# --- by hand ---

def test_replies_tell_the_change(connect, volume):
    session = connect()
    here = putfh(session.create(session.root(volume), 'file'))
    last = session.compound(here, getattr_(CHANGE))
    for change in (setxattr('a', b'1'), setxattr('a', b'2'), setxattr('b', b''), removexattr('a')):
        _, before, after = session.compound(here, change)
        assert before == last and after > before
        last = session.compound(here, getattr_(CHANGE))
        assert last == after


def test_refusals(connect, volume):
    session = connect()
    root = session.root(volume)
    here = putfh(session.create(root, 'file'))
    session.compound(here, setxattr('there', b'value'))
    session.compound(putfh(root), mknod('fifo', FIFO))
    fifo = putfh(session.compound(putfh(root), lookup('fifo'), GETFH))
    tries = {
        'create': (EXIST, [here, setxattr('there', b'', CREATE)]),
        'replace': (NOXATTR, [here, setxattr('none', b'', REPLACE)]),
        'how': (INVAL, [here, setxattr('there', b'', 7)]),
        'get': (NOXATTR, [here, getxattr('none')]),
        'remove': (NOXATTR, [here, removexattr('none')]),
        'nameless': (INVAL, [here, setxattr('', b'')]),
        'zero': (INVAL, [here, setxattr('a\0b', b'')]),
        'long name': (NAMETOOLONG, [here, setxattr('n' * 256, b'')]),
        'long value': (XATTR2BIG, [here, setxattr('long', bytes(65537))]),
        'longer value': (XATTR2BIG, [here, setxattr('long', bytes(500000))]),
        'fifo': (PERM, [fifo, setxattr('a', b'')]),
        'get of fifo': (NOXATTR, [fifo, getxattr('a')]),
    }
    assert {name: session.status(*operations) for name, (_, operations) in tries.items()} == \
        {name: wanted for name, (wanted, _) in tries.items()}
    assert session.compound(here, listxattrs()) == (1, ['there'], True)
    session.compound(putfh(root), remove('fifo'))
    assert session.status(fifo, listxattrs()) == STALE


def test_lists_come_in_pieces(connect, volume):
    session = connect()
    here = putfh(session.create(session.root(volume), 'file'))
    names = [f'{i:03}' + 'n' * (i % 50) for i in range(200)]
    assert session.compound(here, listxattrs()) == (0, [], True)
    for name in names:
        session.compound(here, setxattr(name, b''))
    assert session.compound(here, listxattrs())[1:] == (names, True)
    assert session.status(here, listxattrs(room=23)) == TOOSMALL
    found, cookie, all_ = [], 0, False
    while not all_:
        cookie, some, all_ = session.compound(here, listxattrs(cookie, 200))
        size = 16 + sum(4 + (len(name) + 3) // 4 * 4 for name in some)
        assert some and size <= 200
        found += some
    assert found == names


def test_who_may_only_read_changes_nothing(connect, volume, site):
    session = connect()
    root = session.root(volume)
    here = putfh(session.create(root, 'file'))
    session.compound(here, setxattr('there', b'value'))
    session.compound(putfh(root), mkdir('directory'))
    site.pool.set('share', volume, 'nfs.clients', '*:ro')
    assert session.status(here, setxattr('there', b'')) == ROFS
    assert session.status(here, removexattr('there')) == ROFS
    assert session.compound(here, getxattr('there')) == b'value'
    assert session.compound(here, listxattrs())[1] == ['there']


def test_permission_by_hand(connect, volume):
    session, user = connect(), connect(uid=1000)
    here = putfh(session.create(session.root(volume), 'file'))
    session.compound(here, setxattr('there', b'value'))
    assert user.compound(here, getxattr('there')) == b'value'
    assert user.status(here, setxattr('there', b'')) == ACCESS
    assert user.status(here, removexattr('there')) == ACCESS
    session.compound(here, setattr_(MODE, u32(0o600)))
    assert user.status(here, getxattr('there')) == ACCESS
    assert user.status(here, listxattrs()) == ACCESS
    session.compound(here, setattr_(MODE, u32(0o666)))
    assert user.status(here, setxattr('there', b'theirs')) == OK
    with pytest.raises(Refused):
        session.compound(here, setxattr('there', b'', CREATE))

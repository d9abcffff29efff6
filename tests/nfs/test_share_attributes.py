# SPDX-License-Identifier: LGPL-3.0-or-later
"""Modes, owners, times and space in a share."""

import os
import random

import pytest

from harness.host import wait_until


def test_chmod_holds(share):
    def change(path):
        open(f'{path}/file', 'w').close()
        os.mkdir(f'{path}/directory')
        for mode in (0o000, 0o640, 0o4711, 0o2755, 0o7777):
            os.chmod(f'{path}/file', mode)
            assert os.stat(f'{path}/file').st_mode & 0o7777 == mode
        os.chmod(f'{path}/directory', 0o3770)

    def modes(path):
        return [os.stat(f'{path}/{name}').st_mode & 0o7777 for name in ('file', 'directory')]

    share.call(change)
    share.remount()
    assert share.call(modes) == [0o7777, 0o3770]


def test_chown_holds(share):
    def change(path):
        open(f'{path}/file', 'w').close()
        os.chown(f'{path}/file', 1234, -1)
        os.chown(f'{path}/file', -1, 4000000000)
        os.symlink('file', f'{path}/link')
        os.chown(f'{path}/link', 5, 6, follow_symlinks=False)

    def owners(path):
        found = [os.lstat(f'{path}/{name}') for name in ('file', 'link')]
        return [[at.st_uid, at.st_gid] for at in found]

    share.call(change)
    share.remount()
    assert share.call(owners) == [[1234, 4000000000], [5, 6]]


def test_chown_by_its_owner_drops_set_user_id(make_share):
    share = make_share(mode=0o777)

    def change(path):
        os.close(os.open(f'{path}/file', os.O_CREAT | os.O_WRONLY))
        os.chmod(f'{path}/file', 0o6755)
        os.chown(f'{path}/file', -1, os.getgid())
        return os.stat(f'{path}/file').st_mode & 0o6000

    assert share.call(change, user=1000) == 0


def test_times_hold_to_the_nanosecond(share):
    times = {'recent': (1600000000123456789, 1700000000987654321), 'epoch': (0, 1),
             'future': (4102444800000000001, 4102444800000000002)}

    def change(path, times):
        for name, (atime, mtime) in times.items():
            open(f'{path}/{name}', 'w').close()
            os.utime(f'{path}/{name}', ns=(atime, mtime))

    def read(path, names):
        found = {name: os.stat(f'{path}/{name}') for name in names}
        return {name: [at.st_atime_ns, at.st_mtime_ns] for name, at in found.items()}

    share.call(change, times)
    share.remount()
    assert share.call(read, list(times)) == {name: list(pair) for name, pair in times.items()}


def test_changes_move_the_times_that_they_should(share):
    def change(path):
        def times(name):
            os.sync()
            at = os.stat(f'{path}/{name}')
            return at.st_mtime_ns, at.st_ctime_ns

        os.mkdir(f'{path}/directory')
        open(f'{path}/file', 'w').close()
        moved = {}
        before = times('file')
        os.chmod(f'{path}/file', 0o600)
        after = times('file')
        moved['chmod'] = [after[0] > before[0], after[1] > before[1]]
        with open(f'{path}/file', 'w') as file:
            file.write('more')
            os.fsync(file.fileno())
        written = times('file')
        moved['write'] = [written[0] > after[0], written[1] > after[1]]
        before = times('directory')
        os.rename(f'{path}/file', f'{path}/directory/file')
        after = times('directory')
        moved['new name'] = [after[0] > before[0], after[1] > before[1]]
        return moved

    assert share.call(change) == {
        'chmod': [False, True], 'write': [True, True], 'new name': [True, True]}


def test_new_files_have_the_mode_and_owner_of_their_maker(make_share):
    share = make_share(mode=0o777)

    def create(path):
        os.umask(0o027)
        os.close(os.open(f'{path}/file', os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(f'{path}/directory', 0o777)
        found = [os.stat(f'{path}/{name}') for name in ('file', 'directory')]
        return [[at.st_mode & 0o7777, at.st_uid, at.st_gid] for at in found]

    assert share.call(create, user=1000, group=1001) == [[0o640, 1000, 1001], [0o750, 1000, 1001]]


@pytest.mark.millrace  # a directory shares its space with everything else on its disk
def test_statfs_counts_what_is_written_and_removed(share):
    def space(path):
        os.sync()
        at = os.statvfs(path)
        assert 0 < at.f_bavail <= at.f_bfree <= at.f_blocks
        return at.f_bavail * at.f_frsize

    def write(path):
        with open(f'{path}/file', 'wb') as file:
            file.write(random.Random(1).randbytes(32 << 20))
            os.fsync(file.fileno())

    before = share.call(space)
    share.call(write)
    assert share.call(space) <= before - (32 << 20)
    share.client.run(['rm', f'{share.path}/file'])
    # Whole segments come back, by and by. Some stay as room for the next ones, and for the images of a
    # volume that is there: two of 4 MiB each, seen from before the first root that names it.
    wait_until(lambda: share.call(space) > before - (16 << 20), 60, 'the space is free again')


def test_statfs_counts_files(share):
    def files(path):
        at = os.statvfs(path)
        return at.f_files, at.f_ffree

    total, free = share.call(files)
    assert total >= free > 0

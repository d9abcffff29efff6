# SPDX-License-Identifier: LGPL-3.0-or-later
"""Names in a share: directories, links, renames, removal."""

import errno
import os
import sys

from harness.host import wait_until


def test_rename_replaces_an_existing_file(share):
    def rename(path):
        for name in ('old', 'new'):
            with open(f'{path}/{name}', 'w') as file:
                file.write(name)
        os.rename(f'{path}/new', f'{path}/old')

    share.call(rename)
    share.remount()
    assert share.client.run(f'ls {share.path}; cat {share.path}/old').stdout == b'old\nnew'


def test_rename_moves_a_directory_with_what_is_in_it(share):
    def rename(path):
        os.makedirs(f'{path}/a/b/c')
        os.mkdir(f'{path}/x')
        os.rename(f'{path}/a/b', f'{path}/x/moved')
        return sorted(place[len(path):] for place, _, _ in os.walk(path))

    assert share.call(rename) == ['', '/a', '/x', '/x/moved', '/x/moved/c']


def test_rename_over_a_directory_needs_it_empty(share):
    def rename(path):
        os.makedirs(f'{path}/full/child')
        os.mkdir(f'{path}/empty')
        os.mkdir(f'{path}/mover')
        try:
            os.rename(f'{path}/mover', f'{path}/full')
            return 'replaced a directory that was not empty'
        except OSError as error:
            assert error.errno in (errno.ENOTEMPTY, errno.EEXIST), error
        os.rename(f'{path}/mover', f'{path}/empty')
        return sorted(os.listdir(path))

    assert share.call(rename) == ['empty', 'full']


def test_rename_between_kinds_is_refused(share):
    def rename(path):
        os.mkdir(f'{path}/directory')
        open(f'{path}/file', 'w').close()
        errors = []
        for source, target in (('file', 'directory'), ('directory', 'file')):
            try:
                os.rename(f'{path}/{source}', f'{path}/{target}')
                errors.append('none')
            except OSError as error:
                errors.append(errno.errorcode[error.errno])
        return errors

    # RFC 8881, 18.26.3: both are NFS4ERR_EXIST to the server; the client may know better.
    first, second = share.call(rename)
    assert first in ('EISDIR', 'EEXIST') and second in ('ENOTDIR', 'EEXIST')


def test_an_open_file_outlives_its_name(share):
    def unlink(path):
        with open(f'{path}/file', 'w+b') as file:
            file.write(b'still here')
            file.flush()
            os.unlink(f'{path}/file')
            assert not os.path.exists(f'{path}/file')
            file.write(b', and growing')
            os.fsync(file.fileno())
            file.seek(0)
            return file.read().decode()

    assert share.call(unlink) == 'still here, and growing'
    # The client renamed the file out of the way and removes that name after the close.
    wait_until(lambda: not share.client.run(['ls', '-A', share.path]).stdout, 60,
               'the directory is empty again')


def test_a_file_unlinked_by_another_client_stays_open(share):
    def hold(path):
        with open(f'{path}/file', 'w+b') as file:
            file.write(b'mine' * 100000)
            os.fsync(file.fileno())
            print('open', flush=True)
            sys.stdin.readline()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            return file.read() == b'mine' * 100000

    again = share.mount_again()
    holder = share.spawn_call(hold)
    holder.wait_for_lines(1, 60)
    share.client.run(['rm', f'{again}/file'])
    holder.write(b'\n')
    holder.close_input()
    assert holder.wait().stdout.endswith(b'true\n')


def test_hard_links_share_bytes_and_count(share):
    def link(path):
        with open(f'{path}/a', 'w') as file:
            file.write('one')
        os.link(f'{path}/a', f'{path}/b')
        with open(f'{path}/b', 'a') as file:
            file.write(' two')
        a, b = os.stat(f'{path}/a'), os.stat(f'{path}/b')
        os.unlink(f'{path}/a')
        with open(f'{path}/b') as file:
            return [a.st_ino == b.st_ino, a.st_nlink, os.stat(f'{path}/b').st_nlink, file.read()]

    assert share.call(link) == [True, 2, 1, 'one two']


def test_a_link_onto_an_existing_name_is_refused(share):
    def link(path):
        for name in 'ab':
            open(f'{path}/{name}', 'w').close()
        try:
            os.link(f'{path}/a', f'{path}/b')
        except FileExistsError:
            return os.stat(f'{path}/a').st_nlink

    assert share.call(link) == 1


def test_a_symlink_says_what_it_was_told(share):
    targets = ['relative', '/absolute/nowhere', '../up', 'x' * 1000, '\u00fc \u6a21']

    def link(path, targets):
        for i, target in enumerate(targets):
            os.symlink(target, f'{path}/{i}')

    def read(path, count):
        return [os.readlink(f'{path}/{i}') for i in range(count)]

    share.call(link, targets)
    share.remount()
    assert share.call(read, len(targets)) == targets


def test_a_directory_that_is_not_empty_stays(share):
    def remove(path):
        os.makedirs(f'{path}/directory/child')
        try:
            os.rmdir(f'{path}/directory')
        except OSError as error:
            assert error.errno == errno.ENOTEMPTY, error
        os.rmdir(f'{path}/directory/child')
        os.rmdir(f'{path}/directory')
        return os.listdir(path)

    assert share.call(remove) == []


def test_directories_count_their_children(share):
    def count(path):
        os.mkdir(f'{path}/parent')
        counts = [os.stat(f'{path}/parent').st_nlink]
        for name in ('a', 'b'):
            os.mkdir(f'{path}/parent/{name}')
        counts.append(os.stat(f'{path}/parent').st_nlink)
        os.rmdir(f'{path}/parent/a')
        counts.append(os.stat(f'{path}/parent').st_nlink)
        return counts

    assert share.call(count) == [2, 4, 3]


def test_exclusive_create_has_one_winner(share):
    def race(path, racer):
        sys.stdin.readline()
        won = 0
        for i in range(50):
            try:
                os.close(os.open(f'{path}/{i}', os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                won += 1
            except FileExistsError:
                pass
        return won

    paths = [share.path, share.mount_again('2'), share.mount_again('3')]
    racers = [share.client.spawn_call(race, paths[i % 3], i) for i in range(6)]
    for racer in racers:
        racer.write(b'\n')
    assert sum(int(racer.wait().stdout.split()[-1]) for racer in racers) == 50


def test_names_of_255_bytes_and_no_more(share):
    names = ['n' * 255, '\u00fc' * 127, '\U0001f40e' * 63, 'a\\b', 'new\nline', ' ', '...', '-rf']

    def create(path, names):
        for name in names:
            with open(f'{path}/{name}', 'w') as file:
                file.write(name)
        try:
            open(f'{path}/{"n" * 256}', 'w').close()
        except OSError as error:
            assert error.errno == errno.ENAMETOOLONG, error
        else:
            raise AssertionError('a name of 256 bytes was taken')

    def read(path):
        return sorted(name for name in os.listdir(path) if open(f'{path}/{name}').read() == name)

    share.call(create, names)
    share.remount()
    assert share.call(read) == sorted(names)


def test_a_listing_is_whole_while_names_come_and_go(share):
    def prepare(path):
        for i in range(2000):
            os.close(os.open(f'{path}/stays-{i}', os.O_CREAT | os.O_WRONLY))

    def come_and_go(path):
        i = 0
        print('going', flush=True)
        while True:
            for step in range(20):
                os.close(os.open(f'{path}/comes-{i}-{step}', os.O_CREAT | os.O_WRONLY))
            for step in range(20):
                os.unlink(f'{path}/comes-{i}-{step}')
            i += 1

    def list_often(path):
        wanted = {f'stays-{i}' for i in range(2000)}
        for _ in range(10):
            names = os.listdir(path)
            assert len(names) == len(set(names)), 'a name was listed twice'
            missing = wanted - set(names)
            assert not missing, f'{len(missing)} names were not listed, {min(missing)} for one'
            others = [n for n in names if n not in wanted and not n.startswith('comes-')]
            assert not others, others

    share.call(prepare, timeout=600)
    again = share.mount_again(options='vers=4.1,proto=tcp,noac')
    changer = share.spawn_call(come_and_go)
    changer.wait_for_lines(1, 60)
    share.client.call(list_often, again, timeout=600)
    changer.kill()
    changer.wait(check=False)


def test_a_directory_can_be_emptied_while_it_is_listed(share):
    def fill_and_empty(path):
        os.mkdir(f'{path}/directory')
        for i in range(3000):
            os.close(os.open(f'{path}/directory/{i}', os.O_CREAT | os.O_WRONLY))
        for entry in os.scandir(f'{path}/directory'):
            os.unlink(entry.path)
        os.rmdir(f'{path}/directory')

    share.call(fill_and_empty, timeout=600)

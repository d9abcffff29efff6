# SPDX-License-Identifier: LGPL-3.0-or-later
"""Corner cases of POSIX through a real client: what fails, with which error, and what each call
changes."""

import errno
import os
import threading

import pytest

from harness.protocol import readdir
from harness.wire import FIFO, OK, SAVEFH, lookup, mknod, putfh, rename

OPTIONS = 'vers=4.2,proto=tcp'


def error_of(call, *args, **options):
    """The name of the error of a call; None when it succeeds."""
    try:
        call(*args, **options)
        return None
    except OSError as error:
        return errno.errorcode[error.errno]


def make_all(path):
    """One of everything, in the directory where the rest of the test works."""
    os.chdir(path)
    os.umask(0)
    for name in ('file', 'other'):
        with open(name, 'w') as file:
            file.write(name)
    os.link('file', 'hard')
    os.makedirs('full/child')
    os.mkdir('empty')
    os.symlink('file', 'link')
    os.symlink('nowhere', 'dangling')
    os.symlink('loop', 'loop')
    os.symlink('empty', 'to empty')
    os.mkfifo('fifo')


def tree(path='.'):
    """Every name, with its kind and what it holds."""
    found = {}
    for place, directories, files in os.walk(path):
        for name in [*directories, *files]:
            at = os.path.join(place, name)
            kind = stat.filemode(os.lstat(at).st_mode)[0]
            found[at[2:]] = kind + (open(at).read() if kind == '-' else
                                    os.readlink(at) if kind == 'l' else '')
    return found


HELPERS = [error_of, make_all, tree]

# old name, new name -> error; None: it moves; 'same': nothing happens
RENAMES = {
    ('file', 'other'): None, ('file', 'new'): None, ('file', 'file'): 'same',
    ('file', 'hard'): 'same', ('file', 'link'): None, ('link', 'file'): None, ('file', 'fifo'): None,
    ('fifo', 'file'): None, ('link', 'dangling'): None, ('loop', 'new'): None,
    ('file', 'empty'): 'EISDIR', ('file', 'full'): 'EISDIR', ('file', 'to empty'): None,
    ('fifo', 'empty'): 'EISDIR', ('link', 'empty'): 'EISDIR',
    ('empty', 'file'): 'ENOTDIR', ('empty', 'link'): 'ENOTDIR', ('empty', 'to empty'): 'ENOTDIR',
    ('empty', 'fifo'): 'ENOTDIR', ('full', 'empty'): None, ('full', 'new'): None,
    ('empty', 'full'): 'ENOTEMPTY', ('full/child', 'full'): 'ENOTEMPTY',
    ('full', 'full'): 'same', ('empty', 'full/child'): None, ('full/child', 'empty'): None,
    ('full', 'full/child'): 'EINVAL', ('full', 'full/child/new'): 'EINVAL', ('full', 'full/new'): 'EINVAL',
    ('missing', 'new'): 'ENOENT', ('missing', 'file'): 'ENOENT', ('file', 'missing/new'): 'ENOENT',
    ('file/x', 'new'): 'ENOTDIR', ('file', 'other/new'): 'ENOTDIR', ('empty', 'other/new'): 'ENOTDIR',
    ('file', 'n' * 256): 'ENAMETOOLONG', ('n' * 256, 'new'): 'ENAMETOOLONG',
    ('loop/x', 'new'): 'ELOOP', ('file', 'loop/new'): 'ELOOP', ('file', 'to empty/new'): None,
    ('empty', 'new/'): None, ('file', 'new/'): 'ENOTDIR', ('.', 'new'): 'EBUSY', ('empty/.', 'new'): 'EBUSY',
    ('full/child/..', 'new'): 'EBUSY', ('file', '.'): 'EBUSY',
}


def test_renames(place):
    def try_all(path, renames):
        found = []
        before = after = None
        for number, (old, new) in enumerate(renames):
            if after is None or after != before:  # else it is as good as new
                os.mkdir(f'{path}/{number}')
                make_all(f'{path}/{number}')
                before = tree()
            error = error_of(os.rename, old, new)
            after = tree()
            found.append([error, before, after])
        return found

    def moved(before, old, new):
        new = new.rstrip('/').replace('to empty/', 'empty/')
        kept = {name: what for name, what in before.items()
                if name not in (old, new) and not name.startswith(f'{old}/')}
        return {**kept, **{new + name[len(old):]: what for name, what in before.items()
                           if name == old or name.startswith(f'{old}/')}}

    found = place.call(try_all, list(RENAMES), helpers=HELPERS, timeout=300)
    for ((old, new), wanted), (error, before, after) in zip(RENAMES.items(), found):
        case = f'{old[:20]} -> {new[:20]}: {error}'
        if wanted in ('EISDIR', 'ENOTDIR', 'ENOTEMPTY'):  # RFC 8881, 18.26.3: EXIST
            assert error in (wanted, 'EEXIST'), case
        else:
            assert error == (None if wanted == 'same' else wanted), case
        assert after == (moved(before, old, new) if wanted is None else before), case


def test_renames_between_volumes(make_share):
    one, other = make_share(), make_share()

    def try_it(path, there):
        make_all(path)
        before = tree()
        return [[error_of(call, name, f'{there}/new') for call in (os.rename, os.link)]
                for name in ('file', 'empty')] + [tree() == before, os.listdir(there)]

    found = one.call(try_it, other.path, helpers=HELPERS)
    assert found == [['EXDEV', 'EXDEV'], ['EXDEV', 'EXDEV'], True, []] or \
        found == [['EXDEV', 'EXDEV'], ['EXDEV', 'EPERM'], True, []]


# What each call says; each in a directory of its own with what make_all() makes.
ERRORS = {
    "os.unlink('empty')": 'EISDIR', "os.unlink('missing')": 'ENOENT', "os.unlink('file/x')": 'ENOTDIR',
    "os.unlink('loop/x')": 'ELOOP', "os.unlink('n' * 256)": 'ENAMETOOLONG', "os.unlink('loop')": None,
    "os.unlink('to empty')": None, "os.unlink('file/')": 'ENOTDIR',
    "os.rmdir('full')": 'ENOTEMPTY', "os.rmdir('file')": 'ENOTDIR', "os.rmdir('to empty')": 'ENOTDIR',
    "os.rmdir('missing')": 'ENOENT', "os.rmdir('empty/.')": 'EINVAL', "os.rmdir('full/child/..')": 'ENOTEMPTY',
    "os.rmdir('empty')": None, "os.rmdir('empty/')": None, "os.rmdir('n' * 256)": 'ENAMETOOLONG',
    "os.mkdir('file')": 'EEXIST', "os.mkdir('empty')": 'EEXIST', "os.mkdir('dangling')": 'EEXIST',
    "os.mkdir('missing/new')": 'ENOENT', "os.mkdir('file/new')": 'ENOTDIR', "os.mkdir('loop/new')": 'ELOOP',
    "os.mkdir('n' * 256)": 'ENAMETOOLONG', "os.mkdir('new/')": None, "os.mkdir('.')": 'EEXIST',
    "os.symlink('x', 'file')": 'EEXIST', "os.symlink('x', 'dangling')": 'EEXIST',
    "os.symlink('', 'new')": 'ENOENT', "os.symlink('x' * 4096, 'new')": 'ENAMETOOLONG',
    "os.symlink('x' * 4095, 'new')": None, "os.symlink('x', 'n' * 256)": 'ENAMETOOLONG',
    "os.symlink('x', 'missing/new')": 'ENOENT',
    "os.readlink('file')": 'EINVAL', "os.readlink('empty')": 'EINVAL', "os.readlink('missing')": 'ENOENT',
    "os.link('empty', 'new')": 'EPERM', "os.link('missing', 'new')": 'ENOENT', "os.link('file', 'other')": 'EEXIST',
    "os.link('file', 'dangling')": 'EEXIST', "os.link('file', 'file/new')": 'ENOTDIR',
    "os.link('file', 'n' * 256)": 'ENAMETOOLONG', "os.link('fifo', 'new')": None,
    "os.link('link', 'new', follow_symlinks=False)": None, "os.link('file', 'file')": 'EEXIST',
    "os.mkfifo('file')": 'EEXIST', "os.mkfifo('missing/new')": 'ENOENT', "os.mkfifo('n' * 256)": 'ENAMETOOLONG',
    "os.open('empty', os.O_WRONLY)": 'EISDIR', "os.open('empty', os.O_RDWR)": 'EISDIR',
    "os.open('empty', os.O_CREAT)": 'EISDIR', "os.open('file', os.O_DIRECTORY)": 'ENOTDIR',
    "os.open('link', os.O_NOFOLLOW)": 'ELOOP', "os.open('loop', os.O_RDONLY)": 'ELOOP',
    "os.open('file', os.O_CREAT | os.O_EXCL)": 'EEXIST', "os.open('empty', os.O_CREAT | os.O_EXCL)": 'EEXIST',
    "os.open('dangling', os.O_CREAT | os.O_EXCL)": 'EEXIST', "os.open('dangling', os.O_RDONLY)": 'ENOENT',
    "os.open('dangling', os.O_CREAT | os.O_WRONLY)": None, "os.open('missing/x', os.O_CREAT)": 'ENOENT',
    "os.open('file/x', os.O_CREAT)": 'ENOTDIR', "os.open('file/', os.O_RDONLY)": 'ENOTDIR',
    "os.open('n' * 256, os.O_CREAT)": 'ENAMETOOLONG', "os.open('n' * 256, os.O_RDONLY)": 'ENAMETOOLONG',
    "os.open('n' * 255, os.O_CREAT)": None, "os.open('empty/' * 700 + 'x', os.O_CREAT)": 'ENAMETOOLONG',
    "os.open('fifo', os.O_WRONLY | os.O_NONBLOCK)": 'ENXIO',
    "os.truncate('empty', 0)": 'EISDIR', "os.truncate('missing', 0)": 'ENOENT', "os.truncate('file', -1)": 'EINVAL',
    "os.truncate('fifo', 0)": 'EINVAL', "os.truncate('loop', 0)": 'ELOOP',
    "os.truncate('file', (1 << 62) + 1)": 'EFBIG', "os.truncate('file', 1 << 62)": None,
    "os.stat('loop')": 'ELOOP', "os.stat('file/.')": 'ENOTDIR', "os.listdir('file')": 'ENOTDIR',
    "os.chmod('dangling', 0o600)": 'ENOENT', "os.chdir('file')": 'ENOTDIR', "os.stat('')": 'ENOENT',
    "os.pread(os.open('empty', os.O_RDONLY), 1, 0)": 'EISDIR',
    "os.pwrite(os.open('file', os.O_WRONLY), b'x', 1 << 62)": 'EFBIG',
    "os.write(os.open('file', os.O_RDONLY), b'x')": 'EBADF',
}


def test_errors(place):
    def try_all(path, calls):
        """Those that fail in one place, and what has become of it; those that work each in its own."""
        os.mkdir(f'{path}/fail')
        make_all(f'{path}/fail')
        before = tree()
        found = {call: error_of(exec, call, {'os': os}) for call, error in calls.items() if error}
        same = tree() == before
        for number, call in enumerate(call for call, error in calls.items() if not error):
            os.mkdir(f'{path}/{number}')
            make_all(f'{path}/{number}')
            found[call] = error_of(exec, call, {'os': os})
        return [found, same]

    found, same = place.call(try_all, ERRORS, helpers=HELPERS, timeout=300)
    assert {call: error for call, error in found.items() if error != ERRORS[call]} == {}
    assert same and len(found) == len(ERRORS)


def test_what_creating_a_dangling_links_target_makes(place):
    def create(path):
        os.chdir(path)
        os.symlink('target', 'link')
        with open('link', 'w') as file:
            file.write('through')
        return [sorted(os.listdir('.')), os.path.islink('link'), open('target').read()]

    assert place.call(create) == [['link', 'target'], True, 'through']


def times_of(name):
    at = os.lstat(name)
    return at.st_mtime_ns, at.st_ctime_ns


# What each call moves forward: mtime and ctime of these, nothing else of `file` and `directory`
TIMES = {
    "os.chmod('d/file', 0o600)": {'d/file': 'c'},
    "os.chown('d/file', 1, 1)": {'d/file': 'c'},
    "os.chmod('d', 0o700)": {'d': 'c'},
    "os.link('d/file', 'd/new')": {'d/file': 'c', 'd': 'mc'},
    "os.link('d/file', 'e/new')": {'d/file': 'c', 'e': 'mc'},
    "os.unlink('d/hard')": {'d/file': 'c', 'd': 'mc'},
    "os.rename('d/file', 'd/new')": {'d': 'mc'},
    "os.rename('d/file', 'e/new')": {'d': 'mc', 'e': 'mc'},
    "os.rename('d/sub', 'e/sub')": {'d': 'mc', 'e': 'mc'},
    "os.rename('d/file', 'd/hard')": {},
    "os.truncate('d/file', 2)": {'d/file': 'mc'},
    "os.truncate('d/file', 100)": {'d/file': 'mc'},
    "os.close(os.open('d/file', os.O_WRONLY | os.O_TRUNC))": {'d/file': 'mc'},
    "put('d/file', b'more')": {'d/file': 'mc'},
    "os.close(os.open('d/file', os.O_RDWR | os.O_CREAT))": {},
    "os.close(os.open('d/new', os.O_RDWR | os.O_CREAT))": {'d': 'mc'},
    "open('d/file').read()": {}, "os.listdir('d')": {},
    "os.mkdir('d/new')": {'d': 'mc'}, "os.rmdir('d/sub')": {'d': 'mc'},
    "os.symlink('x', 'd/new')": {'d': 'mc'}, "os.mkfifo('d/new')": {'d': 'mc'},
    "os.setxattr('d/file', 'user.x', b'x')": {'d/file': 'c'},
    "os.utime('d/file', ns=(1, 1))": {'d/file': '<c'},
    "os.utime('d/file')": {'d/file': 'mc'},
    "error_of(os.unlink, 'd/none')": {}, "error_of(os.mkdir, 'd/sub')": {},
    "error_of(os.rename, 'd/sub', 'd/sub/x')": {}, "error_of(os.rmdir, 'd')": {},
}


def test_times_that_move(place):
    def try_all(path, calls):
        def put(name, data):
            fd = os.open(name, os.O_WRONLY)
            os.write(fd, data)
            os.fsync(fd)
            os.close(fd)

        found = []
        names = ('d', 'e', 'd/file', 'd/hard')
        for number, call in enumerate(calls):
            os.mkdir(f'{path}/{number}')
            os.chdir(f'{path}/{number}')
            os.makedirs('d/sub')
            os.mkdir('e')
            put_fd = os.open('d/file', os.O_WRONLY | os.O_CREAT, 0o644)
            os.write(put_fd, b'before')
            os.close(put_fd)
            os.link('d/file', 'd/hard')
            before = {name: times_of(name) for name in names}
            exec(call, {'os': os, 'put': put, 'error_of': error_of, 'open': open})
            moved = {}
            for name in names:
                if os.path.lexists(name):
                    (m, c), (m2, c2) = before[name], times_of(name)
                    moved[name] = ('m' if m2 > m else '<' if m2 < m else '') + ('c' if c2 > c else '')
            found.append(moved)
        return found

    found = place.call(try_all, list(TIMES), helpers=[error_of, times_of], timeout=300)
    wrong = {}
    for (call, wanted), moved in zip(TIMES.items(), found):
        wanted = dict(wanted)
        if 'd/file' in wanted and 'd/hard' in moved:
            wanted['d/hard'] = wanted['d/file']  # the same file
        if call.startswith("os.rename('d/file', ") and 'hard' not in call:
            moved.pop('d/hard')  # whose ctime may move
        moved = {name: what for name, what in moved.items() if what}
        if moved != wanted:
            wrong[call] = moved
    assert wrong == {}


def test_links_are_counted(place):
    def count(path):
        os.chdir(path)
        open('file', 'w').close()
        for n in range(300):
            os.link('file', f'{n}')
        found = [os.stat('file').st_nlink]
        for n in range(0, 300, 2):
            os.unlink(f'{n}')
        os.rename('1', '3')    # the same file: both stay
        open('another', 'w').close()
        os.rename('another', '5')
        return found + [os.stat('file').st_nlink, os.stat('5').st_nlink]

    assert place.call(count) == [301, 150, 1]


def test_directories_are_counted_where_they_move(place):
    def move(path):
        os.chdir(path)
        os.makedirs('a/x/y')
        os.mkdir('b')
        os.mkdir('c')

        def counts():
            return [os.stat(name).st_nlink for name in ('.', 'a', 'b')]

        found = [counts()]
        os.rename('a/x', 'b/x')
        found += [counts(), os.stat('b/x/..').st_ino == os.stat('b').st_ino]
        os.rename('b/x/y', 'a/y')
        os.rename('a/y', 'c')       # over an empty one
        found += [counts(), os.stat('c/..').st_ino == os.stat('.').st_ino]
        os.rmdir('c')
        os.rmdir('b/x')
        return found + [counts()]

    assert place.call(move) == [[5, 3, 2], [5, 2, 3], True, [5, 2, 3], True, [4, 2, 2]]


def test_what_is_replaced_while_it_is_open(place):
    """Of the same client and of another: its bytes stay until it is closed."""
    again = place.mount_again('replaced', options=OPTIONS)

    def hold(path):
        os.chdir(path)
        fds = {}
        for name in ('renamed over', 'unlinked', 'by another'):
            fds[name] = os.open(name, os.O_RDWR | os.O_CREAT)
            os.write(fds[name], name.encode() * 10000)
            os.fsync(fds[name])
        open('new', 'w').close()
        os.rename('new', 'renamed over')
        os.unlink('unlinked')
        print('open', flush=True)
        sys.stdin.readline()
        for name, fd in fds.items():
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, 1 << 20, 0) == name.encode() * 10000, name
            os.pwrite(fd, b'more', 500000)
            os.fsync(fd)
            assert os.fstat(fd).st_size == 500004, name

    def replace(path):
        os.chdir(path)
        open('another', 'w').close()
        os.rename('another', 'by another')

    holder = place.spawn_call(hold)
    holder.wait_for_lines(1, 60)
    place.client.call(replace, again)
    holder.write(b'\n')
    holder.wait()


def test_appends_of_many_processes(place):
    """None is lost or torn, on one client."""
    def append(path):
        children = []
        for child in range(4):
            pid = os.fork()
            if not pid:
                fd = os.open(f'{path}/log', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                for step in range(50):
                    os.write(fd, b'%d %02d\n' % (child, step) * 40)
                os._exit(0)
            children.append(pid)
        for pid in children:
            assert os.waitpid(pid, 0)[1] == 0
        lines = open(f'{path}/log').read().split('\n')
        runs = [lines[at:at + 40] for at in range(0, len(lines) - 1, 40)]
        assert all(len(set(run)) == 1 for run in runs)
        return sorted(run[0] for run in runs)

    assert place.call(append) == sorted(f'{child} {step:02d}' for child in range(4) for step in range(50))


def test_files_grow_and_shrink_at_every_edge(place):
    def work(path):
        fd = os.open(f'{path}/file', os.O_RDWR | os.O_CREAT)
        wanted = bytearray()
        edges = (0, 1, 4095, 4096, 4097, 131071, 131072, 131073, 524287, 524288, 524289)
        for step, size in enumerate([*edges, *reversed(edges), *edges[::3], *edges[::2]]):
            os.ftruncate(fd, size)
            wanted = wanted[:size] + bytes(max(0, size - len(wanted)))
            if size and step % 2:
                at = size - 1
                os.pwrite(fd, b'%c' % (65 + step), at)
                wanted[at] = 65 + step
            if step % 3 == 0:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, 1 << 20, 0) == wanted, (step, size)
            assert os.fstat(fd).st_size == size
        return hashlib.sha256(wanted).hexdigest()

    def read(path):
        return hashlib.sha256(open(f'{path}/file', 'rb').read()).hexdigest()

    digest = place.call(work)
    place.remount()
    assert place.call(read) == digest


def test_names_of_any_bytes(place):
    """Case counts, and no encoding does."""
    def create(path):
        path = os.fsencode(path)
        names = [b'a', b'A', b'\xff\xfe', b'\xc3\x28', b' ', b'  ', b'\t', b'a.', b'a ', b'..a', b'...',
                 b'\x01\x7f', b'*?[', b'e\xcc\x81', b'\xc3\xa9', b'\xed\xa0\x80', b'"\'\\']
        for name in names:
            with open(os.path.join(path, name), 'xb') as file:
                file.write(name)
        found = {name: open(os.path.join(path, name), 'rb').read() for name in os.listdir(path)}
        for name in names:
            os.unlink(os.path.join(path, name))
        return [found == {name: name for name in names}, len(os.listdir(path))]

    assert place.call(create) == [True, 0]


def test_limits_are_told(place):
    def limits(path):
        return [os.pathconf(path, name) for name in ('PC_NAME_MAX', 'PC_NO_TRUNC')] + [
            os.statvfs(path).f_namemax]

    assert place.call(limits) == [255, 1, 255]


def test_a_directory_that_is_gone(place):
    """For whoever stands in it."""
    def stand(path):
        os.mkdir(f'{path}/gone')
        os.chdir(f'{path}/gone')
        os.rmdir(f'{path}/gone')
        return [error_of(os.mkdir, 'new'), error_of(os.open, 'new', os.O_CREAT),
                error_of(os.listdir, '.') in (None, 'ENOENT', 'ESTALE')]

    first, second, listing = place.call(stand, helpers=[error_of])
    assert first in ('ENOENT', 'ESTALE') and second in ('ENOENT', 'ESTALE') and listing


@pytest.mark.millrace
def test_a_name_that_is_replaced_is_always_there(connect, volume):
    """Two clients rename over it while a third looks it up."""
    movers, looker = [connect() for _ in range(2)], connect()
    here = putfh(looker.root(volume))
    looker.compound(here, mknod('target', FIFO))
    over, failed = threading.Event(), []

    def move(number):
        name, step = f'mine-{number}', 0
        while not over.is_set():
            for operation in (mknod(name, FIFO), rename(name, 'target')):
                status = movers[number].status(here, SAVEFH, here, operation)
                if status != OK:
                    failed.append((number, step, status))
                    return
            step += 1

    threads = [threading.Thread(target=move, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    found = {looker.status(here, lookup('target')) for _ in range(2000)}
    over.set()
    for thread in threads:
        thread.join()
    assert (found, failed) == ({OK}, [])
    assert [name for _, name in looker.compound(here, readdir())[1]] == [b'target']

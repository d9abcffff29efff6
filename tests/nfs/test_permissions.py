# SPDX-License-Identifier: LGPL-3.0-or-later
"""Permission as POSIX has it, through a real client: groups, sticky and set-gid directories, who
changes what of a file, and who a squashed root is."""

import errno
import os

OPTIONS = 'vers=4.2,proto=tcp'
NOBODY = 65534


def acting(uid, gid, groups, *acts):
    """What each of these gives when this user calls it, or the name of its error. All of them in
    one process, since those take long to make; a single one alone."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            os.umask(0)
            results = []
            for act in acts:
                try:
                    results.append(act())
                except OSError as error:
                    results.append(errno.errorcode[error.errno])
            os.write(writer, json.dumps(results).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        results = json.loads(file.read())
    os.waitpid(child, 0)
    return results if len(acts) > 1 else results[0]


def make(name, mode, uid=0, gid=0, directory=False, target=None):
    """Something with this mode and owner."""
    if target:
        os.symlink(target, name)
    elif directory:
        os.mkdir(name)
    else:
        with open(name, 'w') as file:
            file.write('text')
    os.chown(name, uid, gid, follow_symlinks=False)
    if not target:
        os.chmod(name, mode)
    return name


def mode_of(name):
    return oct(os.lstat(name).st_mode & 0o7777)


HELPERS = [acting, make, mode_of]


def test_all_groups_of_a_user_count(place):
    """Up to the sixteen that an AUTH_SYS credential holds."""
    def tries(path):
        os.chdir(path)
        make('file', 0o640, 0, 5000)
        make('directory', 0o770, 0, 5000, directory=True)
        found = {}
        for name, gid, groups in (('own', 5000, []), ('first', 1, [5000]), ('none', 1, []),
                                  ('sixteenth', 1, list(range(4985, 5001))),
                                  ('others', 1, list(range(6000, 6016)))):
            found[name] = acting(
                1000, gid, groups, lambda: open('file').read(), lambda: open('file', 'a').close(),
                lambda: os.close(os.open(f'directory/{name}', os.O_CREAT | os.O_WRONLY, 0o600)),
                lambda: os.access('directory', os.W_OK))
        return found

    member, stranger = ['text', 'EACCES', None, True], ['EACCES', 'EACCES', 'EACCES', False]
    assert place.call(tries, helpers=HELPERS) == {
        'own': member, 'first': member, 'sixteenth': member, 'none': stranger, 'others': stranger}


def test_the_class_of_a_user_is_the_first_that_fits(place):
    """An owner without rights has none, whatever his group or all others may."""
    def tries(path):
        os.chdir(path)
        make('file', 0o077, 1000, 2000)
        make('group', 0o707, 1003, 2000)
        make('directory', 0o077, 1000, 2000, directory=True)
        users = ((1000, 2000), (1001, 2000), (1002, 2001), (0, 0))
        return [acting(uid, gid, [], lambda: open('file').read(), lambda: open('group').read(),
                       lambda: os.listdir('directory')) for uid, gid in users]

    denied = 'EACCES'
    assert place.call(tries, helpers=HELPERS) == [
        [denied, denied, denied], ['text', denied, []], ['text', 'text', []], ['text', 'text', []]]


def test_directories_need_their_rights(place):
    """r to list, x to pass, w and x to change."""
    def tries(path):
        os.chdir(path)
        found = {}
        for mode in (0o7, 0o5, 0o4, 0o1, 0o3, 0o2, 0o0):
            name = make(f'{mode}', 0o755, directory=True)
            make(f'{name}/file', 0o666)
            os.chmod(name, mode)
            found[mode] = acting(
                1000, 1000, [],
                lambda: os.listdir(name), lambda: os.stat(f'{name}/file').st_size,
                lambda: open(f'{name}/new', 'w').close(),
                lambda: os.rename(f'{name}/file', f'{name}/other'), lambda: os.chdir(name))
        return found

    no = 'EACCES'
    found = place.call(tries, helpers=HELPERS)
    assert found == {
        '7': [['file'], 4, None, None, None], '5': [['file'], 4, no, no, None],
        '4': [['file'], no, no, no, no], '1': [no, 4, no, no, None],
        '3': [no, 4, None, None, None], '2': [no, no, no, no, no], '0': [no, no, no, no, no]}


def test_sticky_directories(place):
    """Names in them go by the owner of the name, of the directory, or root."""
    def tries(path):
        os.chdir(path)
        found = {}
        for who, uid in (('owner of the file', 1000), ('owner of the directory', 1001),
                         ('other', 1002), ('root', 0)):
            os.mkdir(who)
            make(f'{who}/sticky', 0o1777, 1001, 1001, directory=True)
            os.chmod(who, 0o777)
            at = f'{who}/sticky'
            for name in ('unlinked', 'renamed', 'replaced', 'moved', 'linked'):
                make(f'{at}/{name}', 0o666, 1000, 1000)
            make(f'{at}/removed', 0o777, 1000, 1000, directory=True)
            make(f'{at}/own', 0o666, uid, uid)
            make(f'{who}/own', 0o666, uid, uid)
            found[who] = acting(
                uid, uid, [],
                lambda: os.unlink(f'{at}/unlinked'),
                lambda: os.rmdir(f'{at}/removed'),
                lambda: os.rename(f'{at}/renamed', f'{at}/new name'),
                lambda: os.rename(f'{at}/moved', f'{who}/moved'),
                lambda: os.rename(f'{at}/own', f'{at}/replaced'),
                lambda: os.rename(f'{who}/own', f'{at}/new own'),
                lambda: os.link(f'{at}/linked', f'{at}/new link'),
                lambda: os.truncate(f'{at}/linked', 0))
        return found

    all_, no = [None] * 8, 'EPERM'
    found = place.call(tries, helpers=HELPERS)
    other = ['EPERM' if error == 'EACCES' else error for error in found.pop('other')]
    assert found == dict.fromkeys(found, all_)
    assert other == [no, no, no, no, no, None, None, None]


def test_set_gid_directories(place):
    """What is made in one has its group; directories have the bit as well."""
    def tries(path):
        os.chdir(path)
        make('theirs', 0o2777, 0, 5000, directory=True)
        make('plain', 0o777, 0, 5000, directory=True)
        found = {}
        for where in ('theirs', 'plain'):
            def fill():
                os.chdir(where)
                os.close(os.open('file', os.O_CREAT | os.O_WRONLY, 0o640))
                os.mkdir('directory', 0o750)
                os.mkdir('directory/below', 0o700)
                os.symlink('file', 'link')
                os.mkfifo('fifo', 0o600)
                names = ('file', 'directory', 'directory/below', 'link', 'fifo')
                return {name: [os.lstat(name).st_uid, os.lstat(name).st_gid, mode_of(name)]
                        for name in names}
            found[where] = acting(1000, 2000, [], fill)
        return found

    kinds = {'file': 0o640, 'directory': 0o750, 'directory/below': 0o700, 'link': 0o777, 'fifo': 0o600}
    assert place.call(tries, helpers=HELPERS) == {
        'theirs': {name: [1000, 5000, oct(mode | (0o2000 if 'dir' in name else 0))]
                   for name, mode in kinds.items()},
        'plain': {name: [1000, 2000, oct(mode)] for name, mode in kinds.items()}}


def test_modes_that_are_set(place):
    """By the owner and root alone; set-gid needs a member of the group."""
    def tries(path):
        os.chdir(path)
        found = {}
        for name, uid, gid, groups in (('owner', 1000, 1000, []), ('member', 1000, 1, [5000]),
                                       ('other', 1001, 5000, []), ('root', 0, 0, [])):
            make(name, 0o644, 1000, 5000)
            make(f'{name}.d', 0o755, 1000, 5000, directory=True)
            found[name] = acting(
                uid, gid, groups,
                lambda: os.chmod(name, 0o2755), lambda: mode_of(name),
                lambda: os.chmod(f'{name}.d', 0o3775), lambda: mode_of(f'{name}.d'),
                lambda: os.chmod(name, 0o4711), lambda: mode_of(name))
        return found

    assert place.call(tries, helpers=HELPERS) == {
        'owner': [None, '0o755', None, '0o1775', None, '0o4711'],
        'member': [None, '0o2755', None, '0o3775', None, '0o4711'],
        'other': ['EPERM', '0o644', 'EPERM', '0o755', 'EPERM', '0o644'],
        'root': [None, '0o2755', None, '0o3775', None, '0o4711']}


def test_owners_that_are_set(place):
    """A file is given away by root alone; its owner may choose among his groups."""
    def tries(path):
        os.chdir(path)
        found = {}
        for name, uid, gid, groups in (('owner', 1000, 1000, [5000]), ('member', 1001, 5000, []),
                                       ('root', 0, 0, [])):
            tries = [(1001, -1), (uid, -1), (-1, 5000), (-1, 6000), (uid, 5000), (-1, 1000)]
            for n, _ in enumerate(tries):
                make(f'{name}{n}', 0o644, 1000, 1000)
            found[name] = acting(uid, gid, groups, *[
                lambda n=n, owner=owner: os.chown(f'{name}{n}', *owner)
                for n, owner in enumerate(tries)])
        return found

    no = 'EPERM'
    assert place.call(tries, helpers=HELPERS) == {
        'owner': [no, None, None, no, None, None],
        'member': [no, no, no, no, no, no],
        'root': [None] * 6}


def test_privileges_that_are_lost(place):
    """A new owner, a write, a truncation: a file is no longer what was trusted. Directories keep
    their bits."""
    def tries(path):
        os.chdir(path)

        def write(name):
            with open(name, 'r+b') as file:
                file.write(b'x')
                file.flush()
                os.fsync(file.fileno())

        acts = {'chown': lambda name: os.chown(name, -1, 5000),
                'write': write, 'truncate': lambda name: os.truncate(name, 1),
                'cut': lambda name: os.close(os.open(name, os.O_WRONLY | os.O_TRUNC)),
                'read': lambda name: os.close(os.open(name, os.O_RDONLY))}
        names = [(make(f'{act}-{mode:o}', mode, 1000, 1000), change)
                 for act, change in acts.items() for mode in (0o6777, 0o2767)]
        errors = acting(1000, 1000, [5000], *[
            lambda name=name, change=change: change(name) for name, change in names])
        found = {name: [error, mode_of(name)] for (name, _), error in zip(names, errors)}
        make('directory', 0o6777, 1000, 1000, directory=True)
        acting(1000, 1000, [5000], lambda: os.chown('directory', -1, 5000))
        found['directory'] = mode_of('directory')
        return found

    found = place.call(tries, helpers=HELPERS)
    assert found.pop('directory') == '0o6777'
    wanted = {}
    for act in ('chown', 'write', 'truncate', 'cut'):
        wanted.update({f'{act}-6777': [None, '0o777'], f'{act}-2767': [None, '0o2767']})
    wanted.update({'read-6777': [None, '0o6777'], 'read-2767': [None, '0o2767']})
    assert found == wanted


def test_times_that_are_set(place):
    """Any by the owner; now by who may write; none by others."""
    def tries(path):
        os.chdir(path)
        found = {}
        for who, uid in (('owner', 1000), ('writer', 1001), ('reader', 1002), ('root', 0)):
            make(who, 0o664, 1000, 5000)
            groups = [5000] if who == 'writer' else []
            os.utime(who, ns=(5, 5))
            found[who] = acting(
                uid, uid, groups, lambda: os.utime(who, ns=(7, 8)),
                lambda: [os.stat(who).st_atime_ns, os.stat(who).st_mtime_ns],
                lambda: os.utime(who), lambda: os.stat(who).st_mtime_ns > 10**18,
                lambda: os.stat(who).st_atime_ns > 10**18)
        return found

    assert place.call(tries, helpers=HELPERS) == {
        'owner': [None, [7, 8], None, True, True], 'writer': ['EPERM', [5, 5], None, True, True],
        'reader': ['EPERM', [5, 5], 'EACCES', False, False], 'root': [None, [7, 8], None, True, True]}


def test_links_have_times_and_owners_of_their_own(place):
    def tries(path):
        os.chdir(path)
        make('file', 0o644, 1000, 1000)
        make('link', 0, 1000, 1000, target='file')
        make('dangling', 0, 1000, 1000, target='nowhere')
        os.utime('file', ns=(1, 2))
        found = [acting(1000, 1000, [], lambda: os.utime(name, ns=(3, 4), follow_symlinks=False))
                 for name in ('link', 'dangling')]
        found += [acting(1001, 1001, [], lambda: os.utime('link', ns=(5, 6), follow_symlinks=False))]
        os.chown('link', 7, 8, follow_symlinks=False)
        found += [[os.lstat(name).st_atime_ns, os.lstat(name).st_mtime_ns, os.lstat(name).st_uid]
                  for name in ('file', 'link', 'dangling')]
        return found + [os.readlink('link')]

    assert place.call(tries, helpers=HELPERS) == [
        None, None, 'EPERM', [1, 2, 1000], [3, 4, 7], [3, 4, 1000], 'file']


def test_access_tells_what_would_be(place):
    def tries(path):
        os.chdir(path)
        names = [make(f'{mode:o}', mode, 1000, 2000)
                 for mode in (0o000, 0o444, 0o222, 0o111, 0o640, 0o750)]

        def told(name):
            return ''.join(c for c, way in zip('rwx', (os.R_OK, os.W_OK, os.X_OK))
                           if os.access(name, way))

        found = [acting(uid, gid, [], *[lambda name=name: told(name) for name in names])
                 for uid, gid in ((1000, 1), (1, 2000), (1, 1), (0, 0))]
        return {name: [user[n] for user in found] for n, name in enumerate(names)}

    assert place.call(tries, helpers=HELPERS) == {
        '0': ['', '', '', 'rw'], '444': ['r', 'r', 'r', 'rw'], '222': ['w', 'w', 'w', 'rw'],
        '111': ['x', 'x', 'x', 'rwx'], '640': ['rw', 'r', '', 'rw'], '750': ['rwx', 'rx', '', 'rwx']}


def test_modes_at_birth(place):
    """What is asked for less the umask; special bits of the maker's own."""
    def tries(path):
        os.chdir(path)

        def make_all():
            for umask in (0o000, 0o022, 0o077, 0o777):
                os.umask(umask)
                os.close(os.open(f'file-{umask:o}', os.O_CREAT | os.O_WRONLY, 0o6777))
                os.mkdir(f'directory-{umask:o}', 0o1777)
                os.mkfifo(f'fifo-{umask:o}', 0o666)
            return sorted([name, mode_of(name)] for name in os.listdir('.'))

        return acting(1000, 1000, [], make_all)

    assert place.call(tries, helpers=HELPERS) == sorted(
        [f'{kind}-{umask:o}', oct(mode & ~umask)] for umask in (0o000, 0o022, 0o077, 0o777)
        for kind, mode in (('file', 0o6777), ('directory', 0o1777), ('fifo', 0o666)))


def test_what_is_open_stays_open(place):
    """Rights are asked for when a file is opened; a maker may write to what nobody may."""
    def tries(path):
        os.chdir(path)

        def use():
            fd = os.open('file', os.O_CREAT | os.O_RDWR, 0o000)
            os.write(fd, b'bytes')
            os.fsync(fd)
            os.chmod('file', 0o000)
            os.write(fd, b' and more')
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found = os.pread(fd, 100, 0).decode()
            os.ftruncate(fd, 5)
            os.close(fd)
            try:
                os.open('file', os.O_RDONLY)
            except OSError as error:
                return [found, errno.errorcode[error.errno], os.stat('file').st_size]

        return acting(1000, 1000, [], use)

    assert place.call(tries, helpers=HELPERS) == ['bytes and more', 'EACCES', 5]


def test_what_is_open_is_opened_again_by_what_it_may(place):
    """By the rights of that open alone, whatever the same user has open already."""
    def tries(path):
        os.chdir(path)
        r, w, rw, cut = os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC
        cases = ((w, 0o444, r), (rw, 0o444, r), (r, 0o222, w), (r, 0o222, cut),
                 (rw, 0o444, w), (w, 0o222, r), (rw, 0o000, r))

        def again(name, first, mode, second):
            fd = os.open(name, os.O_CREAT | first, mode)
            try:
                os.close(os.open(name, second))
            finally:
                os.close(fd)

        return acting(1000, 1000, [], *[
            lambda n=n, case=case: again(f'{n}', *case) for n, case in enumerate(cases)])

    assert place.call(tries, helpers=HELPERS) == [None] * 4 + ['EACCES'] * 3


def test_a_squashed_root_is_nobody(make_share):
    share = make_share(mode=0o1777, squash='root')

    def tries(path):
        os.chdir(path)
        acting(1000, 1000, [], lambda: make('theirs', 0o600, 1000, 1000))
        found = acting(
            0, 0, [], lambda: open('theirs').read(), lambda: os.unlink('theirs'),
            lambda: os.chown('theirs', 0, 0), lambda: os.chmod('theirs', 0o666),
            lambda: os.mkdir('directory'), lambda: open('file', 'w').close(),
            lambda: os.chmod('file', 0o4755), lambda: os.unlink('directory/none'),
            lambda: os.mknod('device', 0o60600, os.makedev(1, 3)),
            lambda: os.chown('file', 1000, -1), lambda: os.rename('file', 'own'))
        found += [[os.stat(name).st_uid, os.stat(name).st_gid] for name in ('directory', 'own')]
        return found + [acting(1000, 1000, [], lambda: open('theirs').read())]

    no = ('EACCES', 'EPERM')
    found = share.call(tries, helpers=HELPERS)
    assert [error in no for error in found[:4]] == [True] * 4, found
    assert found[4:8] == [None, None, None, 'ENOENT']
    assert found[8] in no and found[9] in no and found[10] is None
    assert found[11:] == [[NOBODY, NOBODY], [NOBODY, NOBODY], 'text']


def test_all_are_nobody_where_all_are_squashed(make_share):
    share = make_share(owner=NOBODY, group=NOBODY, mode=0o755, squash='all')

    def tries(path):
        os.chdir(path)
        for uid in (0, 1000):
            acting(uid, uid, [4, 5], lambda: open(f'{uid}', 'w').close())
        return sorted([name, os.stat(name).st_uid, os.stat(name).st_gid] for name in os.listdir('.'))

    assert share.call(tries, helpers=HELPERS) == [['0', NOBODY, NOBODY], ['1000', NOBODY, NOBODY]]


def test_no_group_of_a_squashed_root_counts(make_share):
    """Nor does a supplementary group 0."""
    share = make_share(mode=0o770, group=0, squash='root')

    def tries(path):
        return [acting(uid, gid, groups, lambda: open(f'{path}/{uid}-{gid}', 'w').close())
                for uid, gid, groups in ((0, 0, [0]), (0, 0, []), (1000, 0, []), (1000, 1, [0]))]

    assert share.call(tries, helpers=HELPERS) == ['EACCES'] * 4


def test_a_read_only_share_is_read_only_to_access(make_share):
    share = make_share(mode=0o777, clients='*:ro')

    def tries(path):
        found = [os.access(path, way) for way in (os.R_OK, os.W_OK, os.X_OK)]
        try:
            os.mkdir(f'{path}/new')
        except OSError as error:
            return [*found, error.errno in (errno.EROFS, errno.EACCES)]

    assert share.call(tries) == [True, False, True, True]

# SPDX-License-Identifier: LGPL-3.0-or-later
"""A directory tree with one of everything, and a description of one, to be compared."""

import hashlib
import os
import random
import stat


def make_tree(root, seed=1):
    """Fill ROOT with all that a dataset must keep."""
    bytes_of = random.Random(seed).randbytes

    def write(name, data):
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as file:
            file.write(data)
        return path

    for size in (0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 110000, 131072, 131073, 524288,
                 5000001):
        write(f'sizes/{size}', bytes_of(size))
    write('deep/' + 'd/' * 40 + 'leaf', b'leaf')
    write('n' * 255, b'255 bytes')
    write('\u00fc' * 127, b'254 bytes of UTF-8')
    write('\u6a21\u578b/\U0001f40e \u0440\u0443\u0441\u0441\u043a\u0438\u0439', b'utf-8')
    write(' space, "quote", back\\slash, new\nline, -dash', b'awkward')
    for mode in (0o400, 0o444, 0o600, 0o644, 0o755, 0o777, 0o4755, 0o2755, 0o1644):
        os.chmod(write(f'modes/{mode:04o}', b'%o' % mode), mode)
    for owner, group in ((0, 0), (1000, 100), (65534, 65534), (4000000000, 4000000000)):
        os.chown(write(f'owners/{owner}-{group}', b'mine'), owner, group)
    os.symlink('../sizes/4096', os.path.join(root, 'modes/link'))
    os.symlink('/nowhere/at all', os.path.join(root, 'broken link'))
    os.symlink('x' * 1023, os.path.join(root, 'long link'))
    write('hard/a', b'one file, three names')
    os.link(os.path.join(root, 'hard/a'), os.path.join(root, 'hard/b'))
    os.link(os.path.join(root, 'hard/a'), os.path.join(root, 'deep/c'))
    with open(os.path.join(root, 'holes'), 'wb') as file:
        file.seek(3 << 20)
        file.write(bytes_of(5000))
        file.truncate(16 << 20)
    os.makedirs(os.path.join(root, 'empty directory'))
    os.chmod(os.path.join(root, 'empty directory'), 0o1770)
    for i in range(5000):
        write(f'many/file-{i:04}', b'' if i % 10 else b'%d' % i)
    for i, name in enumerate(('sizes/1', 'hard/a', 'many', 'broken link')):
        os.utime(os.path.join(root, name), ns=(10**18 + i, 1234567890123456789 + i),
                 follow_symlinks=False)
    os.utime(os.path.join(root, 'sizes/4097'), ns=(0, 1))


def describe(root):
    """What is under ROOT, by path: all that a copy must have in common with it.

    Runs on the host and on the client, and gives what JSON can carry.
    """
    root = os.fspath(root)
    found = {}
    names = {}
    for place, directories, files in os.walk(root):
        for name in ['.', *directories, *files] if place == root else [*directories, *files]:
            path = os.path.join(place, name)
            at = os.lstat(path)
            entry = [stat.filemode(at.st_mode), at.st_uid, at.st_gid, at.st_mtime_ns]
            if stat.S_ISLNK(at.st_mode):
                entry += [os.readlink(path)]
            elif stat.S_ISREG(at.st_mode):
                with open(path, 'rb') as file:
                    entry += [at.st_size, hashlib.sha256(file.read()).hexdigest()]
                names.setdefault(at.st_ino, []).append(os.path.relpath(path, root))
            found[os.path.relpath(path, root)] = entry
    for same in names.values():
        for name in same:
            found[name] += [sorted(same)]
    return found

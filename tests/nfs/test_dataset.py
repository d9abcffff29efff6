# SPDX-License-Identifier: LGPL-3.0-or-later
"""A dataset through a real client: all of it, and nothing but reading."""

import errno
import hashlib
import os

import pytest

from harness.mounted import Mounted
from harness.tree import describe, make_tree


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp('source')
    make_tree(root)
    return root


@pytest.fixture(scope='module')
def dataset(client, site, source):
    site.pool.ingest('everything', source)
    mounted = Mounted(client, site, 'everything').mount()
    yield mounted
    mounted.close()


def differences(wanted, found):
    """The paths that differ, with both descriptions: short enough to print."""
    return {path: (wanted.get(path), found.get(path)) for path in sorted({*wanted, *found})
            if wanted.get(path) != found.get(path)}


def test_everything_equals_its_source(dataset, source):
    assert differences(describe(source), dataset.call(describe, timeout=600)) == {}


def test_everything_equals_its_source_after_a_restart(dataset, source, client, site):
    site.server.restart()
    client.drop_caches()
    assert differences(describe(source), dataset.call(describe, timeout=600)) == {}


def test_reads_at_every_kind_of_boundary(dataset, client, source):
    name = 'sizes/5000001'
    ranges = [(at + shift, length) for at in (0, 4096, 131072, 524288, 4999168, 5000001)
              for shift in (-1, 0, 1) for length in (1, 4095, 4096, 4097, 131073, 1048577)
              if at + shift >= 0]

    def read(path, name, ranges):
        with open(f'{path}/{name}', 'rb') as file:
            return [hashlib.sha256(os.pread(file.fileno(), length, at)).hexdigest()
                    for at, length in ranges]

    wanted = (source / name).read_bytes()
    client.drop_caches()
    assert dataset.call(read, name, ranges) == [
        hashlib.sha256(wanted[at:at + length]).hexdigest() for at, length in ranges]


def test_a_hole_takes_no_space(dataset):
    def allocated(path):
        return os.stat(f'{path}/holes').st_blocks * 512

    assert dataset.call(allocated) < 1 << 20


def test_a_large_directory_is_listed_whole(dataset):
    def names(path):
        return os.listdir(f'{path}/many')

    assert sorted(dataset.call(names)) == [f'file-{i:04}' for i in range(5000)]


# What a client may try, as Python; `p` is the mount.
CHANGES = {
    'open to write': "os.close(os.open(f'{p}/sizes/1', os.O_WRONLY))",
    'open to read and write': "os.close(os.open(f'{p}/sizes/1', os.O_RDWR))",
    'open and truncate': "os.close(os.open(f'{p}/sizes/1', os.O_WRONLY | os.O_TRUNC))",
    'create': "os.close(os.open(f'{p}/new', os.O_CREAT | os.O_WRONLY))",
    'create exclusively': "os.close(os.open(f'{p}/new', os.O_CREAT | os.O_EXCL))",
    'truncate': "os.truncate(f'{p}/sizes/4096', 1)",
    'chmod': "os.chmod(f'{p}/sizes/1', 0o777)",
    'chown': "os.chown(f'{p}/sizes/1', 1, 1)",
    'utimes': "os.utime(f'{p}/sizes/1', (1, 1))",
    'unlink': "os.unlink(f'{p}/sizes/1')",
    'rename': "os.rename(f'{p}/sizes/1', f'{p}/sizes/one')",
    'rename over': "os.rename(f'{p}/sizes/1', f'{p}/sizes/4096')",
    'link': "os.link(f'{p}/sizes/1', f'{p}/sizes/one')",
    'symlink': "os.symlink('1', f'{p}/sizes/one')",
    'mkdir': "os.mkdir(f'{p}/new')",
    'rmdir': "os.rmdir(f'{p}/empty directory')",
    'mkfifo': "os.mkfifo(f'{p}/fifo')",
}


def attempt_all(path, changes):
    """The error number of each change, a piece of Python; 0 when it succeeded."""
    errors = {}
    for name, change in changes.items():
        try:
            exec(change, {'os': os, 'p': path})
            errors[name] = 0
        except OSError as error:
            errors[name] = error.errno
    return errors


def assert_refused(errors, *allowed):
    assert {name: errno.errorcode.get(error, error) for name, error in errors.items()
            if error not in allowed} == {}


def test_every_change_is_refused(dataset, source):
    # A client that asks for its rights first (ACCESS) may say EACCES before the server says EROFS.
    errors = dataset.call(attempt_all, CHANGES)
    assert_refused(errors, errno.EROFS, errno.EACCES)
    assert errors['open to write'] == errno.EROFS
    assert differences(describe(source), dataset.call(describe, timeout=600)) == {}


@pytest.mark.millrace
def test_every_change_is_refused_to_clients_named_rw(dataset, source, site):
    site.pool.set('dataset', 'everything', 'nfs.clients', '*:rw')
    assert_refused(dataset.call(attempt_all, CHANGES), errno.EROFS, errno.EACCES)
    dataset.remount()
    assert differences(describe(source), dataset.call(describe, timeout=600)) == {}


def test_datasets_and_shares_are_seen_side_by_side(dataset, make_share, client, site):
    share = make_share()
    client.run(['cp', f'{dataset.path}/sizes/5000001', share.path])
    client.run(['cmp', f'{dataset.path}/sizes/5000001', f'{share.path}/5000001'])


def test_a_missing_volume_cannot_be_mounted(client, site):
    rc, _, stderr = client.run(
        ['mount', '-i', '-t', 'nfs', '-o',
         f'vers=4.1,proto=tcp,port={site.server.port},addr={site.server.address}',
         f'{site.server.address}:{site.pool.export("nothing")}', '/mnt'], check=False)
    assert rc != 0 and b'does not exist' in stderr

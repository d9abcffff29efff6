# SPDX-License-Identifier: LGPL-3.0-or-later
"""Who may do what in a share: clients by address, users by number."""

import errno
import os

import pytest

from harness.remote import CommandFailed


def attempt_create(path):
    """The error number of making a file, 0 when it was made."""
    try:
        os.close(os.open(f'{path}/made-{os.getuid()}', os.O_CREAT | os.O_WRONLY))
        return 0
    except OSError as error:
        return error.errno


def test_root_is_nobody_unless_told_otherwise(make_share):
    share = make_share(mode=0o777, squash=None)

    def create(path):
        open(f'{path}/file', 'w').close()
        return os.stat(f'{path}/file').st_uid

    assert share.call(create) != 0


def test_squashed_root_may_not_write_what_belongs_to_root(make_share):
    share = make_share(mode=0o755, squash=None)
    assert share.call(attempt_create) in (errno.EACCES, errno.EPERM)


def test_a_share_belongs_to_the_owner_it_was_made_for(make_share):
    share = make_share(owner=1000, group=2000, mode=0o2750, squash=None)

    def look(path):
        at = os.stat(path)
        return [at.st_uid, at.st_gid, at.st_mode & 0o7777]

    assert share.call(look) == [1000, 2000, 0o2750]
    assert share.call(attempt_create, user=1000) == 0
    assert share.call(attempt_create, user=1001) == errno.EACCES


def test_permissions_are_the_servers_to_check(make_share):
    share = make_share(mode=0o777)

    def protect(path):
        with open(f'{path}/secret', 'w') as file:
            file.write('secret')
        os.chmod(f'{path}/secret', 0o640)
        os.chown(f'{path}/secret', 1000, 2000)

    def read(path):
        try:
            return open(f'{path}/secret').read()
        except OSError as error:
            return error.errno

    share.call(protect)
    found = [share.call(read, user=user, group=group)
             for user, group in ((1000, 1000), (1001, 2000), (1001, 1001))]
    assert found == ['secret', 'secret', errno.EACCES]


def test_only_the_owner_removes_from_a_sticky_directory(make_share):
    share = make_share(mode=0o1777)

    def create(path):
        open(f'{path}/mine', 'w').close()

    def remove(path):
        try:
            os.unlink(f'{path}/mine')
            return 0
        except OSError as error:
            return error.errno

    share.call(create, user=1000)
    assert share.call(remove, user=1001) in (errno.EACCES, errno.EPERM)
    assert share.call(remove, user=1000) == 0


@pytest.mark.parametrize('clients', (None, '192.0.2.77:rw', '192.0.2.0/24:rw,192.0.2.77:ro'))
def test_a_client_that_is_not_named_cannot_mount(make_share, clients):
    with pytest.raises(CommandFailed) as refused:
        make_share(clients=clients)
    assert 'does not exist' in str(refused.value)  # what NFSv4 says of what one may not see


@pytest.mark.parametrize('how', ('address', 'network', 'one of two'))
def test_a_client_that_is_named_can_mount(make_share, client, how):
    clients = {'address': f'{client.client_address}:rw', 'network': '198.18.0.0/15:rw',
               'one of two': f'192.0.2.77:ro,{client.client_address}:rw'}
    assert make_share(clients=clients[how]).call(attempt_create) == 0


def test_a_client_named_ro_cannot_write(make_share):
    share = make_share(clients='*:ro')
    assert share.call(attempt_create) in (errno.EROFS, errno.EACCES)


@pytest.mark.millrace
def test_a_new_list_of_clients_holds_at_once(make_share, site, client):
    share = make_share()
    assert share.call(attempt_create) == 0
    site.pool.set('share', share.volume, 'nfs.clients', f'{client.client_address}:ro')
    assert share.call(attempt_create, user=1) in (errno.EROFS, errno.EACCES)
    site.pool.set('share', share.volume, 'nfs.clients', '*:rw')
    assert share.call(attempt_create) == 0

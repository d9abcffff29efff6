# SPDX-License-Identifier: LGPL-3.0-or-later
"""A client that loses its power: the server lets go of what it held."""

import pytest

from harness.client import make_client
from harness.mounted import Mounted
from test_locks import Range, attempt


@pytest.fixture(scope='module')
def client(tmp_path_factory):
    """A client of this module's own, since it is rebooted; the site listens at its address."""
    with make_client(workdir=tmp_path_factory.mktemp('reboot')) as client:
        yield client


@pytest.fixture(scope='module')
def site(backend, client, tmp_path_factory):
    from conftest import Site
    site = Site(backend, client.server_address, tmp_path_factory.mktemp('site'))
    yield site
    site.close()


def test_a_rebooted_client_finds_its_own_locks_released(client, site):
    site.pool.create_share('reboot')
    share = Mounted(client, site, 'reboot').mount()
    client.run(f'echo text > {share.path}/file; sync {share.path}/file')
    Range(client, f'{share.path}/file', 0, 10)
    client.reboot()
    share = Mounted(client, site, 'reboot').mount()
    assert client.run(['cat', f'{share.path}/file']).stdout == b'text\n'
    assert client.call(attempt, f'{share.path}/file', 0, 10, True, timeout=600)
    share.close()

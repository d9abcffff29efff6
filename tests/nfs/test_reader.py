# SPDX-License-Identifier: LGPL-3.0-or-later
"""A reader beside the owner: the same datasets, whatever becomes of the owner."""

import contextlib
import hashlib
import os
import signal
import time

import pytest

from harness.host import wait_until
from harness.mounted import Mounted
from harness.server import Server, VerbFailed
from harness.tree import describe, make_tree
from harness.wire import GETFH, Session, lookup, putfh

FOLLOW_TIMEOUT = 300


class Reader(Server):
    """`millrace serve POOL --reader`: its own address, its own socket."""

    def __init__(self, pool, address):
        super().__init__(pool, address)
        self.log = os.path.join(pool.workdir, 'reader.log')

    def argv(self):
        return [*super().argv(), '--reader']

    def socket_path(self):
        return os.path.join(self.pool.run_dir, 'reader', f'{self.pool.name}.sock')


class Beside:
    """A site whose server is the reader."""

    def __init__(self, site, server):
        self.pool, self.server = site.pool, server


@pytest.fixture(scope='module')
def beside(site):
    beside = Beside(site, Reader(site.pool, site.server.address))
    beside.server.start()
    yield beside
    beside.server.close()


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp('source')
    make_tree(root)
    return root


@pytest.fixture
def mounted(client, beside):
    made = []

    def mount(volume):
        def mounts():
            mounted = Mounted(client, beside, volume)
            try:
                made.append(mounted.mount())
            except Exception:
                return False
            return True

        wait_until(mounts, FOLLOW_TIMEOUT, f'the reader exports {volume}')
        return made[-1]

    yield mount
    for one in made:
        one.close()


def test_a_new_dataset_comes_without_a_restart(mounted, site, source):
    site.pool.ingest('new', source)
    assert mounted('new').call(describe, timeout=600) == describe(source)


def test_reads_go_on_while_the_owner_dies_and_comes_back(client, mounted, site, source, tmp_path):
    (tmp_path / 'large').write_bytes(os.urandom(48 << 20))
    site.pool.ingest('steady', tmp_path)
    wanted = hashlib.sha256((tmp_path / 'large').read_bytes()).hexdigest()
    steady = mounted('steady')

    def read(path):
        import hashlib
        while True:
            fd = os.open(f'{path}/large', os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            digest = hashlib.sha256()
            while block := os.read(fd, 1 << 20):
                digest.update(block)
            os.close(fd)
            print(digest.hexdigest(), flush=True)

    reading = steady.spawn_call(read)
    reading.wait_for_lines(2, FOLLOW_TIMEOUT)
    for _ in range(2):
        site.server.kill9()
        reading.wait_for_lines(len(reading.lines()) + 2, FOLLOW_TIMEOUT)
        site.server.start()
        reading.wait_for_lines(len(reading.lines()) + 2, FOLLOW_TIMEOUT)
    lines = reading.lines()
    reading.kill()
    reading.wait(check=False)
    assert set(lines) == {wanted}


def test_handles_are_the_owners(mounted, site, beside, source):
    site.pool.ingest('same', source)
    mounted('same')
    names = sorted(os.listdir(source))
    handles = []
    for server in (site, beside):
        session = Session(server)
        root = session.root('same')
        handles.append([root, *(session.compound(putfh(root), lookup(name), GETFH)
                                for name in names)])
        session.end()
    assert handles[0] == handles[1] and len(set(handles[0])) > 3


def test_what_is_destroyed_goes(client, mounted, site, beside, source):
    site.pool.ingest('short', source)
    mounted('short').close()
    site.pool.verb('dataset', 'destroy', f'{site.pool.name}/short', '--yes')

    def gone():
        try:
            Mounted(client, beside, 'short').mount().close()
        except Exception:
            return True
        return False

    wait_until(gone, FOLLOW_TIMEOUT, 'the reader withdraws what is destroyed')


def test_what_is_made_anew_under_a_name_is_there(mounted, site, beside, source, tmp_path):
    """Also where the reader has seen nothing in between: the old one makes room."""
    site.pool.ingest('again', tmp_path)
    assert mounted('again').call(describe) == describe(tmp_path)
    beside.server.signal(signal.SIGSTOP)
    try:
        site.pool.verb('dataset', 'destroy', f'{site.pool.name}/again', '--yes')
        site.pool.ingest('again', source)
        time.sleep(15)  # no later root comes to its help
    finally:
        beside.server.signal(signal.SIGCONT)

    def is_new():
        with contextlib.suppress(Exception):
            return mounted('again').call(describe) == describe(source)
        return False

    wait_until(is_new, FOLLOW_TIMEOUT, 'the reader exports the new one')


def test_shares_are_not_exported(client, site, beside):
    site.pool.create_share('private')
    with pytest.raises(Exception):
        Mounted(client, beside, 'private').mount()
    site.pool.destroy_share('private')


def test_it_says_what_it_is_and_changes_nothing(site, beside):
    assert site.pool.status()['state'] == 'served'
    site.server.stop()
    try:
        assert site.pool.status()['state'] == 'reader'
        with pytest.raises(VerbFailed):
            site.pool.verb('serve', site.pool.name, '--reader')
    finally:
        site.server.start()
    assert site.pool.status()['state'] == 'served'

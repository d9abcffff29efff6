# SPDX-License-Identifier: LGPL-3.0-or-later
"""A change of names whose answer the client did not get before the server died: the next server has it done, and says so;
a rename of a checkpoint is no error behind a failover."""

import contextlib

import pytest

from harness.changes import FILES, KINDS, change, comes_to
from harness.host import command, wait_until
from harness.protocol import BADSESSION
from harness.wire import (
    EXIST, GETFH, NOENT, OK, SAVEFH, Request, Session, link, lookup, mkdir, mknod, putfh, remove, rename, u32)

pytestmark = pytest.mark.millrace

FIFO = 7


@pytest.fixture(scope='module')
def root(site):
    site.pool.create_share('done', mode=0o777)
    session = Session(site)
    yield session.root('done')
    session.end()


@pytest.fixture
def session(site):
    session = Session(site)
    yield session
    session.end()


@contextlib.contextmanager
def old_session(session):
    """It sends as before, to another server, until the client knows better."""
    session.site.server.kill9()
    session.site.server.start()
    session.connect_again()
    yield
    session.reconnect()


def changes(session, root):
    """Each kind of request, by what it would be told the second time."""
    here = putfh(root)
    file = session.create(root, 'file', b'data')
    for name in ('old', 'gone'):
        session.create(root, name)
    return {'rename': (NOENT, (here, SAVEFH, here, rename('old', 'new'))),
            'remove': (NOENT, (here, remove('gone'))),
            'link': (EXIST, (putfh(file), SAVEFH, here, link('second'))),
            'mkdir': (EXIST, (here, mkdir('directory'), GETFH)),
            'mknod': (EXIST, (here, mknod('fifo', FIFO), GETFH))}


def clear(session, root):
    for name in ('file', 'old', 'gone', 'new', 'second', 'directory', 'fifo'):
        session.status(putfh(root), remove(name))


@pytest.mark.parametrize('kind', ('rename', 'remove', 'link', 'mkdir', 'mknod'))
def test_it_is_answered_by_the_next_server(session, root, kind):
    clear(session, root)
    twice, operations = changes(session, root)[kind]
    request = Request(session, *operations)
    told = request.send()
    assert Request(session, *operations, slot=2).status() == twice
    with old_session(session):
        again = request.send()
        assert again == told if kind in ('mkdir', 'mknod') else again is not None
        assert request.send() == again  # as that answer may be lost as well
    assert session.status(*operations) == twice


def test_it_is_answered_by_the_one_after_that(session, root):
    clear(session, root)
    _, operations = changes(session, root)['rename']
    request = Request(session, *operations)
    request.send()
    session.site.server.kill9()
    session.site.server.start()
    with old_session(session):
        assert request.status() == OK


def test_nothing_else_is(session, root):
    clear(session, root)
    _, operations = changes(session, root)['rename']
    here = putfh(root)
    failed = Request(session, here, remove('not there'), slot=3)
    assert failed.status() == NOENT
    earlier = Request(session, here, mkdir('directory'))
    earlier.send()
    request = Request(session, *operations)
    request.send()
    many = Request(session, here, remove('gone'), here, remove('file'), slot=4)
    many.send()
    session.create(root, 'gone')
    more = Request(session, here, remove('gone'), (58, u32(1), lambda reply: None), slot=5)  # RECLAIM_COMPLETE
    more.status()
    with old_session(session):
        assert earlier.status() == failed.status() == many.status() == more.status() == BADSESSION
        other = Request(session, here, remove('new'))  # the next in that slot: it has that answer
        assert other.status() == BADSESSION
        session.numbers[1] -= 2
        assert Request(session, here, remove('new')).status() == BADSESSION
        assert request.status() == OK
    assert session.status(here, lookup('new')) == OK


def test_nothing_is_when_the_client_has_come_back(session, root):
    """Then grace is over."""
    clear(session, root)
    _, operations = changes(session, root)['rename']
    request = Request(session, *operations)
    request.send()
    known = session.id
    session.kill9()
    assert session.status(putfh(root), lookup('new')) == OK
    now, session.id = session.id, known
    wait_until(lambda: request.status() == BADSESSION, 30, 'it is forgotten')
    session.id = now


def test_nothing_is_of_a_session_that_was_ended(session, root):
    clear(session, root)
    _, operations = changes(session, root)['rename']
    request = Request(session, *operations)
    request.send()
    session.call([(44, session.id, lambda reply: None)])  # DESTROY_SESSION
    other = Session(session.site)
    other.compound(putfh(root), mkdir('directory'))  # durable by now, and so is what was before it
    with old_session(session):
        assert request.status() == BADSESSION
    other.end()


@contextlib.contextmanager
def unheard(client):
    """What the server sends to CLIENT is lost."""
    neighbour = ('neighbour', 'replace', client.client_address, 'dev', client.link.server_device)
    command('ip', *neighbour, 'lladdr', '02:00:00:00:00:01', 'nud', 'permanent')
    try:
        yield
    finally:
        command('ip', 'neighbour', 'delete', client.client_address, 'dev', client.link.server_device)


@pytest.mark.parametrize('kind', KINDS)
def test_a_client_of_linux_is_told(site, client, share, session, kind):
    client.run(f'cd {share.path}; {FILES}')
    here = session.root(share.volume)
    name, there = comes_to(kind)
    changing = client.spawn_call(change, kind, share.path)
    changing.wait_for_lines(1, 60)
    with unheard(client):
        wait_until(lambda: session.status(putfh(here), lookup(name)) == there, 60, 'the server has done it')
        site.server.kill9()
        # Else this machine would go on sending what the server had answered.
        command('ss', '--kill', '--tcp', 'src', client.server_address, 'dst', client.client_address, 'sport', '=', f':{site.server.port}')
    site.server.start()
    assert changing.wait(timeout=180).rc == 0
    session.reconnect()
    assert session.status(putfh(here), lookup(name)) == there

# SPDX-License-Identifier: LGPL-3.0-or-later
"""How a new list of members reaches one: over whichever network it answers on, whole or not at all."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / 'ha/bin'
NODE = '''node {{
    {rings}
    name: {name}
    nodeid: {number}
}}
'''
# Of a node that is called NAME and has its state in PLACE; corosync is not there, which would read the list, nor pacemaker.
BEGIN = '''
here={name} FAILED=1 undo=
trap '$undo' EXIT
. {programs}/common
end_in_order
. {programs}/connections
. {programs}/changes
. {programs}/qnetd
MEMBER_PORT=2226 TALK_SECONDS=16 state={place} conf={place}/corosync.conf work={place}
member_key() {{ printf %064d 7; }}
apply_list() {{ :; }}
end_change() {{ echo "${{1:-$here}}" >>{place}/ended; }}
'''


def members(*lists):
    """corosync.conf of n1, n2 and so on, each with its list of addresses."""
    return ''.join(NODE.format(rings='\n    '.join(f'ring{i}_addr: {address}' for i, address in enumerate(addresses)),
                               name=f'n{number}', number=number) for number, addresses in enumerate(lists, 1))


class Nodes:
    """Two in a network of their own, where 192.0.2.0/24 leads nowhere, and nothing comes back from there."""

    def __init__(self, directory):
        self.directory = directory
        self.network = subprocess.Popen(['unshare', '--net', 'sh', '-c', 'set -e; ip link set lo up; '
                                         'ip link add nowhere type veth peer name beyond; ip address add 192.0.2.1/24 dev nowhere; '
                                         'ip link set nowhere arp off up; ip link set beyond up; echo ready; exec sleep 600'],
                                        stdout=subprocess.PIPE)
        assert self.network.stdout.readline() == b'ready\n'

    def words(self, name, script):
        begin = BEGIN.format(name=name, programs=PROGRAMS, place=self.directory / name)
        return ['nsenter', '--net', '--target', str(self.network.pid), 'bash', '-c', begin + script]

    def make(self, name, text):
        place = self.directory / name
        place.mkdir()
        (place / 'cluster').touch()
        (place / 'corosync.conf').write_text(text)
        return place

    @contextlib.contextmanager
    def listening(self, name, before=''):
        listener = subprocess.Popen(self.words(name, before + 'attend "$(member_key)" $MEMBER_PORT in_cluster hear'))
        try:
            yield
        finally:
            (self.directory / name / 'cluster').unlink()
            subprocess.run(['pkill', '-TERM', '-P', str(listener.pid)], check=False)
            listener.terminate()
            listener.wait(timeout=60)

    def call(self, name, script):
        done = subprocess.run(self.words(name, script), capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout

    def tell(self, name, path, words=''):
        return self.call(name, f'tell_members {path} {words}')

    def close(self):
        self.network.kill()
        self.network.wait()


@pytest.fixture
def nodes(tmp_path):
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.close()


@pytest.mark.parametrize('addresses', [('127.0.0.2', '127.0.0.3'), ('192.0.2.2', '127.0.0.3'), ('127.0.0.9', '127.0.0.3')])
def test_a_list_comes_over_any_network(nodes, addresses, tmp_path):
    """Both are there; the first one takes all, and gives nothing back; nobody is at the first one."""
    nodes.make('n1', members(['127.0.0.1'], addresses))
    n2 = nodes.make('n2', members(['127.0.0.1'], [address for address in addresses if address in ('127.0.0.2', '127.0.0.3')]))
    new = tmp_path / 'new'
    new.write_text(members(['127.0.0.1'], addresses, ['127.0.0.4']))
    with nodes.listening('n2'):
        assert nodes.tell('n1', new) == (0, '')
        assert (n2 / 'corosync.conf').read_text() == new.read_text()


@pytest.mark.parametrize('addresses, good', [
    ('192.0.2.2 198.51.100.2', True), ('198.51.100.2 192.0.2.2', False), ('192.0.2.2 192.0.2.3', True), ('203.0.113.2 192.0.2.2', True)])
def test_addresses_of_who_joins_are_in_the_order_of_those_that_are_there(nodes, addresses, good):
    """Where both nodes have the same two networks; of others nothing is known."""
    nodes.make('n1', members(['192.0.2.1', '198.51.100.1']))
    place = 'ip address replace 198.51.100.1/24 dev nowhere; USAGE=2; '
    rc, said = nodes.call('n1', f'{place}check_order "{addresses}"')
    assert (rc, said) == (0, '') if good else rc == 2 and 'for the network of 192.0.2.1 first' in said


def test_an_address_that_is_gone_is_not_listened_at_until_it_comes_back(nodes, tmp_path):
    """Nobody tries to listen at it again and again, for which openssl is started: where processors are few the node's work waits for that."""
    address = '198.51.100.2'
    nodes.make('n1', members(['127.0.0.1'], [address]))
    n2 = nodes.make('n2', members(['127.0.0.1'], [address]))
    new, begun, programs = tmp_path / 'new', tmp_path / 'begun', tmp_path / 'programs'
    new.write_text(members(['127.0.0.1'], [address], ['127.0.0.4']))
    programs.mkdir()
    (programs / 'openssl').write_text(f'#!/bin/sh\necho "$@" >>{begun}\nexec {shutil.which("openssl")} "$@"\n')
    (programs / 'openssl').chmod(0o755)
    with nodes.listening('n2', f'PATH={programs}:$PATH; '):
        time.sleep(5)
        assert not begun.exists()
        nodes.call('n2', f'ip address add {address}/24 dev nowhere')
        assert nodes.tell('n1', new) == (0, '')
    assert (n2 / 'corosync.conf').read_text() == new.read_text()
    assert begun.read_text().startswith(f's_server -accept {address}:2226 ')


def test_one_that_answers_nowhere_ends_it(nodes, tmp_path):
    nodes.make('n1', members(['127.0.0.1'], ['192.0.2.2', '192.0.2.3']))
    new = tmp_path / 'new'
    new.write_text(members(['127.0.0.1']))
    rc, said = nodes.tell('n1', new)
    assert rc == 1 and said == 'error n2 does not take the new list of members: it does not answer\n'
    assert nodes.tell('n1', new, 'whatever') == (0, '')


def test_one_that_cannot_be_kept_here_is_kept_nowhere(nodes, tmp_path):
    n1 = nodes.make('n1', members(['127.0.0.1'], ['127.0.0.2']))
    n2 = nodes.make('n2', members(['127.0.0.1'], ['127.0.0.2']))
    before, new = (n2 / 'corosync.conf').read_text(), tmp_path / 'new'
    new.write_text(members(['127.0.0.1'], ['127.0.0.2'], ['127.0.0.4']))
    (n1 / 'corosync.conf.new').mkdir()  # in the way
    with nodes.listening('n2'):
        rc, said = nodes.call('n1', f'use_list {new}')
        assert rc == 1 and 'corosync.conf cannot be written' in said
        assert (n1 / 'corosync.conf').read_text() == before and (n2 / 'corosync.conf').read_text() == before
        (n1 / 'corosync.conf.new').rmdir()
        assert nodes.call('n1', f'use_list {new}') == (0, '')
        assert (n1 / 'corosync.conf').read_text() == (n2 / 'corosync.conf').read_text() == new.read_text()


def test_one_that_is_broken_off_is_kept_nowhere(nodes, tmp_path):
    """When n2 has it, and n3, which does not answer, has not; by a connection's end, which sends more than one signal."""
    lists = ['127.0.0.1'], ['127.0.0.2'], ['192.0.2.3']
    n1, n2 = (nodes.make(name, members(*lists)) for name in ('n1', 'n2'))
    before, new = (n2 / 'corosync.conf').read_text(), tmp_path / 'new'
    new.write_text(members(*lists, ['127.0.0.4']))
    with nodes.listening('n2'):
        teller = subprocess.Popen(nodes.words('n1', f'undo=end_change; use_list {new}'), start_new_session=True)
        deadline = time.monotonic() + 60
        while (n2 / 'corosync.conf').read_text() != new.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for pause in (0.001, 0.3, 0):
            os.killpg(teller.pid, signal.SIGHUP)
            time.sleep(pause)
        teller.wait(timeout=60)
        assert (n2 / 'corosync.conf').read_text() == (n1 / 'corosync.conf').read_text() == before
        assert (n1 / 'ended').read_text() == 'n1\n'


def test_who_has_left_says_so(nodes, tmp_path):
    """To one that answers: n1 does not, n2 does."""
    nodes.make('n3', members(['192.0.2.1'], ['127.0.0.2'], ['127.0.0.3']))
    n2 = nodes.make('n2', members(['192.0.2.1'], ['127.0.0.2']))
    with nodes.listening('n2'):
        assert nodes.call('n3', f'say_left {n2}/corosync.conf') == (0, '')
    assert (n2 / 'ended').read_text() == 'n3\n'


def test_what_is_no_list_changes_nothing(nodes, tmp_path):
    nodes.make('n1', members(['127.0.0.1'], ['127.0.0.2']))
    n2 = nodes.make('n2', members(['127.0.0.1'], ['127.0.0.2']))
    before, new = (n2 / 'corosync.conf').read_text(), tmp_path / 'new'
    new.write_text('totem {\n}\n')
    with nodes.listening('n2'):
        rc, said = nodes.tell('n1', new)
    assert rc == 1 and said.endswith('that is no list\n') and (n2 / 'corosync.conf').read_text() == before


def test_one_that_there_was_no_room_for_is_kept_nowhere(nodes, tmp_path):
    """By the only member, which nobody else could tell so."""
    n1 = nodes.make('n1', members(['127.0.0.1']))
    before, new = (n1 / 'corosync.conf').read_text(), tmp_path / 'new'
    new.touch()
    rc, said = nodes.call('n1', f'use_list {new}')
    assert rc == 1 and 'is there room?' in said and (n1 / 'corosync.conf').read_text() == before

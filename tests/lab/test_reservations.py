# SPDX-License-Identifier: LGPL-3.0-or-later
"""NVMe reservations, on drives of the kernel's target that have them: two hosts are registered, a third is not, and one
that is shut out writes nothing any more, its pool's server least of all."""

import os
import shlex

import pytest

from harness.host import wait_until
from machine import ROOT
from target import DRIVES, MEMBERS, Host, Target

pytestmark = pytest.mark.long

PROGRAMS = [os.path.join(ROOT, 'ha', 'bin', name) for name in ('common', 'reservations')]
UNRESERVED, ALL_REGISTRANTS = 0, 5
POOL = 'tank'


@pytest.fixture(scope='module')
def target(lab):
    target = lab.add(Target, 'target', server_address='192.0.2.7', networks={'lan': '192.0.2.7/24'})
    target.start()
    target.share_drives()
    target.prepare_hosts()
    target.install(*PROGRAMS)
    yield target
    lab.remove(target)


@pytest.fixture(scope='module')
def hosts(target):
    hosts = [Host(target, name) for name in (*MEMBERS, 'n3')]
    hosts[0].millrace(f'pool create {POOL} --data 2 --parity 1 --cell 4K {" ".join(hosts[0].drives)}')
    return hosts


@pytest.fixture
def members(hosts):
    """Both have booted, and are registered on all drives."""
    for host in hosts[:2]:
        host.boot()
        host.reservations(f'take {POOL}')
    assert all(host.report(number)[0] == ALL_REGISTRANTS for host in hosts[:2] for number in range(DRIVES))
    return hosts[:2]


def test_reserved_when_all_are_registered(hosts):
    n1, n2, stranger = hosts
    n1.reservations('check')  # nothing to do
    n1.reservations(f'take {POOL}')
    assert [n1.report(number)[0] for number in range(DRIVES)] == [UNRESERVED] * DRIVES
    assert all(host.can_write(0) for host in hosts)
    n2.reservations(f'take {POOL}')
    reports = [n1.report(number) for number in range(DRIVES)]
    assert all(kind == ALL_REGISTRANTS and len(keys) == 2 for kind, keys in reports)
    assert n1.can_write(0) and n2.can_write(0) and not stranger.can_write(0)
    for host in (n1, n2):
        host.reservations('check')


def test_who_is_shut_out_writes_nothing(members):
    n1, n2 = members
    n1.millrace(f'serve {POOL} --fenced --listen 127.0.0.1')
    n1.millrace(f'share create {POOL}/before')
    server = n1.run('pgrep ganesha.nfsd').split()[0]
    assert 'is left as it is' in n1.reservations('take', rc=1)
    n2.reservations('fence n1')
    n2.reservations('fence n1')  # once more changes nothing
    assert all(len(n2.report(number)[1]) == 1 for number in range(DRIVES))
    n1.run(f'millrace share create {POOL}/after {n1.places}; :')
    wait_until(lambda: not n1.target.does(f'cat /proc/{server}/exe'), 120, 'its server ends', interval=1)
    assert 'another host' in n1.run('cat /hosts/n1/state/log/tank.log')
    assert not any(n1.can_write(number) for number in range(DRIVES))
    n2.millrace(f'pool import {POOL} --force')
    shares = n2.millrace('share list')
    assert f'{POOL}/before' in shares and f'{POOL}/after' not in shares
    assert 'was shut out' in n1.reservations('check', rc=1)
    n1.reservations(f'take {POOL}')  # not again under the same boot
    assert 'not reserved by n1' in n1.reservations('fence n2', rc=1)
    assert n2.can_write(0)
    n2.millrace(f'pool export {POOL}')


def test_registered_again_by_its_next_boot(members):
    n1, n2 = members
    n2.reservations('fence n1')
    assert not n1.can_write(0)
    n1.boot()
    n1.reservations(f'take {POOL}')
    assert n1.can_write(0)
    n1.reservations('check')


def test_a_drive_that_was_not_there_when_it_booted(members):
    n1, n2 = members
    n2.reservations('fence n1')
    n1.boot()
    n1.run(f'rm {n1.drives[0]}')
    n1.reservations(f'take {POOL}')
    n1.find_drives()
    assert not n1.can_write(0) and n1.can_write(1)
    n1.reservations('check')
    assert n1.can_write(0)


def test_a_node_that_saw_no_drive_when_it_booted(members):
    n1, n2 = members
    n2.reservations('fence n1')
    n1.boot()
    n1.run(f'rm {" ".join(n1.drives)}')
    n1.reservations(f'take {POOL}')
    n1.find_drives()
    n1.reservations('check')
    assert not n1.can_write(0)  # it knows of none
    n1.reservations(f'take {POOL}')
    assert all(n1.can_write(number) for number in range(DRIVES))
    n2.reservations('fence n1')
    n1.reservations(f'take {POOL}')  # it has seen them by now
    assert not n1.can_write(0)


@pytest.fixture
def silent(members):
    """The first member's first drive does not answer what it can do, until this is called."""
    n1 = members[0]
    script = f'#!/bin/sh\n[ "$1 $2" != "id-ns {n1.drives[0]}" ] || exec sleep 1000\nexec /run/answers "$@"\n'
    n1.run(f'nvme=$(command -v nvme); cp $nvme /run/answers; printf %s {shlex.quote(script)} >/run/silent; '
           'chmod +x /run/silent; mount --bind /run/silent $nvme')
    mounted = [True]

    def mend():
        if mounted:
            mounted.pop()
            n1.run('umount $(command -v nvme)')
    yield mend
    mend()


def test_a_drive_that_does_not_answer_at_first(members, silent):
    n1, n2 = members
    n2.reservations('fence n1')
    n1.boot()
    assert f'{n1.drives[0]} does not say whether' in n1.reservations(f'take {POOL}', rc=1)
    assert not n1.can_write(0) and n1.can_write(1)
    silent()
    n1.reservations(f'take {POOL}')
    assert all(n1.can_write(number) for number in range(DRIVES))
    n1.reservations('check')


def test_who_is_shut_out_meanwhile_is_registered_nowhere_anew(members, silent):
    n1, n2 = members
    n2.reservations('fence n1')
    n1.boot()
    n1.reservations(f'take {POOL}', rc=1)
    n2.reservations('fence n1')
    silent()
    assert 'was shut out' in n1.reservations(f'take {POOL}', rc=1)
    assert not any(n1.can_write(number) for number in range(DRIVES))


def test_drives_that_have_forgotten(target, hosts, members):
    """Nobody is refused until both have noticed."""
    n1, n2 = members
    target.forget_reservations(hosts)
    assert n1.report(0) == (UNRESERVED, set())
    assert 'not reserved by n1' in n1.reservations('fence n2', rc=1)
    n1.reservations('check')
    assert n1.report(0)[0] == UNRESERVED and n2.can_write(0)
    n2.reservations('check')
    assert [n1.report(number)[0] for number in range(DRIVES)] == [ALL_REGISTRANTS] * DRIVES
    n1.reservations('check')


def test_another_pool_whose_drives_are_not_reserved(members):
    """Who is shut out of one could write to the other."""
    n1, n2 = members
    plain = n2.plain_drives()
    n2.millrace(f'pool create plain --data 2 --parity 1 --cell 4K {" ".join(plain)}')
    n2.reservations('take plain')
    assert f'{plain[0]} is not reserved' in n2.reservations('fence n1', rc=1)
    n2.boot()
    n2.reservations(f'take {POOL}')
    n2.reservations('fence n1')


def test_who_leaves_is_registered_nowhere(members):
    n1, n2 = members
    n2.reservations('give-back')
    assert all(n1.report(number)[0] == ALL_REGISTRANTS and len(n1.report(number)[1]) == 1 for number in range(DRIVES))
    n1.reservations('give-back')
    assert n1.report(0) == (UNRESERVED, set())
    n1.reservations('fence n2', rc=1)  # nothing is known here any more


def test_drives_that_a_cluster_had_which_is_no_more(hosts, members):
    """They are free for another one that is to fence by them."""
    stranger = hosts[2]
    assert not stranger.can_write(0)
    stranger.run(f'printf "%s\\n" {" ".join(stranger.drives)} >/etc/millrace/fencing')
    stranger.reservations('clear')
    assert all(stranger.report(number) == (UNRESERVED, set()) for number in range(DRIVES))
    assert all(host.can_write(number) for host in hosts for number in range(DRIVES))
    stranger.reservations('clear')  # nothing to do

# SPDX-License-Identifier: LGPL-3.0-or-later
"""What stands in corosync.conf when members change, and which drives are chosen for fencing."""

import json
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / 'ha/bin'
BEGIN = '''
. "$1/common"; . "$1/conf"; . "$1/areas"; . "$1/qnetd"; conf=$2/corosync.conf state=$2
eval "$(sed -n "/^setting()/,/^}/p" "$1/cluster")"
'''
# As an admin may have it, or pcs.
ADMINS = '''# ours { not that of the image
totem {
    version: 2
    cluster_name: lake
    transport: knet
    token: 10000
    interface {
        linknumber: 0
        knet_transport: sctp
    }
}
nodelist {
    node {
        ring0_addr: 192.0.2.1
        ring1_addr: 198.51.100.1
        name: n1
        nodeid: 1
        quorum_votes: 1
    }
    node {
        ring0_addr: 192.0.2.2
        ring1_addr: 198.51.100.2
        name: n2
        nodeid: 2
    }
}

quorum {
    provider: corosync_votequorum
    wait_for_all: 0
    two_node: 1
}
system {
    qb_ipc_type: shm
}
'''
N3 = '3 n3 192.0.2.3 198.51.100.3'


def run(place, script):
    return subprocess.run(['bash', '-c', BEGIN + script, 'bash', PROGRAMS, place], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def place(tmp_path):
    (tmp_path / 'corosync.conf').write_text(ADMINS)
    (tmp_path / 'cluster').write_text('watchdog-timeout=15\n')
    return tmp_path


def change(place, members, host=''):
    """What comes of it, kept as the new one."""
    text = run(place, f"printf '%s\\n' {' '.join(repr(member) for member in members)} | change_conf {host}")
    (place / 'corosync.conf').write_text(text)
    assert run(place, 'members $conf').splitlines() == members
    return text


def test_what_an_admin_has_set_stays(place):
    n1, n2 = run(place, 'members $conf').splitlines()
    assert (n1, n2) == ('1 n1 192.0.2.1 198.51.100.1', '2 n2 192.0.2.2 198.51.100.2')
    without = ADMINS.replace('    two_node: 1\n', '')
    three = change(place, [n1, n2, N3])
    assert three == without.replace('nodeid: 2\n    }\n', 'nodeid: 2\n    }\n    node {\n        ring0_addr: 192.0.2.3\n'
                                    '        ring1_addr: 198.51.100.3\n        name: n3\n        nodeid: 3\n    }\n')
    assert change(place, [n1, n2]) == ADMINS
    one = change(place, [n2])
    assert one == without[:without.index('    node {')] + without[without.index('    node {\n        ring0_addr: 192.0.2.2'):]
    assert change(place, [n2]) == one


def test_a_quorum_device_takes_the_place_of_two_nodes_rule(place):
    both = run(place, 'members $conf').splitlines()
    asked = change(place, both, '192.0.2.9')
    assert 'two_node' not in asked and asked.count('device {') == 1 and run(place, 'device_host $conf') == '192.0.2.9\n'
    assert '        timeout: 15000\n' in asked and 'wait_for_all: 0' in asked and 'token: 10000' in asked
    assert change(place, both, 'qnetd.example').count('device {') == 1 and run(place, 'device_host $conf') == 'qnetd.example\n'
    assert change(place, both) == ADMINS


def test_the_first_node_is_written_as_it_is_changed(place):
    (place / 'corosync.conf').write_text(run(place, 'make_conf lake 1 n1 2001:db8::1'))
    first = (place / 'corosync.conf').read_text()
    assert 'cluster_name: lake\n' in first and 'two_node' not in first
    two = change(place, ['1 n1 2001:db8::1', '2 n2 2001:db8::2'])
    assert two.count('    two_node: 1\n') == 1
    assert change(place, ['1 n1 2001:db8::1']) == first


def areas(*domains):
    return [{'device': f'd{number}', 'domain': domain} for number, domain in enumerate(domains)]


@pytest.mark.parametrize('domains, used, count, chosen', [
    (['a', 'a', 'b', 'b', 'c', 'c'], [], 3, ['d0', 'd2', 'd4']),
    (['a', 'a', 'a', 'b', 'b', 'b'], [], 3, ['d0', 'd3', 'd1']),
    (['n1'] * 6, [], 3, ['d0', 'd1', 'd2']),
    (['a', 'b'], [], 3, ['d0', 'd1']),
    ([], [], 3, []),
    (['a', 'b', 'c'], ['a', 'b'], 1, ['d2']),
    (['a', 'b', 'b'], ['a', 'a'], 1, ['d1']),
    (['a', 'b'], ['a', 'b'], 1, ['d0']),
])
def test_drives_for_fencing_are_of_several_domains(domains, used, count, chosen, tmp_path):
    """A shelf that is lost takes all of its drives away, and most of those for fencing must be left."""
    said = run(tmp_path, f"spread '{json.dumps(used)}' {count} <<<'{json.dumps(areas(*domains))}'")
    assert said.split() == chosen


@pytest.mark.parametrize('listed, chosen', [
    (['d0', 'gone', 'd4'], 'd2'),  # of the domain that has none
    (['d0', 'd1', 'gone'], 'd2'),
    (['gone', 'gone too', 'd5'], 'd0'),
])
def test_another_is_of_the_same_pool(listed, chosen, tmp_path):
    (tmp_path / 'fencing').write_text(''.join(f'{line}\n' for line in listed))
    pools = {'pools': [{'fencing': [{'device': 'other', 'domain': 'z'}]}, {'fencing': areas('a', 'a', 'b', 'b', 'c', 'c')}]}
    assert run(tmp_path, f"seen='{json.dumps(pools)}'; another_area ''").split() == [chosen]


def test_where_none_is_left_it_is_said(tmp_path):
    (tmp_path / 'fencing').write_text('d0\nd1\ngone\n')
    pools = {'pools': [{'fencing': areas('a', 'a')}]}
    assert 'no drive is left for fencing' in run(tmp_path, f"seen='{json.dumps(pools)}'; (another_area '') || :")
    assert 'no drive is left for fencing' in run(tmp_path, "seen='{\"pools\": []}'; (another_area '') || :")

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Which node `millrace service` says that a service is on, and what of each node, by what crm_mon says of them."""

import subprocess
from pathlib import Path

import pytest

COMMON = Path(__file__).parents[2] / 'ha/bin/common'

ASK = '. "$1"; monitor=$(cat); option() { [ "$*" = "tank-server pool" ] && echo pond; }; service_node tank'


def told(nodes, server, address, epochs):
    """As crm_mon tells it: NODES name: state, a role and nodes of each resource, EPOCHS name: of pool pond."""
    def resource(name, role, places):
        inside = ''.join(f'<node name="{place}"/>' for place in places)
        return f'<resource id="tank-{name}" role="{role}">{inside}</resource>'

    states = ''.join(f'<node name="{name}" online="{str(state != "offline").lower()}" unclean="{str(state == "unclean").lower()}"/>'
                     for name, state in nodes.items())
    attributes = ''.join(f'<node name="{name}"><attribute name="millrace-epoch-bay" value="99"/>'
                         f'<attribute name="millrace-epoch-pond" value="{epoch}"/></node>' for name, epoch in epochs.items())
    return (f'<pacemaker-result><nodes>{states}</nodes><resources>{resource("server", *server)}{resource("address", *address)}'
            f'</resources><node_attributes>{attributes}</node_attributes></pacemaker-result>')


@pytest.mark.parametrize('n1, server, address, epochs, node', [
    ('online', ('Started', ['n1']), ('Started', ['n1']), {'n1': 4}, 'n1'),
    ('online', ('Started', ['n2']), ('Started', ['n2']), {'n1': 4}, 'n2'),
    ('online', ('Starting', ['n1']), ('Started', ['n1']), {'n1': 4}, ''),
    ('online', ('Started', ['n1']), ('Starting', ['n1']), {'n1': 4}, ''),
    ('online', ('Stopping', ['n1']), ('Started', ['n1']), {'n1': 4}, ''),
    ('online', ('Started', ['n1']), ('Started', ['n2']), {'n1': 4}, ''),
    ('online', ('Stopped', []), ('Started', ['n1']), {'n1': 4}, ''),
    ('unclean', ('Started', ['n1']), ('Started', ['n1']), {'n1': 4}, ''),
    ('offline', ('Started', ['n1']), ('Started', ['n1']), {'n1': 4}, ''),
    # n1 was fenced and goes on
    ('online', ('Started', ['n1', 'n2']), ('Started', ['n1', 'n2']), {'n1': 4, 'n2': 5}, 'n2'),
    ('online', ('Started', ['n1', 'n2']), ('Started', ['n1', 'n2']), {'n1': 10, 'n2': 9}, 'n1'),
    ('online', ('Started', ['n1', 'n2']), ('Started', ['n1', 'n2']), {'n2': 1}, 'n2'),
    ('online', ('Stopping', ['n1', 'n2']), ('Started', ['n1', 'n2']), {'n1': 4, 'n2': 5}, 'n2'),
    ('online', ('Stopping', ['n1', 'n2']), ('Stopping', ['n1', 'n2']), {'n1': 4, 'n2': 5}, 'n2'),
    # ... and is gone, what it was to do still under way
    ('unclean', ('Stopping', ['n1', 'n2']), ('Started', ['n1', 'n2']), {'n1': 4, 'n2': 5}, 'n2'),
    ('unclean', ('Stopping', ['n1', 'n2']), ('Started', ['n2']), {'n1': 4, 'n2': 5}, 'n2'),
])
def test_where_a_service_is(n1, server, address, epochs, node):
    done = subprocess.run(['bash', '-c', ASK, 'bash', COMMON], input=told({'n1': n1, 'n2': 'online'}, server, address, epochs),
                          capture_output=True, text=True, check=True)
    assert done.stdout.strip() == node, done.stderr


STATE = """. "$1"; conf=$2; joined=$3; monitor=$(cat)
corosync-cmapctl() { echo "$2 (str) = $([ "$2" = "runtime.members.$joined.status" ] && echo joined || echo left)"; }
node_state n2"""


@pytest.mark.parametrize('joined, attributes, state', [
    (0, 'online="true" unclean="false"', 'online'),
    (2, 'online="false" unclean="false"', 'starting'),  # corosync runs there, and would go on alone if it were taken out
    (1, 'online="false" unclean="false"', 'offline'),
    (2, 'online="false" unclean="true"', 'unclean'),
    (2, 'online="true" unclean="false" pending="true"', 'starting'),
    (2, 'online="true" unclean="false" standby="true"', 'drained'),
    (2, 'online="true" unclean="false" standby="true" maintenance="true"', 'maintenance'),
    (2, 'online="true" unclean="false" standby="false" maintenance="false"', 'online'),
])
def test_how_a_node_is(joined, attributes, state, tmp_path):
    conf = tmp_path / 'corosync.conf'
    conf.write_text(''.join(f'node {{\n    name: n{number}\n    nodeid: {number}\n}}\n' for number in (1, 2)))
    told = f'<pacemaker-result><nodes><node name="n2" {attributes}/></nodes></pacemaker-result>'
    done = subprocess.run(['bash', '-c', STATE, 'bash', COMMON, conf, str(joined)], input=told, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == state, done.stderr


@pytest.mark.parametrize('address, written', [
    ('192.0.2.9/24', '192.0.2.9/24'), ('192.0.2.9/024', '192.0.2.9/24'),
    ('2001:DB8:0::2/64', '2001:db8::2/64'), ('::1/128', '::1/128'),
    ('192.0.2.9', ''), ('192.0.2/24', ''), ('192.0.2.256/24', ''), ('192.0.2.9/33', ''), ('192.0.2.9/', ''), ('192.0.2.9/24/24', ''),
    ('2001:db8::2/129', ''), ('2001:db8::g/64', ''), ('a.be/24', ''), ('/24', ''), ('', ''),
])
def test_one_address_is_written_in_one_way(address, written):
    script = '. "$1/common"; eval "$(sed -n "/^canonical_with_bits()/,/^}/p" "$1/service")"; canonical_with_bits "$2" || :'
    done = subprocess.run(['bash', '-c', script, 'bash', COMMON.parent, address], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == written, done.stderr


@pytest.mark.parametrize('name, may', [('n1', True), ('1n', True), ('node-1.example', True), ('2', False), ('20261', False), ('', False),
                                       ('-', False), ('n 1', False), ('n_1', False)])
def test_what_a_node_may_be_called(name, may):
    """crm_node takes one of digits for another's number."""
    done = subprocess.run(['bash', '-c', '. "$1"; is_node_name "$2"', 'bash', COMMON, name], check=False)
    assert done.returncode == (0 if may else 1)


def test_one_drive_by_two_names(tmp_path):
    for name in ('one', 'two'):
        (tmp_path / name).touch()
    (tmp_path / 'link').symlink_to(tmp_path / 'one')
    for names, rc in ((('one', 'two'), 0), (('one',), 0), ((), 0), (('one', 'two', 'one'), 2), (('link', 'two', 'one'), 2)):
        paths = [str(tmp_path / name) for name in names]
        done = subprocess.run(['bash', '-c', '. "$1"; check_different "${@:2}"', 'bash', COMMON, *paths], capture_output=True, text=True, check=False)
        assert (done.returncode, 'are one drive' in done.stdout) == (rc, rc == 2)


def test_a_drive_has_one_number_under_any_name(tmp_path):
    for name in ('one', 'two'):
        (tmp_path / name).touch()
    (tmp_path / 'link').symlink_to(tmp_path / 'one')
    script = 'eval "$(sed -n "/^is_known()/,/^}/p" "$1/drives")"; is_known "$2"'
    for name, known in (('one', True), ('link', True), ('two', False), ('none', False)):
        done = subprocess.run(['bash', '-c', script, 'bash', COMMON.parent, tmp_path / name], input=f'1 {tmp_path}/one\n2 {tmp_path}/gone\n',
                              text=True, check=False)
        assert (done.returncode == 0) == known

# SPDX-License-Identifier: LGPL-3.0-or-later
"""fence_millrace, with sbd of the appliance's Debian on loop devices, on a node in namespaces of its own."""

import os
import signal
import subprocess
import xml.etree.ElementTree

import pytest

from conftest import SYSTEM
from harness.server import ROOT

NODES = ('n1', 'n2')
OFF = 2
PAGE = 4096
# Process 1 of the node: its name, a network `lan` with carrier, the system with the agent in it as the package has it.
NODE = '''
set -euo pipefail
mount --make-rprivate /
hostname n1
mkdir -p {place}/changes {place}/work {place}/root
mount -t overlay -o lowerdir={system},upperdir={place}/changes,workdir={place}/work node {place}/root
root={place}/root
mkdir -p $root{tree} $root/usr/lib/millrace $root/etc/corosync
mount --rbind {tree} $root{tree}
mount --rbind /dev $root/dev
mount -t proc proc $root/proc
mount -t sysfs sys $root/sys
ln -sfn {tree}/ha/bin/* $root/usr/lib/millrace/
ln -sfn ../lib/millrace/fence $root/usr/sbin/fence_millrace
cat >$root/etc/corosync/corosync.conf
ip link add lan type veth peer name far
ip address add 192.0.2.1/24 dev lan
ip link set lan up
ip link set far up
echo ready
exec sleep infinity
'''
CONFIGURATION = '''nodelist {
    node {
        ring0_addr: 192.0.2.1
        name: n1
        nodeid: 1
    }
    node {
        ring0_addr: 192.0.2.2
        name: n2
        nodeid: 2
    }
}
'''


def make_drive(file, *options):
    with open(file, 'wb') as made:
        made.truncate(4 << 20)
    return subprocess.run(['losetup', *options, '--show', '--find', file], check=True, capture_output=True, text=True).stdout.strip()


class Place:
    """The node, and three drives that sbd has on it."""

    def __init__(self, place):
        script = NODE.format(place=place, system=SYSTEM, tree=ROOT)
        self.place = place
        self.root = f'{place}/root'
        self.process = subprocess.Popen(['unshare', '-m', '-u', '-n', 'bash', '-c', script], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.process.stdin.write(CONFIGURATION.encode())
        self.process.stdin.close()
        assert self.process.stdout.readline() == b'ready\n'
        self.small = []
        self.drives = [make_drive(f'{place}/drive{i}') for i in range(3)]

    def command(self, *words):
        return ['nsenter', '-t', str(self.process.pid), '-m', '-u', '-n', 'chroot', self.root, *words]

    def run(self, *words, check=True):
        return subprocess.run(self.command(*words), check=check, capture_output=True, text=True)

    def prepare(self, *drives):
        """All at once: sbd takes seconds for each."""
        steps = ' && '.join(['sbd -d $drive -1 1 -4 2 create', *(f'sbd -d $drive allocate {node}' for node in NODES)])
        self.run('bash', '-c', f'for drive; do {{ {steps}; }} & done; for drive; do wait -n || exit 1; done', 'bash',
                 *(drives or self.drives))
        return self

    def spoil(self, drive):
        """It is none of sbd's any more."""
        with open(drive, 'r+b') as file:
            file.write(bytes(1 << 20))

    def fail_writes(self, number):
        """Another drive in its place, which reads well, and takes no message: in its file, on a file system that is full, are
        holes where those are to be. A page is a sector, as sbd has a node's name in one and its message in the next."""
        small = f'{self.place}/small{number}'
        os.mkdir(small)
        subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=3m', 'small', small], check=True)
        self.small.append(small)
        subprocess.run(['losetup', '--detach', self.drives[number]], check=True)
        self.drives[number] = make_drive(f'{small}/drive', '--sector-size', str(PAGE))
        self.prepare(self.drives[number])
        for slot, _ in enumerate(NODES):
            subprocess.run(['fallocate', '--punch-hole', '--offset', str((2 + 2 * slot) * PAGE), '--length', str(PAGE),
                            f'{small}/drive'], check=True)
        with pytest.raises(OSError, match='No space'), open(f'{small}/rest', 'wb', buffering=0) as file:
            while True:
                file.write(bytes(PAGE))

    def start(self, action, **more):
        """The agent, as pacemaker starts it."""
        lines = {'action': action, 'devices': ','.join(self.drives), 'nodename': 'n2', **more}
        agent = subprocess.Popen(self.command('fence_millrace'), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        agent.stdin.write(''.join(f'{name}={value}\n' for name, value in lines.items()))
        agent.stdin.close()
        agent.stdin = None
        return agent

    def agent(self, action, **more):
        """Its exit code, what it says and what it complains of."""
        agent = self.start(action, **more)
        out, err = agent.communicate(timeout=60)
        return agent.returncode, out, err

    def messages(self):
        """What stands on each drive for n2; None where it is none of sbd's."""
        told = [self.run('sbd', '-d', drive, 'list', check=False) for drive in self.drives]
        lines = [[line.split() for line in each.stdout.splitlines()] for each in told]
        return [next((line[2] for line in each if line[1:2] == ['n2']), None) for each in lines]

    def pull(self):
        self.run('ip', 'link', 'set', 'far', 'down')

    def close(self):
        self.process.kill()
        self.process.wait()
        for drive in self.drives:
            subprocess.run(['losetup', '--detach', drive], check=True)
        for small in self.small:
            subprocess.run(['umount', small], check=True)


@pytest.fixture
def place(tmp_path):
    place = Place(str(tmp_path))
    try:
        yield place.prepare()
    finally:
        place.close()


@pytest.mark.parametrize('action, message', [('off', 'off'), ('reboot', 'reset')])
def test_a_node_is_told(place, action, message):
    assert place.agent('status', port='n2')[0] == 0
    assert place.agent(action, port='n2')[0] == 0
    assert place.messages() == [message] * 3
    assert place.agent('status', port='n2')[0] == OFF
    assert place.agent('on', plug='n2')[0] == 0
    assert place.messages() == ['clear'] * 3


def test_who_can_be_fenced(place):
    code, out, _ = place.agent('list')
    assert code == 0 and [line.strip() for line in out.split(',') if line.strip()] == list(NODES)
    code, _, err = place.agent('status', port='n3')
    assert code == 1 and 'n3' in err
    code, _, err = place.agent('off')
    assert code != 0 and 'which node' in err
    assert place.messages() == ['clear'] * 3


def test_a_node_that_the_first_drive_does_not_know(place):
    """It did not reach that one when it joined."""
    for drive in place.drives[1:]:
        place.run('sbd', '-d', drive, 'allocate', 'n3')
    code, out, _ = place.agent('list')
    assert code == 0 and sorted(out.replace(',', '').split()) == [*NODES, 'n3']
    assert place.agent('status', port='n3')[0] == 0
    assert place.agent('off', port='n3')[0] == 0
    assert place.agent('status', port='n3')[0] == OFF


def test_a_node_whose_place_is_of_another_case(place):
    """It left as N3, and joins as n3: sbd has its place on each drive by the first name for good."""
    for drive in place.drives:
        place.run('sbd', '-d', drive, 'allocate', 'N3')
        place.run('sbd', '-d', drive, 'allocate', 'n3')
    assert place.agent('status', port='n3')[0] == 0
    assert place.agent('off', port='n3')[0] == 0
    assert place.agent('status', port='n3')[0] == OFF
    assert place.messages() == ['clear'] * 3


def test_most_of_the_drives_are_enough(place):
    place.spoil(place.drives[0])
    code, _, err = place.agent('monitor')
    assert code == 0 and f'{place.drives[0]} cannot be read' in err
    assert place.agent('list')[0] == 0
    assert place.agent('off', port='n2')[0] == 0
    assert place.messages() == [None, 'off', 'off']


def test_less_is_not_enough(place):
    for drive in place.drives[:2]:
        place.spoil(drive)
    for action in ('monitor', 'list', 'status', 'validate-all'):
        code, _, err = place.agent(action, port='n2')
        assert code == 1 and '1 of 3 drives' in err, action
    code, _, err = place.agent('off', port='n2')
    assert code == 1 and 'most of the drives' in err


def test_a_drive_that_takes_no_message_does_not_count(place):
    """sbd says nothing of one that it cannot write to. What stands there is what counts."""
    place.fail_writes(0)
    assert place.agent('off', port='n2')[0] == 0
    assert place.messages() == ['clear', 'off', 'off']
    assert place.agent('on', port='n2')[0] == 0
    place.fail_writes(1)
    code, _, err = place.agent('off', port='n2')
    assert code == 1 and 'off was not told to n2 by most of the drives' in err
    assert place.messages() == ['clear', 'clear', 'off']


def test_a_drive_that_hangs_is_not_waited_for(place):
    """Who asks it is in the kernel, and takes no signal; others do not follow him there."""
    place.run('bash', '-c', f"""
        mv /usr/sbin/sbd /usr/sbin/sbd.real
        printf '%s\\n' '#!/bin/bash' 'case $* in *{place.drives[0]}*) trap "" TERM INT HUP; echo $$ >>/run/hung; exec sleep 120 ;; esac' \
            'exec /usr/sbin/sbd.real "$@"' >/usr/sbin/sbd
        chmod 755 /usr/sbin/sbd""")
    for action in ('monitor', 'list', 'status'):
        code, _, err = place.agent(action, port='n2')
        assert code == 0 and f'{place.drives[0]} cannot be read' in err, action
    hung, = place.run('cat', '/run/hung').stdout.split()
    os.kill(int(hung), signal.SIGKILL)


@pytest.mark.parametrize('way', ['cable', 'address'])
def test_who_has_no_network_waits(place, way):
    """Until then there is no message, and afterwards there is."""
    if way == 'cable':
        place.pull()
    else:
        place.run('ip', 'address', 'flush', 'dev', 'lan')
    agent = place.start('off', port='n2', cut_off_delay=4)
    assert 'none of the cluster' in agent.stderr.readline()
    assert place.messages() == ['clear'] * 3
    assert agent.poll() is None
    assert agent.wait(timeout=60) == 0
    assert place.messages() == ['off'] * 3


def test_one_of_two_networks_is_enough(place):
    configuration = CONFIGURATION.replace('ring0_addr: 192.0.2.1', 'ring0_addr: 192.0.2.1\n        ring1_addr: 198.51.100.1')
    place.run('bash', '-c', f'cat >/etc/corosync/corosync.conf <<END\n{configuration}\nEND')
    place.run('bash', '-c', 'ip link add other type veth peer name beyond; ip address add 198.51.100.1/24 dev other; '
                            'ip link set other up; ip link set beyond up')
    place.pull()
    code, _, err = place.agent('off', port='n2', cut_off_delay=1000)
    assert (code, err) == (0, '')


def test_where_nothing_is_known_of_networks_nobody_waits(place):
    place.run('rm', '/etc/corosync/corosync.conf')
    place.pull()
    assert place.agent('off', port='n2', cut_off_delay=1000)[0] == 0


def test_metadata(place):
    code, out, _ = place.agent('metadata')
    agent = xml.etree.ElementTree.fromstring(out)
    assert code == 0 and agent.get('name') == 'fence_millrace'
    assert {each.get('name') for each in agent.iter('parameter')} == {'action', 'plug', 'port', 'devices', 'cut_off_delay'}
    assert place.run('fence_millrace', '-o', 'metadata').stdout == out
    assert place.run('fence_millrace', '--action=explode', check=False).returncode == 2
    assert place.run('fence_millrace', '--sideways', check=False).returncode == 2

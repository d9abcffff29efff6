# SPDX-License-Identifier: LGPL-3.0-or-later
"""The programs of the appliance, on a directory instead of /: which update files are refused, and
which configurations; what follows from one."""

import hashlib
import io
import json
import os
import subprocess
import tarfile

import pytest

from conftest import PROGRAMS

REFUSED = 4


@pytest.fixture
def place(tmp_path):
    for name in ('proc', 'run', 'etc', 'root', 'state/config'):
        os.makedirs(tmp_path / name)
    (tmp_path / 'etc/machine-id').write_text('0123456789abcdef0123456789abcdef\n')
    return tmp_path


def program(place, name, *args):
    return subprocess.run([os.path.join(PROGRAMS, name), *map(os.fspath, args)], capture_output=True, text=True,
                          env={**os.environ, 'MILLRACE_ROOT': os.fspath(place)}, check=False)


# --- update files -----------------------------------------------------------------------------------

PAYLOAD = bytes(range(256)) * 400


def update_file(path, payload=PAYLOAD, sum_after=True, **changes):
    """One of PAYLOAD, whose manifest states CHANGES, and its own sum before or after them."""
    lines = {'product': 'millrace', 'format': '1', 'architecture': os.uname().machine, 'version': '9',
             'root_size': '1048576', 'root_sha256': '0' * 64, 'payload_size': str(len(PAYLOAD)),
             'payload_sha256': hashlib.sha256(PAYLOAD).hexdigest()}

    def text():
        return ''.join(f'{name}={value}\n' for name, value in lines.items())

    before = text()
    lines.update(changes)
    total = hashlib.sha256((text() if sum_after else before).encode()).hexdigest()
    manifest = f'{text()}manifest_sha256={total}\n'
    with tarfile.open(path, 'w', format=tarfile.USTAR_FORMAT) as tar:
        for name, content in (('manifest', manifest.encode()), ('root.zst', payload)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_a_whole_file_is_taken(place):
    done = program(place, 'node', 'check', update_file(place / 'u'))
    assert (done.returncode, done.stderr) == (0, ''), done
    assert 'error' not in done.stdout


@pytest.mark.parametrize('changes,message', [
    ({'payload': PAYLOAD[:-1]}, 'cut short'),
    ({'payload': b'x' + PAYLOAD[1:]}, 'damaged: the root file system'),
    ({'version': '10', 'sum_after': False}, 'damaged: the manifest'),
    ({'product': 'other'}, 'not an update file of Millrace'),
    ({'format': '2'}, 'format 2 of update files'),
    ({'architecture': 'riscv64'}, 'it is for riscv64, and this machine is')])
def test_a_bad_file_is_refused(place, changes, message):
    done = program(place, 'node', 'check', update_file(place / 'u', **changes))
    assert done.returncode == 4 and message in done.stdout.splitlines()[-1]
    assert done.stdout.splitlines()[-1].startswith('error ')


@pytest.mark.parametrize('size', [0, 100, 700, 1536, 20000, 60000])
def test_a_file_cut_anywhere_is_refused(place, size):
    path = update_file(place / 'u')
    with open(path, 'r+b') as file:
        file.truncate(size)
    done = program(place, 'node', 'check', path)
    assert done.returncode == 4 and done.stdout.splitlines()[-1].startswith('error ')


def test_no_file(place):
    assert program(place, 'node', 'check', place / 'none').returncode == 3


def test_the_one_that_was_built_is_whole(place, update):
    assert program(place, 'node', 'check', update).returncode == 0


def test_elsewhere_nothing_is_updated(place):
    (place / 'proc/cmdline').write_text('root=/dev/sda1 quiet\n')
    done = program(place, 'node', 'update', update_file(place / 'u'), 'newer', 'later')
    assert done.returncode == 1 and 'not booted from the image' in done.stdout


OTHER = {'name': 'n2', 'state': 'online', 'failed': []}


SERVICES = [{'name': 'models', 'pool': 'tank', 'node': 'n2', 'not_whole': 0}]


@pytest.mark.parametrize('cluster, other, said', [
    ({}, {'state': 'offline'}, 'n2 is offline'),
    ({}, {'state': 'starting'}, 'n2 is starting'),
    ({}, {'failed': ['tank-server', 'tank-reader']}, 'on n2 failed tank-server and tank-reader'),
    ({'fencing': False}, {}, 'this node could fence nobody'),
    ({'maintenance': True}, {}, 'in maintenance mode nobody takes over'),
    ({'qnetd_connected': False}, {}, 'without the quorum device'),
    ({}, {}, 'not an update file'),  # it is asked for what it is given
])
def test_an_update_that_would_leave_nobody_to_serve(place, monkeypatch, cluster, other, said):
    update_in_cluster(place, monkeypatch, {'cluster': cluster, 'other': other}, said)


@pytest.mark.parametrize('service, pool, said', [
    ({'not_whole': 1}, '{"pool": {"segments_uneven": 0}}', 'others of the pool of models are not whole'),
    ({}, '{"pool": {"segments_uneven": 1}}', "files of pool tank need more of one node's"),
    ({}, '', 'is not known: see millrace pool status tank'),
    ({}, '{"pool": {"segments_uneven": 0}}', 'not an update file'),
])
def test_an_update_whose_boot_takes_drives_along(place, monkeypatch, service, pool, said):
    drives = place / 'etc/millrace/drives'
    drives.parent.mkdir(parents=True, exist_ok=True)
    drives.write_text('one\n')
    update_in_cluster(place, monkeypatch, {'services': [{**SERVICES[0], **service}], 'pool': pool}, said)


def update_in_cluster(place, monkeypatch, told, said):
    (place / 'proc/cmdline').write_text('root=/dev/sda1 millrace.slot=a\n')
    for name, text in (('usr/lib/millrace/layout', ''), ('etc/millrace/cluster', ''), ('nothing', '')):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    status = {'cluster': {'quorum': True, 'fencing': True, **told.get('cluster', {})}, 'services': told.get('services', SERVICES),
              'nodes': [{'name': os.uname().nodename, 'state': 'online', 'failed': ['tank-server']}, {**OTHER, **told.get('other', {})}]}
    (place / 'status').write_text(json.dumps(status))
    (place / 'pool').write_text(told.get('pool', ''))
    (place / 'millrace').write_text(f'#!/bin/sh\n[ "$1" = cluster ] && cat {place}/status || {{ cat {place}/pool; [ -s {place}/pool ]; }}\n')
    (place / 'millrace').chmod(0o755)
    monkeypatch.setenv('PATH', f'{place}:{os.environ["PATH"]}')
    done = program(place, 'node', 'update', place / 'nothing', 'newer', 'now')
    assert done.returncode == REFUSED and said in done.stdout, done


@pytest.mark.parametrize('state', ['trial', 'written', 'back'])
def test_who_came_back_lets_others_boot(place, state):
    """The cluster, which may not run yet, is told that the boot is over; and is left alone the next time."""
    records = place / 'state/update'
    for name, text in (('proc/cmdline', 'root=/dev/sda1 millrace.slot=a\n'), ('usr/lib/millrace/layout', ''), ('etc/millrace/cluster', ''),
                       ('state/update/record', f'state {state}\nversion 2\nreason \n'), ('state/update/claimed', '')):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    cluster = place / 'usr/lib/millrace/cluster'
    cluster.write_text(f'#!/bin/sh\necho "$@" >>{place}/told\n[ $(wc -l <{place}/told) = 2 ]\n')
    cluster.chmod(0o755)
    for _ in range(2):
        assert program(place, 'node', 'settle').returncode == 0
    assert (place / 'told').read_text() == 'release\n' * 2 and not (records / 'claimed').exists()
    assert (records / 'record').read_text().startswith('state back\nversion 2\n')


# --- configurations ---------------------------------------------------------------------------------

KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8 admin@example'
GOOD = f'''# A node.
hostname=store1
interface=enp1s0
address=192.0.2.10/24
gateway=192.0.2.1
dns=192.0.2.1 192.0.2.2
interface=52:54:00:12:34:56
address=2001:db8::5/64
mtu=9000
ntp=192.0.2.3
ssh_key={KEY}
rdma=rxe
'''


def use(place, text):
    (place / 'given').write_text(text)
    return program(place, 'setup', 'use', place / 'given')


def test_what_follows_from_a_configuration(place):
    assert use(place, GOOD.replace('\n', '\r\n')).returncode == 0
    assert (place / 'etc/hostname').read_text() == 'store1\n'
    network = place / 'etc/systemd/network'
    first, second = (network / f'10-millrace-{i}.network' for i in (1, 2))
    assert {path.name for path in network.iterdir()} == {first.name, second.name}
    assert 'Name=enp1s0' in first.read_text() and 'Address=192.0.2.10/24' in first.read_text()
    assert 'Gateway=192.0.2.1' in first.read_text()
    assert 'MACAddress=52:54:00:12:34:56' in second.read_text() and 'MTUBytes=9000' in second.read_text()
    assert (place / 'etc/chrony/sources.d/millrace.sources').read_text() == 'server 192.0.2.3 iburst\n'
    assert (place / 'root/.ssh/authorized_keys').read_text() == KEY + '\n'
    assert '20049' in (place / 'etc/nftables.d/rdma.nft').read_text()
    assert (place / 'etc/millrace/rdma').read_text() == 'rxe\n'
    assert os.stat(place / 'state/config/millrace.conf').st_mode & 0o777 == 0o600


# --- NoCloud ----------------------------------------------------------------------------------------

USER = f'''#cloud-config
hostname: store1.example.org
manage_etc_hosts: true
users:
  - default
  - {{name: root, hashed_passwd: "$6$salt$hash"}}
  - {{name: ops, ssh_authorized_keys: ["{KEY}"]}}
ntp: {{servers: [192.0.2.3, time.example.org]}}
millrace: {{rdma: rxe}}
'''
VERSION_1 = '''version: 1
config:
  - {type: nameserver, address: 192.0.2.1}
  - type: physical
    name: eth0
    mac_address: "52:54:00:12:34:56"
    mtu: 9000
    subnets:
      - {type: static, address: 192.0.2.10, netmask: NETMASK, routes: [{network: 0.0.0.0, netmask: 0.0.0.0, gateway: 192.0.2.1}]}
      - {type: static6, address: "2001:db8::5/64"}
  - {type: physical, name: eth1, subnets: [{type: dhcp4}]}
'''
VERSION_2 = '''network:
  version: 2
  ethernets:
    first:
      match: {macaddress: "52:54:00:12:34:56"}
      addresses: [192.0.2.10/22, "2001:db8::5/64"]
      routes: [{to: default, via: 192.0.2.1}]
      nameservers: {addresses: [192.0.2.1]}
      mtu: 9000
    eth1: {dhcp4: true}
'''
NETWORK = ['interface=52:54:00:12:34:56', 'address=192.0.2.10/22', 'gateway=192.0.2.1', 'address=2001:db8::5/64', 'mtu=9000',
           'dns=192.0.2.1', 'interface=eth1', 'address=dhcp']


def nocloud(place, **files):
    drive = place / 'drive'
    drive.mkdir()
    for name, text in files.items():
        (drive / name.replace('_', '-')).write_text(text)
    return program(place, 'nocloud', drive)


@pytest.mark.parametrize('network', [VERSION_1.replace('NETMASK', '255.255.252.0'), VERSION_1.replace('NETMASK', '22'), VERSION_2])
def test_what_a_nocloud_drive_says(place, network):
    done = nocloud(place, user_data=USER, meta_data='local-hostname: other\n', network_config=network)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and use(place, done.stdout).returncode == 0
    at = lines.index(NETWORK[0])
    assert sorted(lines[at:at + 6]) == sorted(NETWORK[:6]) and lines[at + 6:] == NETWORK[6:]
    assert lines[:at] == ['# From a NoCloud drive.', 'hostname=store1', 'ntp=192.0.2.3 time.example.org', f'ssh_key={KEY}',
                          'password_hash=$6$salt$hash', 'rdma=rxe', '# user-data, not used: manage_etc_hosts']


def test_what_is_not_done_is_named(place):
    done = nocloud(place, user_data='#cloud-config\n', meta_data='\n', network_config='''version: 2
ethernets:
  eth0:
    dhcp4: true
    dhcp4-overrides: {use-mtu: false}
    routes: [{to: 198.51.100.0/24, via: 192.0.2.9}]
''')
    assert done.returncode == 0 and done.stdout.splitlines()[1:] == [
        'interface=eth0', 'address=dhcp', '# network-config, eth0, not used: a route to 198.51.100.0/24',
        '# network-config, eth0, not used: dhcp4-overrides']


def test_a_nocloud_drive_may_say_little(place):
    done = nocloud(place, user_data='#!/bin/sh\nreboot\n', meta_data=f'local-hostname: a\npublic-keys: ["{KEY}"]\n')
    assert done.returncode == 0 and use(place, done.stdout).returncode == 0
    assert done.stdout.splitlines()[1:] == ['# user-data, not used: it does not begin with #cloud-config', 'hostname=a', f'ssh_key={KEY}']


@pytest.mark.parametrize('files, said', [
    ({'user_data': '#cloud-config\n- a\n'}, 'user-data: it is no YAML that can be used: '),
    ({'meta_data': 'a: [\n'}, 'meta-data: it is no YAML that can be used: '),
    ({'user_data': USER, 'network_config': 'version: 2\nethernets: {a: {match: {driver: x}}}\n'}, 'a: it matches neither'),
    ({'user_data': USER, 'network_config': '{version: 2, ethernets: {a: {dhcp4: true}}, bonds: {b: {}}}'}, 'only ethernets'),
    ({'network_config': 'version: 3\n'}, 'network-config: neither version 1 nor 2'),
    ({'network_config': 'version: 2\nbonds: {b: {}}\n'}, 'network-config: bonds: only ethernets'),
    ({'network_config': 'version: 1\nconfig: [{type: bond, name: b}]\n'}, 'network-config: bond: only physical'),
    ({'user_data': '#cloud-config\n' + '#' * 70000}, 'user-data: it is larger than 64 KiB')])
def test_a_nocloud_drive_that_cannot_be_obeyed(place, files, said):
    done = nocloud(place, **files)
    assert done.returncode == 1 and said in done.stderr and not done.stdout
    assert done.stderr.count('\n') == 1 and 'hash' not in done.stderr


def test_what_is_taken_out_goes_away(place):
    assert use(place, GOOD).returncode == 0
    assert use(place, 'address=dhcp\n').returncode == 0
    assert (place / 'etc/hostname').read_text() == 'millrace-01234567\n'
    assert [path.name for path in (place / 'etc/systemd/network').iterdir()] == ['20-millrace.network']
    assert (place / 'root/.ssh/authorized_keys').read_text() == ''
    assert not (place / 'etc/nftables.d/rdma.nft').exists()


@pytest.mark.parametrize('line', [
    'hostname=a b', 'hostname=-a', 'hostname=', 'address=192.0.2.1', 'address=192.0.2.1/24; reboot', 'gateway=x',
    'mtu=big', 'dns=$(reboot)', 'ntp=a b', 'ssh_key=hello', 'ssh_key=', 'password_hash=secret', 'rdma=yes', 'rdma=siw', 'interface=a/b',
    'colour=blue', 'hostname'])
def test_one_wrong_line_refuses_all_of_it(place, line):
    assert use(place, GOOD).returncode == 0
    done = use(place, f'hostname=other\n{line}\n')
    assert done.returncode == 1 and f'{line.split("=")[0]}=' in done.stderr
    assert (place / 'etc/hostname').read_text() == 'store1\n'
    assert (place / 'state/config/millrace.conf').read_text() == GOOD

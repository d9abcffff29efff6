# SPDX-License-Identifier: LGPL-3.0-or-later
"""The image boots through firmware and GRUB, by BIOS and by UEFI; nothing of a node is in the image;
a drive labelled MILLRACE is obeyed, or the console asks; drives with foreign data stay as they are."""

import json
import os
import re

import pytest

from harness.host import wait_until
from node import Node, digest, make_drive

IDENTITIES = ('cat /etc/machine-id', 'cat /etc/nvme/hostid', 'cat /etc/nvme/hostnqn',
              'cat /etc/ssh/ssh_host_ed25519_key.pub')


def identities(node):
    return [node.run(command).strip() for command in IDENTITIES]


@pytest.fixture(scope='module')
def beta(lab, image, key):
    """By BIOS, with nothing."""
    node = lab.add(Node, 'beta', image=image, key=key, firmware='bios', cpus=2, connected=False)
    node.power_on()
    node.console.expect('Choice: ')
    yield node
    node.power_off()


def test_the_configuration_is_obeyed(alpha):
    assert alpha.run('hostname').strip() == 'alpha'
    assert '10.0.2.77/24' in alpha.run('ip -brief address')
    assert 'via 10.0.2.2' in alpha.run('ip route show default')
    assert '10.0.2.2' in alpha.run('chronyc -n sources')
    alpha.run('test -d /sys/firmware/efi')
    wait_until(lambda: 'rxe_' in alpha.run('rdma link show'), 300, 'a soft RDMA device')


def test_all_of_it_comes_up(alpha, version):
    wait_until(lambda: alpha.run('systemctl is-system-running --wait || true').strip() == 'running', 600, 'running')
    assert alpha.json('millrace node status')['node'] == {'version': version, 'slot': 'a'}
    assert version in alpha.run('millrace --version')


def test_only_what_is_served_is_open(alpha):
    rules = json.loads(alpha.run('nft --json list ruleset'))['nftables']
    sets = {rule['set']['name']: rule['set'].get('elem', []) for rule in rules if 'set' in rule}
    assert sorted(sets['tcp_served']) == [22, 2049, 20049] and sets['udp_served'] == [4791]
    policies = {rule['chain']['name']: rule['chain']['policy'] for rule in rules if 'chain' in rule}
    assert policies == {'input': 'drop', 'forward': 'drop'}


def test_the_kernel_is_set_as_said(alpha):
    said = dict(re.findall(r'^([a-z]\S+) = (.*)$', alpha.run('cat /etc/sysctl.d/50-millrace.conf'), re.MULTILINE))
    assert said and {name: alpha.run(f'sysctl -n {name}').split() for name in said} == \
        {name: value.split() for name, value in said.items()}


def test_nobody_knows_a_password(alpha):
    hashes = {line.split(':')[1] for line in alpha.run('cat /etc/shadow').splitlines()}
    assert hashes <= {'*', '!', '!*'}
    assert 'passwordauthentication no' in alpha.run('sshd -T')


def test_the_root_file_system_is_not_written(alpha):
    alpha.run('touch /usr/x', rc=1)
    assert ' ro,' in alpha.run("findmnt -no OPTIONS / | sed 's/^/ /'")


RENUMBER = r"""find /etc /var -xdev -printf '%U %G %p\n' | while read -r user group path; do
    is=$user:$group
    for each in user group; do
        [ ${!each} -lt 100 ] || [ ${!each} = 65534 ] || declare $each=$((${!each} + 4000))
    done
    [ $is = $user:$group ] || chown --no-dereference $user:$group "$path"
done"""


def test_what_users_have_is_theirs_when_they_are_numbered_anew(alpha):
    """As by an image with other packages: what that does to files is done to them here, and what its boot does."""
    owners = "find /etc /var -xdev ! -user root -printf '%u:%g %m %p\n' -o ! -group root -printf '%u:%g %m %p\n' | sort"
    before = alpha.run(owners)
    for path in ('/var/lib/pacemaker/cib', '/var/lib/chrony', '/etc/chrony/chrony.keys'):
        assert f' {path}\n' in before
    alpha.run(RENUMBER)
    assert ' /var/lib/pacemaker/cib\n' in alpha.run("find /var -xdev -nouser -nogroup -printf '%U %p\n'")
    alpha.run('systemd-tmpfiles --create')
    assert alpha.run(owners) == before


def test_drives_with_foreign_data_are_not_touched(alpha, foreign):
    assert not alpha.run('cat /proc/mdstat 2>/dev/null | grep ^md || true; swapon --show --noheadings')
    assert alpha.run("lsblk -nro TYPE | sort -u").split() == ['disk', 'part']
    for path, before in foreign.items():
        assert digest(path) == before


def test_a_pool_is_made_and_served(serving):
    assert serving.json('millrace pool status tank')['pool']['state'] == 'served'
    assert ':2049 ' in serving.run('ss -ltn')


def test_a_log_that_has_grown_is_begun_anew(serving):
    log = '/var/lib/millrace/log/tank.log'
    serving.run(f'head -c 60M /dev/zero | tr "\\0" "\\n" >>{log} && systemctl start logrotate')
    assert int(serving.run(f'stat -c %s {log}')) < 1 << 20 and serving.run(f'ls {log}.1.gz')


def test_a_fault_in_the_firewall_leaves_it_as_it_was(serving):
    before = serving.run('echo "add element inet millrace unknown { 1 }" >/etc/nftables.d/fault.nft; nft list ruleset')
    try:
        assert 'failed' in serving.run('systemctl reload nftables 2>&1 || true')
        assert serving.run('nft list ruleset') == before and 'tcp_served' in before
    finally:
        serving.run('rm /etc/nftables.d/fault.nft; systemctl reload nftables')


def test_memory_that_rdma_locks_is_not_limited(serving):
    limits = serving.run('cat /proc/$(pidof -s ganesha.nfsd)/limits')
    assert re.search(r'^Max locked memory +unlimited +unlimited', limits, re.MULTILINE)


class Menu:
    """What a console without a log-in offers."""

    def __init__(self, console):
        self.console, self.at = console, 0

    def expect(self, pattern):
        self.at = self.console.expect(pattern, after=self.at)

    def choose(self, choice, *answers):
        """ANSWERS: what it asks for, and what to say."""
        for asked, answer in (('Choice: ', choice), *answers):
            self.expect(asked)
            self.console.send(answer + '\n')


def test_by_bios_and_without_a_network_the_console_asks_for_what_is_missing(beta, public_key):
    menu = Menu(beta.console)
    menu.expect(r'\n  Name       millrace-[0-9a-f]{8}\n  SSH key ')
    menu.expect('neither a key nor a password')
    menu.choose('1', ('Name: ', 'beta'))
    menu.expect('Done')
    menu.choose('4', ('New password of root: ', 'one'), ('Again: ', 'another'))
    menu.expect('nothing was changed')
    menu.choose('2', ('or dhcp: ', 'dhcp'))
    menu.expect('Done')
    beta.plug()

    def has_address():
        menu.choose('')
        menu.expect('  SSH key ')
        return re.search(r'\n  Name       beta\n  \S+ +10\.0\.2\.15/24', beta.console.text)

    wait_until(has_address, 120, 'it has an address', interval=2)
    menu.choose('3', ('in one line: ', public_key))
    menu.expect('Log in by SSH')
    beta.wait_until_up()
    assert beta.run('systemctl is-system-running --wait || true').strip() == 'running', beta.run('systemctl --failed')
    assert beta.run('hostname').strip() == 'beta'
    beta.run('test -d /sys/firmware/efi', rc=1)


def test_a_nocloud_drive_is_obeyed(beta, public_key, tmp_path):
    path = tmp_path / 'cidata'
    make_drive(path, 'CIDATA', {
        'meta-data': 'instance-id: 1\nlocal-hostname: gamma\n',
        'user-data': f'#cloud-config\nssh_authorized_keys: ["{public_key}"]\npackages: [vim]\nmillrace: {{rdma: rxe}}\n',
        'network-config': f'version: 2\nethernets:\n  {beta.device("control")}: {{dhcp4: true}}\n'})
    beta.attach(os.fspath(path))
    wait_until(lambda: beta.attempt('hostname').stdout.strip() == 'gamma', 300, 'it has the new name', 1)
    wait_until(lambda: 'rxe_' in beta.attempt('rdma link show').stdout, 300, 'a soft RDMA device', 1)
    assert '# user-data, not used: packages' in beta.run('cat /state/config/millrace.conf')
    assert not beta.run('cat /run/millrace/setup.wrong.CIDATA')
    beta.detach()


def test_two_nodes_have_nothing_in_common(alpha, beta):
    assert not set(identities(alpha)) & set(identities(beta))

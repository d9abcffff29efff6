# SPDX-License-Identifier: LGPL-3.0-or-later
"""Pacemaker's agents, outside of a cluster: what they say of a server in any state, and that a stop leaves no process."""

import fcntl
import os
import re
import signal
import subprocess
import threading
import uuid
import xml.etree.ElementTree

import pytest

from conftest import Agent, CONFIGURED, GENERIC, INSTALLED, NOT_RUNNING, OCF_ROOT, SUCCESS, SYSTEM, UNIMPLEMENTED
from harness.host import wait_until
from harness.rpc import answers_null
from harness.server import MILLRACE, Pool


def test_a_life(agent):
    assert agent.run('monitor') == NOT_RUNNING
    assert agent.run('stop') == SUCCESS
    assert agent.run('start') == SUCCESS
    assert answers_null(agent.parameters['address'], agent.parameters['port'])
    assert agent.run('monitor') == SUCCESS
    assert agent.run('start') == SUCCESS
    assert agent.run('stop') == SUCCESS
    assert agent.run('stop') == SUCCESS
    assert agent.run('monitor') == NOT_RUNNING
    assert agent.pool.status()['state'] == 'idle'


def test_a_lease_that_is_too_short_is_the_least(make_agent, pool):
    """As pcs takes it: not one that no node would start."""
    assert make_agent('server', lease=5).run('start') == SUCCESS
    with open(f'{pool.run_dir}/{pool.name}/ganesha.conf') as file:
        assert 'Lease_Lifetime = 10;' in file.read()


def test_a_server_that_died(agent):
    agent.run('start')
    os.kill(agent.pid(), signal.SIGKILL)
    wait_until(lambda: agent.run('monitor') == NOT_RUNNING, 60, 'the agent sees that it died')
    assert agent.run('start') == SUCCESS


def test_a_server_that_hangs_is_ended_within_the_time_of_a_stop(agent):
    agent.run('start')
    pid = agent.pid()
    os.kill(pid, signal.SIGSTOP)
    assert agent.run('monitor', timeout=7) == GENERIC
    assert 'in time' in agent.said
    assert agent.run('stop', timeout=32) == SUCCESS
    assert not os.path.exists(f'/proc/{pid}/exe')
    assert agent.run('monitor') == NOT_RUNNING


def in_time(agent, action, timeout):
    """What comes of it, within the TIMEOUT that pacemaker gives it."""
    with subprocess.Popen(['sleep', str(timeout)]) as time:
        rc = agent.run(action, timeout=timeout)
        assert time.poll() is None
        time.kill()
    return rc


@pytest.fixture
def make_hanging(make_agent, pool, tmp_path):
    """A server's agent, by whose command the server stands still before OPTION is asked for; MORE are lines of `case`."""
    def make(option, more=''):
        command = tmp_path / 'command'
        command.write_text(f'#!/bin/sh\ncase "$*" in *{option}*) kill -STOP "$(cat {pool.run_dir}/{pool.name}/pid)" ;; {more} esac\n'
                           f'exec {MILLRACE} "$@"\n')
        command.chmod(0o755)
        return make_agent('server', command=command)

    return make


def test_a_server_that_hangs_when_it_is_told_to_end(make_hanging):
    """As one whose drives do: it has answered just before, so that it is waited for, and the stop is done in time all the same."""
    agent = make_hanging('--stop')
    agent.run('start')
    pid = agent.pid()
    assert in_time(agent, 'stop', 55) == SUCCESS
    assert not os.path.exists(f'/proc/{pid}/exe')


def test_a_start_whose_server_hangs_fails_in_time(make_hanging):
    """It has taken a while to begin, and does not answer then."""
    agent = make_hanging('--probe', '*--listen*) sleep 6 ;;')
    assert in_time(agent, 'start', 46) == GENERIC
    assert 'in time' in agent.said
    assert agent.run('stop') == SUCCESS


def test_a_start_that_fails_says_why(agent):
    for device in agent.pool.devices[:4]:
        os.rename(device, f'{device}.away')
    assert agent.run('start') == GENERIC
    assert 'missing' in agent.said
    assert agent.run('monitor') == NOT_RUNNING


def test_both_of_a_pool_at_once(make_agent, pool):
    server, reader = make_agent('server'), make_agent('reader')
    assert [server.run('start'), reader.run('start')] == [SUCCESS, SUCCESS]
    assert server.run('stop') == SUCCESS
    assert reader.run('monitor') == SUCCESS
    assert server.run('monitor') == NOT_RUNNING


# --- in a cluster, of which there is only what the agents ask it ------------------------------------

IN_A_CLUSTER = {'crm_feature_set': '3.19', 'CRM_meta_interval': 10000}  # and OCF_RESOURCE_INSTANCE (conftest.py)
FAKE = '''#!/bin/sh
case " $* " in
*" -Q "*) printf 'name="millrace-boot" host="%s" value="%s"\\n' n1 n1:01234567-89ab-4def-8123-456789abcdef n2 '' ;;
*) echo "$*" >>'{told}' ;;
esac
'''


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """What it is told: a file."""
    programs, told = tmp_path / 'programs', tmp_path / 'told'
    programs.mkdir()
    for name in ('attrd_updater', 'crm_attribute', 'crm_resource', 'crm_node'):
        (programs / name).write_text(FAKE.format(told=told))
        (programs / name).chmod(0o755)
    (programs / 'systemctl').symlink_to('/bin/false')  # nobody's sbd runs here, by which this machine might be reset
    monkeypatch.setenv('PATH', f'{programs}:{os.environ["PATH"]}')
    monkeypatch.setenv('HA_RSCTMP', str(tmp_path))
    return told


def test_a_reader_tells_its_boot(make_agent, cluster):
    reader = make_agent('reader')
    assert reader.run('start', **IN_A_CLUSTER) == SUCCESS
    with open('/proc/sys/kernel/random/boot_id') as file:
        boot = f'{os.uname().nodename}:{file.read().strip()}'
    assert f'-n millrace-boot -U {boot}\n' in cluster.read_text()
    cluster.unlink()
    assert reader.run('monitor', **IN_A_CLUSTER) == SUCCESS
    assert boot in cluster.read_text()
    assert reader.run('monitor') == SUCCESS
    assert cluster.read_text().count(boot) == 1


def test_a_node_that_has_just_booted_does_not_tell(make_agent, cluster, tmp_path, monkeypatch):
    """What it had sent to drives before may not have arrived yet."""
    uptime = tmp_path / 'uptime'
    monkeypatch.setenv('MILLRACE_UPTIME', str(uptime))
    uptime.write_text('119.99 1.00\n')
    reader = make_agent('reader')
    assert reader.run('start', **IN_A_CLUSTER) == SUCCESS
    assert 'millrace-boot' not in cluster.read_text()
    uptime.write_text('120.00 1.00\n')
    assert reader.run('monitor', **IN_A_CLUSTER) == SUCCESS
    assert 'millrace-boot' in cluster.read_text()


def whole(pool):
    return [device['whole'] for device in pool.status()['devices']]


def lose(pool, number):
    device = pool.devices[number]
    os.rename(device, f'{device}.away')
    wait_until(lambda: pool.status()['devices'][number]['state'] == 'dropped', 60, 'it is dropped')


def find(pool, number):
    device = pool.devices[number]
    subprocess.run(['cp', '--sparse=always', f'{device}.away', device], check=True)


def runs(words):
    """Not on a node of another test."""
    return subprocess.run(['pgrep', '--ns', str(os.getpid()), '--nslist', 'pid', '-f', words], capture_output=True).stdout


def test_a_server_takes_back_what_has_returned(make_agent, pool, cluster, tmp_path):
    server, record = make_agent('server'), tmp_path / 'millrace-tank.returned'
    assert server.run('start', **IN_A_CLUSTER) == SUCCESS
    assert not record.exists()
    lose(pool, 2)
    assert server.run('monitor', **IN_A_CLUSTER) == SUCCESS
    wait_until(lambda: record.exists() and 'None has come back' in record.read_text(), 60, 'it has looked')
    find(pool, 2)
    wait_until(lambda: server.run('monitor', **IN_A_CLUSTER) == SUCCESS and all(whole(pool)), 120, 'it is whole')
    # A monitor from before that has begun another look, which found nothing left to do.
    wait_until(lambda: re.search('whole: yes|All devices are whole', record.read_text()), 60, 'it says so')
    wait_until(lambda: not runs('millrace/server take-back'), 60, 'nobody looks')
    record.unlink()
    assert server.run('monitor', **IN_A_CLUSTER) == SUCCESS
    assert server.run('stop') == SUCCESS
    assert not record.exists()


def test_a_reader_takes_back_what_has_returned(make_agent, pool, cluster, tmp_path):
    reader, record = make_agent('reader'), tmp_path / 'millrace-tank@reader.returned'

    def says(text):
        return reader.run('monitor', **IN_A_CLUSTER) == SUCCESS and record.exists() and text in record.read_text()

    assert reader.run('start', **IN_A_CLUSTER) == SUCCESS
    assert not record.exists()
    os.rename(pool.devices[2], f'{pool.devices[2]}.away')
    wait_until(lambda: says('None has come back'), 60, 'it has looked')
    find(pool, 2)
    wait_until(lambda: says('Taken back: 1 of 1') or says('No device is away'), 60, 'it says so')
    assert all(whole(pool))
    wait_until(lambda: not runs('millrace/reader take-back'), 60, 'nobody looks')
    record.unlink()
    assert reader.run('monitor', **IN_A_CLUSTER) == SUCCESS
    assert reader.run('stop') == SUCCESS
    assert not record.exists()


def test_a_server_is_told_who_is_gone(make_agent, pool, cluster, tmp_path, monkeypatch):
    """When drives have what that host had sent, and not before; as long as that, too, when it has come back and left once more."""
    uptime, known = tmp_path / 'uptime', tmp_path / 'known'
    monkeypatch.setenv('MILLRACE_UPTIME', str(uptime))
    (tmp_path / 'programs/cibadmin').write_text(f'#!/bin/sh\nexec cat {known}\n')
    (tmp_path / 'programs/cibadmin').chmod(0o755)
    server = make_agent('server')

    def take_over():
        """From host n9, which is alive for all that anybody knows."""
        pool.verb('pool', 'export', 'tank')
        pool.verb('pool', 'import', 'tank', '--host', 'n9', '--device-dir', pool.device_dir)
        pid = pool.ask('serve', 'tank', '--host', 'n9', '--listen', '127.0.0.1', '--port', str(server.parameters['port']))['pid']
        os.kill(pid, signal.SIGKILL)
        assert server.run('start', **IN_A_CLUSTER) == SUCCESS

    def know(gone, up, nodes=('n1', 'n2')):
        known.write_text('<cib><nodes>' + ''.join(f'<node uname="{name}"/>' for name in nodes) + '</nodes>' +
                         '<cluster_property_set id="millrace-gone">' + ''.join(
            f'<nvpair id="millrace-gone-{name}" name="millrace-gone-{name}" value="{name} {when}"/>' for name, when in gone.items()) +
            '</cluster_property_set></cib>')
        (tmp_path / 'now').write_text(f'{up}.00 1.00\n')  # what began before may just read it, and /proc/uptime is never empty
        os.replace(tmp_path / 'now', uptime)

    def tell(*what):
        know(*what)
        assert server.run('monitor', **IN_A_CLUSTER) == SUCCESS
        wait_until(lambda: not runs('millrace/server take-back'), 60, 'the server has been told')
        return pool.ask('serve', 'tank', '--probe')['probe']['may_write']

    know({}, 1000)
    take_over()
    assert tell({'n8': 7, 'n99': 7}, 1000) == 1 and tell({'n8': 7, 'n99': 7, 'n9': 8}, 2000) == 1
    assert tell({'n8': 7, 'n9': 8}, 2119) == 1
    assert tell({'n8': 7, 'n9': 8}, 2120, ('n1', 'n9')) == 1  # it is there, however that came
    assert tell({'n8': 7, 'n9': 8}, 4000) == 1  # as long again
    assert tell({'n8': 7, 'n9': 8}, 4120) == 0
    assert server.run('stop', **IN_A_CLUSTER) == SUCCESS
    know({}, 5000)
    take_over()
    assert tell({'n9': 9}, 5000) == 1 and tell({'n9': 9}, 5119) == 1
    assert tell({'n9': 9}, 5120) == 0


def watches(pid):
    return runs(f'tail --pid={pid} ')


@pytest.mark.parametrize('name', ['server', 'reader'])
def test_an_end_that_nobody_wanted_is_told_at_once(make_agent, cluster, name):
    agent = make_agent(name)
    assert agent.run('start', **IN_A_CLUSTER) == SUCCESS
    os.kill(agent.pid(), signal.SIGKILL)
    wait_until(lambda: f'--fail --resource tank-{name}' in cluster.read_text(), 20, 'it is told')
    cluster.unlink()
    assert agent.run('start', **IN_A_CLUSTER) == SUCCESS
    pid = agent.pid()
    assert agent.run('stop', **IN_A_CLUSTER) == SUCCESS
    wait_until(lambda: not watches(pid), 20, 'nobody watches')
    assert '--fail' not in cluster.read_text()


def test_a_server_whose_pool_another_node_has(make_agent, pool, cluster, tmp_path, monkeypatch):
    """Though nobody has stopped it here: this node was fenced, and is still there."""
    monkeypatch.setenv('MILLRACE_DEVICE_DIR', pool.device_dir)
    server = make_agent('server')

    def is_gone():
        return server.run('monitor', **IN_A_CLUSTER) == NOT_RUNNING

    def take_it_elsewhere():
        pool.verb('pool', 'import', 'tank', '--force', '--host', 'elsewhere', '--device-dir', pool.device_dir)

    assert server.run('start', **IN_A_CLUSTER) == SUCCESS
    assert f'--name millrace-epoch-tank --update {pool.status()["epoch"]}\n' in cluster.read_text()
    assert server.run('stop', **IN_A_CLUSTER) == SUCCESS
    take_it_elsewhere()
    assert is_gone() and 'fenced' not in server.said  # it was moved
    assert server.run('start', **IN_A_CLUSTER) == SUCCESS
    os.kill(server.pid(), signal.SIGKILL)
    wait_until(is_gone, 60, 'the agent sees that it died')
    assert 'fenced' not in server.said  # nobody else has it
    pool.verb('pool', 'export', 'tank')
    looked = tmp_path / 'millrace-tank.looked'
    looked.unlink()
    assert is_gone() and 'has pool' not in server.said and looked.exists()
    take_it_elsewhere()
    # Its watch may have looked just before that, with which a monitor is content for a while.
    wait_until(lambda: is_gone() and 'elsewhere has pool tank' in server.said, 60, 'the agent sees whose the pool is')
    assert 'sbd does not run here' in server.said
    assert server.run('stop', **IN_A_CLUSTER) == SUCCESS
    assert 'elsewhere has pool tank' in server.said
    assert is_gone() and 'fenced' not in server.said


def test_what_a_cluster_is_told_makes_no_monitor_late(make_agent, cluster, tmp_path):
    """Its programs hang: they are not waited for, and one that has hardly any time left asks none."""
    server = make_agent('server')
    assert server.run('start', **IN_A_CLUSTER) == SUCCESS
    wait_until(lambda: watches(server.pid()), 20, 'its watch, which asks crm_node too, has begun')
    for name in ('attrd_updater', 'crm_attribute', 'crm_node'):
        (tmp_path / 'programs' / name).write_text(f'#!/bin/sh\necho {name} >>{cluster}\nexec sleep 1000\n')
    for timeout, asked in ((45, ['crm_node', 'crm_attribute', 'attrd_updater']), (20, [])):
        (tmp_path / 'millrace-tank.told').unlink(missing_ok=True)
        cluster.write_text('')
        assert server.run('monitor', timeout=timeout, **IN_A_CLUSTER) == SUCCESS
        assert cluster.read_text().split() == asked


@pytest.fixture
def three_domains(tmp_path):
    """A pool of which each of three nodes has three drives, more than parity."""
    workdir = tmp_path / 'domains'
    workdir.mkdir()
    pool = Pool(workdir, devices=9, device_bytes=256 << 20)
    files, pool.devices = pool.devices, [f'{file}@n{i // 3}' for i, file in enumerate(pool.devices)]
    pool.create()
    pool.devices = files
    yield pool
    pool.close()


@pytest.mark.parametrize('kind, few', [('pool', 2), ('three_domains', 3)])
def test_whose_the_pool_is_may_be_known_late(request, kind, few, cluster, tmp_path, monkeypatch):
    """So few drives are seen when the cluster stops it, or none but a node's own, that none needs to know."""
    pool = request.getfixturevalue(kind)
    monkeypatch.setenv('MILLRACE_DEVICE_DIR', pool.device_dir)
    server = Agent('server', pool)
    request.addfinalizer(lambda: server.run('stop', timeout=40))
    assert server.run('start', **IN_A_CLUSTER) == SUCCESS
    os.kill(server.pid(), signal.SIGKILL)
    here = {device: os.path.join(pool.workdir, os.path.basename(device)) for device in pool.devices[few:]}
    old = {device: f'{pool.workdir}/{os.path.basename(device)}.old' for device in pool.devices[:few]}
    for device, kept in old.items():
        subprocess.run(['cp', '--sparse=always', device, kept], check=True)
    pool.verb('pool', 'import', 'tank', '--force', '--host', 'elsewhere', '--device-dir', pool.device_dir)
    for device, kept in old.items():
        os.rename(kept, device)
    for device, away in here.items():
        os.rename(device, away)
    with open(tmp_path / 'millrace-tank.look', 'a') as look:  # what its watch has seen until now
        fcntl.flock(look, fcntl.LOCK_EX)
        (tmp_path / 'millrace-tank.looked').unlink(missing_ok=True)

    def come_back():
        for device, away in here.items():
            os.rename(away, device)

    timer = threading.Timer(12, come_back)
    timer.start()
    try:
        assert server.run('stop', **IN_A_CLUSTER) == SUCCESS
    finally:
        timer.join()
    assert 'elsewhere has pool tank' in server.said


def test_a_pool_that_was_taken_away_by_hand(make_agent, pool, cluster, monkeypatch):
    """Its server was stopped, though not by pacemaker: nobody was fenced, and the cluster is told nothing."""
    monkeypatch.setenv('MILLRACE_DEVICE_DIR', pool.device_dir)
    server = make_agent('server')
    assert server.run('start', **IN_A_CLUSTER) == SUCCESS
    pid = server.pid()
    pool.verb('serve', 'tank', '--stop')
    for take in (('pool', 'export', 'tank'), ('pool', 'import', 'tank', '--host', 'elsewhere', '--device-dir', pool.device_dir)):
        pool.verb(*take)
        assert server.run('monitor', **IN_A_CLUSTER) == NOT_RUNNING and 'fenced' not in server.said
    wait_until(lambda: not watches(pid), 20, 'nobody watches')
    assert '--fail' not in cluster.read_text()
    assert server.run('stop', **IN_A_CLUSTER) == SUCCESS and 'fenced' not in server.said


def test_a_pool_that_was_let_go(make_agent, pool, cluster, tmp_path):
    """By whoever had it: it is a cluster's to take."""
    elsewhere = [word for kind in ('state', 'run') for word in (f'--{kind}-dir', tmp_path / f'{kind}-elsewhere')]
    subprocess.run([MILLRACE, 'pool', 'export', 'tank', '--device-dir', pool.device_dir, *elsewhere], check=True)
    assert 'exported' in pool.verb('serve', 'tank', check=False).stderr
    server = make_agent('server')
    assert server.run('start', **IN_A_CLUSTER) == SUCCESS
    assert pool.status()['owner'] == os.uname().nodename
    assert server.run('stop', **IN_A_CLUSTER) == SUCCESS


def test_another_pool_of_the_same_name(agent, pool):
    """A node that knows one does not serve it as the service's."""
    other = uuid.uuid4()
    assert agent.run('start', uuid=other) == GENERIC and 'no pool of that name and UUID' in agent.said
    assert agent.run('start', uuid=pool.status()['uuid']) == SUCCESS


def test_a_server_that_the_cluster_has_not_started(make_agent, pool, cluster):
    """It may have other options than it should: it is not taken for the cluster's."""
    agent = make_agent('server')
    agent.run('start')
    assert agent.run('monitor', CRM_meta_interval=0) == SUCCESS
    agent.parameters.update(IN_A_CLUSTER)
    for action in ('monitor', 'start'):
        assert agent.run(action, CRM_meta_interval=0) == GENERIC
        assert f'millrace serve {pool.name} --stop' in agent.said
    assert agent.run('stop') == SUCCESS
    assert agent.run('start') == SUCCESS
    assert agent.run('monitor', CRM_meta_interval=0) == SUCCESS


def test_outside_of_a_cluster_nobody_is_told(make_agent, pool, cluster):
    server = make_agent('server')
    assert server.run('start') == SUCCESS
    lose(pool, 2)
    find(pool, 2)
    assert server.run('monitor') == SUCCESS
    assert not all(whole(pool))


@pytest.mark.parametrize('parameters, code, said', [
    ({'pool': None}, CONFIGURED, 'pool is missing'),
    ({'port': 'x'}, CONFIGURED, 'numbers'),
    ({'lease': '9'}, CONFIGURED, '10 s or more'),
    ({'command': '/nowhere/millrace'}, INSTALLED, 'not installed')])
def test_bad_parameters(agent, parameters, code, said):
    assert agent.run('validate-all', **parameters) == code
    assert said in agent.said


def test_where_it_is_not_installed_nothing_runs(agent):
    assert agent.run('stop', command='/nowhere/millrace') == SUCCESS
    assert agent.run('monitor', command='/nowhere/millrace', CRM_meta_interval=0) == NOT_RUNNING


def test_the_server_wants_an_address(make_agent):
    assert make_agent('server', address=None).run('start') == CONFIGURED


def test_unknown_actions(agent):
    assert agent.run('promote') == UNIMPLEMENTED


def test_metadata(agent):
    done = subprocess.run([agent.path, 'meta-data'], env={**os.environ, 'OCF_ROOT': OCF_ROOT}, capture_output=True,
                          text=True, check=True)
    root = xml.etree.ElementTree.fromstring(done.stdout)
    assert root.get('name') == os.path.basename(agent.path)
    assert {action.get('name') for action in root.iter('action')} >= {'start', 'stop', 'monitor', 'meta-data'}
    assert {p.get('name') for p in root.iter('parameter')} == set(agent.parameters) | {'uuid', 'lease', 'rdma_connections', 'rdma_memory'}


def test_ocf_tester_has_no_complaint(agent, tmp_path):
    """With the DTD of that Debian, which it looks for in this one's /usr/share where there is an xmllint."""
    with open(f'{SYSTEM}/usr/sbin/ocf-tester') as file:
        program = file.read().replace('/usr/share', f'{SYSTEM}/usr/share')
    tester = tmp_path / 'ocf-tester'
    tester.write_text(program)
    tester.chmod(0o755)
    words = [word for name, value in agent.parameters.items() for word in ('-o', f'{name}={value}')]
    done = subprocess.run([tester, '-n', 'tank', *words, agent.path], capture_output=True,
                          env={**os.environ, 'OCF_ROOT': OCF_ROOT}, text=True, timeout=600)
    assert done.returncode == 0 and 'passed all tests' in done.stdout, done.stdout + done.stderr

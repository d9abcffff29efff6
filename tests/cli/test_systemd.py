# SPDX-License-Identifier: LGPL-3.0-or-later
"""serve --enable and --disable, where systemd seems to run: the unit is held against systemd's own
parser, and a systemctl of ours starts what it says, as the manager would."""

import json
import os
import subprocess

import pytest

from conftest import FAILED, NOT_FOUND, REFUSED, USAGE, wait_until

# In a mount namespace of its own: a /run that systemd was booted with, and a place for units.
NAMESPACE = '''
mount -t tmpfs none /run && mkdir -p /run/systemd/system &&
mount --bind "$1" /etc/systemd/system && PATH="$2:$PATH" && shift 2 && exec "$@"
'''
SYSTEMCTL = r'''#!/usr/bin/python3
import json, os, re, shlex, signal, socket, subprocess, sys
root, words = os.path.dirname(os.path.dirname(os.path.realpath(__file__))), sys.argv[1:]
with open(f'{root}/calls', 'a') as calls:
    calls.write(' '.join(words) + '\n')
if os.path.exists(f'{root}/refuse-{words[1]}'):
    sys.exit('Job failed.')
pid = f'{root}/pid'
if words[1] == 'restart':
    with open(f'{root}/units/{words[-1]}') as file:
        line = re.search('^ExecStart=(.*)$', file.read(), re.M)[1]
    argv = [word.replace('%%', '%').replace('$$', '$') for word in shlex.split(line)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.settimeout(60)
        ready.bind('\0' + root)
        process = subprocess.Popen(argv, env={**os.environ, 'NOTIFY_SOCKET': '@' + root},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        assert ready.recv(100) == b'READY=1'
    with open(pid, 'w') as file:
        file.write(str(process.pid))
elif words[1] == 'disable':
    with open(pid) as file:
        os.kill(int(file.read()), signal.SIGTERM)
'''


class Systemd:
    """A site where systemd seems to run."""

    def __init__(self, site):
        self.site = site
        for name in ('units', 'fake'):
            os.makedirs(site.path(name))
        with open(site.path('fake', 'systemctl'), 'w') as file:
            file.write(SYSTEMCTL)
            os.fchmod(file.fileno(), 0o755)
        self.unit = site.path('units', 'millrace-tank.service')

    def run(self, *args, rc=0):
        argv = ['unshare', '--mount', '--propagation', 'private', 'sh', '-c', NAMESPACE, 'sh',
                self.site.path('units'), self.site.path('fake'), *self.site.argv(*args)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL)
        assert done.returncode == rc, done
        return done

    def text(self):
        with open(self.unit) as file:
            return file.read()

    def calls(self):
        try:
            with open(self.site.path('calls')) as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def refuse(self, verb):
        open(self.site.path(f'refuse-{verb}'), 'w').close()

    def close(self):
        self.site.run('serve', 'tank', '--stop')


@pytest.fixture
def systemd(pool):
    made = Systemd(pool)
    yield made
    made.close()


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_enable_and_disable(systemd):
    site = systemd.site
    assert 'is served' in systemd.run('serve', 'tank', '--enable').stdout
    assert systemd.calls() == ['--quiet daemon-reload', '--quiet enable millrace-tank.service',
                               '--quiet restart millrace-tank.service']
    assert site.json('pool', 'status', 'tank')['pool']['state'] == 'served'
    with open(site.path('pid')) as file:
        pid = int(file.read())
    done = systemd.run('serve', 'tank', '--disable')
    assert 'will not start it again' in done.stdout and done.stderr == ''
    assert systemd.calls()[3:] == ['--quiet disable --now millrace-tank.service',
                                   '--quiet daemon-reload']
    assert not os.path.exists(systemd.unit)
    wait_until(lambda: is_gone(pid), 'the server ends')


def golden(site, wait=600):
    """The unit for tank, word for word."""
    devices = ''.join(f'RequiresMountsFor="{path}"\n' for path in site.devices_of_tank)
    return f'''\
# Written by `millrace serve tank --enable`; --disable takes it away.
[Unit]
Description=Millrace pool tank
Documentation=man:millrace(8)
Wants=network-online.target
After=network-online.target
RequiresMountsFor="{site.state}"
{devices}StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart= "{site.program}" serve --foreground --listen "127.0.0.1" --port "12345" --rdma-memory "67108864" --state-dir \
"{site.state}" --run-dir "{site.run_dir}" "tank"
Restart=on-failure
RestartSec=5
TimeoutStartSec={wait}
TimeoutStopSec=120
LimitNOFILE=1048576
LimitMEMLOCK=infinity

[Install]
WantedBy=multi-user.target
'''


def verify(path):
    """What systemd itself says of a unit."""
    done = subprocess.run(['systemd-analyze', 'verify', '--man=no', path], capture_output=True,
                          text=True, timeout=120)
    return done.stdout + done.stderr + (f'exit {done.returncode}' if done.returncode else '')


def test_the_unit(systemd):
    systemd.run('serve', 'tank', '--enable', '--listen', '127.0.0.1', '--port', '12345', '--rdma-memory', '64M')
    assert systemd.text() == golden(systemd.site)
    assert verify(systemd.unit) == ''
    spoiled = systemd.site.path('millrace-spoiled.service')
    with open(spoiled, 'w') as file:
        file.write(systemd.text().replace('Restart=on-failure', 'Restart=sometimes'))
    assert 'sometimes' in verify(spoiled)


def test_how_long_starting_may_take(systemd):
    systemd.run('serve', 'tank', '--enable', '--wait', '77')
    assert '\nTimeoutStartSec=77\n' in systemd.text()


def test_odd_paths(systemd):
    """Spaces, and what systemd gives a meaning to."""
    site = systemd.site
    site.run_dir = site.path('run %h of it')
    os.mkdir(site.run_dir)
    systemd.run('serve', 'tank', '--enable')
    assert verify(systemd.unit) == ''
    assert os.path.exists(os.path.join(site.run_dir, 'tank.sock'))


def test_what_is_served_already(systemd):
    systemd.run('serve', 'tank', '--enable')
    error = systemd.run('serve', 'tank', '--enable', rc=REFUSED).stderr
    assert '`millrace serve tank --stop`' in error
    assert '--disable' in systemd.run('serve', 'tank', '--stop').stdout
    systemd.run('serve', 'tank', '--enable')


def test_a_service_that_does_not_start(systemd):
    systemd.refuse('restart')
    error = systemd.run('serve', 'tank', '--enable', rc=FAILED).stderr
    assert '`systemctl restart` failed' in error and 'journalctl -u millrace-tank.service' in error


def test_a_pool_that_goes_leaves_no_unit_unsaid(systemd):
    systemd.run('serve', 'tank', '--enable')
    systemd.run('serve', 'tank', '--stop')
    done = systemd.run('pool', 'destroy', 'tank', '--yes')
    assert '`millrace serve tank --disable`' in done.stderr
    systemd.run('serve', 'tank', '--disable')
    assert not os.path.exists(systemd.unit)


def test_there_is_nothing_to_disable(systemd):
    error = systemd.run('serve', 'tank', '--disable', rc=NOT_FOUND).stderr
    assert '/etc/systemd/system/millrace-tank.service' in error
    assert systemd.calls() == []


def test_what_is_not_ours_is_not_enabled(systemd):
    systemd.run('serve', 'tank', '--enable', '--host', 'other', rc=REFUSED)
    systemd.run('serve', 'none', '--enable', rc=NOT_FOUND)
    assert systemd.calls() == [] and not os.path.exists(systemd.unit)


def test_only_one_of_them(pool):
    for one, two in (('--enable', '--disable'), ('--disable', '--stop'), ('--enable', '--stop')):
        pool.fails(USAGE, 'serve', 'tank', one, two)


@pytest.mark.parametrize('option', ['--enable', '--disable'])
def test_without_systemd(pool, option):
    """In a mount namespace whose /run has none."""
    argv = ['unshare', '--mount', '--propagation', 'private', 'sh', '-c',
            'mount -t tmpfs none /run && exec "$@"', 'sh', *pool.argv('serve', 'tank', option, '--json')]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    error = json.loads(done.stdout)['error']
    assert done.returncode == FAILED
    assert error['object'] == 'systemd' and '--foreground' in error['message']

# SPDX-License-Identifier: LGPL-3.0-or-later
"""A Millrace pool on file-backed devices, and the server of one, as a test drives them.

Both run the built `build/bin/millrace` ($MILLRACE names another) with a state and a run directory
of the test's own. A pool may be used with or without a server: the command finds its way.
"""

import json
import os
import shutil
import socket
import subprocess

from harness.host import Daemon, logs, tail, wait_until
from harness.rpc import answers_null

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..', '..'))
MILLRACE = os.environ.get('MILLRACE', os.path.join(ROOT, 'build/bin/millrace'))
VERB_TIMEOUT = 300
START_TIMEOUT = 120
STOP_TIMEOUT = 120
LABELS = 1 << 20  # bytes at the beginning of each device that have the first of its two areas of them
LEASE = 20  # seconds; a grace period, which many tests wait for, is half as much again


class VerbFailed(Exception):
    def __init__(self, argv, done):
        super().__init__(f'{" ".join(argv)}: exit {done.returncode}\n{done.stderr}{done.stdout}')
        self.rc = done.returncode
        self.stderr = done.stderr


class Pool:
    """A pool of sparse files under WORKDIR, or in turn in the directories PLACES.

    Volumes are exported as /NAME/VOLUME.
    """

    def __init__(self, workdir, name='tank', data=4, parity=2, devices=6, device_bytes=1 << 30,
                 cell=None, places=()):
        self.workdir = os.fspath(workdir)
        self.name = name
        self.data, self.parity, self.cell = data, parity, cell
        self.state_dir = os.path.join(self.workdir, 'state')
        self.run_dir = os.path.join(self.workdir, 'run')
        self.device_dir = os.path.join(self.workdir, 'devices')
        self.log = os.path.join(self.workdir, 'verbs.log')
        for place in (self.state_dir, self.run_dir, self.device_dir):
            os.makedirs(place)
        places = list(places) or [self.device_dir]
        self.devices = [os.path.join(places[i % len(places)], f'd{i}') for i in range(devices)]
        for device in self.devices:
            with open(device, 'wb') as file:
                file.truncate(device_bytes)
        logs.append(self.log)

    def verb(self, *argv, check=True, timeout=VERB_TIMEOUT):
        """Run `millrace ARGV` for this pool; returns subprocess's CompletedProcess, with text.

        Raises VerbFailed where CHECK and the exit status is not 0.
        """
        argv = [MILLRACE, *map(os.fspath, argv),
                '--state-dir', self.state_dir, '--run-dir', self.run_dir]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout)
        with open(self.log, 'a') as log:
            log.write(f'$ {" ".join(argv)}\n{done.stdout}{done.stderr}exit {done.returncode}\n')
        if check and done.returncode != 0:
            raise VerbFailed(argv, done)
        return done

    def ask(self, *argv):
        """Run a verb with --json and return what it said."""
        return json.loads(self.verb(*argv, '--json').stdout)

    def create(self):
        cell = ['--cell', str(self.cell)] if self.cell else []
        self.verb('pool', 'create', self.name, '--data', str(self.data),
                  '--parity', str(self.parity), *cell, *self.devices)
        return self

    def status(self):
        return self.ask('pool', 'status', self.name)['pool']

    def check(self):
        """Read and check everything; VerbFailed when something is wrong."""
        return self.verb('pool', 'check', self.name)

    def export(self, volume):
        return f'/{self.name}/{volume}'

    def create_share(self, volume, owner=0, group=0, mode=0o755, clients='*:rw', squash='none'):
        """A share for CLIENTS (nobody when None); SQUASH None leaves the default, root."""
        self.verb('share', 'create', f'{self.name}/{volume}', '--owner', str(owner),
                  '--group', str(group), '--mode', f'{mode:04o}')
        self._set_all('share', volume, clients, squash)

    def destroy_share(self, volume):
        self.verb('share', 'destroy', f'{self.name}/{volume}', '--yes')

    def ingest(self, volume, directory, clients='*:ro', squash='none'):
        """Make DIRECTORY a dataset, sealed."""
        self.verb('dataset', 'ingest', f'{self.name}/{volume}', directory)
        self._set_all('dataset', volume, clients, squash)

    def _set_all(self, noun, volume, clients, squash):
        given = {'nfs.clients': clients, 'nfs.squash': squash}
        assignments = [f'{name}={value}' for name, value in given.items() if value is not None]
        if assignments:
            self.verb(noun, 'set', f'{self.name}/{volume}', *assignments)

    def set(self, noun, volume, name, value):
        self.verb(noun, 'set', f'{self.name}/{volume}', f'{name}={value}')

    def lose_device(self, i):
        """Take device number I away, with its bytes.

        The file is replaced by an empty one of the same size under the same name: a running
        server looks once a second whether its devices are still there and drops this one, and
        the next start finds a device that holds no label.
        """
        size = os.path.getsize(self.devices[i])
        fresh = f'{self.devices[i]}.fresh'
        with open(fresh, 'wb') as file:
            file.truncate(size)
        os.replace(self.devices[i], f'{self.devices[i]}.lost')
        os.replace(fresh, self.devices[i])

    def return_device(self, i):
        """Device number I is there again, as it was when it was lost."""
        os.replace(f'{self.devices[i]}.lost', self.devices[i])

    def take_over(self):
        """What another host would do, by copies of the devices: then these get its labels."""
        devices = os.path.join(self.workdir, 'copies')
        subprocess.run(['cp', '-a', '--sparse=always', self.device_dir, devices], check=True)
        subprocess.run([MILLRACE, 'pool', 'import', self.name, '--force', '--host', 'other', '--device-dir', devices,
                        '--state-dir', self.workdir, '--run-dir', self.workdir], check=True, timeout=120)
        for name in os.listdir(devices):
            with open(os.path.join(devices, name), 'rb') as taken, open(os.path.join(self.device_dir, name), 'r+b') as device:
                device.write(taken.read(LABELS))

    def close(self):
        shutil.rmtree(self.device_dir, ignore_errors=True)
        if self.log in logs:
            logs.remove(self.log)


class Server:
    """`millrace serve POOL` on ADDRESS and a port that stays the same over restarts."""

    def __init__(self, pool, address, port=None):
        self.pool = pool
        self.address = address
        self.port = port or free_port(address)
        self.log = os.path.join(pool.workdir, 'server.log')
        self.fenced = False  # as a cluster starts it
        self._daemon = None

    def argv(self):
        return [MILLRACE, 'serve', self.pool.name, '--foreground',
                '--listen', self.address, '--port', str(self.port), '--lease', str(LEASE),
                '--state-dir', self.pool.state_dir, '--run-dir', self.pool.run_dir,
                *['--fenced'] * self.fenced]

    def start(self, timeout=START_TIMEOUT):
        """Start it and wait until it answers NFS, and then the command, which comes last."""
        self._daemon = Daemon(self.argv(), self.log)

        def ready():
            if not self._daemon.alive():
                raise RuntimeError(f'the server ended while starting, exit '
                                   f'{self._daemon.process.returncode}:\n{tail(self.log)}')
            return answers_null(self.address, self.port) and self.answers_command()

        wait_until(ready, timeout, f'server on {self.address}:{self.port} answers')
        return self

    def answers_command(self):
        """Whether its control socket takes connections: until then the pool seems not to be served."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket_path()) == 0

    def socket_path(self):
        return os.path.join(self.pool.run_dir, f'{self.pool.name}.sock')

    def alive(self):
        return self._daemon is not None and self._daemon.alive()

    def pid(self):
        return self._daemon.pid

    def signal(self, number):
        """Send it a signal, and do not wait for what comes of that."""
        os.kill(self._daemon.pid, number)

    def kill9(self):
        """As a crash: SIGKILL to the server and what it started."""
        self._daemon.kill()

    def stop(self, timeout=STOP_TIMEOUT):
        """As an admin: SIGTERM; anything but exit 0 within TIMEOUT is an error."""
        rc = self._daemon.terminate(timeout)
        self._daemon.kill()
        if rc != 0:
            raise RuntimeError(f'the server stopped with exit {rc}:\n{tail(self.log)}')

    def restart(self):
        self.stop()
        self.start()

    def close(self):
        if self._daemon:
            self._daemon.kill()
        if self.log in logs:
            logs.remove(self.log)


def free_port(address):
    with socket.create_server((address, 0)) as probe:
        return probe.getsockname()[1]

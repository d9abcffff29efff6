# SPDX-License-Identifier: LGPL-3.0-or-later
"""Machines of the lab: QEMU without KVM, Debian 13 with its stock kernel, networks of their own.

    with Lab(workdir) as lab:
        server = lab.machine('server', drives=6, product=True)
        client = lab.machine('client')
        server.run('nvme list'); server.pull_drive(2); client.cut(); client.reset()

A machine takes commands as the NFS tests' client does (tests/nfs/harness/commands.py), over a
network that only the harness and this machine share; `lab` in it is the network of the lab.
"""

import json
import os
import select
import socket
import subprocess
import time

from harness.commands import Commands
from harness.host import Daemon, Timeout, logs, tail, wait_until

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
SYSTEM = os.path.join(ROOT, 'build', 'lab')
QEMU = 'qemu-system-x86_64'
BOOT_TIMEOUT = 600
QMP_TIMEOUT = 120
AGENT_PORT = 9000  # in the machine; the harness's port differs
NETWORK = '192.0.2'
MTU = 9000


class Qmp:
    """A machine's monitor."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(QMP_TIMEOUT)
        self._socket.connect(path)
        self._file = self._socket.makefile('r')
        self.events = []
        self._read()
        self.ask('qmp_capabilities')

    def _read(self):
        line = self._file.readline()
        if not line:
            raise ConnectionError('the machine has ended')
        return json.loads(line)

    def ask(self, command, **arguments):
        """Give COMMAND and return its answer."""
        asked = {'execute': command}
        if arguments:
            asked['arguments'] = {name.replace('_', '-'): value for name, value in arguments.items()}
        self._socket.sendall(json.dumps(asked).encode() + b'\n')
        while True:
            answer = self._read()
            if 'event' in answer:
                self.events.append(answer)
            elif 'error' in answer:
                raise RuntimeError(f'{command}: {answer["error"]["desc"]}')
            else:
                return answer['return']

    def wait_for(self, event, **data):
        """Wait for EVENT whose data has these."""
        def found():
            return any(had['event'] == event and data.items() <= had.get('data', {}).items()
                       for had in self.events)

        deadline = time.monotonic() + QMP_TIMEOUT
        while not found():
            if time.monotonic() > deadline:
                raise Timeout(f'no {event} {data} within {QMP_TIMEOUT} s')
            answer = self._read()
            if 'event' in answer:
                self.events.append(answer)

    def close(self):
        self._file.close()
        self._socket.close()


class Drive:
    """An emulated NVMe drive in a slot of its own: `path` is its name in the machine."""

    def __init__(self, machine, number, size):
        self.number = number
        self.serial = f'{machine.name}{number}'
        self.file = os.path.join(machine.workdir, f'{self.serial}.drive')
        self.path = f'/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{self.serial}'
        with open(self.file, 'wb') as file:
            file.truncate(size)

    def arguments(self):
        return ['-device', f'pcie-root-port,id=slot{self.number},chassis={self.number + 1},'
                           f'slot={self.number + 1}',
                '-blockdev', f'driver=raw,node-name=node{self.number},discard=unmap,'
                             f'file.driver=file,file.filename={self.file},file.locking=off',
                '-device', f'nvme,id=drive{self.number},bus=slot{self.number},'
                           f'drive=node{self.number},serial={self.serial}']


class Machine(Commands):
    """One machine. `modules` are loaded at its start; `product` is what we built, at /millrace."""

    def __init__(self, lab, name, number, drives=0, drive_bytes=1 << 30, product=False,
                 modules=(), memory_mib=1536):
        self.name = name
        self.number = number
        self.workdir = lab.workdir
        self.address = f'{NETWORK}.{number}'
        self.server_address = f'{NETWORK}.1'
        self.product = product
        self.modules = modules
        self.memory_mib = memory_mib
        self.drives = [Drive(self, i, drive_bytes) for i in range(drives)]
        self.console = self._path('console')
        self.qmp = None
        self._daemon = None
        self._agent = None
        self._spawned = []
        self.start()

    def _path(self, suffix):
        return os.path.join(self.workdir, f'{self.name}.{suffix}')

    def _arguments(self, dialled, agent_port):
        """`dialled` is where the harness listens, `agent_port` where it will find the agent."""
        mac = f'52:54:00:00:{self.number:02x}'
        other = os.path.join(self.workdir, f'lan{3 - self.number}')
        own = os.path.join(self.workdir, f'lan{self.number}')
        disk = 'if=virtio,format=raw,snapshot=on,file=' + SYSTEM
        arguments = [
            QEMU, '-name', self.name, '-machine', 'q35', '-accel', 'tcg,thread=multi',
            '-cpu', 'max', '-smp', '1', '-m', str(self.memory_mib), '-nodefaults', '-no-user-config',
            '-display', 'none', '-serial', f'file:{self.console}', '-action', 'reboot=shutdown',
            '-qmp', f'unix:{self._path("qmp")},server=on,wait=off',
            '-object', 'rng-random,id=rng,filename=/dev/urandom', '-device', 'virtio-rng-pci,rng=rng',
            '-kernel', f'{SYSTEM}/vmlinuz', '-initrd', f'{SYSTEM}/initrd',
            '-append', 'console=ttyS0 quiet panic=-1 mitigations=off '
                       f'millrace_name={self.name} millrace_address={self.address}/24 '
                       f'millrace_modules={",".join(("virtio_net", *self.modules))} '
                       'millrace_harness=10.0.2.100:1',
            '-drive', f'{disk}/root.img',
            '-netdev', f'user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:{agent_port}-:{AGENT_PORT},'
                       f'guestfwd=tcp:10.0.2.100:1-tcp:127.0.0.1:{dialled}',
            '-device', f'virtio-net-pci,netdev=control,mac={mac}:01,romfile=',
            '-netdev', f'dgram,id=lan,local.type=unix,local.path={own},'
                       f'remote.type=unix,remote.path={other}',
            '-device', f'virtio-net-pci,id=lab,netdev=lan,mac={mac}:02,host_mtu={MTU},romfile=']
        if self.product:
            arguments += ['-drive', f'{disk}/product.img,readonly=on']
        for drive in self.drives:
            arguments += drive.arguments()
        return arguments

    def start(self):
        """Power on; returns when its agent answers."""
        for name in (self._path('qmp'), os.path.join(self.workdir, f'lan{self.number}')):
            if os.path.exists(name):
                os.unlink(name)
        agent_port = free_port()
        with socket.create_server(('127.0.0.1', 0)) as listener:
            self._daemon = Daemon(self._arguments(listener.getsockname()[1], agent_port),
                                  self._path('qemu.log'), env={'TMPDIR': self.workdir})
            if self.console not in logs:
                logs.append(self.console)

            def dialled():
                if not self._daemon.alive():
                    raise RuntimeError(f'{self.name} ended while starting:\n'
                                       f'{tail(self._daemon.log)}{tail(self.console)}')
                return select.select([listener], [], [], 0.2)[0]

            try:
                wait_until(dialled, BOOT_TIMEOUT, f'{self.name}: start', interval=0)
            except Timeout as error:
                raise Timeout(f'{error}\n{tail(self.console)}') from error
            connection, _ = listener.accept()
            with connection, connection.makefile() as file:
                if not file.readline():
                    raise RuntimeError(f'{self.name}: the agent went away')
        self._agent = ('127.0.0.1', agent_port)
        self.qmp = Qmp(self._path('qmp'))

    def kill(self):
        """Power off: nothing is unmounted, nobody is told."""
        self._agent = None
        self._spawned = []
        if self.qmp:
            self.qmp.close()
            self.qmp = None
        if self._daemon:
            self._daemon.kill()

    def reset(self):
        """Power off and on: the drives keep what they hold, the system starts afresh."""
        self.kill()
        self.start()

    def lose(self):
        """Lose all that arrives from the lab's network."""
        self.run('tc qdisc add dev lab clsact && tc filter add dev lab ingress matchall action drop')

    def find(self):
        """Lose nothing any more."""
        self.run('tc qdisc del dev lab clsact')

    def cut(self):
        """Pull the cable of the lab's network."""
        self.qmp.ask('set_link', name='lab', up=False)

    def join(self):
        """Put the cable back."""
        self.qmp.ask('set_link', name='lab', up=True)

    def pull_drive(self, number):
        """Pull drive NUMBER out; returns when it is gone."""
        self.qmp.ask('device_del', id=f'drive{number}')
        self.qmp.wait_for('DEVICE_DELETED', device=f'drive{number}')

    def put_drive(self, number):
        """Put drive NUMBER back in, with what it held."""
        drive = self.drives[number]
        self.qmp.ask('device_add', driver='nvme', id=f'drive{number}', bus=f'slot{number}',
                     drive=f'node{number}', serial=drive.serial)

    def close(self):
        self.kill()
        for drive in self.drives:
            os.unlink(drive.file)
        self.drives = []


class Lab:
    """The machines of a run, and where they keep their files."""

    def __init__(self, workdir):
        self.workdir = os.fspath(workdir)
        self.machines = []
        missing = [name for name in ('vmlinuz', 'initrd', 'root.img', 'product.img')
                   if not os.path.exists(os.path.join(SYSTEM, name))]
        if missing:
            raise RuntimeError(f'{SYSTEM} lacks {", ".join(missing)}: scripts/lab-guest makes it')

    def machine(self, name, **options):
        """Make and start the next machine; two share a network."""
        machine = Machine(self, name, len(self.machines) + 1, **options)
        self.machines.append(machine)
        return machine

    def close(self):
        for machine in self.machines:
            machine.close()
        self.machines = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as probe:
        return probe.getsockname()[1]

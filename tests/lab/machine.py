# SPDX-License-Identifier: LGPL-3.0-or-later
"""Machines of the lab: QEMU without KVM, networks of their own, drives and cables that are pulled.

    with Lab(workdir) as lab:
        server = lab.add(Node, 'server', image=image, drives=6, networks={'lan': '192.0.2.1/24'})
        client = lab.add(Guest, 'client', networks={'lan': '192.0.2.2/24'})
        server.start(); server.pull_drive(2); client.cut('lan'); client.reset()

node.py has nodes of the appliance, guest.py clients: how they boot, and how they take commands. Each
has a first network, `control`, that it shares with the harness alone; others have any number of machines.
"""

import ctypes
import json
import os
import re
import socket
import threading
import time

from harness.host import Daemon, Timeout, command, logs, tail, wait_until
from wire import Wire

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
QEMU = 'qemu-system-x86_64'
BOOT_TIMEOUT = 1200  # ten times what a boot takes where nothing else runs
QMP_TIMEOUT = 120
MTU = 9000
CLONE_NEWNET = 0x40000000
CONTROL = '10.0.2.15'  # a machine's own address in its network `control`
# For a kernel. Nobody attacks a machine of the lab; and where a program lies elsewhere whenever it starts, QEMU translates its code again, so
# that it takes three times as long.
QUICKER = 'mitigations=off norandmaps'
# What a kernel and libc use where a processor has it, and QEMU is slower at than at what they do without it: page tables of five levels, switches of
# what may be reached, moves byte by byte, wide registers. A machine boots with a fifth less of the host's time without them.
COSTLY = ('la57', 'smap', 'smep', 'pku', 'umip', 'erms', 'fsrm', 'mpx', 'avx', 'avx2')


def own_network():
    """This thread and its children are in a network of their own from here on, until leave_network() of what this returns."""
    before = os.open('/proc/thread-self/ns/net', os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f'a network namespace of its own: {os.strerror(error)} (not root?)')
    command('ip', 'link', 'set', 'lo', 'up')
    return before


def leave_network(before):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(before, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), 'the network namespace of before')
    os.close(before)


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as probe:
        return probe.getsockname()[1]


class Qmp:
    """A machine's monitor."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(QMP_TIMEOUT)
        wait_until(lambda: self._socket.connect_ex(path) == 0, 60, f'{path}: connect')
        self._file = self._socket.makefile('r')
        self.events = []
        self._read()
        self.ask('qmp_capabilities')

    def _read(self):
        line = self._file.readline()
        if not line:
            raise ConnectionError('the machine has ended')
        return json.loads(line)

    def ask(self, what, underlined=None, **arguments):
        """Give command WHAT and return its answer. Old commands have arguments whose names are UNDERLINED ones."""
        asked = {'execute': what}
        arguments = {**{name.replace('_', '-'): value for name, value in arguments.items()}, **(underlined or {})}
        if arguments:
            asked['arguments'] = arguments
        self._socket.sendall(json.dumps(asked).encode() + b'\n')
        while True:
            answer = self._read()
            if 'event' in answer:
                self.events.append(answer)
            elif 'error' in answer:
                raise RuntimeError(f'{what}: {answer["error"]["desc"]}')
            else:
                return answer['return']

    def wait_for(self, event, **data):
        """Wait for an EVENT whose data has these, and forget what came before it."""
        self.wait_for_all(event, [data])

    def wait_for_all(self, event, wanted):
        """One for each of WANTED, in any order."""
        deadline, wanted = time.monotonic() + QMP_TIMEOUT, list(wanted)
        while wanted:
            while wanted and self.events:
                had = self.events.pop(0)
                wanted = [data for data in wanted
                          if had['event'] != event or not data.items() <= had.get('data', {}).items()]
            if not wanted:
                return
            if time.monotonic() > deadline:
                raise Timeout(f'no {event} {wanted} within {QMP_TIMEOUT} s')
            answer = self._read()
            if 'event' in answer:
                self.events.append(answer)

    def close(self):
        self._file.close()
        self._socket.close()


class Console:
    """The serial port of a machine: all that came out of it, from its first start on, and a way in."""

    def __init__(self, log):
        self.text = ''
        self.log = log
        self._lock = threading.Lock()
        self._socket = None

    def attach(self, path):
        """To a machine that was started."""
        self._socket = socket.socket(socket.AF_UNIX)
        wait_until(lambda: self._socket.connect_ex(path) == 0, 60, f'{path}: connect')
        threading.Thread(target=self._read, args=[self._socket], daemon=True).start()
        if self.log not in logs:
            logs.append(self.log)

    def _read(self, connection):
        with connection, open(self.log, 'ab') as log:
            while data := self._receive(connection):
                log.write(data)
                log.flush()
                with self._lock:
                    self.text += data.decode(errors='replace').replace('\r', '')

    @staticmethod
    def _receive(connection):
        try:
            return connection.recv(65536)
        except OSError:  # the machine was powered off
            return b''

    def expect(self, pattern, timeout=BOOT_TIMEOUT, after=0):
        """Wait until PATTERN comes out behind the first AFTER characters; returns where it ends."""
        def found():
            with self._lock:
                return re.compile(pattern).search(self.text, after)

        return wait_until(found, timeout, f'{pattern!r} on the console', 0.2).end()

    def send(self, text):
        self._socket.sendall(text.encode())


class Drive:
    """An emulated NVMe drive in a slot of its own: `path` is its name in the machine. MACHINE's files
    and names are those of the drive: another machine that has it too sees the same one."""

    def __init__(self, machine, number, size):
        self.number = number
        self.serial = f'{machine.name}{number}'
        self.file = machine.path(f'nvme{number}')
        self.path = f'/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{self.serial}'
        with open(self.file, 'wb') as made:
            made.truncate(size)

    def arguments(self):
        return [*slot(f'slot{self.number}', self.number),
                '-blockdev', f'driver=raw,node-name=node{self.number},discard=unmap,'
                             f'file.driver=file,file.filename={self.file},file.locking=off',
                '-device', f'nvme,id=drive{self.number},bus=slot{self.number},drive=node{self.number},'
                           f'serial={self.serial},share-rw=on']


def slot(name, number):
    """Where a device can be put in while the machine runs."""
    return ['-device', f'pcie-root-port,id={name},chassis={number + 1},slot={number + 1}']


class Machine:
    """A machine of QEMU. `networks` are those it is in, each with its address there; `drives` are so
    many of its own, or another machine, whose drives it has too. A subclass says how it boots,
    `boot_arguments`, and waits until it takes commands, `wait_until_up`. LACKING are features that its
    processors do not have. A machine that is not CONNECTED has no network until plug()."""

    def __init__(self, lab, name, number, drives=0, drive_bytes=1 << 30, networks=None, disks=(), cpus=1,
                 memory_mib=1536, lacking=COSTLY, connected=True):
        self.lab, self.name, self.number = lab, name, number
        self.workdir = lab.workdir
        self.networks, self.disks = dict(networks or {}), list(disks)
        self.cpus, self.memory_mib, self.connected = cpus, memory_mib, connected
        # QEMU 7.2's helper for cmpxchg16b leaves an operand in the flags, and an interrupt before the next comparison
        # brings the kernel down (SLUB does it all the time)
        self.processor = ','.join(['max', *(f'{feature}=off' for feature in ('cx16', *lacking))])
        self.drives = drives.drives if isinstance(drives, Machine) else [
            Drive(self, i, drive_bytes) for i in range(drives)]
        self.console = Console(self.path('console'))
        self.qmp = None
        self._daemon = None
        self._paused = False
        self._begun = 0  # where on the console what it says since its start begins
        self._started_again = False

    def path(self, suffix):
        return os.path.join(self.workdir, f'{self.name}.{suffix}')

    def hardware_address(self, network):
        """Of its device in NETWORK."""
        number = ['control', *self.networks].index(network)
        return f'52:54:00:00:{self.number:02x}:{number + 1:02x}'

    # --- arguments ----------------------------------------------------------------------------------

    def boot_arguments(self):
        raise NotImplementedError

    def control_options(self):
        """More of the network that it shares with the harness."""
        raise NotImplementedError

    def _control_device(self):
        return {'driver': 'virtio-net-pci', 'netdev': 'control', 'mac': self.hardware_address('control'), 'romfile': ''}

    def _network_arguments(self):
        arguments = ['-netdev', f'user,id=control,{self.control_options()}']
        arguments += ['-device', json.dumps(self._control_device())] if self.connected else slot('network', 31)
        for network in self.networks:
            tap = self.lab.tap(self, network)
            arguments += ['-netdev', f'tap,id={network},ifname={tap},script=no,downscript=no,vhost=off',
                          '-device', f'virtio-net-pci,id=port-{network},netdev={network},host_mtu={MTU},romfile=,'
                                     f'mac={self.hardware_address(network)}']
        return arguments

    def _arguments(self):
        arguments = [
            QEMU, '-name', self.name, '-machine', 'q35', '-accel', 'tcg,thread=multi', '-cpu', self.processor,
            '-smp', str(self.cpus), '-m', str(self.memory_mib), '-nodefaults', '-no-user-config',
            '-display', 'none', '-chardev', f'socket,id=serial,path={self.path("serial")},server=on,wait=off',
            '-serial', 'chardev:serial', '-qmp', f'unix:{self.path("qmp")},server=on,wait=off',
            '-object', 'rng-random,id=rng,filename=/dev/urandom', '-device', 'virtio-rng-pci,rng=rng',
            '-device', 'i6300esb', '-action', 'watchdog=reset,reboot=shutdown',
            *self.boot_arguments(), *self._network_arguments(), *slot('spare', 30)]
        for number, path in enumerate(self.disks):
            arguments += ['-drive', f'if=none,id=disk{number},format=raw,file={path}',
                          '-device', f'virtio-blk-pci,drive=disk{number}']
        for drive in self.drives:
            arguments += drive.arguments()
        return arguments

    # --- power --------------------------------------------------------------------------------------

    def power_on(self):
        for suffix in ('qmp', 'serial'):
            if os.path.exists(self.path(suffix)):
                os.unlink(self.path(suffix))
        self._begun = len(self.console.text)
        self._daemon = Daemon(self._arguments(), self.path('qemu.log'), env={'TMPDIR': self.workdir})
        self.console.attach(self.path('serial'))
        self.qmp = Qmp(self.path('qmp'))

    def is_on(self):
        return self._daemon is not None and self._daemon.alive()

    def is_running(self):
        """On, and not paused."""
        return self.is_on() and not self._paused

    def check_on(self):
        """While it boots. Once in thousands of boots a processor of QEMU's runs what stood for a moment where the kernel
        patches itself, which nobody waits for any more, and the kernel panics: then it is started again, once."""
        if self.is_on():
            return
        if 'Oops: int3' not in self.console.text[self._begun:] or self._started_again:
            raise RuntimeError(f'{self.name} has ended:\n{tail(self.path("qemu.log"))}{self.console.text[-4000:]}')
        print(f'{self.name} is started again: its kernel was brought down by the emulator')
        self._started_again = True
        self.power_off()
        self.power_on()

    def start(self):
        """Power on; returns when it takes commands."""
        self.power_on()
        self.wait_until_up()

    def wait_until_up(self):
        raise NotImplementedError

    def power_off(self):
        """As if the plug were pulled: nothing is written any more, nobody is told."""
        if self.qmp:
            self.qmp.close()
            self.qmp = None
        if self._daemon:
            self._daemon.kill()
            self._daemon = None
        self._paused = False

    def pause(self):
        """Stand still: no processor runs, no clock, no watchdog."""
        self.qmp.ask('stop')
        self._paused = True

    def go_on(self):
        self.qmp.ask('cont')
        self._paused = False

    def reset(self):
        """Power off and on: the drives keep what they hold, the system starts afresh. (QEMU's own
        reset takes a minute more.)"""
        self.power_off()
        self.start()

    def close(self):
        self.power_off()
        for drive in self.drives:
            if os.path.exists(drive.file):
                os.unlink(drive.file)

    # --- cables and drives --------------------------------------------------------------------------

    def plug(self):
        """Give a machine without a network its network `control`, while it runs."""
        self.qmp.ask('device_add', bus='network', **self._control_device())
        self.connected = True

    def cut(self, network):
        """Pull the cable of NETWORK."""
        self.qmp.ask('set_link', name=f'port-{network}', up=False)

    def join(self, network):
        """Put the cable back."""
        self.qmp.ask('set_link', name=f'port-{network}', up=True)

    def lose(self, network):
        """Lose all that arrives from NETWORK, and its cable stays in."""
        self.lab.lose(self, network)

    def find(self, network):
        """Lose nothing any more."""
        self.lab.find(self, network)

    def wire(self, network):
        """What goes over its cable of NETWORK: see wire.py."""
        return Wire(self.lab.tap(self, network))

    def pull_drive(self, number):
        """Pull drive NUMBER out; returns when it is gone."""
        self.pull_drives([number])

    def pull_drives(self, numbers):
        """Pull these out, all at once."""
        for number in numbers:
            self.qmp.ask('device_del', id=f'drive{number}')
        self.qmp.wait_for_all('DEVICE_DELETED', [{'device': f'drive{number}'} for number in numbers])

    def put_drive(self, number):
        """Put drive NUMBER back in, with what it held."""
        drive = self.drives[number]
        self.qmp.ask('device_add', driver='nvme', id=f'drive{number}', bus=f'slot{number}',
                     drive=f'node{number}', serial=drive.serial, share_rw=True)

    def hang_drive(self, number):
        """From its next request but one on drive NUMBER answers none that reads or writes, and is there all the same."""
        self._throttle(number, bps=1)

    def let_drive_answer(self, number):
        """Those that it was asked meanwhile, too."""
        self._throttle(number, bps=0)

    def _throttle(self, number, bps):
        self.qmp.ask('block_set_io_throttle', id=f'drive{number}', bps=bps, iops=0,
                     underlined=dict.fromkeys(('bps_rd', 'bps_wr', 'iops_rd', 'iops_wr'), 0))

    def attach(self, path):
        """Put a disk with the bytes of file PATH in, to be read."""
        self.qmp.ask('blockdev-add', driver='raw', node_name='attached', read_only=True,
                     file={'driver': 'file', 'filename': path})
        self.qmp.ask('device_add', driver='virtio-blk-pci', id='attached', bus='spare', drive='attached',
                     serial='attached')

    def detach(self):
        self.qmp.ask('device_del', id='attached')
        self.qmp.wait_for('DEVICE_DELETED', device='attached')
        self.qmp.ask('blockdev-del', node_name='attached')


class Lab:
    """The machines of a run, their networks, and where they keep their files. Networks are bridges
    in a network namespace of this thread's own until close(), with a tap for each machine that is in them."""

    def __init__(self, workdir):
        self.workdir = os.fspath(workdir)
        self.machines, self._made = [], 0
        self._bridges = set()
        self._taps = set()
        self._network = own_network()

    def add(self, kind, name, **options):
        """Make the next machine, of class KIND; it is off."""
        self._made += 1
        machine = kind(self, name, self._made, **options)
        self.machines.append(machine)
        return machine

    def remove(self, machine):
        """Of MACHINE nothing is left."""
        machine.close()
        self.machines.remove(machine)

    def tap(self, machine, network):
        """The name of MACHINE's tap in NETWORK; either is made when it is not there."""
        name = f'{network}-{machine.number}'
        if network not in self._bridges:
            command('ip', 'link', 'add', network, 'type', 'bridge', 'mcast_snooping', '0')
            command('ip', 'link', 'set', network, 'up')
            self._bridges.add(network)
        if name not in self._taps:
            command('ip', 'tuntap', 'add', 'dev', name, 'mode', 'tap')
            command('ip', 'link', 'set', name, 'mtu', str(MTU), 'master', network, 'up')
            self._taps.add(name)
        return name

    def lose(self, machine, network):
        command('ip', 'link', 'set', f'{network}-{machine.number}', 'nomaster')

    def find(self, machine, network):
        command('ip', 'link', 'set', f'{network}-{machine.number}', 'master', network)

    def close(self):
        try:
            for machine in self.machines:
                machine.close()
        finally:
            self.machines = []
            leave_network(self._network)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Nodes of the appliance: QEMU machines without KVM that boot the image through firmware and GRUB.

    node = Node(workdir, 'a', image, firmware='uefi', drives=3, configuration=CONFIGURATION)
    node.wait_for_ssh(); node.run('millrace node status'); node.kill()

Its serial console is a socket here: what comes out is kept, in `console` and in a file; send() types.
Commands go over SSH, as an admin's would.
"""

import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
import threading
import time

QEMU = 'qemu-system-x86_64'
OVMF = '/usr/share/OVMF/OVMF_%s_4M.fd'
BOOT_TIMEOUT = 1200  # ten times what a boot takes where nothing else runs
MIB = 1 << 20
LABEL = 'MILLRACE'


class Timeout(Exception):
    """Something did not come about in time."""


def wait_until(check, timeout, what, interval=1):
    """What CHECK returns, once that is true."""
    deadline = time.monotonic() + timeout
    while not (found := check()):
        if time.monotonic() > deadline:
            raise Timeout(f'{what}: not within {timeout} s')
        time.sleep(interval)
    return found


def digest(path):
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as probe:
        return probe.getsockname()[1]


def make_configuration(path, text):
    """A drive labelled MILLRACE with TEXT as millrace.conf."""
    with open(path, 'wb') as file:
        file.truncate(4 * MIB)
    subprocess.run(['mkfs.vfat', '-n', LABEL, path], check=True, capture_output=True)
    subprocess.run(['mcopy', '-i', path, '-', '::/millrace.conf'], input=text.encode(), check=True)


class Console:
    """The serial port of a machine: all that came out of it, and a way in."""

    def __init__(self, path, log):
        self.text = ''
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        wait_until(lambda: self._connect(path), 60, f'{path}: connect', 0.1)
        self._log = open(log, 'ab')
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _connect(self, path):
        return self._socket.connect_ex(path) == 0

    def _read(self):
        while data := self._socket.recv(65536):
            self._log.write(data)
            self._log.flush()
            with self._lock:
                self.text += data.decode(errors='replace').replace('\r', '')
        self._log.close()

    def expect(self, pattern, timeout=BOOT_TIMEOUT, after=0):
        """Wait until PATTERN comes out behind the first AFTER characters; returns where it ends."""
        def found():
            with self._lock:
                return re.compile(pattern).search(self.text, after)

        return wait_until(found, timeout, f'{pattern!r} on the console').end()

    def send(self, text):
        self._socket.sendall(text.encode())

    def close(self):
        self._socket.close()


class Node:
    """A machine with the image on its first disk, NVMe drives, and other disks as given."""

    def __init__(self, workdir, name, image, firmware='uefi', drives=0, configuration=None, disks=(),
                 key=None, address='10.0.2.15'):
        self.workdir, self.name, self.firmware, self.key = os.fspath(workdir), name, firmware, key
        self.address, self.port = address, free_port()
        self.disk = self.path('disk.qcow2')
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', '-b', os.path.abspath(image), '-F', 'raw',
                        self.disk, '8G'], check=True)
        self.drives = [self._make_drive(i) for i in range(drives)]
        self.disks = list(disks)
        if configuration:
            self.disks.append(self.path('configuration'))
            make_configuration(self.disks[-1], configuration)
        if firmware == 'uefi':
            subprocess.run(['cp', OVMF % 'VARS', self.path('vars')], check=True)
        self.process = self.console = self._monitor = None
        self.start()

    def path(self, suffix):
        return os.path.join(self.workdir, f'{self.name}.{suffix}')

    def _make_drive(self, number):
        path = self.path(f'nvme{number}')
        with open(path, 'wb') as file:
            file.truncate(1 << 30)
        return path

    def _arguments(self):
        arguments = [
            QEMU, '-name', self.name, '-machine', 'q35', '-accel', 'tcg,thread=multi', '-cpu', 'max', '-smp', '2',
            '-m', '1536', '-nodefaults', '-no-user-config', '-display', 'none',
            '-chardev', f'socket,id=serial,path={self.path("serial")},server=on,wait=off',
            '-serial', 'chardev:serial', '-qmp', f'unix:{self.path("qmp")},server=on,wait=off',
            '-object', 'rng-random,id=rng,filename=/dev/urandom', '-device', 'virtio-rng-pci,rng=rng',
            '-device', 'i6300esb', '-action', 'watchdog=reset',
            '-drive', f'if=none,id=system,format=qcow2,file={self.disk},cache=unsafe',
            '-device', 'virtio-blk-pci,drive=system,bootindex=0',
            '-netdev', f'user,id=lan,hostfwd=tcp:127.0.0.1:{self.port}-{self.address}:22',
            '-device', 'virtio-net-pci,netdev=lan,romfile=']
        if self.firmware == 'uefi':
            arguments += ['-drive', f'if=pflash,format=raw,readonly=on,file={OVMF % "CODE"}',
                          '-drive', f'if=pflash,format=raw,file={self.path("vars")}']
        for number, path in enumerate(self.disks):
            arguments += ['-drive', f'if=none,id=disk{number},format=raw,file={path}',
                          '-device', f'virtio-blk-pci,drive=disk{number}']
        for number, path in enumerate(self.drives):
            arguments += ['-drive', f'if=none,id=nvme{number},format=raw,discard=unmap,file={path}',
                          '-device', f'nvme,drive=nvme{number},serial={self.name}{number}']
        return arguments

    def start(self):
        """Power on."""
        for name in ('serial', 'qmp'):
            if os.path.exists(self.path(name)):
                os.unlink(self.path(name))
        with open(self.path('qemu.log'), 'ab') as log:
            self.process = subprocess.Popen(self._arguments(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.console = Console(self.path('serial'), self.path('console.log'))

    def kill(self):
        """Power off: nothing is written any more, nobody is told."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.console.close()
            self.process = None

    def cut_power(self):
        """Off and on again."""
        self.kill()
        self.start()

    def ask_monitor(self, command, **arguments):
        """One command of QMP."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(self.path('qmp'))
            with monitor.makefile('rw') as file:
                for asked in ({'execute': 'qmp_capabilities'}, {'execute': command, 'arguments': arguments}):
                    file.write(json.dumps(asked) + '\n')
                    file.flush()
                    while 'return' not in (answer := json.loads(file.readline())):
                        assert 'error' not in answer, answer
                return answer['return']

    # --- commands ---------------------------------------------------------------------------------

    def _ssh(self, command, timeout, **options):
        argv = ['ssh', '-q', '-i', self.key, '-p', str(self.port), '-o', 'StrictHostKeyChecking=no',
                '-o', 'UserKnownHostsFile=/dev/null', '-o', 'BatchMode=yes', '-o', 'ConnectTimeout=60',
                '-o', f'ControlPath={self.path("ssh")}', '-o', 'ControlMaster=auto', '-o', 'ControlPersist=60',
                'root@127.0.0.1', command]
        return subprocess.run(argv, stdin=options.pop('stdin', subprocess.DEVNULL), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=timeout, check=False, **options)

    def wait_for_ssh(self, timeout=BOOT_TIMEOUT):
        def answers():
            assert self.process.poll() is None, f'{self.name}: QEMU has ended'
            try:
                return self._ssh('true', 100).returncode == 0
            except subprocess.TimeoutExpired:
                return False

        wait_until(answers, timeout, f'{self.name}: SSH')

    def run(self, command, rc=0, timeout=600, **options):
        """What COMMAND prints; its exit code must be RC."""
        done = self._ssh(command, timeout, **options)
        assert done.returncode == rc, f'{command}: exit {done.returncode}\n{done.stdout}{done.stderr}'
        return done.stdout

    def json(self, command, rc=0):
        return json.loads(self.run(f'{command} --json', rc))

    def put(self, path, to):
        with open(path, 'rb') as file:
            self.run(f'cat > {shlex.quote(to)}', stdin=file, timeout=1200)

    def serve_pool(self):
        """Pool tank of all its NVMe drives with share tank/models, now and after each boot."""
        if self.run('ls /etc/systemd/system/millrace-tank.service || true'):
            return
        drives = ' '.join(f'/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{self.name}{i}' for i in range(len(self.drives)))
        self.json(f'millrace pool create tank --data {len(self.drives) - 1} --parity 1 {drives}')
        self.json('millrace share create tank/models')
        self.json('millrace share set tank/models nfs.clients=*:rw')
        self.json('millrace serve tank --enable')

    def boot_id(self):
        return self.run('cat /proc/sys/kernel/random/boot_id').strip()

    def wait_for_another_boot(self, before):
        """Until SSH answers in another boot than BEFORE."""
        def other():
            self.forget_connection()
            try:
                done = self._ssh('cat /proc/sys/kernel/random/boot_id', 100)
            except subprocess.TimeoutExpired:
                return False
            return done.returncode == 0 and done.stdout.strip() != before

        wait_until(other, 2 * BOOT_TIMEOUT, f'{self.name}: another boot', 3)

    def forget_connection(self):
        subprocess.run(['ssh', '-q', '-O', 'exit', '-o', f'ControlPath={self.path("ssh")}', '127.0.0.1'],
                       capture_output=True, check=False)

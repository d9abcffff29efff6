# SPDX-License-Identifier: LGPL-3.0-or-later
"""Nodes: machines of the appliance's image.

    node = lab.add(Node, 'a', image=image, key=key, firmware='uefi', drives=3, configuration=lines)
    node.start(); node.run('millrace node status')

With a firmware, 'uefi' or 'bios', it goes through GRUB as on any machine; without one QEMU starts the
image's kernel, which saves half a minute. Commands go over SSH, as an admin's would.
"""

import hashlib
import json
import os
import re
import select
import shlex
import socket
import subprocess

import schemas
from harness.host import wait_until
from machine import BOOT_TIMEOUT, CONTROL, MTU, QUICKER, ROOT, Machine, free_port

OVMF = '/usr/share/OVMF/OVMF_%s_4M.fd'
MIB = 1 << 20
ATTACHED = '/dev/disk/by-id/virtio-attached'
ANSWER_SECONDS = 10  # for SSH to say its name, where nothing is quick
LAYOUT = os.path.join(ROOT, 'appliance', 'root', 'usr', 'lib', 'millrace', 'layout')
# As appliance/grub.cfg has it.
KERNEL_WORDS = f'root=PARTUUID={{}} ro millrace.slot=a panic=10 systemd.gpt_auto=0 console=ttyS0,115200 {QUICKER}'


def digest(path):
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def make_drive(path, label, files):
    """A drive labelled LABEL with FILES, NAME: TEXT."""
    with open(path, 'wb') as file:
        file.truncate(4 * MIB)
    subprocess.run(['mkfs.vfat', '-n', label, path], check=True, capture_output=True)
    for name, text in files.items():
        subprocess.run(['mcopy', '-i', path, '-', f'::/{name}'], input=text.encode(), check=True)


def make_disk_of(directory, path):
    """A disk whose ext4 file system has the files in DIRECTORY."""
    size = sum(os.path.getsize(os.path.join(directory, name)) for name in os.listdir(directory))
    subprocess.run(['mke2fs', '-q', '-t', 'ext4', '-O', '^has_journal', '-d', directory, path,
                    f'{size * 11 // 10 // 1024 + 4096}k'], check=True)


def kernel_of(image, directory):
    """The kernel and the initial RAM disk in the image's first root file system, in DIRECTORY."""
    table = json.loads(subprocess.run(['sfdisk', '--json', image], check=True, stdout=subprocess.PIPE).stdout)
    start = next(part['start'] for part in table['partitiontable']['partitions'] if part['name'] == 'root-a')
    root = f'{image}?offset={512 * start}'

    def debugfs(command):
        return subprocess.run(['debugfs', '-R', command, root], check=True, capture_output=True, text=True).stdout

    names = [line.split('/')[5] for line in debugfs('ls -p /boot').splitlines() if line.startswith('/')]
    files = []
    for kind in ('vmlinuz-', 'initrd.img-'):
        name = next(name for name in names if name.startswith(kind))
        files.append(os.path.join(directory, kind.rstrip('-')))
        debugfs(f'dump /boot/{name} {files[-1]}')
    return files


def slot_a():
    """The identifier of the image's first root partition."""
    with open(LAYOUT) as file:
        return re.search(r'^layout_a=(\S+)', file.read(), re.MULTILINE).group(1)


def answer_of(command, text):
    """What `millrace ... --json` has answered by TEXT, which is as docs/json says."""
    answer = json.loads(text)
    schemas.validate_answer(shlex.split(command)[1:], answer)
    return answer


class Node(Machine):
    """A machine with the image on its first disk, grown to 8 GiB. `configuration` has lines of a drive
    labelled MILLRACE, to which those of its networks are added; without it the console asks. `kernel`, of
    kernel_of, is for a node without firmware."""

    def __init__(self, lab, name, number, image, key=None, firmware=None, kernel=None, configuration=None,
                 control_address=CONTROL, **options):
        super().__init__(lab, name, number, **options)
        self.key, self.firmware, self.kernel = key, firmware, kernel
        self.control_address, self.port = control_address, None
        self.disk = self.path('disk.qcow2')
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', '-b', os.path.abspath(image), '-F', 'raw',
                        self.disk, '8G'], check=True)
        if configuration:
            self.disks.append(self.path('configuration'))
            make_drive(self.disks[-1], 'MILLRACE', {'millrace.conf': configuration + self._network_lines()})
        if firmware == 'uefi':
            subprocess.run(['cp', OVMF % 'VARS', self.path('vars')], check=True)

    def _network_lines(self):
        if not self.networks:
            return ''
        return f'interface={self.hardware_address("control")}\naddress=dhcp\n' + ''.join(
            f'interface={self.hardware_address(network)}\naddress={address}\nmtu={MTU}\n'
            for network, address in self.networks.items())

    def boot_arguments(self):
        arguments = ['-drive', f'if=none,id=system,format=qcow2,file={self.disk},cache=unsafe',
                     '-device', 'virtio-blk-pci,drive=system' + (',bootindex=0' if self.firmware else '')]
        if self.firmware == 'uefi':
            arguments += ['-drive', f'if=pflash,format=raw,readonly=on,file={OVMF % "CODE"}',
                          '-drive', f'if=pflash,format=raw,file={self.path("vars")}']
        elif not self.firmware:
            arguments += ['-kernel', self.kernel[0], '-initrd', self.kernel[1], '-append', KERNEL_WORDS.format(slot_a())]
        return arguments

    def control_options(self):
        self.port = free_port()
        return f'hostfwd=tcp:127.0.0.1:{self.port}-{self.control_address}:22'

    def power_off(self):
        super().power_off()
        self._forget_connection()

    def close(self):
        super().close()
        os.unlink(self.disk)

    def device(self, network):
        """The name of its device in NETWORK."""
        return self.run(f'ip -brief link | grep {self.hardware_address(network)}').split()[0]

    # --- commands -----------------------------------------------------------------------------------

    def attempt(self, command, timeout=600, stdin=subprocess.DEVNULL):
        """COMMAND's CompletedProcess, whatever its exit code; 255 when the node was not reached."""
        argv = ['ssh', '-q', '-i', self.key, '-p', str(self.port), '-o', 'StrictHostKeyChecking=no',
                '-o', 'UserKnownHostsFile=/dev/null', '-o', 'BatchMode=yes', '-o', 'ConnectTimeout=60',
                '-o', f'ControlPath={self.path("ssh")}', '-o', 'ControlMaster=auto', '-o', 'ControlPersist=600',
                'root@127.0.0.1', command]
        return subprocess.run(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              errors='replace', timeout=timeout, check=False)

    def run(self, command, rc=0, timeout=600):
        """What COMMAND prints; its exit code must be RC."""
        done = self.attempt(command, timeout)
        assert done.returncode == rc, f'{command}: exit {done.returncode}\n{done.stdout}{done.stderr}'
        return done.stdout

    def does(self, command):
        """Whether COMMAND succeeds."""
        return self.attempt(command).returncode == 0

    def put(self, path, to):
        """A copy of the harness's file PATH there."""
        with open(path, 'rb') as file:
            assert self.attempt(f'cat >{to}', stdin=file).returncode == 0, f'{self.name}: {to} cannot be written'

    def mount_disk(self, disk):
        """The directory where the node sees the files of file DISK, of make_disk_of, which is put in."""
        self.attach(disk)
        wait_until(lambda: self.does(f'test -b {ATTACHED}'), 60, f'{self.name}: {ATTACHED}', 0.5)
        self.run(f'mkdir -p /run/attached && mount -o ro {ATTACHED} /run/attached')
        return '/run/attached'

    def take_disk_out(self):
        self.run('umount /run/attached')
        self.detach()

    def json(self, command, rc=0):
        """What `millrace ...` answers."""
        return answer_of(command, self.run(f'{command} --json', rc))

    def answers(self):
        """Whether its SSH server says its name to one of those that connect, a second apart. To connect says little,
        as QEMU takes connections before the node does; and for one that came before it had its network QEMU tries
        again seconds later."""
        asked = []
        try:
            for _ in range(ANSWER_SECONDS):
                asked.append(socket.create_connection(('127.0.0.1', self.port), timeout=1))
                said, _, _ = select.select(asked, [], [], 1)
                if said:
                    return said[0].recv(4) == b'SSH-'
        except OSError:
            pass
        finally:
            for connection in asked:
                connection.close()
        return False

    def wait_until_up(self):
        wait_until(lambda: self.check_on() or self.answers(), BOOT_TIMEOUT, f'{self.name}: SSH', 0.5)
        wait_until(lambda: self.does('true'), BOOT_TIMEOUT, f'{self.name}: a command')

    def boot_id(self):
        return self.run('cat /proc/sys/kernel/random/boot_id').strip()

    def wait_through_resets(self, command):
        """Until COMMAND succeeds there. When the node resets itself QEMU ends, and is started again."""
        def succeeds():
            if not self.is_on():
                self.power_off()
                self.power_on()
            if not self.answers():
                return False
            self._forget_connection()
            return self.attempt(command, 100).returncode == 0

        wait_until(succeeds, 2 * BOOT_TIMEOUT, f'{self.name}: {command}', 1)

    def _forget_connection(self):
        subprocess.run(['ssh', '-q', '-O', 'exit', '-o', f'ControlPath={self.path("ssh")}', '127.0.0.1'],
                       capture_output=True, check=False)

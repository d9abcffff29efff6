# SPDX-License-Identifier: LGPL-3.0-or-later
"""A machine whose NVMe target has reservations (scripts/lab-guest target), and hosts of it: namespaces on the same
machine, each of which is connected for itself, has drives of its own in /dev, and is a member of a cluster by name.

    target = lab.add(Target, 'target', server_address='192.0.2.7', networks={'lan': '192.0.2.7/24'})
    target.start(); target.share_drives(); target.prepare_hosts(); hosts = [Host(target, name) for name in MEMBERS]
    hosts[0].run('nvme list')
"""

import json

from guest import Guest
from harness.host import wait_until

DRIVES = 4
DRIVE_MIB = 192
PLAIN = 3  # more, that are not shared
PORT = 4420
BUILT = '/millrace/build'
SUBSYSTEM = 'nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001'
PORTS = '/sys/kernel/config/nvmet/ports'
MEMBERS = ('n1', 'n2')

# $1 drives of $2 MiB each, at the address $3.
SERVE = f'''set -e
modprobe -a nvmet nvmet-tcp nvme-tcp loop
modprobe brd rd_nr=$(($1 + {PLAIN})) rd_size=$(($2 << 10))
mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/nvmet
mkdir subsystems/{SUBSYSTEM}
echo 1 >subsystems/{SUBSYSTEM}/attr_allow_any_host
for number in $(seq $1); do
    drive=subsystems/{SUBSYSTEM}/namespaces/$number
    mkdir $drive
    echo /dev/ram$((number - 1)) >$drive/device_path
    echo 1 >$drive/resv_enable
    echo 1 >$drive/enable
done
mkdir ports/1
echo tcp >ports/1/addr_trtype; echo ipv4 >ports/1/addr_adrfam; echo $3 >ports/1/addr_traddr; echo {PORT} >ports/1/addr_trsvcid
ln -s /sys/kernel/config/nvmet/subsystems/{SUBSYSTEM} ports/1/subsystems/
'''

# Process 1 of a host; what it has of its own is in /hosts/NAME.
NAMESPACES = '''set -e
name=$1 controller=$2
own=/hosts/$name
hostname $name
mkdir -p $own/dev $own/run $own/etc
mount -t tmpfs own $own/dev
cp -a /dev/null /dev/zero /dev/urandom /dev/$controller $own/dev/
mkdir $own/dev/shm
ln -s /proc/self/fd $own/dev/fd
mount --rbind $own/dev /dev
mount -t tmpfs own /dev/shm
mount -t tmpfs own /run
mkdir -p /etc/corosync /etc/millrace
mount --bind $own/etc /etc/millrace
echo $$
exec sleep infinity
'''


class Target(Guest):
    ROOT_IMAGE, KERNEL, INITRD = 'target.img', 'target.vmlinuz', 'target.initrd'

    def __init__(self, lab, name, number, **options):
        super().__init__(lab, name, number, memory_mib=3072, **options)

    def boot_arguments(self):
        """Each host sees drives for itself: their paths are not made one."""
        words = super().boot_arguments()
        words[words.index('-append') + 1] += ' nvme_core.multipath=N'
        return words

    def share_drives(self, count=DRIVES, mib=DRIVE_MIB, address='127.0.0.1'):
        """To whoever connects; they are kept in memory."""
        self.run(['sh', '-c', SERVE, 'serve', str(count), str(mib), address], timeout=120)

    def hide_drives(self):
        """Nobody reaches them; they are what they were."""
        self.run(f'rm {PORTS}/1/subsystems/{SUBSYSTEM}')

    def show_drives(self):
        self.run(f'ln -s {PORTS}/../subsystems/{SUBSYSTEM} {PORTS}/1/subsystems/')

    def prepare_hosts(self):
        """What all hosts have of the cluster."""
        nodes = ''.join(f'node {{\n ring0_addr: 127.0.0.1\n name: {name}\n nodeid: {number}\n}}\n'
                        for number, name in enumerate(MEMBERS, 1))
        self.run(f'mkdir -p /etc/corosync /etc/millrace /usr/lib/millrace && echo secret >/etc/corosync/authkey && cat >/etc/corosync/corosync.conf && '
                 f'ln -s {BUILT}/bin/millrace /usr/bin/', input=nodes.encode())

    def install(self, *paths):
        """Programs, where the package has them."""
        for path in paths:
            self.put(path, f'/usr/lib/millrace/{path.rsplit("/", 1)[1]}')

    def forget_reservations(self, hosts):
        """As drives that lose their power and come back, all of which HOSTS see."""
        self.run(f'for drive in /sys/kernel/config/nvmet/subsystems/{SUBSYSTEM}/namespaces/*; do echo 0 >$drive/enable; echo 1 >$drive/enable; done')
        for host in hosts:
            host.find_drives()


class Host:
    def __init__(self, target, name):
        self.target, self.name = target, name
        self.places = f'--state-dir /hosts/{name}/state --run-dir /run/millrace'
        number = int(name[1:])
        uuid = f'00000000-0000-4000-8000-0000000001{number:02x}'
        target.run(f'nvme connect --transport=tcp --traddr=127.0.0.1 --trsvcid={PORT} --nqn={SUBSYSTEM} '
                   f'--hostnqn=nqn.2014-08.org.nvmexpress:uuid:{uuid} --hostid={uuid}', timeout=120)
        self.controller = target.run(f'cd /sys/class/nvme && grep -l {uuid} */hostid | cut -d / -f 1').stdout.decode().split()[0]
        self.drives = []
        self._process = target.spawn(['unshare', '-m', '-u', 'bash', '-c', NAMESPACES, 'host', name, self.controller])
        self._process.wait_for_lines(1, 60)
        self._pid = str(int(self._process.lines()[0]))
        self.find_drives()
        self.boot()

    def run(self, command, rc=0, timeout=120):
        """What COMMAND said, which must end with RC."""
        done = self.target.run(['nsenter', '-t', self._pid, '-m', '-u', 'sh', '-c', command], check=False, timeout=timeout)
        assert done.rc == rc, (self.name, command, done)
        return (done.stdout + done.stderr).decode(errors='replace')

    def find_drives(self):
        """As udev does, when they are new. Linux does not look again where a drive went and came as it was looked at, and
        may have another name for one that came before the last host had let it go."""
        self.run(f'rm -f {" ".join(self.drives)}')
        self.drives = [self._find_drive(number) for number in range(1, DRIVES + 1)]

    def _find_drive(self, number):
        find = f'cd /sys/class/nvme/{self.controller} && grep -lx {number} */nsid | cut -d / -f 1 | grep .'
        wait_until(lambda: self.target.does(f'{find} || {{ nvme ns-rescan /dev/{self.controller}; exit 1; }}'), 60,
                   f'{self.name} sees drive {number}', interval=1)
        name = self.target.run(find).stdout.decode().split()[0]
        self.run(f'mknod /dev/{name} b $(tr : " " </sys/class/block/{name}/dev)')
        return f'/dev/{name}'

    def plain_drives(self):
        """Some that have no reservations."""
        paths = [self.target.run(f'losetup --find --show /dev/ram{DRIVES + number}').stdout.decode().strip() for number in range(PLAIN)]
        for path in paths:
            self.run(f'mknod {path} b $(tr : " " </sys/class/block/{path[5:]}/dev)')
        return paths

    def boot(self):
        """What a node has anew then; its places for clusters' files are there."""
        self.run('rm -rf /run/millrace && mkdir -p /run/millrace && touch /etc/millrace/cluster')

    def millrace(self, words, rc=0):
        return self.run(f'millrace {words} {self.places}', rc)

    def reservations(self, words, rc=0):
        return self.run(f'/usr/lib/millrace/reservations {words}', rc)

    def report(self, number):
        """Of a drive: how it is reserved, and the keys."""
        told = json.loads(self.run(f'nvme resv-report {self.drives[number]} --eds --output-format=json'))
        return told['rtype'], {entry['rkey'] for entry in told['regctlext']}

    def can_write(self, number):
        """Bytes that are there already."""
        block = f'{self.drives[number]} bs=4096 count=1'
        self.run(f'dd if={block} skip=1000 iflag=direct status=none of=/run/block')
        return self.run(f'dd if=/run/block of={block} seek=1000 oflag=direct status=none 2>/dev/null && echo written; :') != ''

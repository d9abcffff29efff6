# SPDX-License-Identifier: LGPL-3.0-or-later
"""Peers: a machine that serves the same drives in other ways, one beside another.

    peer = lab.add(Peer, 'peer', server_address='192.0.2.3', networks={'lan': '192.0.2.3/24'})
    peer.start(); peer.share_drives(); servers = [Millrace(peer), Knfsd(peer), Vfs(peer)]

Half of each of its six drives is for a pool 4+2, the other half for RAID-6 by md with XFS, which the
kernel's NFS server and nfs-ganesha's FSAL_VFS serve, in a directory each. All are on ports of their own.
"""

import re

from guest import Guest
from harness.host import wait_until

DRIVES = 6
DRIVE_BYTES = 3 << 30
BUILT = '/millrace/build'
START_TIMEOUT = 300
XFS = '/srv'


class Peer(Guest):
    ROOT_IMAGE = 'peer.img'
    MODULES = (*Guest.MODULES, 'nvme', 'raid456', 'xfs', 'nfsd')

    def __init__(self, lab, name, number, **options):
        super().__init__(lab, name, number, drives=DRIVES, drive_bytes=DRIVE_BYTES, memory_mib=4096, **options)

    def share_drives(self):
        """Part them, make the RAID and its file system; returns the parts that are left for a pool."""
        paths = [drive.path for drive in self.drives]
        for path in paths:
            self.run(['sfdisk', '-q', '-X', 'gpt', path], input=f',{DRIVE_BYTES >> 21}M\n,\n'.encode(), timeout=300)
        self.run('udevadm settle')
        raid = ' '.join(f'{path}-part2' for path in paths)
        self.run(f'mdadm --create /dev/md0 --run --level=6 --raid-devices={DRIVES} --chunk=128K --assume-clean {raid} '
                 f'&& mkfs.xfs -q /dev/md0 && mkdir -p {XFS} && mount /dev/md0 {XFS}', timeout=600)
        return [f'{path}-part1' for path in paths]


class Server:
    """Serves `export` over both transports at `ports`."""

    name, export, ports = None, None, None

    def __init__(self, peer):
        self.peer = peer
        self.address = peer.address.split('/')[0]

    def forget(self):
        """What was cached of files' bytes."""
        self.peer.run('sync; echo 3 >/proc/sys/vm/drop_caches')

    def mount(self, client, path, transport):
        client.mount(self.export, path, port=self.ports[transport], options=f'vers=4.1,proto={transport}',
                     server=self.address)
        used = client.run('cat /proc/self/mountstats').stdout.decode()
        told = re.search(rf'mounted on {path} with.*?xprt:\s+(\w+)', used, re.DOTALL)
        assert told and told.group(1) == transport, f'{path} is mounted over {told and told.group(1)}'


class Millrace(Server):
    name, export, ports = 'Millrace', '/tank/share', {'tcp': 2049, 'rdma': 20049}

    def __init__(self, peer, parts):
        super().__init__(peer)
        self._verb(f'pool create tank --data 4 --parity 2 {" ".join(parts)}')
        self._verb('share create tank/share --mode 0777')
        self._verb("share set tank/share 'nfs.clients=*:rw' nfs.squash=none")
        self._verb(f'serve tank --listen {self.address}')
        wait_until(lambda: 'RDMA is served' in self.peer.run('cat /tmp/state/log/tank.log').stdout.decode(),
                   START_TIMEOUT, 'Millrace serves RDMA', interval=1)

    def forget(self):
        for size in ('0', 'auto'):
            self._verb(f'pool set tank cache.size={size}')
        super().forget()

    def _verb(self, arguments):
        self.peer.run(f'{BUILT}/bin/millrace {arguments} --state-dir /tmp/state --run-dir /tmp/run',
                      timeout=START_TIMEOUT)


class Knfsd(Server):
    name, export, ports = 'nfsd', '/knfsd', {'tcp': 2050, 'rdma': 20050}

    def __init__(self, peer):
        super().__init__(peer)
        self.peer.run(f'mkdir -m 777 {XFS}/knfsd; mount -t nfsd nfsd /proc/fs/nfsd; mkdir -p /var/lib/nfs/v4recovery; '
                      f'exportfs -o rw,no_root_squash,insecure,fsid=0,no_subtree_check *:{XFS} && '
                      'rpc.mountd -N 3 && rpc.nfsd -N 3 -p 2050 8 && echo rdma 20050 >/proc/fs/nfsd/portlist',
                      timeout=START_TIMEOUT)


VFS = '''
NFS_CORE_PARAM {{
    Plugins_Dir = "{plugins}"; NFS_Protocols = 4, nfsrdma; NFS_Port = 2051; NFS_RDMA_Port = 20051;
    NFS_RDMA_Protocol_Versions = 4.1, 4.2; Bind_Addr = {address}; Enable_UDP = false;
    allow_set_io_flusher_fail = true; RPC_Ioq_ThrdMax = 16;
    MaxRPCSendBufferSize = 2097152; MaxRPCRecvBufferSize = 2097152;
}}
NFSv4 {{ Minor_Versions = 1, 2; Grace_Period = 15; Lease_Lifetime = 10; Only_Numeric_Owners = true;
         Delegations = false; RecoveryRoot = "/tmp/vfs"; Server_Owner = "vfs"; Server_Scope = "vfs"; }}
NFS_KRB5 {{ Active_krb5 = false; }}
DIRECTORY_SERVICES {{ Idmapping_Active = false; }}
EXPORT {{ Export_Id = 7; Path = {path}; Pseudo = /vfs; Access_Type = RW; Squash = None; SecType = sys;
          Protocols = 4; FSAL {{ Name = VFS; }} }}
LOG {{ Default_Log_Level = EVENT; }}
'''


class Vfs(Server):
    name, export, ports = 'FSAL_VFS', '/vfs', {'tcp': 2051, 'rdma': 20051}

    def __init__(self, peer):
        super().__init__(peer)
        prefix = f'{BUILT}/ganesha/prefix'
        config = VFS.format(plugins=f'{prefix}/lib/ganesha', address=self.address, path=f'{XFS}/vfs')
        self.peer.run(f'mkdir -m 777 {XFS}/vfs; mkdir -p /tmp/vfs; cat >/tmp/vfs.conf; '
                      f'{prefix}/bin/ganesha.nfsd -x -f /tmp/vfs.conf -L /tmp/vfs.log -p /tmp/vfs.pid',
                      input=config.encode(), timeout=START_TIMEOUT)
        wait_until(lambda: 'RDMA is served' in self.log(), START_TIMEOUT, 'FSAL_VFS serves RDMA', interval=1)

    def log(self):
        return self.peer.run('cat /tmp/vfs.log').stdout.decode(errors='replace')

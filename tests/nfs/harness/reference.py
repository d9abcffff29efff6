# SPDX-License-Identifier: LGPL-3.0-or-later
"""The same interfaces as server.py over nfs-ganesha's FSAL_VFS: a check of the tests themselves.

`pytest --backend=vfs` runs the tests against directories served by an nfs-ganesha that somebody
else wrote: where a test fails there, it asks for more than NFS promises, or the reference is
known to differ, and the test says so with @pytest.mark.millrace. $GANESHA names the server,
else the one built here is taken, else the machine's.
"""

import os
import shutil
import signal

from harness.host import command, wait_until
from harness.server import ROOT, Server

PLACES = (
    os.environ.get('GANESHA', ''),
    os.path.join(ROOT, 'build/ganesha/prefix/bin/ganesha.nfsd'),
    os.path.join(ROOT, 'build/ganesha/prefix/sbin/ganesha.nfsd'),
    '/usr/bin/ganesha.nfsd',
)
SQUASH = {'root': 'Root_Squash', 'none': 'No_Root_Squash', 'all': 'All_Squash'}


def ganesha():
    found = next((place for place in PLACES if place and os.path.exists(place)), None)
    if found is None:
        raise RuntimeError('no ganesha.nfsd for --backend=vfs')
    return found


class ReferencePool:
    """Directories instead of volumes. They lie in WORKDIR, which must not be on tmpfs."""

    def __init__(self, workdir, name='tank', **_geometry):
        self.workdir = os.fspath(workdir)
        self.name = name
        self.volumes = os.path.join(self.workdir, 'volumes')
        self.shares = {}
        self.server = None
        os.makedirs(self.volumes)

    def create(self):
        return self

    def check(self):
        pass

    def export(self, volume):
        return f'/{self.name}/{volume}'

    def path(self, volume):
        return os.path.join(self.volumes, volume)

    def create_share(self, volume, owner=0, group=0, mode=0o755, clients='*:rw', squash='none'):
        os.mkdir(self.path(volume))
        os.chown(self.path(volume), owner, group)
        os.chmod(self.path(volume), mode)
        self._publish(volume, clients, squash)

    def destroy_share(self, volume):
        del self.shares[volume]
        self._tell()
        shutil.rmtree(self.path(volume))

    def ingest(self, volume, directory, clients='*:ro', squash='none'):
        # cp -a keeps what a dataset keeps
        command('cp', '-a', '--sparse=always', directory, self.path(volume))
        self._publish(volume, clients, squash)

    def set(self, _noun, volume, name, value):
        self.shares[volume][name] = value
        self._tell()

    def close(self):
        shutil.rmtree(self.volumes, ignore_errors=True)

    def _publish(self, volume, clients, squash):
        self.shares[volume] = {'id': 1 + max([s['id'] for s in self.shares.values()], default=0),
                               'nfs.clients': clients or '', 'nfs.squash': squash or 'root'}
        self._tell()

    def _tell(self):
        if self.server:
            self.server.reload()

    def exports(self):
        return '\n'.join(self._export(volume, share) for volume, share in self.shares.items())

    def _export(self, volume, share):
        squash = SQUASH[share['nfs.squash']]
        clients = ''
        for client in filter(None, share['nfs.clients'].split(',')):
            address, access = client.rsplit(':', 1)
            clients += (f'    CLIENT {{ Clients = {address}; Access_Type = {access.upper()};'
                        f' Squash = {squash}; }}\n')
        return f'''
EXPORT {{
    Export_Id = {share['id']};
    Path = {self.path(volume)};
    Pseudo = {self.export(volume)};
    Protocols = 4;
    SecType = sys;
    Access_Type = None;
{clients}
    FSAL {{ Name = VFS; }}
}}'''


class ReferenceServer(Server):
    def __init__(self, pool, address, port=None):
        super().__init__(pool, address, port)
        pool.server = self
        self.config = os.path.join(pool.workdir, 'ganesha.conf')

    def argv(self):
        self.write_config()
        return [ganesha(), '-F', '-f', self.config, '-L', self.log,
                '-p', os.path.join(self.pool.workdir, 'ganesha.pid')]

    def answers_command(self):
        return True  # there is none

    def write_config(self):
        recovery = os.path.join(self.pool.workdir, 'recovery')
        os.makedirs(recovery, exist_ok=True)
        with open(f'{self.config}.new', 'w') as file:
            file.write(f'''
NFS_CORE_PARAM {{
    Protocols = 4;
    Bind_addr = {self.address};
    NFS_Port = {self.port};
    Enable_NLM = false;
    Enable_RQUOTA = false;
    allow_set_io_flusher_fail = true;
    MaxRPCSendBufferSize = 2097152;
    MaxRPCRecvBufferSize = 2097152;
}}
NFSv4 {{
    Minor_Versions = 1, 2;
    Grace_Period = 15;
    Lease_Lifetime = 10;
    Only_Numeric_Owners = true;
    RecoveryBackend = fs;
    RecoveryRoot = {recovery};
}}
{self.pool.exports()}
''')
        os.replace(f'{self.config}.new', self.config)

    def reload(self):
        if self.alive():
            done = self.reloads() + 1
            self.write_config()
            os.kill(self._daemon.pid, signal.SIGHUP)
            wait_until(lambda: self.reloads() >= done, 60, 'ganesha reads its exports again')

    def reloads(self):
        with open(self.log) as log:
            return log.read().count('Reread exports complete')

    def stop(self, timeout=120):
        self._daemon.terminate(timeout)  # its exit status says nothing
        self._daemon.kill()

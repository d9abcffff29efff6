# SPDX-License-Identifier: LGPL-3.0-or-later
"""A real Linux NFS client under the control of a test.

make_client() gives the one that fits the machine: its own kernel, in namespaces of the test's
own, where that has NFSv4, else a User Mode Linux. Both look the same to a test:

    with make_client() as client:
        # a server now listens on client.server_address, some port
        client.mount('/tank/models', '/mnt/models', port=port)
        rc, stdout, stderr = client.run('sha256sum /mnt/models/*')
        handle = client.spawn(['dd', 'if=/dev/zero', 'of=/mnt/models/x'])
        handle.kill()

The client sees the host's files (/usr/bin/python3 works) but has /tmp, /run and /mnt of its own;
under User Mode Linux all else is read-only.
"""

import os
import select
import shutil
import socket
import subprocess
import tempfile

from harness import stuck
from harness.commands import Commands
from harness.host import Daemon, Timeout, command, logs, tail, wait_until
from harness.link import Link

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENT = os.path.join(os.path.dirname(HERE), 'client')
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
UML = '/usr/bin/linux.uml'
UML_MODULES = '/usr/lib/uml/modules'
UML_XSTATE = os.path.join(ROOT, 'build/lib/uml_xstate.so')
BOOT_TIMEOUT = 120


def make_client(**options):
    """A started client; `options` are those of the class that fits."""
    if machine_has_nfs():
        return LocalClient(**options)
    missing = [path for path in (UML, UML_MODULES, UML_XSTATE, '/dev/net/tun')
               if not os.path.exists(path)]
    if missing:
        raise RuntimeError('no NFS client: this kernel has none, and for User Mode Linux there is '
                           f'no {", ".join(missing)} (scripts/packages.nfs names the packages, '
                           'scripts/build builds the rest)')
    return UmlClient(**options)


def machine_has_nfs():
    modprobe = shutil.which('modprobe', path='/usr/sbin:/sbin:/usr/bin')
    if modprobe:
        subprocess.run([modprobe, '-q', 'nfsv4'], stderr=subprocess.DEVNULL)
    with open('/proc/filesystems') as file:
        return 'nfs4' in file.read().split()


class Client(Commands):
    """What both kinds share; a subclass has boot(harness), kill() and the link's other end."""

    def __init__(self, workdir=None):
        self._made_workdir = None if workdir else tempfile.mkdtemp(prefix='millrace-client-')
        self.workdir = os.fspath(workdir or self._made_workdir)
        self.link = Link()
        self.name = f'millrace-client-{self.link.number}'
        self.server_address = self.link.server_address
        self.client_address = self.link.client_address
        self.console = os.path.join(self.workdir, f'{self.name}.log')
        self._daemon = None
        self._agent = None
        self._spawned = []
        try:
            self.prepare()
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Life

    def prepare(self):
        """Once, before the first start."""

    def boot(self, harness):
        """Start the client so that its agent dials HARNESS (address:port); return its Daemon."""
        raise NotImplementedError

    def kill(self):
        """Power off: no unmount, no goodbye to the server."""
        self._agent = None
        self._spawned = []
        if self._daemon:
            self._daemon.kill()

    def reboot(self):
        """Power off and start again under the same name and address, with nothing mounted."""
        self.kill()
        self._start()

    def explain(self):
        return stuck.of_client(self)

    def close(self):
        """End it and remove what it made; may be called again."""
        self.kill()
        self.link.close()
        if self._made_workdir:
            shutil.rmtree(self._made_workdir, ignore_errors=True)
            if self.console in logs:
                logs.remove(self.console)

    def _start(self):
        with socket.create_server(('', 0)) as listener:
            port = listener.getsockname()[1]
            self._daemon = self.boot(f'{self.server_address}:{port}')

            def dialled():
                if not self._daemon.alive():
                    raise RuntimeError(f'{self.name} ended while starting:\n{tail(self.console)}')
                return select.select([listener], [], [], 0.2)[0]

            try:
                wait_until(dialled, BOOT_TIMEOUT, f'{self.name}: start', interval=0)
            except Timeout as error:
                raise Timeout(f'{error}\n{tail(self.console)}') from error
            connection, _ = listener.accept()
            with connection, connection.makefile() as file:
                self._agent = (self.client_address, int(file.readline()))


class UmlClient(Client):
    """User Mode Linux, joined to the host by a tap. It has one CPU."""

    def __init__(self, workdir=None, memory_mib=1024):
        self.memory_mib = memory_mib
        super().__init__(workdir)

    def prepare(self):
        self.link.make_tap()
        self.modules = os.path.join(self.workdir, f'{self.name}.modules')
        for version in os.listdir(UML_MODULES):
            tree = os.path.join(self.modules, 'lib/modules', version)
            shutil.rmtree(tree, ignore_errors=True)
            shutil.copytree(os.path.join(UML_MODULES, version), tree)
            command('/usr/sbin/depmod', '-b', self.modules, version)

    def boot(self, harness):
        state = os.path.join(self.workdir, f'{self.name}.uml')
        shutil.rmtree(state, ignore_errors=True)
        os.mkdir(state)
        # The kernel has helper processes of its own: a PID namespace takes them along whenever,
        # and however, its first process or unshare ends.
        return Daemon([
            'unshare', '--pid', '--fork', '--kill-child',
            'env', f'LD_PRELOAD={UML_XSTATE}',
            UML, f'mem={self.memory_mib}M', f'uml_dir={state}/', f'umid={self.name}',
            'rootfstype=hostfs', 'root=none', 'ro', 'panic=-1',
            f'init={CLIENT}/init.sh',
            f'vec0:transport=tap,ifname={self.link.server_device},depth=128,gro=1',
            'con=null', 'con0=null,fd:2', 'con1=null',
            f'millrace_name={self.name}', f'millrace_agent={CLIENT}/agent.py',
            f'millrace_address={self.client_address}/30', f'millrace_modules={self.modules}',
            f'millrace_harness={harness}'], self.console)

    def close(self):
        super().close()
        for suffix in ('modules', 'uml'):
            shutil.rmtree(os.path.join(self.workdir, f'{self.name}.{suffix}'), ignore_errors=True)


class LocalClient(Client):
    """The machine's own kernel, in network, mount and host name namespaces of the test's own.

    The NFS client keeps its state per network namespace, so that kill() and reboot() lose it as a
    power cut would, save that the kernel may still say goodbye to a server that it can reach:
    the link is cut first.
    """

    def boot(self, harness):
        script = ('set -eu\n'
                  'for d in run mnt tmp; do mkdir -p "$1/$d"; done\n'
                  'read -r ready <"$1/linked"\n'
                  'cp "$4" "$1/agent.py"\n'
                  'hostname "$2"\n'
                  'ip link set lo up\n'
                  'ip address add "$3" dev "$6"\n'
                  'ip link set "$6" up\n'
                  'exec 3<"$1/agent.py"\n'
                  'mount -t tmpfs mnt /mnt\n'
                  'mount -t tmpfs -o mode=755 run /run\n'
                  'mount -t tmpfs -o mode=1777 tmp /tmp\n'
                  'exec /usr/bin/python3 -I /dev/fd/3 "$5"\n')
        place = os.path.join(self.workdir, f'{self.name}.local')
        shutil.rmtree(place, ignore_errors=True)
        os.mkdir(place)
        linked = os.path.join(place, 'linked')
        os.mkfifo(linked)
        daemon = Daemon([
            'unshare', '--net', '--mount', '--uts', '--propagation', 'private', '--pid', '--fork',
            '--kill-child', '--mount-proc', 'sh', '-c', script, 'client', place, self.name,
            f'{self.client_address}/30', f'{CLIENT}/agent.py', harness,
            self.link.client_device], self.console)
        try:
            wait_until(lambda: not daemon.alive() or network(daemon.pid) != network('self'),
                       BOOT_TIMEOUT, f'{self.name}: network namespace')
            self.link.remove()
            self.link.make_veth(daemon.pid)
            with open(linked, 'w') as fifo:
                fifo.write('ready\n')
        except BaseException:
            daemon.kill()
            raise
        return daemon

    def kill(self):
        self.link.remove()
        super().kill()

    def close(self):
        super().close()
        shutil.rmtree(os.path.join(self.workdir, f'{self.name}.local'), ignore_errors=True)


def network(pid):
    """Which network namespace a process is in; empty when it has gone."""
    try:
        return os.readlink(f'/proc/{pid}/ns/net')
    except OSError:
        return ''

# SPDX-License-Identifier: LGPL-3.0-or-later
"""A client: Debian 13 with its stock kernel, from the tree that scripts/lab-guest makes.

It boots its kernel directly, writes nothing to its disk, and takes commands as the NFS tests' client
does (tests/nfs/harness/commands.py).
"""

import contextlib
import os
import re
import select
import socket

from harness.commands import Commands
from harness.host import Timeout, wait_until
from machine import BOOT_TIMEOUT, QUICKER, ROOT, Machine, free_port
from soft import Soft

SYSTEM = os.path.join(ROOT, 'build', 'lab')
AGENT_PORT = 9000  # in the machine; the harness's port differs


class Guest(Machine, Commands):
    """In one network, whose name its device there has; `server_address` is that of the node that it
    mounts from, `soft` its kind of RDMA device (soft.py)."""

    ROOT_IMAGE, KERNEL, INITRD = 'root.img', 'vmlinuz', 'initrd'
    MODULES = ('virtio_net', 'nfsv4', 'rpcrdma', 'rdma_ucm', 'ib_uverbs', 'rdma_rxe')

    def __init__(self, lab, name, number, server_address, soft=Soft('rxe'), **options):
        missing = [file for file in (self.KERNEL, self.INITRD, self.ROOT_IMAGE)
                   if not os.path.exists(os.path.join(SYSTEM, file))]
        if missing:
            raise RuntimeError(f'{SYSTEM} lacks {", ".join(missing)}: scripts/lab-guest makes it')
        super().__init__(lab, name, number, **options)
        self.server_address, self.soft = server_address, soft
        (self.network, self.address), = self.networks.items()
        self._listener = self._agent = None
        self._spawned = []

    def boot_arguments(self):
        words = (f'console=ttyS0 quiet panic=-1 {QUICKER} millrace_name={self.name} '
                 f'millrace_network={self.network} millrace_address={self.address} '
                 f'millrace_modules={",".join(self.MODULES)} millrace_harness=10.0.2.100:1')
        return ['-kernel', f'{SYSTEM}/{self.KERNEL}', '-initrd', f'{SYSTEM}/{self.INITRD}', '-append', words,
                '-drive', f'if=virtio,format=raw,snapshot=on,file={SYSTEM}/{self.ROOT_IMAGE}']

    def control_options(self):
        self._agent = ('127.0.0.1', free_port())
        return (f'restrict=on,hostfwd=tcp:127.0.0.1:{self._agent[1]}-:{AGENT_PORT},'
                f'guestfwd=tcp:10.0.2.100:1-tcp:127.0.0.1:{self._listener.getsockname()[1]}')

    def power_on(self):
        self._listener = socket.create_server(('127.0.0.1', 0))
        super().power_on()

    def wait_until_up(self):
        """Its agent dials."""
        def dialled():
            self.check_on()
            return select.select([self._listener], [], [], 0.2)[0]

        try:
            wait_until(dialled, BOOT_TIMEOUT, f'{self.name}: start', interval=0)
        except Timeout as error:
            raise Timeout(f'{error}\n{self.console.text[-4000:]}') from error
        connection, _ = self._listener.accept()
        self._listener.close()
        with connection, connection.makefile() as file:
            if not file.readline():
                raise RuntimeError(f'{self.name}: the agent went away')
        self.soft.add(self, self.network)

    def power_off(self):
        self._spawned = []
        super().power_off()

    @contextlib.contextmanager
    def delayed(self, seconds):
        """What it sends into its network leaves that much later."""
        self.run(f'tc qdisc add dev {self.network} root netem delay {1000 * seconds:.0f}ms limit 10000')
        try:
            yield
        finally:
            self.run(f'tc qdisc del dev {self.network} root')

    def connections_made(self):
        """How often each mount over RDMA has connected."""
        told = self.run('cat /proc/self/mountstats').stdout.decode()
        return [int(count) for count in re.findall(r'xprt:\s+rdma \d+ \d+ (\d+)', told)]

    def does(self, command):
        """Whether COMMAND succeeds."""
        return self.run(command, check=False).rc == 0

    def put(self, path, to):
        """A copy of the harness's file PATH there."""
        with open(path, 'rb') as file:
            self.run(f'cat >{to} && chmod 755 {to}', input=file.read())

# SPDX-License-Identifier: LGPL-3.0-or-later
"""A private network link between the host (the server's side) and one client.

Links are numbered; number N has the N-th /30 of 198.18.0.0/15 (RFC 2544, for tests of network
devices) and interfaces named after N. A number is claimed by binding an abstract socket, which
the kernel takes back when the process ends in whatever way, and which like the interfaces
belongs to the network namespace. Interfaces whose number nobody claims were left by a run that was
killed; the next Link removes them.
"""

import ipaddress
import os
import socket
import subprocess

from harness.host import command

NETWORK = ipaddress.ip_network('198.18.0.0/15')
PREFIXES = ('mrs', 'mrb', 'mrn')  # a link's; and a cluster's (tests/ha), named after its client's link
COUNT = NETWORK.num_addresses // 4


class Link:
    def __init__(self):
        sweep()
        self.number, self._claim = claim_any()
        base = NETWORK.network_address + 4 * self.number
        self.server_address = str(base + 1)
        self.client_address = str(base + 2)
        self.server_device = f'mrs{self.number}'
        self.client_device = f'mrc{self.number}'

    def make_tap(self):
        """One interface, on the host; a virtual machine takes its other side by its name."""
        command('ip', 'tuntap', 'add', 'dev', self.server_device, 'mode', 'tap')
        self._configure_server_side()

    def make_veth(self, pid):
        """Two interfaces, the client's one in the network namespace of process PID."""
        command('ip', 'link', 'add', self.server_device, 'type', 'veth',
                'peer', 'name', self.client_device, 'netns', str(pid))
        self._configure_server_side()

    def _configure_server_side(self):
        command('ip', 'address', 'add', f'{self.server_address}/30', 'dev', self.server_device)
        command('ip', 'link', 'set', self.server_device, 'up')

    def remove(self):
        delete(self.server_device)

    def close(self):
        self.remove()
        self._claim.close()


def claim(number):
    """The socket that holds link NUMBER; None when another process has it."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f'\0millrace-test-link-{number}')
        return holder
    except OSError:
        holder.close()
        return None


def claim_any():
    for step in range(COUNT):
        number = (os.getpid() + step) % COUNT
        holder = claim(number)
        if holder:
            return number, holder
    raise RuntimeError(f'all {COUNT} test links are in use')


def sweep():
    for _, device in socket.if_nameindex():
        number = device[3:].split('.')[0]
        if device[:3] in PREFIXES and number.isdecimal():
            holder = claim(int(number))
            if holder:
                delete(device)
                holder.close()


def delete(device):
    subprocess.run(['ip', 'link', 'delete', device],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

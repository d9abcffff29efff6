# SPDX-License-Identifier: LGPL-3.0-or-later
"""Soft RDMA devices of the lab's machines: rxe (RoCE), which Debian's kernel has, and siw (iWARP), which
scripts/lab-siw builds for it."""

import os
import re

from machine import ROOT

MODULE = os.path.join(ROOT, 'build', 'lab', 'siw.ko')
THERE = '/run/siw.ko'


class Soft:
    """Devices of KIND, rxe or siw; that of network device DEVICE is KIND_DEVICE."""

    def __init__(self, kind):
        self.kind = kind
        if kind == 'siw' and not os.path.exists(MODULE):
            raise RuntimeError(f'there is no {MODULE}: scripts/lab-siw makes it')

    @property
    def configuration(self):
        """What `rdma=` is on a node: it makes rxe's devices itself."""
        return 'rxe' if self.kind == 'rxe' else 'on'

    def add(self, machine, device):
        if self.kind == 'siw' and not machine.does(f'test -e {THERE}'):
            machine.put(MODULE, THERE)
            machine.run(f'modprobe -a $(modinfo -F depends {THERE} | tr , " ") && insmod {THERE}')
        machine.run(f'rdma link add {self.kind}_{device} type {self.kind} netdev {device}')

    def delete(self, machine, device):
        machine.run(f'rdma link delete {self.kind}_{device}')

    def devices(self, machine):
        """Those network devices of a node that have one."""
        return re.findall(rf'^link {self.kind}_(\S+)/1 ', machine.run('rdma link'), re.MULTILINE)

    def is_broken(self, machine):
        """Whether nobody can be connected to any more over MACHINE's device. rdma_rxe (Linux 6.12) takes a packet that
        its network device drops, as it does while the cable is out, for an error of the queue pair; for the one of the
        connection manager nothing ends that but a new device, and the old one may not go while NFS is mounted over it."""
        return self.kind == 'rxe' and machine.does('rdma resource show qp | grep -q "type GSI state ERR"')

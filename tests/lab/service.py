# SPDX-License-Identifier: LGPL-3.0-or-later
"""A pool on the drives of a node of the lab, served there as an admin would have it: by systemd."""

import json
import re

from harness.host import wait_until

POOL = 'tank'
PORTS = {'tcp': 2049, 'rdma': 20049}
START_TIMEOUT = 300
RDMA_TIMEOUT = 120
LEASE = 20


class Service:
    """POOL on DEVICES, six of the node's drives unless told, and its server; shares are exported as /POOL/NAME to all."""

    def __init__(self, node, address, pool=POOL, devices=None, parity=2):
        self.node, self.address, self.pool = node, address, pool
        self.unit = f'millrace-{pool}.service'
        self._pid = None
        devices = devices or [drive.path for drive in node.drives[:6]]
        self.verb(f'pool create {pool} --data {len(devices) - parity} --parity {parity} {" ".join(devices)}')

    def verb(self, arguments):
        """What `millrace ARGUMENTS --json` answers on the node."""
        return self.node.json(f'millrace {arguments}')

    def start(self, listen=True, options=''):
        """Serve, now and after each boot, on its own address alone or on all."""
        self.verb(f'serve {self.pool} --enable --lease {LEASE} {options}' + (f' --listen {self.address}' if listen else ''))
        return self.wait_until_served()

    def wait_for_rdma(self):
        wait_until(lambda: 'RDMA is served' in self.log(), RDMA_TIMEOUT, 'the server serves RDMA', interval=1)

    def wait_until_served(self):
        """Until a server other than the last serves."""
        def is_served():
            if self.pid() in (0, self._pid):
                return False
            status = self.node.attempt(f'millrace pool status {self.pool} --json')
            return status.returncode in (0, 5) and json.loads(status.stdout)['pool']['state'] == 'served'

        wait_until(is_served, START_TIMEOUT, 'the pool is served', interval=1)
        self._pid = self.pid()
        return self

    def pid(self):
        """The server's process; 0 where there is none."""
        return int(self.node.run(f'systemctl show -P MainPID {self.unit}'))

    def alive(self):
        """Whether the server that was started last still runs."""
        return self._pid == self.pid() != 0

    def kill(self):
        """As a crash: systemd starts it again after some seconds."""
        self.node.run(f'kill -9 {self.pid()}')

    def stop(self):
        """As an admin; anything but exit 0 is an error."""
        self.node.run(f'systemctl stop {self.unit}')
        assert self.node.run(f'systemctl show -P Result {self.unit}').strip() == 'success'

    def log(self):
        """The end of what the server that runs has said."""
        return self.node.run(f'journalctl -q -o cat -n 200 _PID={self.pid()}')

    def lines_logged(self):
        """How many lines the server that runs has said."""
        return int(self.node.run(f'journalctl -q -o cat _PID={self.pid()} | wc -l'))

    def create_share(self, name):
        self.verb(f'share create {self.pool}/{name} --owner 0 --group 0 --mode 0777')
        self.verb(f"share set {self.pool}/{name} 'nfs.clients=*:rw' nfs.squash=none")

    def destroy_share(self, name):
        self.verb(f'share destroy {self.pool}/{name} --yes')

    def mount(self, client, share, path, transport='tcp', minor=1, options=''):
        """Mount SHARE on CLIENT; fails when it took another transport than asked for."""
        client.mount(f'/{self.pool}/{share}', path, server=self.address, port=PORTS[transport],
                     options=f'vers=4.{minor},proto={transport}{options}')
        used = client.run('cat /proc/self/mountstats').stdout.decode()
        told = re.search(rf'mounted on {path} with.*?xprt:\s+(\w+)', used, re.DOTALL)
        assert told and told.group(1) == transport, f'{path} is mounted over {told and told.group(1)}'

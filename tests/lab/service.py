# SPDX-License-Identifier: LGPL-3.0-or-later
"""A pool on the drives of a node of the lab, served there as an admin would have it: by systemd."""

import json
import re

from harness.host import wait_until

POOL = 'tank'
UNIT = f'millrace-{POOL}.service'
PORTS = {'tcp': 2049, 'rdma': 20049}
START_TIMEOUT = 300
LEASE = 20


class Service:
    """The pool `tank`, 4+2, and its server; shares are exported as /tank/NAME to all."""

    def __init__(self, node, address):
        self.node, self.address = node, address
        self._pid = None
        drives = ' '.join(drive.path for drive in node.drives[:6])
        self.verb(f'pool create {POOL} --data 4 --parity 2 {drives}')

    def verb(self, arguments):
        """What `millrace ARGUMENTS --json` answers on the node."""
        return self.node.json(f'millrace {arguments}')

    def start(self):
        """Serve, now and after each boot."""
        self.verb(f'serve {POOL} --enable --listen {self.address} --lease {LEASE}')
        return self.wait_until_served()

    def wait_until_served(self):
        """Until a server other than the last serves."""
        def is_served():
            if self.pid() in (0, self._pid):
                return False
            status = self.node.attempt(f'millrace pool status {POOL} --json')
            return status.returncode in (0, 5) and json.loads(status.stdout)['pool']['state'] == 'served'

        wait_until(is_served, START_TIMEOUT, 'the pool is served', interval=1)
        self._pid = self.pid()
        return self

    def pid(self):
        """The server's process; 0 where there is none."""
        return int(self.node.run(f'systemctl show -P MainPID {UNIT}'))

    def alive(self):
        """Whether the server that was started last still runs."""
        return self._pid == self.pid() != 0

    def kill(self):
        """As a crash: systemd starts it again after some seconds."""
        self.node.run(f'kill -9 {self.pid()}')

    def stop(self):
        """As an admin; anything but exit 0 is an error."""
        self.node.run(f'systemctl stop {UNIT}')
        assert self.node.run(f'systemctl show -P Result {UNIT}').strip() == 'success'

    def log(self):
        """The end of what the server that runs has said."""
        return self.node.run(f'journalctl -q -o cat -n 200 _PID={self.pid()}')

    def lines_logged(self):
        """How many lines the server that runs has said."""
        return int(self.node.run(f'journalctl -q -o cat _PID={self.pid()} | wc -l'))

    def create_share(self, name):
        self.verb(f'share create {POOL}/{name} --owner 0 --group 0 --mode 0777')
        self.verb(f"share set {POOL}/{name} 'nfs.clients=*:rw' nfs.squash=none")

    def destroy_share(self, name):
        self.verb(f'share destroy {POOL}/{name} --yes')

    def mount(self, client, share, path, transport='tcp', minor=1, options=''):
        """Mount SHARE on CLIENT; fails when it took another transport than asked for."""
        client.mount(f'/{POOL}/{share}', path, port=PORTS[transport],
                     options=f'vers=4.{minor},proto={transport}{options}')
        used = client.run('cat /proc/self/mountstats').stdout.decode()
        told = re.search(rf'mounted on {path} with.*?xprt:\s+(\w+)', used, re.DOTALL)
        assert told and told.group(1) == transport, f'{path} is mounted over {told and told.group(1)}'

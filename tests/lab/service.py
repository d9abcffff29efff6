# SPDX-License-Identifier: LGPL-3.0-or-later
"""A pool on the drives of a machine of the lab, served there."""

import json
import re

from harness.host import wait_until

MILLRACE = '/millrace/build/bin/millrace'
PLACES = '--state-dir /tmp/state --run-dir /tmp/run'
POOL = 'tank'
PORTS = {'tcp': 2049, 'rdma': 20049}
VERB_TIMEOUT = 300
START_TIMEOUT = 300
LEASE = 20
LOG = '/tmp/server.log'


class Service:
    """The pool `tank`, 4+2, and its server; shares are exported as /tank/NAME to all."""

    def __init__(self, machine):
        self.machine = machine
        self._server = None
        self.verb(f'pool create {POOL} --data 4 --parity 2 '
                  f'{" ".join(drive.path for drive in machine.drives[:6])}')

    def verb(self, arguments, check=True):
        """Run `millrace ARGUMENTS` on the machine; returns (rc, stdout, stderr)."""
        return self.machine.run(f'{MILLRACE} {arguments} {PLACES}', timeout=VERB_TIMEOUT, check=check)

    def ask(self, arguments):
        return json.loads(self.verb(f'{arguments} --json').stdout)

    def start(self, *options):
        """Serve; returns when it takes NFS over TCP."""
        self._server = self.machine.spawn(
            f'exec {MILLRACE} serve {POOL} --foreground --listen {self.machine.address} '
            f'--lease {LEASE} {" ".join(options)} {PLACES} >>{LOG} 2>&1')

        def ready():
            if not self._server.running():
                raise RuntimeError(f'the server ended while starting:\n{self.log()}')
            return self.machine.run(f"ss -Hltn 'sport = :{PORTS['tcp']}'").stdout and \
                self.verb('status', check=False).rc in (0, 5)

        wait_until(ready, START_TIMEOUT, 'the server answers', interval=1)
        return self

    def pid(self):
        """The server's process."""
        return int(self.machine.run('pidof -s ganesha.nfsd').stdout)

    def alive(self):
        return self._server is not None and self._server.running()

    def kill(self):
        """As a crash."""
        self.machine.run('kill -9 $(pidof ganesha.nfsd)')
        self._server.wait(timeout=60, check=False)

    def stop(self):
        """As an admin; anything but exit 0 is an error."""
        self.machine.run('kill $(pidof ganesha.nfsd)')
        self._server.wait(timeout=180)

    def log(self):
        return self.machine.run(f'tail -c 8000 {LOG}').stdout.decode(errors='replace')

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

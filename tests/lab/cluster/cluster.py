# SPDX-License-Identifier: LGPL-3.0-or-later
"""A cluster of the appliance: nodes of its image that see the same drives, made by the commands that an admin has.

    cluster = Cluster(lab, image=image, key=key, kernel=kernel, public_key=public_key).start()
    cluster.create(); cluster.join(); cluster.serve()
    cluster.owner().power_off()
"""

import contextlib
import subprocess
import time

from guest import Guest
from harness.host import wait_until
from node import Node, answer_of

NAMES = ('n1', 'n2', 'n3')
CORE_ADDRESSES = ('198.51.100.1', '198.51.100.2', '198.51.100.3')  # between the nodes alone
CLIENT_NUMBERS = {'rdma': 9, 'tcp': 10}
CLIENTS, CORE = 'front', 'core'  # networks; `lan` is that of other tests, with the same addresses
POOL = SERVICE = 'tank'
MINE = '/mnt/share'  # where a client mounts the share
PORTS = {'tcp': 2049, 'rdma': 20049}
WATCHDOG = 15  # seconds: nothing is quick on emulated processors
ACT_TIMEOUT = 900
SET_BYTES = 256 << 10


class Cluster:
    """Two nodes that see the same six drives, over which they are fenced."""
    COUNT = 2
    PREFIX, BITS = '192.0.2.', 24  # of the addresses where clients are

    def __init__(self, lab, public_key, **options):
        self.lab, self.nodes, self.clients, self._answered = lab, [], {}, None
        self.address = f'{self.PREFIX}100'  # the service's
        self.said = {}  # by each node, last: for whoever did not expect it
        for number, (name, core) in enumerate(list(zip(NAMES, CORE_ADDRESSES))[:self.COUNT], 1):
            self.nodes.append(lab.add(
                Node, name, drives=self._drives(), cpus=2, memory_mib=2560,
                networks={CLIENTS: f'{self.PREFIX}{number}/{self.BITS}', CORE: f'{core}/24'},
                configuration=f'hostname={name}\nssh_key={public_key}\nrdma=rxe\n', **options))

    def _drives(self):
        """Of the next node."""
        return self.nodes[0] if self.nodes else 6

    def start(self):
        self._began = time.monotonic()
        for node in self.nodes:
            node.power_on()
        for node in self.nodes:
            node.wait_until_up()
        return self

    def begin_clients(self):
        """One for each transport. They boot while the cluster is made."""
        for transport, number in CLIENT_NUMBERS.items():
            self.clients[transport] = self.make_client(f'worker-{transport}', number)
            self.clients[transport].power_on()

    def make_client(self, name, number):
        """Which has that number in the network where clients are."""
        return self.lab.add(Guest, name, server_address=self.address, networks={CLIENTS: f'{self.PREFIX}{number}/{self.BITS}'})

    def remove(self):
        """All its machines."""
        for machine in (*self.clients.values(), *self.nodes[::-1]):
            self.lab.remove(machine)

    def _addresses(self, node):
        return f'--address {self.address_of(node)} --address {CORE_ADDRESSES[self.nodes.index(node)]}'

    def _own_words(self, node):
        """More of what `create` and `join` are told there."""
        return ''

    def create_pool(self, paths):
        """Of such cells that the dataset's file is on as many drives as data has."""
        self.nodes[0].run(f'millrace pool create {POOL} --data 4 --parity 2 --cell {SET_BYTES // 4} {" ".join(paths)}')

    def create(self, words=f'--pool {POOL}', rc=0):
        """The token for the next; why it is not made, where RC is not 0."""
        node = self.nodes[0]
        told = node.json(f'millrace cluster create {self._addresses(node)} {words} {self._own_words(node)} '
                         f'--watchdog-timeout {WATCHDOG}', rc)
        return told['cluster']['token'] if rc == 0 else told['error']['message']

    def join(self, token, rc=0, number=1):
        node = self.nodes[number]
        return node.run(f'millrace cluster join {self.address_of(self.nodes[0])} {self._addresses(node)} {self._own_words(node)} '
                        f'--token {token} --json', rc, timeout=ACT_TIMEOUT)

    def serve(self):
        """A share at the service's address, and a dataset, whose only file has `digest`, at each node's. Servers keep no file's bytes
        in memory."""
        self.nodes[0].run(f'millrace pool set {POOL} cache.size=0')
        self.nodes[0].run(f'millrace share create {POOL}/share --mode 0777')
        self.nodes[0].run(f"millrace share set {POOL}/share 'nfs.clients=*:rw' nfs.squash=none")
        self.nodes[0].run(f'mkdir /state/set && head -c {SET_BYTES} /dev/urandom >/state/set/data && '
                          f'millrace dataset ingest {POOL}/set /state/set')
        self.nodes[0].run(f"millrace dataset set {POOL}/set 'nfs.clients=*:ro'")
        self.digest = self.nodes[0].run('sha256sum </state/set/data').split()[0]
        self.nodes[0].run(f'millrace service create {SERVICE} --pool {POOL} --address {self.address}/{self.BITS}', timeout=ACT_TIMEOUT)
        self.set_up_seconds = time.monotonic() - self._began
        return self

    # --- what it says -----------------------------------------------------------------------------------

    def ask_node(self, node, verb):
        """What it answers; None where it is not up."""
        if not node.is_running():
            return None
        try:
            done = node.attempt(f'millrace {verb} --json', 60)
        except subprocess.TimeoutExpired:
            self.said[node.name] = (verb, 'nothing in time')
            return None
        self.said[node.name] = (verb, done.returncode, done.stdout + done.stderr)
        if done.returncode != 0:
            return None
        self._answered = node
        return answer_of(f'millrace {verb}', done.stdout)

    def _likely(self):
        """The nodes, first the one that answered last: of one that boots a question may wait for a minute."""
        return sorted(self.nodes, key=lambda node: node is not self._answered)

    def _ask(self, verb):
        """What a node answers that is up, or None."""
        return next(filter(None, (self.ask_node(node, verb) for node in self._likely())), None)

    def _states_by(self, node):
        told = self.ask_node(node, 'cluster status')
        return {node['name']: node['state'] for node in told['nodes']} if told else {}

    def states(self):
        return next(filter(None, map(self._states_by, self._likely())), {})

    def owner(self):
        """The node that serves, or None."""
        told = self._ask('service list')
        names = [service['node'] for service in told['services']] if told else []
        return next((node for node in self.nodes if names == [node.name]), None)

    def wait_for_owner(self, node):
        """Until NODE serves."""
        wait_until(lambda: self.owner() is node, ACT_TIMEOUT, f'{node.name} serves', interval=2)

    def wait_until_served(self):
        """By whichever node. Those that have reset themselves are started again, as it may take both."""
        def is_served():
            self.start_again()
            return self.owner()

        return wait_until(is_served, 2 * ACT_TIMEOUT, 'a node serves', interval=2)

    def address_of(self, node):
        """Where clients find its reader."""
        return f'{self.PREFIX}{self.nodes.index(node) + 1}'

    def mount_options(self, transport):
        """For a client over TRANSPORT: those of `millrace client mount-command` but `ro` and the port."""
        return f'vers=4.1,proto={transport}{"6" if ":" in self.address else ""},timeo=150'

    def bytes_read(self, node):
        """By its reader, from drives."""
        return node.json(f'millrace pool iostat {POOL} --run-dir /run/millrace/reader')['pools'][0]['read_bytes']

    def late_reads(self, node, number):
        """Of drive NUMBER, which the reader at NODE has rebuilt from others instead of waiting for them."""
        return node.json(f'millrace pool status {POOL} --run-dir /run/millrace/reader')['pool']['devices'][number]['late_reads']

    def other(self, node):
        return next(other for other in self.nodes if other is not node)

    def devices(self):
        """What the server says of the pool's."""
        return self.serving()[0].json(f'millrace pool status {POOL}')['pool']['devices']

    def wait_until_devices_are_whole(self):
        wait_until(lambda: all(device['whole'] for device in self.devices()), ACT_TIMEOUT, 'the pool is whole', interval=5)

    def server_pid(self, node):
        """None where there is none."""
        found = node.attempt(f'pgrep -f /run/millrace/{POOL}/ganesha.conf').stdout.split()
        return int(found[0]) if found else None

    def serving(self):
        """The node that serves, and its server's process."""
        def found():
            node = self.owner()
            pid = self.server_pid(node) if node else None
            return pid and (node, pid)

        return wait_until(found, ACT_TIMEOUT, 'a server', interval=2)

    def wait_for_another_server(self, node, pid):
        """Than process PID of NODE."""
        def is_there():
            owner = self.owner()
            return owner and (owner is not node or self.server_pid(node) not in (None, pid))

        wait_until(is_there, ACT_TIMEOUT, 'another server', interval=2)

    def start_again(self):
        """Nodes that have reset themselves, or lost their power."""
        for node in self.nodes:
            if not node.is_on():
                node.power_off()
                node.power_on()

    def wait_until_whole(self):
        """All nodes are up and in it, as each of them says, and one serves. A node that was reset is started again. Of several the one is
        asked first that may still boot, so that it has the others' time."""
        def is_whole_by(node):
            told = self.ask_node(node, 'cluster status')
            for name in [node['name'] for node in told['nodes'] if node['state'] == 'drained'] if told else []:
                self._ask(f'node resume {name}')
            return told and self._says_whole(node, told)

        def is_whole():
            self.start_again()
            return all(is_whole_by(node) for node in reversed(self._likely())) and self.owner()

        return wait_until(is_whole, 2 * ACT_TIMEOUT, 'the cluster is whole', interval=2)

    def _says_whole(self, node, told):
        """Whether NODE does, by what it has TOLD: no drive that was away is."""
        return ({node['state'] for node in told['nodes']} == {'online'} and
                not any(service.get('not_whole') for service in told['services']))

    @contextlib.contextmanager
    def spoiling(self, node):
        """What is done to NODE in this ends with its power."""
        try:
            yield
        finally:
            node.power_off()


class OwnDrives(Cluster):
    """Three nodes with more drives each than parity, which they see of each other over NVMe-oF."""
    COUNT = 3
    EACH = 3

    def __init__(self, lab, public_key, transport, **options):
        super().__init__(lab, public_key, **options)
        self.transport = transport

    def _drives(self):
        return self.EACH

    def _own_words(self, node):
        return ' '.join(f'--drive {drive.path}' for drive in node.drives)

    def create(self):
        return super().create(f'--transport {self.transport}')

    def join_all(self, token):
        """All but the first, which printed the token for the next."""
        for number in range(1, self.COUNT):
            self.join(token, number=number)
            token = self.nodes[0].json('millrace cluster token')['cluster']['token']
        return self

    def drives(self, node):
        """As NODE sees them: of each node the paths of its drives there, and over how many paths they are reached."""
        return self._drives_in(node.json('millrace cluster status'))

    def _drives_in(self, told):
        seen = {}
        for drive in told['drives']:
            seen.setdefault(drive['node'], []).append((drive['device'], drive['paths']))
        return seen

    def _are_all(self, node, seen):
        """Whether NODE has SEEN all drives, the others' over both networks."""
        return (sorted(len(of) for of in seen.values()) == [self.EACH] * self.COUNT and
                all(paths == (1 if name == node.name else 2) for name, of in seen.items() for _, paths in of))

    def wait_for_drives(self):
        """Until each node sees all of them."""
        wait_until(lambda: all(self._are_all(node, self.drives(node)) for node in self.nodes), ACT_TIMEOUT, 'all drives everywhere',
                   interval=2)

    def _says_whole(self, node, told):
        return super()._says_whole(node, told) and self._are_all(node, self._drives_in(told))

    def create_pool(self):
        super().create_pool(device for of in self.drives(self.nodes[0]).values() for device, _ in of)

    def readers_see(self, node):
        """What the reader at NODE, which is not the one that serves, says of the pool's devices."""
        return [device['state'] for device in node.json(f'millrace pool status {POOL}')['pool']['devices']]

    def not_whole(self):
        """Devices of the pool, as the cluster says; None where it does not know."""
        told = self._ask('cluster status')
        return told['services'][0].get('not_whole') if told and told['services'] else None

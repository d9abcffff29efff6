# SPDX-License-Identifier: LGPL-3.0-or-later
"""A cluster on this machine: corosync and pacemaker of the appliance's Debian, a node in namespaces of its own each,
which share a pool's devices and a network with a real NFS client.

    with Cluster(workdir, pool, client) as cluster:
        cluster.start(); cluster.serve()
        cluster.owner().kill()          # as a power cut

A node is fenced by what ends all of its processes, as a power switch would. What a node has written is with its
devices at once: power that is cut to drives is the simulated tests' and the lab's.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree

from conftest import SYSTEM
from harness.host import Daemon, command, logs, tail, wait_until
from harness.link import delete
from harness.rpc import answers_null
from harness.server import MILLRACE, ROOT
from schemas import validate_answer

HERE = os.path.dirname(os.path.abspath(__file__))
PORT = 2049
START_TIMEOUT = 120
ACTION_TIMEOUT = 300
USAGE = 2
REFUSED = 4

COROSYNC = '''totem {{
    version: 2
    cluster_name: millrace
    transport: knet
    crypto_cipher: aes256
    crypto_hash: sha256
}}
nodelist {{
{nodes}}}
quorum {{
    provider: corosync_votequorum
    two_node: {two}
}}
logging {{
    to_stderr: yes
    timestamp: on
}}
'''

FENCE = '''#!/bin/bash
# Ends all processes of a node: asks cluster.py to, and waits until it has.
while IFS='=' read -r key value; do declare "given_$key=$value"; done
node=${{given_nodename:-${{given_port:-${{given_plug:-}}}}}}
case ${{given_action:-reboot}} in
metadata)
    cat <<END
<?xml version="1.0"?>
<resource-agent name="fence_namespaces" shortdesc="Ends a node of the tests">
<longdesc>Ends all processes of a node of the tests.</longdesc><vendor-url/>
<parameters><parameter name="port" unique="0" required="1"><getopt mixed="-n"/><content type="string"/>
<shortdesc lang="en">node</shortdesc></parameter></parameters>
<actions><action name="off"/><action name="reboot"/><action name="on"/><action name="monitor"/><action name="metadata"/>
<action name="list"/><action name="status"/></actions></resource-agent>
END
    ;;
off | reboot)
    : >'{requests}'/"$node"
    while [ -e '{requests}'/"$node" ]; do sleep 0.05; done
    ;;
list) printf '%s,\\n' {names} ;;
esac
'''

LISTEN = 'import signal, socket, sys; listener = socket.create_server(("", int(sys.argv[1]))); print("taken", flush=True); signal.pause()'
# What connections have left may be there for a minute.
KEEP = '''import signal, socket, sys, time
keeper = socket.socket()
while True:
    try:
        keeper.bind(("", int(sys.argv[1])))
        break
    except OSError:
        time.sleep(0.5)
print("taken", flush=True)
signal.pause()
'''

OPERATIONS = {'start': 180, 'stop': 60, 'monitor': 20}


class Node:
    def __init__(self, cluster, name, number):
        self.cluster, self.name, self.number = cluster, name, number
        self.address = f'{cluster.network}.{10 + number}'
        self.reader_address = f'{cluster.network}.{30 + number}'
        self.device, self.reader_device = f'mrn{cluster.number}.{number}', f'mrr{cluster.number}.{number}'
        self.root = os.path.join(cluster.directory, name, 'root')
        self._daemon = None
        self._inside = None

    def start(self):
        """Returns when it has begun; wait with Cluster.wait_for()."""
        cluster = self.cluster
        self._daemon = Daemon(
            ['unshare', '--mount', '--pid', '--uts', '--ipc', '--net', '--fork', '--kill-child', '--mount-proc',
             os.path.join(HERE, 'node.sh'), self.name, f'{self.address}/24', SYSTEM, ROOT, cluster.directory,
             cluster.pool.device_dir],
            os.path.join(cluster.workdir, f'{self.name}.log'))
        log = os.path.join(cluster.directory, f'{self.name}.pacemaker.log')
        if log not in logs:
            logs.append(log)
        self._inside = wait_until(self._first_process, 20, f'{self.name} begins')
        for device, inside in ((self.reader_device, 'reader'), (self.device, 'lan')):
            delete(device)
            command('ip', 'link', 'add', device, 'type', 'veth', 'peer', 'name', inside, 'netns', str(self._inside))
            command('ip', 'link', 'set', device, 'master', cluster.bridge, 'up')
        # No route goes by it, and it answers for its own address alone: the cluster's traffic has the other device.
        for words in (('sysctl', '-q', 'net.ipv4.conf.all.arp_ignore=1'),
                      ('ip', 'address', 'add', f'{self.reader_address}/32', 'dev', 'reader'), ('ip', 'link', 'set', 'reader', 'up')):
            command('nsenter', '--target', str(self._inside), '--net', *words)

    def _first_process(self):
        with open(f'/proc/{self._daemon.pid}/task/{self._daemon.pid}/children') as file:
            children = file.read().split()
        return int(children[0]) if children else None

    def is_on(self):
        return self._daemon is not None and self._daemon.alive()

    def kill(self):
        """End all its processes at once."""
        if self.is_on():
            os.kill(self._inside, signal.SIGKILL)
        if self._daemon:
            self._daemon.kill()
        for device in (self.device, self.reader_device):
            delete(device)

    def cut(self, device=None):
        """Pull its cable, or the one of another device."""
        command('ip', 'link', 'set', device or self.device, 'down')

    def join(self, device):
        command('ip', 'link', 'set', device, 'up')

    def attempt(self, *argv, timeout=ACTION_TIMEOUT):
        return subprocess.run(['nsenter', '--target', str(self._inside), '--all', '--', 'chroot', self.root, *argv],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)

    def run(self, *argv, **options):
        done = self.attempt(*argv, **options)
        assert done.returncode == 0, f'{self.name}: {" ".join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}'
        return done.stdout

    def ask(self, *words):
        """What `millrace WORDS` answers there, which is as docs/json says."""
        answer = json.loads(self.run('millrace', *words, '--json'))
        validate_answer(words, answer)
        return answer

    def refused(self, *words):
        """Why it does not do it."""
        done = self.attempt('millrace', *words, '--json')
        assert done.returncode == REFUSED, done
        return json.loads(done.stdout)['error']['message']

    def server_pid(self):
        """In the node's own numbers."""
        return int(self.run('cat', f'/run/millrace/{self.cluster.pool.name}/pid'))

    def signal_server(self, number):
        self.run('kill', f'-{number}', str(self.server_pid()))

    @contextlib.contextmanager
    def taken(self, port, listens=True):
        """PORT of all its addresses is another program's, which may only keep it."""
        log = os.path.join(self.cluster.workdir, f'{self.name}.taken.log')
        take = LISTEN if listens else KEEP
        other = Daemon(['nsenter', '--target', str(self._inside), '--net', sys.executable, '-c', take, str(port)], log)
        try:
            wait_until(lambda: 'taken' in tail(log), 90, f'{self.name}: port {port} is taken')
            yield
        finally:
            other.kill()

    def pause(self):
        """Stop all its processes, as a machine that stands still."""
        namespace = os.readlink(f'/proc/{self._inside}/ns/pid')
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                if os.readlink(f'/proc/{pid}/ns/pid') == namespace:
                    os.kill(int(pid), signal.SIGSTOP)
            except OSError:  # it has ended
                pass


class Cluster:
    def __init__(self, workdir, pool, client, nodes=2):
        self.workdir, self.pool, self.client = os.fspath(workdir), pool, client
        self.number = client.link.number
        self.network = f'10.{79 + self.number // 256 % 100}.{self.number % 256}'
        self.bridge = f'mrb{self.number}'
        self.address = f'{self.network}.100'
        self.directory = os.path.join(self.workdir, 'nodes')
        self.requests = os.path.join(self.directory, 'fence')
        self.fenced = []  # names, in order
        self.nodes = [Node(self, f'node{i + 1}', i + 1) for i in range(nodes)]
        self._ending = threading.Event()
        self._fencer = threading.Thread(target=self._fence, daemon=True)

    # --- life ---------------------------------------------------------------------------------------

    def _write_configuration(self):
        for path in (self.directory, self.requests):
            os.mkdir(path)
        nodes = ''.join(f'    node {{\n        ring0_addr: {node.address}\n        name: {node.name}\n'
                        f'        nodeid: {node.number}\n    }}\n' for node in self.nodes)
        with open(os.path.join(self.directory, 'corosync.conf'), 'w') as file:
            file.write(COROSYNC.format(nodes=nodes, two=int(len(self.nodes) == 2)))
        with open(os.path.join(self.directory, 'authkey'), 'wb') as file:
            file.write(os.urandom(1024))
        with open(os.path.join(self.directory, 'fence_namespaces'), 'w') as file:
            file.write(FENCE.format(requests=self.requests, names=' '.join(node.name for node in self.nodes)))
            os.fchmod(file.fileno(), 0o755)
        command('cp', '-a', self.pool.state_dir, os.path.join(self.directory, 'state'))

    def _make_network(self):
        """The client's tap is a port of the bridge, which takes its address. The bridge has a hardware address that
        is not of its ports, which come and go: the client would look for it at the last one."""
        tap, address = self.client.link.server_device, f'{self.client.link.server_address}/30'
        delete(self.bridge)
        command('ip', 'link', 'add', self.bridge, 'address', f'02:00:00:00:{self.number >> 8:02x}:{self.number & 255:02x}',
                'type', 'bridge', 'mcast_snooping', '0')
        command('ip', 'link', 'set', tap, 'master', self.bridge)
        command('ip', 'address', 'delete', address, 'dev', tap)
        command('ip', 'address', 'add', address, 'dev', self.bridge)
        command('ip', 'address', 'add', f'{self.network}.1/24', 'dev', self.bridge)
        command('ip', 'link', 'set', self.bridge, 'up')
        self.client.run(f'ip address add {self.network}.2/24 dev vec0')

    def _fence(self):
        while not self._ending.wait(0.05):
            for name in os.listdir(self.requests):
                self.fenced.append(name)
                self.node(name).kill()
                os.unlink(os.path.join(self.requests, name))

    def start(self):
        """All nodes; returns when they are one cluster that can fence."""
        self._write_configuration()
        self._make_network()
        self._fencer.start()
        for node in self.nodes:
            node.start()
        self.wait_for_nodes()
        self.set('stonith-action', 'off')
        self.set('priority-fencing-delay', '2s')
        self.set('resource-stickiness', '100', 'rsc_defaults')
        self.create('<primitive id="fencing" class="stonith" type="fence_namespaces"/>')
        return self

    def create(self, resources, constraints=''):
        self.living().run('cibadmin', '--modify', '--allow-create', '--xml-text',
                          f'<configuration><resources>{resources}</resources><constraints>{constraints}</constraints></configuration>')

    def _primitive(self, name, kind, meta='', **parameters):
        provider, kind = kind.split(':')
        values = ''.join(f'<nvpair id="{name}-{key}" name="{key}" value="{value}"/>' for key, value in parameters.items())
        operations = ''.join(f'<op id="{name}-op-{key}" name="{key}" timeout="{timeout}s" '
                             f'interval="{5 if key == "monitor" else 0}s"/>' for key, timeout in OPERATIONS.items())
        return (f'<primitive id="{name}" class="ocf" provider="{provider}" type="{kind}">'
                f'<instance_attributes id="{name}-ia">{values}</instance_attributes>'
                f'<meta_attributes id="{name}-ma">{meta}</meta_attributes>'
                f'<operations>{operations}</operations></primitive>')

    def serve(self):
        """The pool, at an address that moves with it: named as `service create` does."""
        name = self.pool.name
        address, server = f'{name}-address', f'{name}-server'
        active = '<nvpair id="{}-active" name="multiple-active" value="stop_unexpected"/>'
        constraints = [f'<rsc_colocation id="{name}-together" rsc="{server}" with-rsc="{address}" score="INFINITY"/>',
                       f'<rsc_order id="{name}-order" first="{server}" first-action="stop" then="{address}" then-action="stop" '
                       'symmetrical="false"/>']
        for place, score, *ways in (('link', 'score="100000" boolean-op="or"', 'attribute="millrace-link" operation="not_defined"',
                                     'attribute="millrace-link" operation="ne" value="0"'),
                                    ('epoch', f'score-attribute="millrace-epoch-{name}"',
                                     f'attribute="millrace-epoch-{name}" operation="defined"')):
            expressions = ''.join(f'<expression id="{name}-{place}-if-{i}" {way}/>' for i, way in enumerate(ways))
            constraints.append(f'<rsc_location id="{name}-{place}" rsc="{server}"><rule id="{name}-{place}-rule" {score}>'
                               f'{expressions}</rule></rsc_location>')
        resources = [self._primitive(address, 'heartbeat:IPaddr2', active.format(address), ip=self.address, cidr_netmask=24, nic='lan'),
                     self._primitive(server, 'millrace:server', address=self.address, **self._parameters(),
                                     meta=active.format(server) + '<nvpair id="server-priority" name="priority" value="1"/>')]
        self.create(''.join(resources), ''.join(constraints))
        self.wait_until_served()
        return self

    def read(self):
        """Its datasets, on each node at an address of a device of its own."""
        for node in self.nodes:
            node.run('crm_attribute', '--node', node.name, '--name', 'millrace-address', '--update', node.reader_address)
        name = f'{self.pool.name}-reader'
        self.create(f'<clone id="{name}-clone">' + self._primitive(name, 'millrace:reader', **self._parameters()) +
                    '</clone>')
        for node in self.nodes:
            wait_until(lambda node=node: answers_null(node.reader_address, PORT), START_TIMEOUT, f'the reader of {node.name}')
        wait_until(lambda: self._have_begun(f'{name}-clone') == len(self.nodes), START_TIMEOUT, 'pacemaker knows of the readers')
        return self

    def _have_begun(self, clone):
        tree = self.status()
        return len(tree.findall(f".//clone[@id='{clone}']/resource[@role='Started']/node")) if tree is not None else 0

    def _parameters(self):
        return {'pool': self.pool.name, 'port': PORT, 'command': MILLRACE}

    def close(self):
        self._ending.set()
        for node in self.nodes:
            node.kill()
        delete(self.bridge)
        link = self.client.link
        subprocess.run(['ip', 'address', 'add', f'{link.server_address}/30', 'dev', link.server_device],
                       capture_output=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def node(self, name):
        return next(node for node in self.nodes if node.name == name)

    def other(self, node):
        return next(other for other in self.nodes if other is not node)

    # --- what it says -------------------------------------------------------------------------------

    def living(self):
        return next(node for node in self.nodes if node.is_on())

    def status(self, node=None):
        """crm_mon's tree; None while it cannot be had."""
        done = (node or self.living()).attempt('crm_mon', '--one-shot', '--output-as=xml')
        return xml.etree.ElementTree.fromstring(done.stdout) if done.returncode == 0 else None

    def wait_for_nodes(self, *away):
        """Until all nodes but those AWAY are members, and all agree."""
        def settled():
            for node in self.nodes:
                if node.name in away:
                    continue
                tree = self.status(node)
                found = tree.findall('./nodes/node') if tree is not None else []
                if {n.get('name'): str(n.get('online') == 'true' and n.get('pending') != 'true').lower() for n in found} != {
                        n.name: str(n.name not in away).lower() for n in self.nodes}:
                    return False
            return True

        wait_until(settled, START_TIMEOUT, 'all nodes are in the cluster', 0.2)

    def has(self, part):
        """The node where the cluster takes PART, 'server' or 'address', for started; None: there is none."""
        tree = self.status()
        for resource in tree.iter('resource') if tree is not None else ():
            if resource.get('id') == f'{self.pool.name}-{part}' and resource.get('role') == 'Started' and \
                    resource.get('failed') == 'false' and resource.get('blocked') == 'false' and \
                    resource.get('orphaned', 'false') == 'false':
                node = resource.find('node')
                return self.node(node.get('name')) if node is not None else None
        return None

    def owner(self):
        return self.has('server')

    def wait_until_served(self, but=None):
        """Returns the node that serves, which is not BUT. Its address comes behind its server."""
        def served():
            owner = self.owner()
            return owner if owner and owner is not but and owner.is_on() and self.has('address') is owner else None

        return wait_until(served, ACTION_TIMEOUT, 'the pool is served', 0.2)

    def set(self, name, value, kind='crm_config'):
        """A property of the cluster."""
        self.living().run('crm_attribute', '--type', kind, '--name', name, '--update', value)

    def failures(self):
        """Why actions have failed."""
        tree = self.status()
        return [failure.get('exitreason') for failure in tree.iter('failure')] if tree is not None else []

    def clean(self):
        """Forget what has failed before; a node that has just joined takes no orders yet."""
        wait_until(lambda: self.living().attempt('crm_resource', '--cleanup').returncode == 0, START_TIMEOUT, 'cleaned up', 1)

    def move(self):
        """As an admin, to another node; returns that."""
        target = self.other(self.owner())
        assert self.living().ask('service', 'move', self.pool.name)['service']['node'] == target.name
        return target

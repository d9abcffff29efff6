# SPDX-License-Identifier: LGPL-3.0-or-later
"""The appliance's image: how long it takes to build, and to boot until what its pool exports is mounted.

A machine of QEMU, whose power is cut each time, so that the pool is replayed. A connection is tried anew each
second. Its processor is emulated: real ones boot in a fraction of this.
"""

import os
import subprocess
import sys
import time

from figures import SECONDS, Figure, say

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SERVER, CLIENT = '192.0.2.1', '192.0.2.2'
NETWORK = 'lan'
SHARE, PATH = 'share', '/mnt/bench'


def reach(address, port):
    """Returns when a connection is taken."""
    import socket
    while True:
        try:
            return socket.create_connection((address, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)


def build_image():
    subprocess.run([f'{ROOT}/scripts/install', 'boot', 'lab'], check=True)
    began = time.monotonic()
    subprocess.run([f'{ROOT}/appliance/build'], check=True, stdout=sys.stderr)
    built = Figure('appliance/build', SECONDS, less=True, note='all of it, or what has changed where it was built before')
    built.add(time.monotonic() - began)
    subprocess.run([f'{ROOT}/scripts/lab-guest'], check=True)
    return built


def machines(lab, workdir):
    """A node that goes through its firmware and GRUB, and a client."""
    import guest
    import node
    import soft

    key = os.path.join(workdir, 'key')
    subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', key], check=True)
    with open(f'{key}.pub') as file:
        configuration = f'hostname=server\nssh_key={file.read()}rdma=rxe\n'
    with open(f'{ROOT}/build/appliance/version') as file:
        image = f'{ROOT}/build/appliance/millrace-{file.read().strip()}.raw'
    server = lab.add(node.Node, 'server', image=image, key=key, firmware='uefi', drives=6, memory_mib=3072,
                     configuration=configuration, networks={NETWORK: f'{SERVER}/24'})
    client = lab.add(guest.Guest, 'client', server_address=SERVER, soft=soft.Soft('rxe'), networks={NETWORK: f'{CLIENT}/24'})
    for machine in (server, client):
        machine.power_on()
    for machine in (client, server):
        machine.wait_until_up()
    return server, client


def boot(service, server, client):
    """Seconds until it takes connections, and until the share is mounted, over TCP."""
    server.power_off()
    server.power_on()
    began = time.monotonic()
    client.call(reach, SERVER, 2049, timeout=1200)
    reached = time.monotonic() - began
    service.mount(client, SHARE, PATH)
    mounted = time.monotonic() - began
    client.umount(PATH)
    return reached, mounted


def measure(options, workdir):
    figures = [build_image()]
    sys.path.insert(0, f'{ROOT}/tests/lab')
    import machine
    import service

    with machine.Lab(workdir) as lab:
        say('booting for the first time')
        server, client = machines(lab, workdir)
        served = service.Service(server, SERVER).start()
        served.create_share(SHARE)
        port = Figure('power on until the port of NFS is open', SECONDS, less=True)
        mounted = Figure('power on until an export is mounted', SECONDS, less=True)
        for i in range(options.rounds):
            say(f'round {i + 1}')
            for figure, seconds in zip((port, mounted), boot(served, server, client)):
                figure.add(seconds)
    return [*figures, port, mounted]

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Over RDMA and TCP, in machines of QEMU: a pool beside RAID-6 on the same six drives.

The drives are emulated and so are the processors: ratios say something, rates do not. A round writes
a file, reads it in order, cold, and at random, on each server right after the other, one transport
mounted at a time.
"""

import contextlib
import json
import os
import subprocess
import sys

from figures import PER_SECOND, RATE, Figure, say

HERE = os.path.dirname(os.path.realpath(__file__))
MIB = 64
SECONDS = 5
PATH = '/mnt/bench'
SERVER, CLIENT = '192.0.2.1', '192.0.2.2'
NETWORK = 'lan'
PROFILED_SECONDS, PROFILED_MIB = 10, 512  # so that no byte is read twice below 40 MB/s
PERF = '/tmp/perf.data'
LEAST_PERCENT = 1.5
WAYS = {'write': '--bs=1m --iodepth=4', 'read': '--bs=1m --iodepth=4', 'randread': '--bs=4k --iodepth=16'}
COUNTED = {'write': ('write', 'bw_bytes'), 'read': ('read', 'bw_bytes'), 'randread': ('read', 'iops')}


def fio(client, way, more, mib=MIB):
    done = client.run(f'fio --name=bench --filename={PATH}/bench --rw={way} --size={mib}m --direct=1 --ioengine=libaio '
                      f'--output-format=json {more}', timeout=600)
    direction, key = COUNTED[way]
    return json.loads(done.stdout)['jobs'][0][direction][key]


def one(server, client, transport):
    """Of each way, over TRANSPORT."""
    server.mount(client, PATH, transport)
    try:
        client.run(f'rm -f {PATH}/bench')
        written = fio(client, 'write', f'{WAYS["write"]} --end_fsync=1')
        server.forget()
        read = fio(client, 'read', WAYS['read'])
        return {'write': written, 'read': read,
                'randread': fio(client, 'randread', f'{WAYS["randread"]} --time_based --runtime={SECONDS}')}
    finally:
        client.umount(PATH)


def rows(beside):
    """Goals are those of RDMA beside the kernel's server."""
    found = {}
    for transport in ('rdma', 'tcp'):
        goal = transport == 'rdma' and beside == 'nfsd'
        for way, what, unit, least in (('read', 'read 1 MiB in order', RATE, 1.0), ('write', 'write 1 MiB', RATE, 1.0),
                                       ('randread', 'read 4 KiB, 16 at once', PER_SECOND, 0.7)):
            found[transport, way] = Figure(f'{what} over {transport.upper()}', unit, f'{beside}, XFS on RAID-6',
                                           least if goal else None)
    return found


def machines(lab, guest, peer):
    server = lab.add(peer.Peer, 'server', server_address=SERVER, networks={NETWORK: f'{SERVER}/24'})
    client = lab.add(guest.Guest, 'client', server_address=SERVER, networks={NETWORK: f'{CLIENT}/24'})
    for machine in (server, client):
        machine.power_on()
    for machine in (client, server):
        machine.wait_until_up()
    return server, client


@contextlib.contextmanager
def served(workdir):
    """The servers, ours first, and a client."""
    root = os.path.dirname(os.path.dirname(HERE))
    subprocess.run([f'{root}/scripts/install', 'debian13', 'lab'], check=True)
    subprocess.run([f'{root}/scripts/debian13', 'scripts/build'], check=True)
    subprocess.run([f'{root}/scripts/lab-guest', 'peer'], check=True)
    sys.path.insert(0, f'{root}/tests/lab')
    import guest
    import machine
    import peer

    with machine.Lab(workdir) as lab:
        say('starting the machines')
        server, client = machines(lab, guest, peer)
        parts = server.share_drives()
        yield [peer.Millrace(server, parts), peer.Knfsd(server), peer.Vfs(server)], client


def measure(options, workdir):
    with served(workdir) as (servers, client):
        found = {other.name: rows(other.name) for other in servers[1:]}
        for i in range(options.rounds):
            for transport in ('rdma', 'tcp'):
                say(f'round {i + 1}, {transport}')
                results = [one(server, client, transport) for server in servers]
                for other, values in zip(servers[1:], results[1:]):
                    for way, value in values.items():
                        found[other.name][transport, way].add(results[0][way], value)
        return [figure for figures in found.values() for figure in figures.values()]


def profile(options, workdir):
    """Prints where the serving machine's processor is while the client does each; other servers idle meanwhile."""
    with served(workdir) as (servers, client):
        for server in servers:
            server.mount(client, PATH, 'rdma')
            client.run(f'fio --name=bench --filename={PATH}/bench --rw=write --bs=1m --size={PROFILED_MIB}m --direct=1', timeout=600)
            for way, how in WAYS.items():
                server.forget()
                recording = server.peer.spawn(f'sleep 5; perf record -q -a -e cpu-clock -F 97 -o {PERF} -- sleep {PROFILED_SECONDS}')
                done = fio(client, way, f'{how} --time_based --runtime={PROFILED_SECONDS + 8}', PROFILED_MIB)
                recording.wait(timeout=300)
                print(f'\n## {server.name}, {way}: {done:,.0f} a second\n', flush=True)
                print(server.peer.run(f'perf report -q -i {PERF} --stdio --sort dso,symbol --percent-limit {LEAST_PERCENT}',
                                      timeout=600).stdout.decode(), flush=True)
            client.umount(PATH)

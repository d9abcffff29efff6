# SPDX-License-Identifier: LGPL-3.0-or-later
"""Over RDMA and TCP, in machines of QEMU: a pool beside RAID-6 on the same six drives.

The drives are emulated and so are the processors: ratios say something, rates do not. A round writes
a file, reads it in order and at random, both from the drives, and at random a part of it that the
server has in memory by then, on each server right after the other, one transport mounted at a time.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import sampled
from figures import PER_SECOND, RATE, Figure, say

HERE = os.path.dirname(os.path.realpath(__file__))
MIB = 64
SECONDS = 5
PATH = '/mnt/bench'
SERVER, CLIENT = '192.0.2.1', '192.0.2.2'
NETWORK = 'lan'
PROFILED_SECONDS, PROFILED_MIB = 10, 512  # so that no byte is read twice below 40 MB/s
LEAST_PERCENT = 1.5
WAYS = {'write': '--bs=1m --iodepth=4', 'read': '--bs=1m --iodepth=4', 'randread': '--bs=4k --iodepth=16'}
COUNTED = {'write': ('write', 'bw_bytes'), 'read': ('read', 'bw_bytes'), 'randread': ('read', 'iops')}
LACKING = ['sse4.2']  # QEMU computes its CRC32 bit by bit, where a processor takes some cycles
CACHED_MIB, CACHED_READS = 4, 3  # a server may keep what was read twice


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
        server.forget()
        timed = f'{WAYS["randread"]} --time_based --runtime={SECONDS}'
        random = fio(client, 'randread', timed)
        for _ in range(CACHED_READS):
            fio(client, 'read', WAYS['read'], CACHED_MIB)
        return {'write': written, 'read': read, 'randread': random, 'cached': fio(client, 'randread', timed, CACHED_MIB)}
    finally:
        client.umount(PATH)


def rows(beside):
    """Goals are those of RDMA beside the kernel's server."""
    found = {}
    for transport in ('rdma', 'tcp'):
        goal = transport == 'rdma' and beside == 'nfsd'
        for way, what, unit, least in (('read', 'read 1 MiB in order', RATE, 1.0), ('write', 'write 1 MiB', RATE, 1.0),
                                       ('randread', 'read 4 KiB, 16 at once', PER_SECOND, 0.7),
                                       ('cached', 'read 4 KiB, 16 at once, from its memory', PER_SECOND, 0.7)):
            found[transport, way] = Figure(f'{what}, over {transport.upper()}', unit, f'{beside}, XFS on RAID-6',
                                           least if goal else None)
    return found


def machines(lab, guest, peer):
    server = lab.add(peer.Peer, 'server', server_address=SERVER, networks={NETWORK: f'{SERVER}/24'}, lacking=LACKING)
    client = lab.add(guest.Guest, 'client', server_address=SERVER, networks={NETWORK: f'{CLIENT}/24'}, lacking=LACKING)
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
        symbols = sampled.Symbols(servers[0].peer)
        for server in servers:
            server.mount(client, PATH, 'rdma')
            client.run(f'fio --name=bench --filename={PATH}/bench --rw=write --bs=1m --size={PROFILED_MIB}m --direct=1', timeout=600)
            for way, how in WAYS.items():
                server.forget()
                with ThreadPoolExecutor() as pool:
                    running = pool.submit(fio, client, way, f'{how} --time_based --runtime={PROFILED_SECONDS + 8}', PROFILED_MIB)
                    time.sleep(5)
                    found = sampled.sample(server.peer, symbols, PROFILED_SECONDS)
                    done = running.result()
                print(f'\n## {server.name}, {way}: {done:,.0f} a second; {found.total()} samples\n', flush=True)
                for where, count in found.most_common():
                    if count * 100 >= LEAST_PERCENT * found.total():
                        print(f'{count * 100 / found.total():6.1f} %  {where}', flush=True)
            client.umount(PATH)

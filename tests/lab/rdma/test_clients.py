# SPDX-License-Identifier: LGPL-3.0-or-later
"""Two clients at once."""

import pytest

from guest import Guest

FIO = ('fio --name={name} --directory={path} --rw={way} --bsrange=4k-256k --blockalign=4k --size=16m --direct={direct} '
       '--ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --end_fsync=1')
pytestmark = pytest.mark.long


@pytest.fixture(scope='module')
def other(lab, client, soft):
    other = lab.add(Guest, 'other', server_address=client.server_address, soft=soft, networks={'lan': '192.0.2.3/24'})
    other.start()
    yield other
    lab.remove(other)


@pytest.fixture
def mounts(service, client, other, share):
    """Mounts the test's share on both clients, over the transports that are named."""
    def mount(*transports):
        for machine, transport in zip((client, other), transports):
            service.mount(machine, share, '/mnt/both', transport)
        return [(client, '/mnt/both'), (other, '/mnt/both')]

    yield mount
    for machine in (client, other):
        machine.kill_commands()
        machine.run('! mountpoint -q /mnt/both || umount -i /mnt/both', timeout=120)


@pytest.mark.parametrize('way, direct', [('write', 1), ('randwrite', 0), ('randrw', 1)])
def test_fio_reads_what_it_wrote(rdma, mounts, way, direct):
    running = [machine.spawn(FIO.format(name=machine.name, path=path, way=way, direct=direct))
               for machine, path in mounts('rdma', 'rdma')]
    for remote in running:
        remote.wait(timeout=550)


def test_rdma_and_tcp_at_once(rdma, mounts):
    """Each writes while the other does; then each reads what the other wrote."""
    both = mounts('rdma', 'tcp')
    made = [machine.spawn(f'mkdir {path}/{machine.name} && cd {path}/{machine.name} && '
                          'for i in $(seq 20); do head -c $((i * 99991)) /dev/urandom >$i; done && sync && '
                          'echo 3 >/proc/sys/vm/drop_caches && sha256sum *') for machine, path in both]
    sums = [remote.wait(timeout=300).stdout for remote in made]
    names = [machine.name for machine, _ in both]
    for (machine, path), name, wrote in zip(both, reversed(names), reversed(sums)):
        assert machine.run(f'cd {path}/{name} && sha256sum *', timeout=300).stdout == wrote

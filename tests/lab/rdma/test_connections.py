# SPDX-License-Identifier: LGPL-3.0-or-later
"""Connections come and go, and leave nothing behind; what breaks them breaks no data."""

import time

import pytest

from harness.host import wait_until
from service import Service
from writer import Writer

NEIGHBOUR = '192.0.2.5'
ATTEMPTS = 3  # see soft.py: is_broken


def test_mounts_leave_nothing_behind(rdma, service, client, share, request):
    before = rdma.held_by_none()
    for i in range(50 if request.config.getoption('--all') else 8):
        service.mount(client, share, '/mnt/once', 'rdma')
        client.run(f'head -c 2000000 /dev/zero >/mnt/once/{i % 8}; umount -i /mnt/once', timeout=120)
    rdma.wait_for(before)
    assert before.regions == 0


def ride_out(pair, rdma, service, soft, mount, outage):
    """A client writes, goes on after OUTAGE, what it wrote is right, and nothing is left of its connections. An outage that
    broke a machine's device tells nothing: that machine starts afresh, and all is done again."""
    server, client = pair
    for attempt in range(ATTEMPTS):
        before = rdma.held_by_none()
        mounted = mount('rdma')
        path = f'{mounted}/{attempt}'
        client.run(f'mkdir {path}')
        writer = Writer(client, path)
        writer.more(5)
        outage()
        wanted = writer.count() + 10
        wait_until(lambda: writer.count() >= wanted or any(map(soft.is_broken, pair)), 300, 'the client goes on', 5)
        assert service.alive()
        broken = [machine for machine in pair if soft.is_broken(machine)]
        if not broken:
            writer.check()
            client.run(f'umount -i {mounted}', timeout=120)
            rdma.wait_for(before)
            return
        for machine in broken:
            machine.reset()
        if server in broken:
            service.wait_until_served()
            service.wait_for_rdma()
    pytest.fail(f'{ATTEMPTS} outages broke the device of {broken[0].name}')


@pytest.mark.parametrize('machine', [0, 1], ids=['server', 'client'])
@pytest.mark.parametrize('gone, back', [('lose', 'find'), ('cut', 'join')], ids=['lost', 'pulled'])
def test_a_network_that_is_gone_for_a_moment(pair, rdma, service, soft, mount, machine, gone, back):
    """Packets are lost while the cable is in; or the cable is pulled, and both ends see it."""
    def outage():
        getattr(pair[machine], gone)('lan')
        time.sleep(2)
        getattr(pair[machine], back)('lan')

    ride_out(pair, rdma, service, soft, mount, outage)


@pytest.mark.long
@pytest.mark.rxe  # siw leaves it to TCP, which tries for a quarter of an hour
def test_a_network_that_is_gone_for_long(pair, rdma, service, soft, mount, client):
    """The server gives the connection up, and the client comes again."""
    def outage():
        client.lose('lan')
        try:
            wait_until(lambda: rdma.held().pairs == 0, 240, 'the connection is given up', 1)
        finally:
            client.find('lan')

    ride_out(pair, rdma, service, soft, mount, outage)


def test_a_server_that_is_killed(rdma, service, mount, client):
    before = rdma.held_by_none()
    path = mount('rdma')
    writer = Writer(client, path)
    writer.more(5)
    service.kill()
    service.wait_until_served()
    writer.more(10)
    writer.check()
    client.run(f'umount -i {path}', timeout=120)
    rdma.wait_for(before)


def test_a_client_that_is_reset(rdma, service, client, share):
    before = rdma.held_by_none()
    service.mount(client, share, '/mnt/reset', 'rdma')
    Writer(client, '/mnt/reset').more(5)
    client.reset()
    service.mount(client, share, '/mnt/reset', 'rdma')
    assert client.run('wc -c </mnt/reset/0').stdout.strip() == b'262144'
    client.run('umount -i /mnt/reset', timeout=120)
    rdma.wait_for(before)


def test_no_session_is_bound_again(rdma, mount, client):
    """Its back channel is there from the start, and the server does not say that it is down."""
    path = mount('rdma')
    client.run(f'for i in $(seq 50); do echo $i >{path}/$i; done')
    told = client.run('cat /proc/self/mountstats').stdout.decode()
    calls = [line.split()[1] for line in told.split('\n') if 'BIND_CONN_TO_SESSION' in line]
    assert calls and set(calls) == {'0'}


def test_a_device_that_comes_after_the_server(rdma, soft, pair, service, client, share):
    """TCP is served meanwhile, and RDMA without a restart."""
    server = pair[0]
    device = server.device('lan')
    service.stop()
    soft.delete(server, device)
    service.start()
    wait_until(lambda: 'RDMA is not served' in service.log(), 120, 'the server says so', interval=1)
    service.mount(client, share, '/mnt/device', 'tcp')
    client.run('echo kept >/mnt/device/file; umount -i /mnt/device', timeout=120)
    soft.add(server, device)
    service.wait_for_rdma()
    service.mount(client, share, '/mnt/device', 'rdma')
    assert client.run('cat /mnt/device/file; umount -i /mnt/device', timeout=120).stdout == b'kept\n'


@pytest.fixture
def on_all_addresses(rdma, soft, pair, service):
    """The server as it starts without --listen, and without any device."""
    server = pair[0]
    devices = soft.devices(server)
    service.stop()
    for device in devices:
        soft.delete(server, device)
    service.start(listen=False)
    yield service
    for device in set(devices) - set(soft.devices(server)):
        soft.add(server, device)
    service.stop()
    service.start()
    service.wait_for_rdma()


def test_a_server_on_all_addresses(on_all_addresses, soft, pair, client, share):
    """It says that there is no device, and takes one that comes."""
    server, service = pair[0], on_all_addresses
    wait_until(lambda: 'RDMA is not served' in service.log(), 120, 'the server says so', interval=1)
    soft.add(server, server.device('lan'))
    service.wait_for_rdma()
    service.mount(client, share, '/mnt/all', 'rdma')
    assert client.run('echo kept >/mnt/all/file; cat /mnt/all/file; umount -i /mnt/all', timeout=120).stdout == b'kept\n'


@pytest.fixture
def neighbour(rdma, pair):
    """Another server of the same node, of a pool of files, at an address of its own."""
    server, devices = pair[0], ['/state/other0', '/state/other1']
    server.run(f'ip address add {NEIGHBOUR}/24 dev {server.device("lan")}; truncate -s 256M {" ".join(devices)}')
    neighbour = Service(server, NEIGHBOUR, pool='other', devices=devices, parity=1).start()
    neighbour.wait_for_rdma()
    neighbour.create_share('share')
    yield neighbour
    neighbour.verb('serve other --disable')
    neighbour.verb('pool destroy other --yes')
    server.run(f'ip address del {NEIGHBOUR}/24 dev {server.device("lan")}; rm {" ".join(devices)}')


def test_two_servers_on_one_node(neighbour, service, mount, client):
    """Each has its own files, and goes on when the other has ended."""
    path = mount('rdma')
    neighbour.mount(client, 'share', '/mnt/other', 'rdma')
    writer = Writer(client, path)
    writer.more(2)
    client.run('echo other >/mnt/other/file; sync /mnt/other/file')
    neighbour.kill()
    writer.more(5)
    neighbour.wait_until_served().wait_for_rdma()
    client.drop_caches()
    assert client.run('cat /mnt/other/file; umount -i /mnt/other', timeout=240).stdout == b'other\n'
    writer.check()

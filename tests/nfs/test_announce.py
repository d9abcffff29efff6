# SPDX-License-Identifier: LGPL-3.0-or-later
"""A server of a cluster (`serve --fenced`) tells its network each second who has its address, as long as the pool is its own, and
that its node is back when it is another's, as a reader does that begins; whoever has the pool by then hears it."""

import os
import signal
import socket
import struct
import time
from uuid import UUID, uuid4

import pytest

from harness.host import Daemon, command, tail, wait_until
from harness.rpc import answers_null
from harness.server import LEASE, MILLRACE, Pool, free_port

pytestmark = pytest.mark.millrace

IPV4, IPV6 = '192.0.2.78', '2001:db8::78'
ARP, IP6, NOTICE, ICMP6, ADVERTISEMENT = 0x0806, 0x86dd, 0x88b5, 58, 136
LOOK = 2  # seconds: what an owner's look is good for, and some
ALL = {ARP: b'\xff' * 6, IP6: b'\x33\x33\0\0\0\1'}


def listen(name, protocol):
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
    listener.bind((name, 0))
    return listener


def hardware_of(name):
    with open(f'/sys/class/net/{name}/address') as file:
        return bytes.fromhex(file.read().replace(':', ''))


class Wire:
    """An interface of this host with ADDRESS, and what it sends about that."""

    def __init__(self, address):
        self.address, self.name, far = address, f'near{os.getpid()}', f'far{os.getpid()}'
        command('ip', 'link', 'add', self.name, 'type', 'veth', 'peer', 'name', far)
        command('ip', 'link', 'set', far, 'up')
        command('ip', 'link', 'set', self.name, 'up')
        self.bring()
        self._listener = listen(far, IP6 if ':' in address else ARP)
        self.notices = listen(far, NOTICE)
        self.notices.settimeout(20)
        self.hardware, self.other_hardware = map(hardware_of, (self.name, far))

    def close(self):
        self._listener.close()
        self.notices.close()
        command('ip', 'link', 'delete', self.name)

    def bring(self):
        """The address, as IPaddr2 does it that was told a label."""
        words = ('/128', 'nodad') if ':' in self.address else ('/32', 'label', f'{self.name}:1')
        command('ip', 'address', 'add', self.address + words[0], 'dev', self.name, *words[1:])

    def take_away(self):
        command('ip', 'address', 'flush', 'dev', self.name, 'to', self.address)

    def say(self, frame):
        """As another host."""
        self._listener.send(frame)

    def hear(self, seconds):
        """The next announcement, None when there is none in so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._listener.settimeout(left)
            try:
                frame = self._listener.recv(200)
            except TimeoutError:
                return None
            if self._is_announcement(frame):
                return frame
        return None

    def forget(self):
        """What was sent until now."""
        while self.hear(0.01):
            pass

    def _is_announcement(self, frame):
        if frame[12:14] == struct.pack('!H', ARP):
            return frame[28:32] == frame[38:42] == socket.inet_aton(self.address)
        return frame[20] == ICMP6 and frame[54] == ADVERTISEMENT and frame[62:78] == socket.inet_pton(socket.AF_INET6, self.address)


@pytest.fixture(params=[IPV4, IPV6])
def wire(request):
    wire = Wire(request.param)
    yield wire
    wire.close()


@pytest.fixture
def pool(tmp_path):
    pool = Pool(tmp_path, name='granary').create()
    yield pool
    pool.close()


@pytest.fixture
def serve(pool, wire):
    """A server at the wire's address."""
    log = os.path.join(pool.workdir, 'server.log')
    begun = []

    def serve(*words):
        port = free_port('127.0.0.1')  # one that is free there is free at an address of ours
        server = Daemon([MILLRACE, 'serve', pool.name, '--foreground', '--listen', wire.address, '--port', str(port), '--lease', str(LEASE), *words,
                         '--state-dir', pool.state_dir, '--run-dir', pool.run_dir], log)
        begun.append(server)
        wait_until(lambda: answers_null(wire.address, port) or not server.alive(), 60, 'it is served')
        assert server.alive(), tail(log)
        return server

    yield serve
    for server in begun:
        server.kill()


def checksum(data):
    total = sum(struct.unpack(f'!{len(data) // 2}H', data))
    total = (total & 0xffff) + (total >> 16)
    return ~(total + (total >> 16)) & 0xffff


def check(wire, frame):
    """That of RFC 5227, or of RFC 4861: from the interface, to all, with the address's hardware."""
    kind = struct.unpack('!H', frame[12:14])[0]
    assert frame[:6] == ALL[kind] and frame[6:12] == wire.hardware
    if kind == ARP:
        address = socket.inet_aton(wire.address)
        assert frame[14:42] == struct.pack('!HHBBH', 1, 0x0800, 6, 4, 1) + wire.hardware + address + bytes(6) + address
        return
    source, body = frame[22:38], frame[54:86]
    assert source == socket.inet_pton(socket.AF_INET6, wire.address) and frame[21] == 255
    assert body[4:8] == b'\x20\0\0\0' and body[24:] == b'\x02\x01' + wire.hardware and len(frame) == 86
    assert checksum(frame[22:54] + struct.pack('!IHBB', 32, 0, 0, ICMP6) + body) == 0


def notice(uuid, hardware):
    """That a node is back, to all that have the pool."""
    return ALL[ARP] + hardware + struct.pack('!H', NOTICE) + b'millrace' + uuid.bytes


def uuid_of(pool):
    return UUID(pool.ask('pool', 'status', pool.name)['pool']['uuid'])


def test_it_says_so_again_and_again(wire, serve):
    server = serve('--fenced')
    for _ in range(4):
        check(wire, wire.hear(20))
    assert server.terminate(60) == 0


def test_the_address_is_away_for_some_time(wire, serve):
    server = serve('--fenced')
    assert wire.hear(20)
    wire.take_away()
    wait_until(lambda: 'no Ethernet interface has it' in tail(server.log), 20, 'it is missed')
    wire.forget()
    wire.bring()
    check(wire, wire.hear(20))


def test_one_that_is_by_itself_says_nothing(wire, serve):
    serve()
    wire.forget()
    assert wire.hear(4) is None


def told_to_connect(server):
    return tail(server.log).count('clients over RDMA are to connect anew')


def test_clients_over_rdma_connect_anew_when_another_host_is_back(wire, serve, pool):
    """As long as one that had the pool may write; and not more often than once in a lease."""
    serve('--fenced', '--host', 'before').kill()
    server = serve('--fenced')
    assert wire.hear(20)
    for frame in (notice(uuid4(), wire.other_hardware), notice(uuid_of(pool), wire.other_hardware)[:-1]):
        wire.say(frame)
    wire.forget()
    assert wire.hear(20) and wire.hear(20) and not told_to_connect(server)
    wire.say(notice(uuid_of(pool), wire.other_hardware))
    wait_until(lambda: told_to_connect(server), 20, 'it has heard that')
    wire.say(notice(uuid_of(pool), wire.other_hardware))
    wire.forget()
    assert wire.hear(20) and wire.hear(20) and told_to_connect(server) == 1
    wait_until(lambda: told_to_connect(server) == 2, 3 * LEASE, 'a lease later it has')


def test_nobody_has_had_it_before(wire, serve, pool):
    server = serve('--fenced')
    assert wire.hear(20)
    wire.say(notice(uuid_of(pool), wire.other_hardware))
    wire.forget()
    assert wire.hear(20) and wire.hear(20) and not told_to_connect(server)


def test_a_reader_says_that_its_node_is_back(wire, serve, pool):
    serve('--reader')
    assert [wire.notices.recv(200) for _ in range(3)] == [notice(uuid_of(pool), wire.hardware)] * 3


def test_one_whose_pool_is_taken_over_says_that_its_node_is_back(wire, serve, pool):
    """It has stood still meanwhile, and does not know yet."""
    server = serve('--fenced')
    assert wire.hear(20)
    told = notice(uuid_of(pool), wire.hardware)
    server.process.send_signal(signal.SIGSTOP)
    wire.forget()
    pool.take_over()
    time.sleep(LOOK)
    server.process.send_signal(signal.SIGCONT)
    assert server.process.wait(timeout=20) == 3
    assert wire.hear(1) is None
    assert wire.notices.recv(200) == told

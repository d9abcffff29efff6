# SPDX-License-Identifier: LGPL-3.0-or-later
"""A server of a cluster (`serve --fenced`) tells its network each second who has its address, as long as the pool is its own, and
asks who has it when it is another's."""

import os
import signal
import socket
import struct
import time

import pytest

from harness.host import Daemon, command, tail, wait_until
from harness.rpc import answers_null
from harness.server import MILLRACE, Pool, free_port

pytestmark = pytest.mark.millrace

IPV4, IPV6 = '192.0.2.78', '2001:db8::78'
ARP, IP6, ICMP6, SOLICITATION, ADVERTISEMENT = 0x0806, 0x86dd, 58, 135, 136
LOOK = 2  # seconds: what an owner's look is good for, and some
ALL = {ARP: b'\xff' * 6, IP6: b'\x33\x33\0\0\0\1'}


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
        self._listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(IP6 if ':' in address else ARP))
        self._listener.bind((far, 0))
        self.hardware, self.other_hardware = map(hardware_of, (self.name, far))

    def close(self):
        self._listener.close()
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

    def hear(self, seconds, frames=None):
        """The next announcement, or that of FRAMES, None when there is none in so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._listener.settimeout(left)
            try:
                frame = self._listener.recv(200)
            except TimeoutError:
                return None
            if frame in frames if frames else self._is_announcement(frame):
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
        server = Daemon([MILLRACE, 'serve', pool.name, '--foreground', '--listen', wire.address, '--port', str(port), *words,
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


def probe(address, hardware, sender=bytes(4)):
    """Of RFC 5227, or of RFC 4862 and 4861: from HARDWARE, who has none, to all."""
    if ':' not in address:
        return ALL[ARP] + hardware + struct.pack('!HHHBBH', ARP, 1, 0x0800, 6, 4, 1) + hardware + sender + bytes(6) + \
            socket.inet_aton(address)
    target = socket.inet_pton(socket.AF_INET6, address)
    group = socket.inet_pton(socket.AF_INET6, 'ff02::1:ff00:0')[:13] + target[13:]
    body = struct.pack('!BBHI', SOLICITATION, 0, 0, 0) + target
    body = body[:2] + struct.pack('!H', checksum(bytes(16) + group + struct.pack('!II', len(body), ICMP6) + body)) + body[4:]
    return b'\x33\x33\xff' + target[13:] + hardware + struct.pack('!HIHBB', IP6, 6 << 28, len(body), ICMP6, 255) + bytes(16) + group + body


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


def test_clients_over_rdma_connect_anew_when_another_host_asks(wire, serve):
    """One that has had the address asks as one that has none. Others ask all the time."""
    server = serve('--fenced')
    assert wire.hear(20)
    time.sleep(LOOK)  # it has begun to listen before it says something again
    if wire.address == IPV4:
        wire.say(probe(IPV4, wire.other_hardware, socket.inet_aton('192.0.2.79')))
        wire.say(probe('192.0.2.80', wire.other_hardware))
    else:
        wire.say(probe('2001:db8::1:78', wire.other_hardware))  # to the same group
    for _ in range(3):
        assert wire.hear(20)
    assert 'asks who has it' not in tail(server.log)
    wire.say(probe(wire.address, wire.other_hardware))
    wait_until(lambda: f'another host has had {wire.address}, and asks who has it' in tail(server.log), 20, 'it has heard that')


def test_one_whose_pool_is_taken_over_asks_who_has_it(wire, serve, pool):
    """It has stood still meanwhile, and does not know yet."""
    server = serve('--fenced')
    announced = wire.hear(20)
    server.process.send_signal(signal.SIGSTOP)
    wire.forget()
    pool.take_over()
    time.sleep(LOOK)
    server.process.send_signal(signal.SIGCONT)
    assert server.process.wait(timeout=20) == 3
    assert wire.hear(1, [asked := probe(wire.address, wire.hardware), announced]) == asked
    assert wire.hear(1) is None

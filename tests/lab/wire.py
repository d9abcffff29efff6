# SPDX-License-Identifier: LGPL-3.0-or-later
"""What goes over the wire between queue pairs: RoCE v2, looked at on the harness's end of a cable."""

import collections
import socket
import struct
import threading

ETH_P_ALL = 3
ROCE_PORT = 4791
# Operations of a reliable connection (InfiniBand Architecture Specification, volume 1, table 38).
READ_REQUEST, READ_LAST, READ_ONLY = 12, 15, 16

Packet = collections.namedtuple('Packet', 'source operation number')


def parse(frame):
    """The Packet in an Ethernet frame, or None."""
    if len(frame) < 54 or frame[12:14] != b'\x08\x00' or frame[23] != socket.IPPROTO_UDP:
        return None
    at = 14 + 4 * (frame[14] & 15)
    if struct.unpack_from('>H', frame, at + 2)[0] != ROCE_PORT:
        return None
    at += 8
    return Packet(socket.inet_ntoa(frame[26:30]), frame[at], int.from_bytes(frame[at + 9:at + 12], 'big'))


class Wire:
    """Collects the packets on DEVICE, an interface of the harness: `with Wire(tap) as wire: ...`"""

    def __init__(self, device):
        self.packets = []
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._socket.bind((device, 0))
        self._socket.settimeout(0.2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)

    def _collect(self):
        while not self._ended.is_set():
            try:
                packet = parse(self._socket.recv(200))
            except TimeoutError:
                continue
            if packet:
                self.packets.append(packet)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        self._socket.close()

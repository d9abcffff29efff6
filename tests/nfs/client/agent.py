# SPDX-License-Identifier: LGPL-3.0-or-later
"""Runs commands on the client for the harness: one TCP connection per command.

The agent dials the harness once, with the port that it listens on (its second argument, else
any); that is how the harness knows that the client is up. A connection then carries frames, each a type (1 byte), a length
(4 bytes, big-endian) and that many bytes:

    harness -> agent   R  the request: JSON {argv, cwd, env, user, group}; the first frame
                       I  bytes for standard input; an empty one closes it
                       K  a signal number as text, for the command's process group
    agent -> harness   O  bytes of standard output
                       E  bytes of standard error
                       X  the exit status as text (negative: the signal), the last frame
                       F  why the command could not be started, the last frame

A connection that ends early kills its command. Frames X and F wait for both outputs to reach
their end, so a command that leaves a child behind with its output open is still running.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

HEADER = struct.Struct('>cI')


def receive_exactly(connection, length):
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), 1 << 20))
        if not part:
            raise ConnectionError('connection closed')
        data += part
    return bytes(data)


def receive_frame(connection):
    kind, length = HEADER.unpack(receive_exactly(connection, HEADER.size))
    return kind, receive_exactly(connection, length)


class Command:
    """One connection and the process that it asked for."""

    def __init__(self, connection):
        self.connection = connection
        self.sending = threading.Lock()
        self.process = None

    def send(self, kind, data):
        with self.sending:
            self.connection.sendall(HEADER.pack(kind, len(data)) + data)

    def serve(self):
        try:
            kind, data = receive_frame(self.connection)
            if kind == b'R':
                self.start(json.loads(data))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.finish(b'F', repr(error))
            return
        outputs = [threading.Thread(target=self.forward, args=output, daemon=True)
                   for output in ((b'O', self.process.stdout), (b'E', self.process.stderr))]
        for output in outputs:
            output.start()
        threading.Thread(target=self.obey, daemon=True).start()
        for output in outputs:
            output.join()
        self.finish(b'X', str(self.process.wait()))

    def start(self, request):
        user = request.get('user')
        identity = {} if user is None else {
            'user': user, 'group': request['group'], 'extra_groups': []}
        self.process = subprocess.Popen(
            request['argv'], cwd=request.get('cwd') or '/tmp',
            env={**os.environ, **(request.get('env') or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            bufsize=0, start_new_session=True, **identity)

    def forward(self, kind, stream):
        try:
            while True:
                data = stream.read(1 << 18)
                if not data:
                    return
                self.send(kind, data)
        except OSError:
            self.signal(signal.SIGKILL)

    def obey(self):
        try:
            while True:
                kind, data = receive_frame(self.connection)
                if kind == b'K':
                    self.signal(int(data))
                elif kind == b'I':
                    self.feed(data)
        except (OSError, ValueError):
            self.signal(signal.SIGKILL)

    def feed(self, data):
        try:
            if data:
                self.process.stdin.write(data)
            else:
                self.process.stdin.close()
        except (OSError, ValueError):
            pass  # the command has closed its input, which is its right

    def signal(self, number):
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def finish(self, kind, text):
        try:
            self.send(kind, text.encode())
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.connection.close()


def main():
    host, port = sys.argv[1].rsplit(':', 1)
    own = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    listener = socket.create_server(('', own), backlog=64)
    with socket.create_connection((host, int(port))) as harness:
        harness.sendall(b'%d\n' % listener.getsockname()[1])
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=Command(connection).serve, daemon=True).start()


if __name__ == '__main__':
    main()

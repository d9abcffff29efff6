# SPDX-License-Identifier: LGPL-3.0-or-later
"""Runs commands on the client for the harness: one TCP connection per command.

The agent dials the harness once, with the port that it listens on (its second argument, else
any); that is how the harness knows that the client is up. A connection then carries frames, each a type (1 byte), a length
(4 bytes, big-endian) and that many bytes:

    harness -> agent   R  the request: JSON {argv or source, cwd, env, user, group}; the first frame. The source is a
                          program of Python's, which a copy of this process runs: to start Python takes three times as long
                       I  bytes for standard input; an empty one closes it
                       K  a signal number as text, for the command's process group
    agent -> harness   O  bytes of standard output
                       E  bytes of standard error
                       X  the exit status as text (negative: the signal), the last frame
                       F  why the command could not be started, the last frame

A connection that ends early kills its command. Frames X and F wait for both outputs to reach
their end, so a command that leaves a child behind with its output open is still running.
"""

import gc
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback

HEADER = struct.Struct('>cI')
REQUEST_MOST = 1 << 20


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


class Copies:
    """A process with one thread, and nothing open that is this one's, of which copies run programs. Made while this one has no more either."""

    def __init__(self):
        self._asking = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.request = None  # in a copy: what it is to run
        if os.fork():
            theirs.close()
            return
        self._requests.close()
        gc.freeze()
        self._running = {}  # by process, where its end is told
        signal.signal(signal.SIGCHLD, self._reap)
        while self.request is None:
            self._take(theirs)

    def start(self, request, descriptors):
        with self._asking:
            socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)

    # In that process.

    def _take(self, requests):
        request, descriptors, *_ = socket.recv_fds(requests, REQUEST_MOST, 4)
        if not request:
            os._exit(0)  # the agent has ended
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid:
            self._running[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.request = json.loads(request)
            become(self.request, descriptors)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])

    def _reap(self, *_):
        """Which may come amid itself, at any line, and has waited for what was to be waited for here."""
        while self._running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            told = self._running.pop(pid)
            try:
                os.write(told, b'%d\n' % os.waitstatus_to_exitcode(status))
            except BrokenPipeError:
                pass
            os.close(told)


def become(request, descriptors):
    """Who REQUEST says, with DESCRIPTORS as input and outputs, in a session of its own; at the last one its number is told."""
    os.setsid()
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    os.write(descriptors[3], b'%d\n' % os.getpid())
    os.closerange(3, os.sysconf('SC_OPEN_MAX'))
    os.chdir(request.get('cwd') or '/tmp')
    os.environ.update(request.get('env') or {})
    if request.get('user') is not None:
        os.setgroups([])
        os.setgid(request['group'])
        os.setuid(request['user'])
    sys.stdin = open(0)
    sys.stdout, sys.stderr = (io.TextIOWrapper(open(number, 'wb', buffering=0), write_through=True) for number in (1, 2))


class Copy:
    """One that runs a program, used as subprocess.Popen is."""

    def __init__(self, copies, request):
        theirs, own = zip(*(ends if number == 0 else ends[::-1] for number, ends in enumerate(os.pipe() for _ in range(4))))
        self.stdin, self.stdout, self.stderr, self._told = (
            open(descriptor, mode, buffering=0) for descriptor, mode in zip(own, ('wb', 'rb', 'rb', 'rb')))
        try:
            copies.start(request, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.pid = int(self._told.readline())

    def poll(self):
        """None while it runs."""
        return select.select([self._told], [], [], 0)[0] or None

    def wait(self):
        return int(self._told.readline())


class Command:
    """One connection and the process that it asked for."""

    def __init__(self, connection, copies):
        self.connection = connection
        self.copies = copies
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
        if 'source' in request:
            self.process = Copy(self.copies, request)
            return
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
    """Serves; in a copy, returns the program that it is to run."""
    copies = Copies()
    if copies.request:
        return copies.request['source']
    host, port = sys.argv[1].rsplit(':', 1)
    own = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    listener = socket.create_server(('', own), backlog=64)
    with socket.create_connection((host, int(port))) as harness:
        harness.sendall(b'%d\n' % listener.getsockname()[1])
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=Command(connection, copies).serve, daemon=True).start()


def run(source):
    """A program, to its end; the interpreter's own would write to all of its memory, which takes as long as a start."""
    status = 0
    try:
        exec(compile(source, '<source>', 'exec'), {'__name__': '__main__'})
    except BaseException:
        traceback.print_exc()
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    os._exit(status)


if __name__ == '__main__':
    run(main())

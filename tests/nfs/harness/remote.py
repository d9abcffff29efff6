# SPDX-License-Identifier: LGPL-3.0-or-later
"""The harness's end of client/agent.py: a command that runs on the client."""

import collections
import json
import os
import signal
import socket
import sys
import threading
import time

from harness.host import Timeout

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'client'))
from agent import HEADER, receive_frame  # noqa: E402

Result = collections.namedtuple('Result', 'rc stdout stderr')


class CommandFailed(Exception):
    def __init__(self, what, result):
        super().__init__(f'{what}: exit {result.rc}\n'
                         f'{result.stderr.decode(errors="replace")}'
                         f'{result.stdout[-2000:].decode(errors="replace")}')
        self.result = result


class ClientGone(Exception):
    """The client, or its agent, went away while a command ran."""


class NotStarted(Exception):
    """The client could not start the command: no such program, for one."""


class Remote:
    """A running command. Its output is collected all the time and may be looked at any time.

    `stdout` and `stderr` are bytearrays that only grow; `rc` is None while the command runs.
    """

    def __init__(self, address, what, request):
        self.what = what
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.rc = None
        self._error = None
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._connection = socket.create_connection(address, timeout=60)
        self._connection.settimeout(None)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120000)
        self._send(b'R', json.dumps(request).encode())
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()

    def write(self, data):
        """Give the command bytes on its standard input."""
        if data:
            self._send(b'I', data)

    def close_input(self):
        self._send(b'I', b'')

    def kill(self, number=signal.SIGKILL):
        """Send a signal to the command and its children; wait() afterwards."""
        if self.running():
            self._send(b'K', b'%d' % number)

    def running(self):
        return self.rc is None and self._error is None

    def join(self, timeout):
        """Wait for the end, whatever it is; no error when it does not come in time."""
        self._collector.join(timeout)

    def wait(self, timeout=60, check=True):
        """Wait for the end of the command; returns (rc, stdout, stderr)."""
        self.wait_for(lambda: self.rc is not None, timeout, 'did not end')
        result = Result(self.rc, bytes(self.stdout), bytes(self.stderr))
        if check and result.rc != 0:
            raise CommandFailed(self.what, result)
        return result

    def wait_for(self, condition, timeout, problem='did not get there'):
        """Wait until CONDITION() is true; asked again whenever there is output, or the end.

        False when the command ended without it.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not condition():
                if self._error:
                    raise self._error
                if self.rc is not None:
                    return False
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Timeout(f'{self.what}: {problem} within {timeout} s\n'
                                  f'{self.stderr[-4000:].decode(errors="replace")}')
                self._changed.wait(left)
        return True

    def lines(self):
        """The complete lines of standard output up to now."""
        return bytes(self.stdout).decode().split('\n')[:-1]

    def wait_for_lines(self, count, timeout):
        """Wait until COUNT lines are there; a command that ends before that has failed."""
        if not self.wait_for(lambda: self.stdout.count(b'\n') >= count, timeout,
                             f'did not print {count} lines'):
            raise CommandFailed(self.what, self.wait(check=False))
        return self.lines()

    def _send(self, kind, data):
        try:
            with self._sending:
                self._connection.sendall(HEADER.pack(kind, len(data)) + data)
        except OSError:
            pass  # the collecting thread knows why, and says so in wait()

    def _collect(self):
        rc = error = None
        while rc is None and error is None:
            try:
                kind, data = receive_frame(self._connection)
            except OSError as problem:
                error = ClientGone(f'{self.what}: {problem}')
                break
            with self._changed:
                if kind == b'O':
                    self.stdout += data
                elif kind == b'E':
                    self.stderr += data
                elif kind == b'X':
                    rc = int(data)
                else:
                    error = NotStarted(f'{self.what}: {data.decode()}')
                self._changed.notify_all()
        with self._changed:
            self.rc, self._error = rc, error
            self._changed.notify_all()
        self._connection.close()

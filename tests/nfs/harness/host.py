# SPDX-License-Identifier: LGPL-3.0-or-later
"""Small things that the harness needs of the host: waiting, processes, logs."""

import ctypes
import os
import signal
import subprocess
import time

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x20000

# Paths of logs that explain a failure: conftest.py prints the ends of them.
logs = []


class Timeout(Exception):
    """A condition did not become true in time."""


def wait_until(condition, timeout, what, interval=0.05):
    """Ask CONDITION until it gives a true value, and return that. Raises Timeout."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Timeout(f'{what}: not within {timeout} s')
        time.sleep(interval)


def tail(path, size=4000):
    """The last SIZE bytes of a file, as text; empty when there is none."""
    try:
        with open(path, 'rb') as file:
            file.seek(max(0, os.path.getsize(path) - size))
            return file.read().decode(errors='replace')
    except FileNotFoundError:
        return ''


def command(*argv):
    """Run a command of the host that must succeed; its output is part of the exception."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f'{" ".join(argv)}: exit {done.returncode}: {done.stdout.strip()}')
    return done.stdout


def own_mounts():
    """This process and its children have mounts of their own from here on.

    Another run on this machine, or any `unshare --mount`, copies the mounts of the machine. Were
    those of a test among them, the copy would keep its disk in use after the test's umount.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        error = ctypes.get_errno()
        raise OSError(error, f'a mount namespace of its own: {os.strerror(error)} (not root?)')
    command('mount', '--make-rslave', '/')


class Daemon:
    """A process of the host in a process group of its own, its output in a log file.

    It dies with the test run, however that ends (PR_SET_PDEATHSIG), so it must be started from
    the thread that lives longest, the main one.
    """

    def __init__(self, argv, log, env=None):
        self.log = log
        libc = ctypes.CDLL(None)

        def die_with_parent():
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

        with open(log, 'ab') as output:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **(env or {})}, start_new_session=True,
                preexec_fn=die_with_parent)
        self.pid = self.process.pid
        if log not in logs:
            logs.append(log)

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        """SIGKILL to the whole group; returns when the leader is gone. May be called again."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def terminate(self, timeout):
        """SIGTERM to the leader alone, then wait; returns its exit status. Raises Timeout."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise Timeout(f'process {self.pid} ignored SIGTERM for {timeout} s') from error

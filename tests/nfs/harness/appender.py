# SPDX-License-Identifier: LGPL-3.0-or-later
"""A client at work while its server goes away and comes back."""

import contextlib
import os.path

import pytest

from harness.remote import CommandFailed


def write(path, locked, mount):
    """Appends a record ten times a second, and has it made stable; renames a new checkpoint over the old one after
    each tenth. Holds a lock on LOCKED meanwhile. Ends when it is told to; prints what is acknowledged, and when, and
    when the connection of the file system at MOUNT is made anew."""
    import select
    import threading

    def tell(what):
        sys.stdout.write(f'{what} {time.monotonic()}\n')  # at once: two threads do

    def watch():
        known = None
        while True:
            with open('/proc/self/mountstats') as file:
                about = file.read().partition(f' mounted on {mount} ')[2].partition('\ndevice ')[0]
            count = next((line.split()[4] for line in about.splitlines() if line.strip().startswith('xprt:')), None)
            if known not in (None, count):
                tell('connected')
            known = count
            time.sleep(0.1)

    threading.Thread(target=watch, daemon=True).start()
    lock = open(f'{path}/{locked}', 'w')
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    log = os.open(f'{path}/log', os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    number = 0
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        os.write(log, b'%015d\n' % number)
        os.fsync(log)
        if number % 10 == 0:
            with open(f'{path}/checkpoint.new', 'wb') as file:
                file.write(number.to_bytes(8, 'big') * 20000)
                file.flush()
                os.fsync(file.fileno())
            os.rename(f'{path}/checkpoint.new', f'{path}/checkpoint')
        tell(number)
        number += 1
    fcntl.lockf(lock, fcntl.LOCK_UN)
    return number


def is_locked(path, locked):
    """Whether somebody holds the lock."""
    with open(f'{path}/{locked}', 'r+') as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
    return False


def left(path):
    """What a writer has left that failed: the last record, the checkpoint's, and names."""
    with open(f'{path}/log', 'rb') as file:
        last = file.read()[-16:]
    with open(f'{path}/checkpoint', 'rb') as file:
        checkpoint = file.read(8)
    return f'record {last}, checkpoint {int.from_bytes(checkpoint, "big")}, {sorted(os.listdir(path))}'


def read(path):
    """What is in the log, and whether the checkpoint is one of those written, whole."""
    with open(f'{path}/log', 'rb') as file:
        log = [int(line) for line in file]
    with open(f'{path}/checkpoint', 'rb') as file:
        checkpoint = file.read()
    return log, int.from_bytes(checkpoint[:8], 'big'), checkpoint == checkpoint[:8] * 20000


class Appender:
    """As above, on CLIENT in the directory PATH, right below a mount; ALSO is where the same directory is mounted once
    more."""

    def __init__(self, client, path, also):
        self.client, self.path, self.also = client, path, also
        self._remote = client.spawn_call(write, path, 'lock', os.path.dirname(path))
        self._looked = 0  # records
        self.more(5)

    def _lines(self):
        return [line.split() for line in self._remote.lines()]

    def _told(self):
        return [line for line in self._lines() if line[0] != 'connected']

    def _wait_for(self, condition, timeout, problem):
        """CONDITION() is true; a writer that ends before that has failed."""
        if not self._remote.wait_for(condition, timeout, problem):
            raise CommandFailed(f'{self._remote.what} ({self.client.call(left, self.also)})', self._remote.wait(check=False))

    def more(self, records, timeout=300):
        """Wait until so many more are acknowledged."""
        count = len(self._told()) + records
        self._wait_for(lambda: len(self._told()) >= count, timeout, f'has not written {records} more records')

    def _connected(self):
        return sum(line[0] == 'connected' for line in self._lines())

    @contextlib.contextmanager
    def cut_off(self, timeout):
        """Behind what is done in this, wait until it has another connection, and answers by it."""
        count = self._connected()
        yield
        self._wait_for(lambda: self._connected() > count, timeout, 'has no other connection')
        self.more(5, timeout)

    def _longest(self, told):
        """Time without an acknowledgement, in seconds; from when to when is the `gap`, and when connections were made the
        `connections`."""
        self.connections = [float(when) for what, when in self._lines() if what == 'connected']
        times = [float(when) for _, when in told]
        self.gap = max(zip(times, times[1:]), key=lambda gap: gap[1] - gap[0])
        return self.gap[1] - self.gap[0]

    def look(self):
        """The longest time without an acknowledgement since the last look. It goes on."""
        told = self._told()
        first, self._looked = self._looked, len(told) - 1
        return self._longest(told[first:])

    def check(self):
        """End it; nothing acknowledged is lost, nothing is there twice, and the lock was kept. The longest time without an
        acknowledgement."""
        self.more(5)
        assert self.client.call(is_locked, self.also, 'lock')
        told = self._told()
        longest = self._longest(told)
        self._remote.write(b'stop')
        self._remote.close_input()
        assert self._remote.wait(timeout=120).rc == 0
        self.client.drop_caches()
        log, checkpoint, whole = self.client.call(read, self.also)
        assert log == list(range(len(log))) and len(log) >= len(told)
        assert whole and checkpoint == (len(log) - 1) // 10 * 10
        return longest


@pytest.fixture
def told(request, record_property, capsys):
    """Tells a figure with the name of the test."""
    def tell(seconds, what='longest gap'):
        record_property(what, seconds)
        with capsys.disabled():
            print(f'\n{request.node.name}: {what} {seconds:.1f} s')

    return tell

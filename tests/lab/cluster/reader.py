# SPDX-License-Identifier: LGPL-3.0-or-later
"""Clients that read while a node goes away: a dataset from another one, and a checkpoint that another client replaces."""


def read(path, digest):
    """Reads the file from the server, again and again, until it is told to stop; prints from when to when, if it was right. A read takes most
    of a second of emulated processors, which are to have time for what is tested."""
    import select
    while not select.select([sys.stdin], [], [], 2.5)[0]:
        began = time.monotonic()
        with open(path, 'rb') as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert hashlib.sha256(file.read()).hexdigest() == digest, 'a wrong byte'
        print(began, time.monotonic(), flush=True)


SECONDS_A_READING = 12  # at most, in a slow hour: it takes some three
SHORT = 5  # seconds: no more is no event's, but what a client waits now and then
LOST = 15  # seconds after which a call that was lost is sent again: `timeo`


class Reader:
    """As above, on CLIENT."""

    def __init__(self, client, path, digest):
        self._remote = client.spawn_call(read, path, digest)
        self._remote.wait_for_lines(1, 300)

    def check(self, gap):
        """End it: it was always right, went on all through GAP, in which the other client waited, and no call was lost. How often it
        has read, and the longest time between two readings, in seconds."""
        readings = [tuple(map(float, line.split())) for line in self._remote.lines()]
        self._remote.write(b'stop')
        self._remote.close_input()
        assert self._remote.wait(timeout=120).rc == 0
        inside = sum(gap[0] < began and ended < gap[1] for began, ended in readings)
        waited = gap[1] - gap[0]
        assert inside >= max(waited > SHORT, waited // SECONDS_A_READING), f'it waited as well: {inside} readings'
        ends = [ended for _, ended in readings]
        longest = max(later - earlier for earlier, later in zip(ends, ends[1:]))
        assert longest < LOST, f'it waited for {longest} s'
        return len(ends), longest


def watch(path):
    """Reads a checkpoint of appender.py again and again, until it is told to stop: each is whole, and no older than the one before.
    Prints its number. One that is replaced while it is open may go with its server."""
    import errno
    import select
    last = -1

    def there():
        with open(path, 'rb') as file:
            return os.fstat(file.fileno()).st_ino

    def contents():
        """None of one that was replaced."""
        try:
            file = open(path, 'rb')
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return None
        with file:
            number = os.fstat(file.fileno()).st_ino
            try:
                return file.read()
            except OSError as error:
                if error.errno not in (errno.ESTALE, errno.EIO) or there() == number:
                    raise
                return None

    while not select.select([sys.stdin], [], [], 5)[0]:
        data = contents()
        if data is None:
            continue
        number = int.from_bytes(data[:8], 'big')
        assert len(data) == 160000 and data == data[:8] * 20000, f'a checkpoint that is not whole: {len(data)} bytes'
        assert number >= last, f'checkpoint {last}, and then {number}'
        last = number
        print(number, flush=True)


class Watcher:
    """As above, on CLIENT."""

    def __init__(self, client, path):
        self._remote = client.spawn_call(watch, path)
        self._remote.wait_for_lines(1, 300)

    def check(self):
        """End it."""
        self._remote.wait_for_lines(len(self._remote.lines()) + 1, 300)
        self._remote.write(b'stop')
        self._remote.close_input()
        done = self._remote.wait(timeout=120)
        assert done.rc == 0, done

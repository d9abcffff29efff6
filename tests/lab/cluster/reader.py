# SPDX-License-Identifier: LGPL-3.0-or-later
"""A client that reads a dataset from one node while another goes away."""


def read(path, digest):
    """Reads the file from the server, again and again, until it is told to stop; prints when it has been right."""
    import select
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        with open(path, 'rb') as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert hashlib.sha256(file.read()).hexdigest() == digest, 'a wrong byte'
        print(time.monotonic(), flush=True)


class Reader:
    """As above, on CLIENT."""

    def __init__(self, client, path, digest):
        self._remote = client.spawn_call(read, path, digest)
        self.more(2)

    def more(self, times):
        """Wait until it has been read so many times more."""
        self._remote.wait_for_lines(len(self._remote.lines()) + times, 300)

    def check(self, gap):
        """End it: it was always right, and went on in GAP, in which the other node's client waited. The longest time that it
        took, in seconds."""
        times = [float(line) for line in self._remote.lines()]
        self._remote.write(b'stop')
        self._remote.close_input()
        assert self._remote.wait(timeout=120).rc == 0
        assert [when for when in times if gap[0] < when < gap[1]], 'it waited as well'
        return max(later - earlier for earlier, later in zip(times, times[1:]))

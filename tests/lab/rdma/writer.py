# SPDX-License-Identifier: LGPL-3.0-or-later
"""A client at work while something breaks."""

# Writes files until it is told to stop, each with its own number, and reads them all again.
WRITER = '''
import os, select, sys
path, size, count = sys.argv[1], 262144, 0
while not select.select([sys.stdin], [], [], 0)[0]:
    with open(f'{path}/{count}', 'wb') as file:
        file.write(count.to_bytes(4, 'big') * (size // 4))
        os.fsync(file.fileno())
    count += 1
    print(count, flush=True)
with open('/proc/sys/vm/drop_caches', 'w') as file:
    file.write('3')
for i in range(count):
    with open(f'{path}/{i}', 'rb') as file:
        assert file.read() == i.to_bytes(4, 'big') * (size // 4), f'file {i} is wrong'
print('right', flush=True)
'''


class Writer:
    """A process on the client that writes until it is asked to stop, then checks."""

    def __init__(self, client, path):
        self.remote = client.spawn(['/usr/bin/python3', '-c', WRITER, path])

    def count(self):
        """Of files that it has written."""
        return len(self.remote.lines())

    def more(self, files, timeout=300):
        """Wait until it has written so many files more."""
        self.remote.wait_for_lines(self.count() + files, timeout)

    def check(self):
        self.remote.write(b'stop')
        assert self.remote.wait(timeout=500).stdout.endswith(b'right\n')

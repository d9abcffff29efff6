# SPDX-License-Identifier: LGPL-3.0-or-later
"""A disk that stands still or breaks at a test's word, for files that are a pool's devices."""

import array
import contextlib
import fcntl
import os
import subprocess

from harness.host import command, wait_until

EXT4_IOC_SHUTDOWN = 0x8004587d
NO_LOG_FLUSH = 2


class Disk:
    """An ext4 file system in a sparse file, mounted at `path`.

    A keeper outlives the test run, however that ends: it thaws and unmounts, since what waits for
    a frozen file system cannot be killed. The mount is the run's own (host.own_mounts()): nobody
    else keeps it.
    """

    def __init__(self, workdir, size=8 << 30):
        self.path = os.path.join(workdir, 'disk')
        self.image = f'{self.path}.ext4'
        with open(self.image, 'wb') as file:
            file.truncate(size)
        command('mkfs.ext4', '-q', self.image)
        os.mkdir(self.path)
        self._mount()
        self._keeper = subprocess.Popen(
            ['sh', '-c', 'cat >/dev/null; fsfreeze -u "$1"; umount -l "$1"', 'sh', self.path],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)

    def _mount(self):
        command('mount', '-o', 'loop', self.image, self.path)

    @contextlib.contextmanager
    def frozen(self):
        """Meanwhile writes and flushes wait, reads do not."""
        command('fsfreeze', '--freeze', self.path)
        try:
            yield
        finally:
            command('fsfreeze', '--unfreeze', self.path)

    def fail(self):
        """Every access from here on is an I/O error; of a frozen disk also those that wait."""
        directory = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(directory, EXT4_IOC_SHUTDOWN, array.array('I', [NO_LOG_FLUSH]))
        os.close(directory)

    def repair(self):
        """With what had been flushed. Its users must have ended."""
        # the kernel closes a dead process's files a moment later where they were io_uring's
        wait_until(lambda: subprocess.run(['umount', self.path], stderr=subprocess.DEVNULL)
                   .returncode == 0, 60, f'{self.path}: nobody uses it')
        self._mount()

    def close(self):
        self._keeper.stdin.close()
        self._keeper.wait()
        os.unlink(self.image)

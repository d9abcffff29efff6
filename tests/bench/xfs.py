# SPDX-License-Identifier: LGPL-3.0-or-later
"""nfs-ganesha's FSAL_VFS on XFS, on the disk that Millrace's devices are files of: a loop device with
direct I/O over a file that was written once. Volumes in WSYNC lie on a second one, mounted `wsync`: XFS
then promises what Millrace does, that what a create or an unlink did is durable when it is answered."""

import os
import subprocess

import fio
from disks import attach
from harness.host import command
from harness.reference import ReferencePool
from testbed import ran

WSYNC = ('wsync',)


class Xfs:
    def __init__(self, path, size, *options):
        self.path = path
        self.image = f'{path}.xfs'
        self.loop = None
        os.mkdir(path)
        with open(self.image, 'wb') as file:
            file.truncate(size)
        fio.fill([self.image], size)
        try:
            self.loop = attach(self.image)
            self.run('mkfs.xfs', '-q', '-f', self.loop)
            self.run('mount', '-t', 'xfs', '-o', ','.join(['defaults', *options]), self.loop, path)
        except BaseException:
            self.close()
            raise

    def run(self, *argv):
        ran(argv, [os.path.dirname(self.path)])
        command(*argv)

    def close(self):
        subprocess.run(['umount', self.path], stderr=subprocess.DEVNULL)
        if self.loop:
            subprocess.run(['losetup', '-d', self.loop], stderr=subprocess.DEVNULL)
        self.loop = None


class XfsPool(ReferencePool):
    def __init__(self, workdir, size, wsync_size):
        super().__init__(workdir)
        self.disks = []
        try:
            self.disks.append(Xfs(os.path.join(workdir, 'plain'), size))
            self.disks.append(Xfs(os.path.join(workdir, 'wsync'), wsync_size, 'wsync'))
        except BaseException:
            self.close()
            raise

    def path(self, volume):
        return os.path.join(self.disks[volume in WSYNC].path, volume)

    def close(self):
        for disk in self.disks:
            disk.close()
        super().close()

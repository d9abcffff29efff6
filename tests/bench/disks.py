# SPDX-License-Identifier: LGPL-3.0-or-later
"""Sets of devices to measure on: files of a disk, and memory behind a block device."""

import os
import shutil
import subprocess
import tempfile

import fio


class Files:
    """Plain files in DIRECTORY: sparse, then filled once, so that every write finds its blocks."""

    kind = 'files'

    def __init__(self, directory, count, size):
        self.place = tempfile.mkdtemp(prefix='millrace-bench-', dir=directory)
        self.paths = [os.path.join(self.place, f'd{i}') for i in range(count)]
        try:
            for path in self.paths:
                with open(path, 'wb') as file:
                    file.truncate(size)
            fio.fill(self.paths, size)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        shutil.rmtree(self.place, ignore_errors=True)


class Memory(Files):
    """Block devices in memory: loop devices with direct I/O over tmpfs; plain files of tmpfs
    where there are no loop devices. (brd would be better still, but keeps its memory for good.)"""

    kind = 'RAM'

    def __init__(self, count, size):
        self.loops = []
        super().__init__('/dev/shm', count, size)
        try:
            for path in self.paths:
                self.loops.append(attach(path))
            self.paths = list(self.loops)
            self.kind = 'RAM (loop on tmpfs)'
        except (OSError, subprocess.CalledProcessError):
            self.detach()
            self.kind = 'RAM (files of tmpfs)'

    def detach(self):
        for loop in self.loops:
            subprocess.run(['losetup', '-d', loop], stderr=subprocess.DEVNULL)
        self.loops = []

    def close(self):
        self.detach()
        super().close()


def attach(path):
    done = subprocess.run(['losetup', '--find', '--show', '--direct-io=on', path],
                          check=True, capture_output=True, text=True)
    return done.stdout.strip()

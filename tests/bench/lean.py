# SPDX-License-Identifier: LGPL-3.0-or-later
"""bench_lean, the lean client, on one server."""

import json
import os
import subprocess

from testbed import ran

POOL = 'tank'
FILE = 'big'


class Lean:
    """Each call returns what bench_lean prints: seconds, cpu, bytes, operations."""

    def __init__(self, build, address, port, depth):
        self.command = [os.path.join(build, 'bin/bench_lean'), address, str(port)]
        self.depth = depth

    def run(self, verb, volume, *arguments, depth=None):
        command = [*self.command, str(depth or self.depth), verb, f'/{POOL}/{volume}',
                   *map(str, arguments)]
        ran([os.path.basename(command[0]), 'ADDRESS', 'PORT', *command[3:]])
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f'{" ".join(done.args)}: {done.stderr}')
        return json.loads(done.stdout)

    def write(self, volume, mib, **options):
        return self.run('write', volume, FILE, mib, **options)

    def read(self, volume, size, count, mib, **options):
        return self.run('read', volume, FILE, size, count, mib, **options)

    def random(self, volume, size, count, mib, **options):
        return self.run('random', volume, FILE, size, count, mib, **options)

    def files(self, volume, names, count, **options):
        return self.run('files', volume, names, count, **options)

    def create(self, volume, first, count, **options):
        return self.run('create', volume, first, count, **options)

    def remove(self, volume, first, count, **options):
        return self.run('remove', volume, first, count, **options)

    def list(self, volume, times, **options):
        return self.run('list', volume, times, **options)

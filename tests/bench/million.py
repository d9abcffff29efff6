# SPDX-License-Identifier: LGPL-3.0-or-later
"""Many small files: ingest, memory, space, opening again."""

import json
import os
import shutil
import subprocess
import tempfile

from figures import BYTES, PER_SECOND, SECONDS, Figure, say
from testbed import ran

CODE = (4, 2)
MIB = 1 << 20
DEVICE_LEAST = 256 * MIB
POOL_BYTES = 12000  # of devices a file, all together: more than it takes, images and reserve too


def device_size(files, devices):
    return max(DEVICE_LEAST, files * POOL_BYTES // devices // MIB * MIB)


def make_devices(workdir, files):
    paths = [os.path.join(workdir, f'd{i}') for i in range(sum(CODE))]
    for path in paths:
        with open(path, 'wb') as file:
            os.posix_fallocate(file.fileno(), 0, device_size(files, len(paths)))
    return paths


def measure(options, workdir):
    figures = {
        'ingest': Figure(f'ingest of {options.files:,} files', unit=PER_SECOND),
        'cpu': Figure('CPU seconds of it, a million files', unit=SECONDS),
        'scratch': Figure('memory for metadata (LMDB), bytes a file', unit=BYTES),
        'most': Figure('most memory of the process, bytes a file', unit=BYTES),
        'used': Figure('slots of all devices, bytes a file', unit=BYTES, beside='of data', less=True),
        'open': Figure('opening the pool and the dataset, a million files', unit=SECONDS,
                       beside='goal', goal=1.0, less=True),
        'memory': Figure('memory of the process then, bytes a file', unit=BYTES),
    }
    source = tempfile.mkdtemp(prefix='millrace-bench-', dir='/dev/shm')
    try:
        run(options, figures, source, make_devices(workdir, options.files))
    finally:
        shutil.rmtree(source, ignore_errors=True)
    return list(figures.values())


def run(options, figures, source, devices):
    def program(name, *arguments):
        command = [os.path.join(options.build, 'bin', name), *map(str, arguments)]
        ran(command, [source, os.path.dirname(devices[0])])
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f'{" ".join(done.args)}: {done.stderr}')
        return json.loads(done.stdout or 'null')

    files = options.files
    say(f'making {files:,} files in memory')
    made = program('bench_million', 'tree', source, files)
    program('bench_object', 'create', *CODE, 0, *devices)
    say('ingest')
    went = program('bench_million', 'ingest', source, *devices)
    data = made['bytes'] / files
    figures['ingest'].note = f'files of {data:,.0f} bytes on average'
    figures['ingest'].add(went['files'] / went['seconds'])
    figures['cpu'].add(went['cpu'] * 1e6 / files)
    figures['scratch'].add(went['scratch'] / files)
    figures['most'].add(went['memory_most'] / files)
    figures['used'].add(went['used'] / files, data)
    say('opening')
    for _ in range(options.rounds):
        opened = program('bench_million', 'open', *devices)
        figures['open'].add(opened['seconds'] * 1e6 / files, 2)
        figures['memory'].add(opened['memory'] / files)

# SPDX-License-Identifier: LGPL-3.0-or-later
"""What a create costs in bytes written, in a small volume and in a large one: it should be the same."""

import json
import os
import subprocess

from figures import BYTES, PER_SECOND, SECONDS, Cost, Figure, say
from testbed import ran

CODE = (4, 2)
DEPTH = 64
SMALLEST = 10_000
DEVICE_LEAST = 1 << 30
POOL_BYTES = 5400  # of devices a file, all together: its metadata twice, with two devices lost
LARGER = (4 << 30, 16 << 30)  # devices, a 64th of which is journal


def sizes(most):
    """10,000 and each power of ten behind it, up to MOST."""
    return [10 ** n for n in range(4, 19) if 10 ** n <= most] or [SMALLEST]


def make_devices(workdir, size):
    """Sparse ones: what is written to them is counted, not timed."""
    paths = [os.path.join(workdir, f'd{i}') for i in range(sum(CODE))]
    for path in paths:
        with open(path, 'wb') as file:
            file.truncate(size)
    return paths


def measure(options, workdir):
    def program(name, *arguments):
        command = [os.path.join(options.build, 'bin', name), *map(str, arguments)]
        ran(command, [workdir])
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f'{" ".join(done.args)}: {done.stderr}')
        return json.loads(done.stdout or 'null')

    def creates(device_size, volumes):
        devices = make_devices(workdir, device_size)
        program('bench_object', 'create', *CODE, 0, *devices)
        return program('bench_creates', DEPTH, ','.join(map(str, volumes)), *devices)

    say(f'creates: volumes of up to {options.most:,} files')
    found = creates(max(DEVICE_LEAST, options.most * POOL_BYTES // sum(CODE) >> 20 << 20), sizes(options.most))
    by_size = [rows(at, smaller) for at, smaller in zip(found, [None, *found])]
    say('creates: longer journals')
    return [*(figure for kind in zip(*by_size) for figure in kind),
            *(replay(creates(size, [SMALLEST])[0]) for size in LARGER)]


def written(at):
    return at['journal'] + at['images'] + at['deltas'] + at['rest']


def replay(at):
    """A long journal, that most of the volume's files are in."""
    replaying = Figure(f'opening after a crash, {at["replayed"] / 2 ** 20:,.0f} MiB of journal to replay', SECONDS)
    replaying.add(at['replaying'])
    return replaying


def rows(at, smaller):
    files = f'in a volume of {at["files"]:,} files'
    create = Figure(f'bytes written by a create, {DEPTH} at once, {files}', BYTES, less=True,
                    beside='in one a tenth as large', goal=1.0 if smaller else None)
    create.note = (f'journal {at["journal"]:,.0f}, full images {at["images"]:,.0f}, deltas '
                   f'{at["deltas"]:,.0f}, checksums, headers and labels {at["rest"]:,.0f}; '
                   f'{at["creates"]:,} creates, {at["checkpoints"]} checkpoints, '
                   f'{at["full_images"]} full images')
    create.add(written(at), written(smaller) if smaller else None)
    alone = Figure(f'bytes of journal of a create, one at a time, {files}', BYTES)
    alone.add(at['alone'])
    speed = Figure(f'creates, {DEPTH} at once, {files}', PER_SECOND)
    speed.add(at['creates'] / at['seconds'], cost=Cost(at['cpu'], 0, at['creates']))
    scratch = Figure(f'memory for metadata (LMDB), bytes a file, {files}', BYTES)
    scratch.add(at['scratch'] / at['files'])
    memory = Figure(f'memory of the process, bytes a file, {files}', BYTES)
    memory.add(at['memory'] / at['files'])
    opening = Figure(f'opening the pool and the volume, {files}', SECONDS)
    opening.add(at['opening'], cost=Cost(at['opening_cpu'], 0, at['files']))
    replaying = Figure(f'opening them after a crash, {files}', SECONDS, beside='closed before')
    replaying.note = f'{at["replayed"] / 2 ** 20:,.1f} MiB of journal to replay'
    replaying.add(at['replaying'], at['opening'], cost=Cost(at['replaying_cpu'], 0, at['files']))
    return [create, alone, speed, scratch, memory, opening, replaying]

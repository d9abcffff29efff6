# SPDX-License-Identifier: LGPL-3.0-or-later
"""The object layer alone, beside fio on the same devices."""

import json
import os
import subprocess

import disks
import fio
from figures import PER_SECOND, Cost, Figure, say
from testbed import ran

MIB = 1 << 20
DEVICE = 512 * MIB
ROWS = 128  # 16 MiB of chunk: a pool of large drives has 64 MiB, which leaves small ones few slots
DEPTH = 16
RANDOM_DEPTH = 32
SUBMITTERS = 2
CODES = ((8, 2), (4, 2))


class Layer:
    """bench_object on one set of devices."""

    def __init__(self, program, data, parity, paths, workdir):
        self.program = program
        self.data, self.parity = data, parity
        self.paths = paths
        self.map = os.path.join(workdir, 'map')

    def run(self, *arguments, paths=None):
        command = [self.program, *map(str, arguments), *(paths or self.paths)]
        ran(command, [os.path.dirname(self.map), os.path.dirname(self.paths[0])])
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f'{" ".join(done.args)}: {done.stderr}')
        return json.loads(done.stdout or 'null')

    def create(self):
        self.run('create', self.data, self.parity, ROWS)

    def write(self, mib):
        return self.run('write', self.map, mib)

    def read(self, missing=0):
        return self.run('read', self.map, DEPTH, paths=self.without(missing))

    def random(self, seconds, missing=0):
        return self.run('random', self.map, RANDOM_DEPTH, SUBMITTERS, seconds,
                        paths=self.without(missing))

    def without(self, missing):
        return self.paths[:len(self.paths) - missing]


def speed(result):
    return result['bytes'] / result['seconds']


def iops(result):
    return result['operations'] / result['seconds']


def cost(result):
    return Cost(result['cpu'], result['bytes'], result['operations'])


def rows_of_table(name, data, parity):
    share = data / (data + parity)
    return {
        'write': Figure(f'{name}: write 1 MiB', beside=f'raw x {share:.2f}', goal=0.95,
                        expected=share),
        'read': Figure(f'{name}: read 1 MiB', beside='raw', goal=0.95),
        'random': Figure(f'{name}: read 4 KiB', unit=PER_SECOND, beside='raw', goal=0.95),
        'read_less': Figure(f'{name}: read 1 MiB, {parity} devices missing', beside='healthy',
                            goal=0.5),
        'random_less': Figure(f'{name}: read 4 KiB, {parity} devices missing', unit=PER_SECOND,
                              beside='healthy', goal=0.5),
    }


def one_round(layer, figures, mib, seconds):
    def pair(name, mine, other, measure=speed):
        figures[name].add(measure(mine), measure(other), cost(mine), cost(other))

    raw = fio.sequential(layer.paths, 'write', mib * MIB, DEPTH)
    layer.create()
    pair('write', layer.write(mib), raw)
    raw = fio.sequential(layer.paths, 'read', mib * MIB, DEPTH)
    healthy = layer.read()
    pair('read', healthy, raw)
    pair('read_less', layer.read(layer.parity), healthy)
    raw = fio.random(layer.paths, mib * MIB, RANDOM_DEPTH, SUBMITTERS, seconds)
    healthy = layer.random(seconds)
    pair('random', healthy, raw, iops)
    pair('random_less', layer.random(seconds, layer.parity), healthy, iops)


def measure_on(make_disks, program, code, workdir, options):
    with make_disks() as devices:
        name = f'{code[0]}+{code[1]} on {devices.kind}'
        figures = rows_of_table(name, *code)
        layer = Layer(program, *code, devices.paths, workdir)
        for number in range(options.rounds):
            say(f'{name}: round {number + 1} of {options.rounds}')
            one_round(layer, figures, options.mib, options.seconds)
    write = figures['write']
    write.note = f'{write.of_other():.2f} of raw'
    return list(figures.values())


def measure(options, workdir):
    program = os.path.join(options.build, 'bin/bench_object')
    figures = []
    for code in CODES:
        count = sum(code)
        for make in (lambda: disks.Files(options.directory, count, DEVICE),
                     lambda: disks.Memory(count, DEVICE)):
            figures += measure_on(make, program, code, workdir, options)
    return figures

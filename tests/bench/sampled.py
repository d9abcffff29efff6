# SPDX-License-Identifier: LGPL-3.0-or-later
"""Where the processor of a machine of QEMU is: the machine is stopped again and again, and its registers are looked at.

A profiler within would see little but the idle loop: where the host is busy, QEMU's emulation gives a machine its timer
interrupts when its processor halts.
"""

import bisect
import collections
import os
import re
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILT = {'/millrace/build': f'{ROOT}/build/debian13/build', '': f'{ROOT}/build/debian13/root'}
PAUSE = 0.01  # seconds between samples, and something for chance
CODE = re.compile(r'^([0-9a-f]+)-([0-9a-f]+) r-xp ([0-9a-f]+) \S+ \d+ +(/.*)$', re.MULTILINE)


class Table:
    """Names by address."""

    def __init__(self, lines):
        found = {}
        for line in lines:
            words = line.split()
            if len(words) >= 3 and words[1] in 'tTwWiu':
                found.setdefault(int(words[0], 16), words[2])
        self.addresses = sorted(found)
        self.names = [found[address] for address in self.addresses]

    def name(self, address):
        at = bisect.bisect_right(self.addresses, address) - 1
        return self.names[at].split('@')[0] if at >= 0 else '?'


class Symbols:
    """Those of a machine with Debian 13 and what was built for it."""

    def __init__(self, machine):
        self.machine = machine
        self.kernel = Table(machine.run('cat /proc/kallsyms', timeout=300).stdout.decode().splitlines())
        self.tables, self.code = {}, []

    def look(self):
        """At what the processes that run now have mapped."""
        told = self.machine.run('cat /proc/[0-9]*/maps 2>/dev/null || true', timeout=300).stdout.decode()
        self.code = [(int(start, 16), int(end, 16), int(offset, 16), path) for start, end, offset, path in CODE.findall(told)]

    def _table(self, path):
        if path not in self.tables:
            prefix = next(prefix for prefix in BUILT if path.startswith(prefix))
            file = BUILT[prefix] + path[len(prefix):]
            lines = [subprocess.run(['nm', *option, '--defined-only', file], capture_output=True, text=True).stdout.splitlines()
                     for option in ([], ['-D'])]
            self.tables[path] = Table(lines[0] + lines[1])
        return self.tables[path]

    def of_user(self, address):
        for start, end, offset, path in self.code:
            if start <= address < end:
                return f'{os.path.basename(path)}  {self._table(path).name(address - start + offset)}'
        return 'a process  ?'


def place(registers, symbols):
    """What the processor does, by QEMU's `info registers`."""
    if 'HLT=1' in registers:
        return 'idle'
    address = int(re.search(r'RIP=([0-9a-f]+)', registers).group(1), 16)
    if 'CPL=3' in registers:
        return symbols.of_user(address)
    return f'kernel  {symbols.kernel.name(address)}'


def sample(machine, symbols, seconds):
    """How often it was where, as a Counter."""
    symbols.look()
    found = collections.Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(PAUSE + int.from_bytes(os.urandom(1), 'big') / 256 * PAUSE)
        machine.qmp.ask('stop')
        registers = machine.qmp.ask('human-monitor-command', command_line='info registers')
        machine.qmp.ask('cont')
        found[place(registers, symbols)] += 1
    return found

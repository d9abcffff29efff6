# SPDX-License-Identifier: LGPL-3.0-or-later
"""A server under callgrind, and the instructions that it spends while something is done."""

import collections
import glob
import os
import subprocess

START_TIMEOUT = 120


class Counted:
    """Mixed into a server's class: the same server, counted. `preload` is a library for it."""

    preload = ''

    def argv(self):
        self.dumps = os.path.join(self.pool.workdir, 'callgrind')
        return ['env', f'LD_PRELOAD={self.preload}', 'valgrind', '-q', '--tool=callgrind',
                '--trace-children=yes', '--fair-sched=yes', '--compress-strings=no',
                '--compress-pos=no', f'--callgrind-out-file={self.dumps}.%p', *super().argv()]

    def start(self, timeout=START_TIMEOUT):
        return super().start(timeout)

    def dump(self):
        """What was spent since the last dump, by function."""
        done = subprocess.run(['callgrind_control', '--dump', str(self.pid())],
                              capture_output=True, text=True)
        found = glob.glob(f'{self.dumps}.{self.pid()}.*')
        if done.returncode != 0 or not found:
            raise RuntimeError(f'callgrind_control: {done.stderr}{done.stdout}')
        newest = max(found, key=lambda path: int(path.rsplit('.', 1)[1]))
        try:
            return functions(newest)
        finally:
            os.unlink(newest)


def functions(path):
    """Instructions of each function itself, out of a dump."""
    spent = collections.Counter()
    function, call = '', False
    with open(path) as file:
        for line in file:
            if line.startswith('fn='):
                function = line[3:].rstrip()
            elif line.startswith('calls='):
                call = True  # the next line is what the called one spent
            elif line[0].isdigit():
                if not call:
                    spent[function] += int(line.split()[1])
                call = False
    return spent

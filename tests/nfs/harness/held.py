# SPDX-License-Identifier: LGPL-3.0-or-later
"""A thread of the server that is held in the middle of a request, while something else comes about."""

import contextlib
import re
import subprocess

from harness.host import wait_until

LONGEST = 120  # seconds until gdb has read the server's symbols, and until it ends


@contextlib.contextmanager
def at(server, function, meanwhile):
    """Within it, who comes to FUNCTION first goes on when MEANWHILE, a call of a function of the server's, has returned."""
    gdb = subprocess.Popen(['gdb', '--batch', '-ex', f'tbreak {function}', '-ex', 'continue', '-ex', f'call {meanwhile}',
                            '-p', str(server.pid())],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: is_traced(server.pid()), LONGEST, 'gdb has attached')  # nothing is answered until it waits there
        yield
        said = gdb.communicate(timeout=LONGEST)[0]
        assert re.search(rf'hit Temporary breakpoint 1, .*{function} \(', said) and '$1 = ' in said, said
    finally:
        gdb.kill()
        gdb.wait()


def is_traced(pid):
    with open(f'/proc/{pid}/status') as status:
        return re.search(r'^TracerPid:\s+[1-9]', status.read(), re.MULTILINE)

# SPDX-License-Identifier: LGPL-3.0-or-later
"""A thread of the server that is held in the middle of a request, while something else comes about."""

import contextlib
import os
import re
import signal
import subprocess

from harness.host import wait_until

LONGEST = 120  # seconds until gdb has attached, and until it ends


@contextlib.contextmanager
def at(server, function, meanwhile):
    """Within it, who comes to FUNCTION first goes on when MEANWHILE, a call of a function of the server's, has returned."""
    gdb = subprocess.Popen(['gdb', '--batch', '-ex', f'tbreak {function}', '-ex', 'continue', '-ex', f'call {meanwhile}',
                            '-p', str(server.pid())],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: gdb.poll() is not None or is_held(server.pid()), LONGEST, 'gdb has all threads')
        yield  # nothing is answered until gdb waits at FUNCTION
    except BaseException:
        gdb.send_signal(signal.SIGINT)  # lets the server go, without what was put into its code
        print(said_by(gdb))
        raise
    said = said_by(gdb)
    assert re.search(rf'hit Temporary breakpoint 1[.1]*, .*{function} \(', said) and '$1 = ' in said, said


def said_by(gdb):
    try:
        return gdb.communicate(timeout=LONGEST)[0]
    except subprocess.TimeoutExpired:
        gdb.kill()
        return gdb.communicate()[0]


def is_held(pid):
    """Whether a debugger has each thread."""
    for thread in os.listdir(f'/proc/{pid}/task'):
        with open(f'/proc/{pid}/task/{thread}/status') as status:
            if not re.search(r'^TracerPid:\s+[1-9]', status.read(), re.MULTILINE):
                return False
    return True

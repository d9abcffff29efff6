# SPDX-License-Identifier: LGPL-3.0-or-later
"""Changes of names that a client makes while it does not hear the server."""

import os
import time

from harness.wire import NOENT, OK

KINDS = ('rename', 'remove', 'link', 'symlink', 'mkdir')
FILES = 'echo old >checkpoint; echo new >checkpoint.new; sync'


def change(kind, path):
    """When the server's answers are lost; it asks for nothing before that, as it has asked. For spawn_call, in a
    directory that has FILES."""
    for name in ('checkpoint', 'checkpoint.new', 'second'):
        os.path.exists(f'{path}/{name}')
    print('soon', flush=True)
    time.sleep(1)
    if kind == 'rename':
        os.rename(f'{path}/checkpoint.new', f'{path}/checkpoint')
    elif kind == 'remove':
        os.remove(f'{path}/checkpoint.new')
    elif kind == 'link':
        os.link(f'{path}/checkpoint.new', f'{path}/second')
    elif kind == 'symlink':
        os.symlink('checkpoint.new', f'{path}/second')
    else:
        os.mkdir(f'{path}/second')


def comes_to(kind):
    """A name, and what looking it up tells once the change is done."""
    return ('second', OK) if kind in ('link', 'symlink', 'mkdir') else ('checkpoint.new', NOENT)

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Commands and mounts on a machine where client/agent.py runs."""

import inspect
import json
import os
import re
import textwrap

from harness.host import Timeout
from harness.remote import CommandFailed, Remote

MOUNT_TIMEOUT = 120

# What a function that runs on the client may use without an import of its own.
MODULES = ('errno', 'fcntl', 'hashlib', 'json', 'mmap', 'os', 'random', 'shutil', 'signal', 'stat',
           'struct', 'subprocess', 'sys', 'threading', 'time')


class Commands:
    """A machine with an agent at `_agent` (address, port), and `server_address` to mount from.
    `_spawned` holds the commands that may still run there."""

    def spawn(self, cmd, cwd=None, env=None, user=None, group=None):
        """Start CMD (a list, or text for a shell) and return its Remote."""
        argv = ['/bin/sh', '-c', cmd] if isinstance(cmd, str) else [os.fspath(a) for a in cmd]
        what = cmd if isinstance(cmd, str) else ' '.join(argv)[:200]
        return self._ask(what, {'argv': argv}, cwd, env, user, group)

    def _ask(self, what, program, cwd=None, env=None, user=None, group=None):
        remote = Remote(self._agent, what, {
            **program, 'cwd': cwd, 'env': env, 'user': user, 'group': user if group is None else group})
        self._spawned = [other for other in self._spawned if other.running()] + [remote]
        return remote

    def _end(self, remote, timeout, check):
        try:
            return remote.wait(timeout, check)
        except Timeout as error:
            raise Timeout(f'{error}{self.explain()}') from None
        finally:
            remote.kill()

    def explain(self):
        """What is to be said of a command that did not end, and still runs."""
        return ''

    def kill_commands(self):
        """End every command that still runs, as those of a test that failed half-way."""
        for remote in self._spawned:
            remote.kill()
        for remote in self._spawned:
            remote.join(timeout=60)
        self._spawned = []

    def run(self, cmd, timeout=60, check=True, input=None, **options):
        """Run CMD to its end; returns (rc, stdout, stderr), the outputs as bytes."""
        remote = self.spawn(cmd, **options)
        remote.write(input)
        remote.close_input()
        return self._end(remote, timeout, check)

    def spawn_call(self, function, *args, helpers=(), **options):
        """Start a Python function on the client: its source goes there, so it may use only its
        arguments (what JSON can carry), the modules in MODULES and the functions in HELPERS."""
        source = '\n'.join(textwrap.dedent(inspect.getsource(f)) for f in (*helpers, function))
        # an import of all of them takes half a second of a User Mode Linux
        wanted = ['json'] + [name for name in MODULES if re.search(rf'\b{name}\b', source)]
        source = f'import {", ".join(wanted)}\n{source}'
        source += f'print("\\n" + json.dumps({function.__name__}(*json.loads({json.dumps(args)!r}))))\n'
        return self._ask(f'{function.__name__}{args}', {'source': source}, **options)

    def call(self, function, *args, timeout=120, **options):
        """Run a Python function on the client and return what it returned (see spawn_call).

        An exception there is a CommandFailed here, with the traceback.
        """
        remote = self.spawn_call(function, *args, **options)
        result = self._end(remote, timeout, check=False)
        if result.rc != 0:
            raise CommandFailed(f'{function.__name__}{args}', result)
        return json.loads(result.stdout.decode().rstrip('\n').rsplit('\n', 1)[-1])

    # Mounts

    def mount(self, export, path, options='vers=4.1,proto=tcp', port=2049, timeout=MOUNT_TIMEOUT,
              server=None):
        """Mount the server's EXPORT at PATH, made here; SERVER is another one's address. The kernel's
        own mount, without the helper of nfs-common: so the options name the server's address."""
        server = server or self.server_address
        if 'port=' not in options:
            options += f',port={port}'
        self.run(['mkdir', '-p', path])
        host = f'[{server}]' if ':' in server else server
        self.run(['mount', '-i', '-t', 'nfs', '-o', f'{options},addr={server}', f'{host}:{export}', path],
                 timeout=timeout)

    def umount(self, path, force=False):
        """Unmount PATH; FORCE when its server is gone for good."""
        self.run(['umount', '-i', *(['-f', '-l'] if force else []), path], timeout=MOUNT_TIMEOUT)

    def drop_caches(self):
        """Forget everything cached: what is read next comes from the server."""
        self.run('sync; echo 3 > /proc/sys/vm/drop_caches')

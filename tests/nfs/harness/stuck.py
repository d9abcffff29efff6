# SPDX-License-Identifier: LGPL-3.0-or-later
"""What a client and its server are doing while a test has waited for them in vain."""

import subprocess

LONGEST = 60  # seconds that one of the looks may take
CONNECTIONS = ['ss', '--tcp', '--all', '--numeric', '--options', '--info', '--memory']  # and what is in their queues
THREADS = ['gdb', '--batch', '-ex', 'set pagination off', '-ex', 'thread apply all backtrace 24', '-p']
CALLS = r'''
grep -e xprt: -e '[A-Z]: [1-9]' /proc/self/mountstats  # calls and replies, in all and of each operation
cat /proc/net/tcp
for process in /proc/[0-9]*; do
    line=$(tr '\0' ' ' <"$process/cmdline" | tr '\n' ' ' | cut -c -120)
    [ -n "$line" ] || grep -q -e nfs -e rpc "$process/stack" || continue
    echo "$process: $(cat "$process/comm"): $line"
    cat "$process/stack"
done'''


def of_host(argv):
    """What a command of the host says, whatever comes of it."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors='replace', timeout=LONGEST).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def of_client(client):
    """The calls that it waits for, and where its processes are; less, where it is as stuck as the test."""
    remote = None
    try:
        remote = client.spawn(CALLS)
        remote.join(LONGEST)
        return (remote.stdout + remote.stderr).decode(errors='replace')
    except OSError as error:
        return f'{client.name}: {error}'
    finally:
        if remote:
            remote.kill()


def of_server(server):
    """(title, text) of its connections, and of its threads while it runs."""
    yield 'connections', of_host(CONNECTIONS)
    if server.alive():
        yield 'threads of the server', of_host([*THREADS, str(server.pid())])

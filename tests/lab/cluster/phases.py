# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the time went with in which a client had no answer: what pacemaker, the servers and the client have logged, by the
clock of this machine."""

import re
import subprocess
import sys
import time
from datetime import datetime

from cluster import POOL

# What ends each phase, in order; not each event has all of them.
PHASES = {
    'detection': r'Requesting fencing \(|Requesting local execution of stop operation for \S+-server|'
                 r'Result of monitor operation for \S+-server on \S+: (?!OK)',
    'fencing': r'Peer \S+ was terminated',
    'stopping': r'Result of stop operation for \S+-server on \S+: OK',
    'handover': r'Requesting local execution of start operation for \S+-server',
    'opening': r'FSAL NVME is up',
    'address': r'Result of start operation for \S+-address on \S+: OK',
    'server': r'NFS SERVER INITIALIZED',
    'reconnect': r'connected',
    'reclaim': r'acknowledged',
}
SLACK = 0.5  # seconds: what clocks are taken with
LOGS = (f'journalctl -q -o short-unix -n 3000 -u pacemaker | grep -E "Requesting|Result of|was terminated"; '
        f'tail -n 200 /var/lib/millrace/log/{POOL}.log; true')


def when(line):
    """In seconds of that machine's clock, or None."""
    word = line.split(' ', 1)[0]
    if re.fullmatch(r'\d+\.\d+', word):
        return float(word)
    try:
        return datetime.strptime(word, '%Y-%m-%dT%H:%M:%S.%f%z').timestamp()
    except ValueError:
        return None


def ahead_by(ask):
    """How many seconds a clock is ahead of this machine's: that of the quickest of a few times it is asked."""
    found = []
    for _ in range(4):
        began = time.time()
        told = ask()
        took = time.time() - began
        found.append((took, told - began - took / 2))
    return min(found)[1]


def told_by(node):
    """(when, line) of what NODE has logged; nothing when it is on its way down, or up."""
    try:
        ahead = ahead_by(lambda: float(node.run('date +%s.%N', timeout=30)))
        lines = node.run(LOGS, timeout=120).splitlines()
    except (AssertionError, subprocess.TimeoutExpired):
        return []
    times = [when(line) for line in lines]
    return [(moment - ahead, line) for moment, line in zip(times, lines) if moment is not None]


def tell_time():
    for _ in sys.stdin:
        print(time.monotonic(), flush=True)


def client_ahead_by(client):
    """Of the clock that a client's commands have."""
    remote = client.spawn_call(tell_time)

    def ask():
        count = len(remote.lines())
        remote.write(b'\n')
        remote.wait_for_lines(count + 1, 60)
        return float(remote.lines()[count])

    ask()  # it starts
    ahead = ahead_by(ask)
    remote.close_input()
    remote.wait(timeout=60)
    return ahead


def logs_of(cluster):
    """(when, line) of all its nodes that are up."""
    return [told for node in cluster.nodes if node.is_on() and node.answers() for told in told_by(node)]


def phases(lines, client, writer):
    """Seconds of each phase of the longest time in which WRITER had no answer: none where no server was begun in it, as
    the nodes have LINES of."""
    ahead = client_ahead_by(client)
    begin, end = (moment - ahead for moment in writer.gap)
    lines = lines + [(moment - ahead, 'connected') for moment in writer.connections] + [(end, 'acknowledged')]
    lines = sorted(line for line in lines if begin - SLACK <= line[0] <= end)
    found, last = {}, begin
    if not any(re.search(PHASES['opening'], line) for _, line in lines):
        return found
    for name, pattern in PHASES.items():
        times = [moment for moment, line in lines if re.search(pattern, line)]
        if not times:
            continue
        # Who starts a server again and again, or connects, gets there by the last; the others are begun once.
        moment = max(times[-1] if name in ('opening', 'server', 'reconnect', 'reclaim') else times[0], last)
        found[name] = round(moment - last, 2)
        last = moment
    return found

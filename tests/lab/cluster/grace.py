# SPDX-License-Identifier: LGPL-3.0-or-later
"""A client that dies in grace, of whichever cluster."""

import signal
import time

from cluster import MINE, SERVICE
from phases import SLACK, told_by

GRACE = 30  # seconds: one and a half of a service's lease


def dies_in_grace(cluster, clients, work, dying):
    """It is waited for, as long as grace lasts, and nobody has what it had locked before that is over."""
    owner, pid = cluster.serving()
    work.read_at(owner)
    dying.pause()  # so that it has reclaimed nothing when it dies
    owner.run(f'kill -{signal.SIGKILL} {pid}')
    cluster.wait_for_another_server(owner, pid)
    dying.power_off()
    clients['rdma'].run(f'flock {MINE}/dying true', timeout=300)
    locked = time.time()
    owner = cluster.owner()
    assert not owner.json(f'millrace service end-grace {SERVICE}')['grace_ended']  # it was over
    began, over = (max(moment for moment, line in told_by(owner) if what in line) for what in ('Now IN GRACE', 'NOT IN GRACE'))
    assert over > began + GRACE - SLACK, f'it lasted {over - began} s'
    assert locked > over - SLACK, f'{over - locked} s before'
    work.check()

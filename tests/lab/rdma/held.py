# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the server holds for its connections over RDMA."""

import collections
import re

from harness.host import wait_until

Held = collections.namedtuple('Held', 'regions pairs pinned threads')
GONE_TIMEOUT = 240
WORKERS = 16  # RPC_Ioq_ThrdMax


class Rdma:
    """What the server holds for its connections over RDMA."""

    def __init__(self, service):
        self.service = service

    def held(self):
        """Memory regions, queue pairs, pinned kB and threads of the server's process."""
        told = self.service.node.run(
            'pid=$(pidof -s ganesha.nfsd); rdma resource show mr | grep -c ganesha.nfsd; '
            'rdma resource show qp | grep -c ganesha.nfsd; grep VmPin /proc/$pid/status; '
            'grep Threads /proc/$pid/status')
        return Held(*map(int, re.findall(r'\d+', told)))

    def wait_for(self, held):
        """Wait until no more is held than HELD says, but for workers that stay for a while."""
        most = held._replace(threads=held.threads + WORKERS)
        wait_until(lambda: all(now <= then for now, then in zip(self.held(), most)), GONE_TIMEOUT,
                   f'the server holds no more than {held}', interval=1)

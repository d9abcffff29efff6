# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the server holds for its connections over RDMA, and how often it turns to a device."""

import collections
import contextlib
import re
import types

from harness.host import Timeout, wait_until

Held = collections.namedtuple('Held', 'regions pairs pinned threads')
GONE_TIMEOUT = 240
WORKERS = 16  # RPC_Ioq_ThrdMax
SLAB_KB = 8 * 1088  # by so much the server's memory for large data grows (appliance/ntirpc/rdma_memory.c)
ARENA_KB = 64 << 10  # the engine's buffers, which a device's first connection registers with it
CONNECTION_KB = 1520  # 160 calls of two buffers of 4 KiB, 16 calls back of one, and what the device takes
TRACING = '/sys/kernel/tracing'
POST_BYTES = 32  # of struct ibv_post_send, which rdma-core writes to a soft device for each ibv_post_send()


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

    def held_by_none(self):
        """What is held when no connection is left."""
        wait_until(lambda: self.held().pairs == 0, GONE_TIMEOUT, 'no connection is left', interval=1)
        return self.held()

    def wait_for(self, held):
        """Wait until no more is held than HELD says, but for workers that stay for a while."""
        most = held._replace(threads=held.threads + WORKERS)
        held_now = []

        def is_no_more():
            held_now[:] = [self.held()]
            return all(now <= then for now, then in zip(held_now[0], most))

        try:
            wait_until(is_no_more, GONE_TIMEOUT, f'the server holds no more than {held}', interval=1)
        except Timeout as timeout:
            raise Timeout(f'{timeout}, but {held_now[0]}') from None

    @contextlib.contextmanager
    def posts(self):
        """Its `count` is how often the server has posted to soft RoCE meanwhile, however long the chains: by the kernel's
        trace of writes."""
        node, event, posts = self.service.node, f'{TRACING}/events/syscalls/sys_enter_write', types.SimpleNamespace()
        pid = self.service.pid()
        fd, = node.run(f'find /proc/{pid}/fd -lname "*/uverbs*" -printf "%f\\n"').split()
        node.run(f'mountpoint -q {TRACING} || mount -t tracefs tracefs {TRACING}; ls /proc/{pid}/task >{TRACING}/set_event_pid && '
                 f'echo "fd == {fd} && count == {POST_BYTES}" >{event}/filter && echo >{TRACING}/trace && echo 1 >{event}/enable')
        try:
            yield posts
        finally:
            posts.count = int(node.run(f'echo 0 >{event}/enable; echo >{TRACING}/set_event_pid; grep -c sys_write {TRACING}/trace '
                                       '|| true'))

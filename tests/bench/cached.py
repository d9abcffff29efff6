# SPDX-License-Identifier: LGPL-3.0-or-later
"""The block cache of a served pool, as a measurement wants it."""

from harness.server import Pool

NONE = '0'
DEFAULT = 'auto'


class CachedPool(Pool):
    def cache(self, size):
        self.verb('pool', 'set', self.name, f'cache.size={size}')

    def forget(self, size):
        """What is in the cache; it has that size then."""
        self.cache(NONE)
        self.cache(size)

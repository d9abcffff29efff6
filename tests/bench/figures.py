# SPDX-License-Identifier: LGPL-3.0-or-later
"""Figures: how often something is measured, and what is kept of it."""

import collections
import statistics
import sys

Unit = collections.namedtuple('Unit', 'name scale decimals')
RATE = Unit('MB/s', 1e6, 0)
PER_SECOND = Unit('/s', 1, 0)
INSTRUCTIONS = Unit('instructions', 1, 0)
BYTES = Unit('bytes', 1, 0)
SECONDS = Unit('s', 1, 2)

# What a server, or a program, spent on something: CPU seconds, user and system, on bytes and operations.
Cost = collections.namedtuple('Cost', 'cpu bytes operations')


def say(text):
    """What goes on, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def per_gib(cost):
    return cost.cpu / (cost.bytes / (1 << 30)) if cost and cost.bytes else None


def per_100k(cost):
    return cost.cpu / cost.operations * 1e5 if cost and cost.operations else None


class Figure:
    """One row: what was measured, beside what it is compared with.

    A pair is of one round, taken one right after the other; the ratio is the median of the pairs'
    ratios, so that a machine that is slow for a while is slow for both. It says how many times
    better ours is: LESS where the smaller value is the better one.
    """

    def __init__(self, what, unit=RATE, beside='', goal=None, expected=1.0, less=False, note=''):
        self.what = what
        self.unit = unit
        self.beside = beside
        self.goal = goal
        self.expected = expected  # the share of the other that the code of the pool allows
        self.less = less
        self.note = note
        self.pairs = []
        self.costs = []

    def add(self, mine, other=None, cost=None, other_cost=None):
        self.pairs.append((mine, other))
        self.costs.append((cost, other_cost))

    def ratios(self):
        """Of each round."""
        pairs = [(mine, other * self.expected) for mine, other in self.pairs if other]
        return [other / mine if self.less else mine / other for mine, other in pairs]

    def ratio(self):
        return median(self.ratios())

    def of_other(self):
        return median([mine / other for mine, other in self.pairs if other])

    def side(self, i):
        """Ours (0), the other (1): what is kept of all rounds; None when it was not measured."""
        values = [pair[i] for pair in self.pairs]
        if None in values:
            return None
        costs = [cost[i] for cost in self.costs]
        return {'median': median(values), 'min': min(values), 'max': max(values),
                'rounds': values, 'cpu_seconds_per_gib': median(map(per_gib, costs)),
                'cpu_seconds_per_100k': median(map(per_100k, costs))}

    def as_json(self):
        return {'what': self.what, 'unit': self.unit.name, 'better': 'less' if self.less else 'more',
                'ratio': self.ratio(), 'ratios': self.ratios(), 'goal': self.goal,
                'millrace': self.side(0), 'beside': self.beside, 'other': self.side(1),
                'note': self.note}

    def number(self, value):
        return f'{value / self.unit.scale:,.{self.unit.decimals}f}'

    def show(self, value):
        gap = '' if self.unit.name.startswith('/') else ' '
        return f'{self.number(value)}{gap}{self.unit.name}'

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Figures: how often something is measured, what is kept of it, how it is printed."""

import statistics
import sys


def say(text):
    """What goes on, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def rate(bytes_per_second):
    return f'{bytes_per_second / 1e6:,.0f} MB/s'


def per_second(count):
    return f'{count:,.0f}/s'


class Figure:
    """One row of the table: what was measured, beside what it is compared with.

    A pair is of one round, taken one right after the other; the ratio is the median of the pairs'
    ratios, so that a machine that is slow for a while is slow for both.
    """

    def __init__(self, what, show=rate, beside='', goal=None, expected=1.0):
        self.what = what
        self.show = show
        self.beside = beside
        self.goal = goal
        self.expected = expected  # the share of the other that the code of the pool allows
        self.pairs = []
        self.cpu = []
        self.note = ''

    def add(self, mine, other=None, cpu=None, other_cpu=None):
        self.pairs.append((mine, other))
        self.cpu.append((cpu, other_cpu))

    def ratio(self):
        return median([mine / (other * self.expected) for mine, other in self.pairs if other])

    def of_other(self):
        return median([mine / other for mine, other in self.pairs if other])

    def as_json(self):
        return {'what': self.what, 'value': median([p[0] for p in self.pairs]),
                'beside': self.beside, 'other': median([p[1] for p in self.pairs]),
                'ratio': self.ratio(), 'of_other': self.of_other(), 'goal': self.goal,
                'cpu_per_gib': median([c[0] for c in self.cpu]),
                'other_cpu_per_gib': median([c[1] for c in self.cpu]),
                'pairs': self.pairs, 'note': self.note}

    def cells(self):
        mine, other = (median([pair[i] for pair in self.pairs]) for i in (0, 1))
        cpu = [median([c[i] for c in self.cpu]) for i in (0, 1)]
        return [number(self.ratio()), number(self.goal), self.what,
                self.show(mine) if mine is not None else '',
                f'{self.show(other)} {self.beside}'.strip() if other is not None else '',
                ' / '.join(number(c) for c in cpu if c is not None), self.note]


HEADINGS = ['ratio', 'goal', 'what', 'Millrace', 'beside it', 'CPU s/GiB, both', 'remark']


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def number(value):
    return '' if value is None else f'{value:.2f}'


def table(title, figures):
    rows = [figure.cells() for figure in figures if figure.pairs]
    lines = [f'### {title}', '']
    lines += ['| ' + ' | '.join(row) + ' |' for row in [HEADINGS, ['---'] * len(HEADINGS)] + rows]
    return '\n'.join(lines) + '\n'

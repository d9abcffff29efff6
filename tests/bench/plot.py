# SPDX-License-Identifier: LGPL-3.0-or-later
"""Ratios as a bar chart in SVG: a bar for each row, a line from its least to its greatest round."""

from xml.sax.saxutils import escape

ROW = 22
NAMES = 480  # pixels
BARS = 420
MOST = 4  # a longer bar is cut, its number says so
ENOUGH = '#3a7d44'
TOO_LITTLE = '#b5542d'


def chart(title, figures):
    """Of the FIGURES that have a ratio; empty when none has."""
    figures = [figure for figure in figures if figure.ratio() is not None]
    if not figures:
        return ''
    most = min(MOST, max(1.2, *(max(figure.ratios()) for figure in figures)) * 1.05)
    height = ROW * (len(figures) + 2)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{NAMES + BARS + 70}" '
             f'height="{height}" font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="8" y="16" font-weight="bold">{escape(title)}: times what stands beside it</text>']
    for i, figure in enumerate(figures):
        parts += bar(figure, ROW * (i + 1) + 4, most)
    one = x(1, most)
    parts += [f'<line x1="{one}" x2="{one}" y1="{ROW}" y2="{height - ROW}" stroke="black"/>',
              f'<text x="{one}" y="{height - 6}" text-anchor="middle">1</text>', '</svg>', '']
    return '\n'.join(parts)


def x(ratio, most):
    return round(NAMES + BARS * min(ratio / most, 1), 1)


def bar(figure, y, most):
    ratio, ratios = figure.ratio(), figure.ratios()
    enough = figure.goal is None or ratio >= figure.goal
    middle = y + ROW / 2 - 2
    beside = f', beside {figure.beside}' if figure.beside else ''
    yield f'<text x="8" y="{y + 13}">{escape(figure.what + beside)}</text>'
    yield (f'<rect x="{NAMES}" y="{y}" width="{round(x(ratio, most) - NAMES, 1)}" height="{ROW - 5}" '
           f'fill="{ENOUGH if enough else TOO_LITTLE}"/>')
    yield (f'<line x1="{x(min(ratios), most)}" x2="{x(max(ratios), most)}" y1="{middle}" '
           f'y2="{middle}" stroke="black"/>')
    if figure.goal is not None:
        goal = x(figure.goal, most)
        yield f'<line x1="{goal}" x2="{goal}" y1="{y}" y2="{y + ROW - 5}" stroke="blue" stroke-width="2"/>'
    yield f'<text x="{NAMES + BARS + 8}" y="{y + 13}">{ratio:.2f}</text>'

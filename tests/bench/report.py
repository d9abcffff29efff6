# SPDX-License-Identifier: LGPL-3.0-or-later
"""A report: report.md for people, report.json (report.schema.json says what is in it), a plot of each
part's ratios."""

import json
import os

import plot

HEADINGS = ['ratio', 'goal', 'what', 'Millrace', 'beside it', 'CPU s/GiB', 'CPU s/100,000', 'remark']


def number(value):
    return '' if value is None else f'{value:.2f}'


def lines_of(rows):
    return ['| ' + ' | '.join(row) + ' |' for row in rows]


def value(figure, side):
    """The median, and how far the rounds went."""
    if side is None:
        return ''
    text = figure.show(side['median'])
    if side['min'] != side['max']:
        text += f' ({figure.number(side["min"])} to {figure.number(side["max"])})'
    return text


def costs(sides, name):
    return ' / '.join(number(side[name]) for side in sides if side and side[name] is not None)


def cells(figure):
    sides = figure.side(0), figure.side(1)
    return [number(figure.ratio()), number(figure.goal), figure.what, value(figure, sides[0]),
            f'{value(figure, sides[1])} {figure.beside}'.strip() if sides[1] else '',
            costs(sides, 'cpu_seconds_per_gib'), costs(sides, 'cpu_seconds_per_100k'),
            figure.note]


def table(figures):
    rows = [cells(figure) for figure in figures if figure.pairs]
    return '\n'.join(lines_of([HEADINGS, ['---'] * len(HEADINGS), *rows])) + '\n'


def ratios(parts):
    rows = [[number(f.ratio()), number(f.goal), part.title, f.what, f.beside]
            for part in parts for f in part.figures if f.ratio() is not None]
    return '\n'.join(lines_of([['ratio', 'goal', 'part', 'what', 'beside'], ['---'] * 5, *rows]))


def markdown(about, parts):
    machine = about['machine']
    text = [f'# Figures of {about["commit"]}, {about["date"]}', '',
            f'{machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB; Linux '
            f'{machine["kernel"]}, {machine["system"]}; {machine["disk"]}. Ratios are medians of '
            f'{about["rounds"]} interleaved rounds; 2.00 is twice as good as what stands beside it. '
            'Behind a median: the least and the greatest round. CPU: ours / the other\'s.', '',
            ratios(parts), '']
    for part in parts:
        text += [f'## {part.title}', '']
        if plot.chart(part.title, part.figures):
            text += [f'![ratios]({part.name}.svg)', '']
        text += [table(part.figures)]
    text += ['## Commands', '', f'`{about["command"]}`, {about["seconds"]:.0f} s. What it ran, with DIR '
             'for a directory of its own:', '', *(f'    {command}' for command in about['commands']), '']
    return '\n'.join(text)


def write(directory, about, parts):
    os.makedirs(directory, exist_ok=True)

    def put(name, text):
        with open(os.path.join(directory, name), 'w') as file:
            file.write(text)

    put('report.md', markdown(about, parts))
    put('report.json', json.dumps({'schema': 1, **about, 'parts': {
        part.name: [figure.as_json() for figure in part.figures] for part in parts}}, indent=1))
    for part in parts:
        chart = plot.chart(part.title, part.figures)
        if chart:
            put(f'{part.name}.svg', chart)

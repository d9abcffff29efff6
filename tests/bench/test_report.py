# SPDX-License-Identifier: LGPL-3.0-or-later
"""The report of figures that were made up: nothing is measured here."""

import json
import os
import sys
import xml.etree.ElementTree

import jsonschema
import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import counted  # noqa: E402
import testbed  # noqa: E402
import report  # noqa: E402
from collections import namedtuple  # noqa: E402
from figures import INSTRUCTIONS, PER_SECOND, Cost, Figure  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
Part = namedtuple('Part', 'name title figures')


@pytest.fixture
def parts():
    reads = Figure('read <1 MiB>', beside='FSAL_VFS', goal=1.0)
    for mine, other in ((300e6, 100e6), (400e6, 200e6), (100e6, 400e6)):
        reads.add(mine, other, Cost(0.5, 1 << 30, 1000), Cost(0.25, 1 << 30, 1000))
    alone = Figure('ingest', PER_SECOND)
    alone.add(1000)
    counts = Figure('READ', INSTRUCTIONS, 'FSAL_VFS', less=True)
    counts.add(40000, 30000)
    return [Part('nfs', 'Served', [reads, alone]), Part('counts', 'Counted', [counts])]


@pytest.fixture
def written(parts, tmp_path):
    about = {'commit': 'abc', 'date': '2026-01-01', 'command': 'tests/bench/run', 'rounds': 3,
             'machine': testbed.describe('/'), 'seconds': 1.5, 'commands': ['fio --name=raw']}
    report.write(tmp_path, about, parts)
    return tmp_path


def test_a_ratio_is_the_median_of_the_rounds_ratios(parts):
    assert parts[0].figures[0].ratio() == 2.0
    assert parts[1].figures[0].ratio() == 0.75  # less is better


def test_costs_are_per_gib_and_per_100000_operations(parts):
    side = parts[0].figures[0].side(0)
    assert (side['cpu_seconds_per_gib'], side['cpu_seconds_per_100k']) == (0.5, 50.0)


def test_the_json_is_what_its_schema_says(written):
    with open(f'{HERE}/report.schema.json') as schema, open(written / 'report.json') as found:
        jsonschema.Draft202012Validator(json.load(schema)).validate(json.load(found))


def test_ratios_come_first_and_plots_are_drawings(written):
    text = (written / 'report.md').read_text()
    assert text.index('| 2.00 | 1.00 | Served | read <1 MiB> |') < text.index('## Served')
    assert '300 MB/s (100 to 400)' in text and '1,000/s' in text
    for name, bars in (('nfs', 1), ('counts', 1)):
        drawing = xml.etree.ElementTree.parse(written / f'{name}.svg').getroot()
        assert len(drawing.findall('{*}rect')) == 1 + bars
        assert f']({name}.svg)' in text


def test_a_dump_counts_what_a_function_spends_itself(tmp_path):
    dump = tmp_path / 'dump'
    dump.write_text('version: 1\nevents: Ir\nfl=a.c\nfn=outer\n10 5\ncfn=inner\ncalls=1 20\n'
                    '11 100\n12 7\nfn=inner\n20 100\ntotals: 112\n')
    assert counted.functions(dump) == {'outer': 12, 'inner': 100}

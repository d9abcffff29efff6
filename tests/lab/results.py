# SPDX-License-Identifier: LGPL-3.0-or-later
"""A run of the lab that is split, or resumed: what has come of each test, of which commit and image.

    pytest tests/lab --all --shard 2/3 --results FILE            a third of it
    pytest tests/lab --all --results FILE --resume               what has not passed yet
    pytest tests/lab/cluster --rounds 5 --over tcp --results FILE   each event five times
    python3 tests/lab/results.py FILE                            what clients have waited for in them

FILE has a line of JSON for each result, at once; the last of a test counts, where it was of the same commit with nothing
changed, of the same image, and with the same options.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys


def shard(text):
    """I/N as two numbers."""
    try:
        part, parts = map(int, text.split('/'))
    except ValueError:
        part, parts = 0, 0
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f'{text} is not I/N, with I from 1 to N')
    return part, parts


def commit(root):
    """That of the tests, with a + where something was changed since."""
    def git(*arguments):
        return subprocess.run(['git', '-C', root, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    return git('rev-parse', '--short=10', 'HEAD') + ('+' if git('status', '--porcelain') else '')


def read(path):
    """All in the file PATH; a line that a run's end cut off is none."""
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                try:
                    yield json.loads(line)
                except json.JSONDecodeError:
                    pass


def why(report, root):
    """Where in ROOT a part of a test failed, and what was said there."""
    crash = getattr(report.longrepr, 'reprcrash', None)
    told = f'{crash.path}:{crash.lineno}: {crash.message}'[:2000] if crash else str(report.longrepr)[-2000:]
    return told.replace(f'{os.path.realpath(root)}/', '')


class Results:
    """Those in the file PATH, and a way to add some: of the image IMAGE, with all of the tests if EVERY, clients that write OVER
    what was said."""

    def __init__(self, path, root, image, every, over):
        self.path, self.root = path, root
        self.of = {'commit': commit(root), 'image': image, 'all': every, 'over': over}
        self.last = {result['test']: result for result in read(path)}

    def has_passed(self, test):
        result = {'outcome': 'passed', **self.of}.items()
        return result <= self.last.get(test, {}).items() and '+' not in self.of['commit']

    def add(self, report):
        """What pytest says of a part of a test: its body, or a fixture that failed."""
        if report.when != 'call' and report.outcome == 'passed':
            return
        result = {'test': report.nodeid, 'outcome': report.outcome, 'seconds': round(report.duration), **self.of,
                  **dict(report.user_properties)}
        if report.failed:
            result['why'] = why(report, self.root)
        with open(self.path, 'a') as file:
            print(json.dumps(result), file=file)


# --- figures --------------------------------------------------------------------------------------------

GAP = 'longest gap'
TRANSPORTS = 'rdma', 'tcp'


def event_of(result):
    """What was done, and to which cluster, unless it is the one of test_cluster.py: `own drives, tcp: a planned move`."""
    path, _, test = result['test'].rpartition('::')
    name, _, parameter = test.rstrip(']').partition('[')
    cluster = os.path.basename(path).removesuffix('.py').removeprefix('test_')
    where = [word for word in (cluster, *parameter.split('-')) if word and word != 'cluster' and not word.isdigit()]  # no round's
    event = result.get('event') or name.removeprefix('test_')
    return (f'{", ".join(where)}: {event}' if where else event).replace('_', ' ')


def each(results):
    """A test of many events is one of each of them, and not of their longest."""
    for result in results:
        events = [{**result, **event} for event in result.get('events', [])]
        yield from events if events and result['outcome'] == 'passed' else [result]


def row(name, transport, passed, failed):
    """Of the event NAME over TRANSPORT: of results that PASSED, which have dictionaries of seconds, and of how many FAILED."""
    figures = [result[transport] for result in passed]
    fullest = sorted(figures, key=len, reverse=True)  # which have them in order
    others = [key for key in dict.fromkeys(key for found in fullest for key in found) if key != GAP]
    medians = {key: statistics.median(found[key] for found in figures if key in found) for key in others}
    gaps = [found[GAP] for found in figures]
    return (f'| {name} | {transport} | {len(gaps)} | {failed} | {statistics.median(gaps):.1f} | {max(gaps):.1f} | '
            f'{", ".join(f"{key} {median:.1f}" for key, median in medians.items())} | {commits(passed)} |')


def commits(results):
    return ', '.join(dict.fromkeys(result['commit'][:7] for result in results))


def summary(results):
    """Lines of a table: of each event and transport how often it has passed and failed, median and maximum of the longest gap,
    the medians of what it went with, and which commits that was."""
    events = {}
    for result in each(results):
        if result['outcome'] == 'failed' or any(transport in result for transport in TRANSPORTS):
            events.setdefault(event_of(result), []).append(result)
    yield '| event | over | passed | failed | median | maximum | of which, medians | at |'
    yield '| --- | --- | --- | --- | --- | --- | --- | --- |'
    for name, found in events.items():
        passed = [result for result in found if result['outcome'] == 'passed']
        failed = len(found) - len(passed)
        if not passed:
            yield f'| {name} | | 0 | {failed} | | | | {commits(found)} |'
        for transport in TRANSPORTS:
            over = [result for result in passed if transport in result]
            if over:
                yield row(name, transport, over, failed)
    yield ''
    yield 'Of ' + ', '.join(sorted({f'{result["commit"]} ({result["image"]})' for result in results}))


if __name__ == '__main__':
    print(*summary([result for path in sys.argv[1:] for result in read(path)]), sep='\n')

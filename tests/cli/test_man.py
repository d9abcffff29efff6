# SPDX-License-Identifier: LGPL-3.0-or-later
"""The manual page says what --help says: verbs, options, arguments, properties and exit codes."""

import os
import re
import subprocess

import pytest

from conftest import ROOT, verbs

PAGE = os.path.join(ROOT, 'docs/man/millrace.8')


@pytest.fixture(scope='module')
def page():
    """Its sections as text, each item's head on one line: {title: text}."""
    text = subprocess.run(['mandoc', '-T', 'utf8', '-O', 'width=1000', PAGE], check=True,
                          capture_output=True, text=True).stdout
    text = re.sub('.\b', '', text)
    parts = re.split(r'^(\S.*)\n', text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def items(section):
    """The heads of a list's items; behind a short one its text may follow."""
    return re.findall(r'^ {5}(\S.*?)(?:  .*)?$', section, re.M)


def help_items(text, title):
    """The left column of a part of --help."""
    part = text.split(f'\n{title}:\n')[1].split('\n\n')[0]
    return re.findall(r'^  (\S+(?: \S+)?)(?:  |\n)', part + '\n', re.M)


def test_it_is_well_formed():
    done = subprocess.run(['mandoc', '-T', 'lint', '-W', 'warning', PAGE], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout


def test_verbs_with_options_and_arguments(site, page):
    usages = {site(*words, '--help').stdout.splitlines()[0].removeprefix('Usage: millrace ')
              for words in verbs(site)}
    assert set(items(page['VERBS'])) == usages


def test_options_of_every_verb(site, page):
    shown = help_items(site('--help').stdout, 'Options of every verb')
    assert items(page['OPTIONS OF EVERY VERB'])[:len(shown)] == shown


def test_properties(site, page):
    named = {name for noun in ('pool', 'dataset', 'share')
             for name in help_items(site(noun, 'set', '--help').stdout, 'Properties')}
    assert set(items(page['PROPERTIES'])[:len(named)]) == named


def test_exit_codes(site, page):
    text = site('--help').stdout.split('Exit: ')[1]
    told = re.findall(r'(\d) ([^,.]+)', ' '.join(text.split()))
    assert re.findall(r'^ {5}(\d) +(.*)', page['EXIT STATUS'], re.M) == told
    assert [int(code) for code, _ in told] == list(range(8))

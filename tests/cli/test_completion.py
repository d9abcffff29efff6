# SPDX-License-Identifier: LGPL-3.0-or-later
"""Completion in a real bash: what may follow is offered, and what is taken works."""

import os
import pty
import subprocess

import pytest

from conftest import MILLRACE, ROOT, Site, verbs, wait_until

SCRIPT = os.path.join(ROOT, 'fsal_nvme/cli/completion.bash')
# Does what readline does at a TAB: words end at COMP_WORDBREAKS, and the function gets the last one.
DRIVER = r'''
source "$1"
[[ $(complete -p millrace) == "complete -F _millrace millrace" ]] || exit 1
compopt() { :; }
COMP_LINE=$2 COMP_POINT=${#2}
word=${2##*[$COMP_WORDBREAKS]}
_millrace millrace "$word"
printf '%s\n' "${COMPREPLY[@]}"
'''


def environment(site):
    return {'PATH': f'{os.path.dirname(site.program)}:{os.environ["PATH"]}', 'HOME': site.root,
            'TERM': 'dumb'}


def offered(site, line):
    line = f'millrace --state-dir {site.state} --run-dir {site.run_dir} {line}'
    done = subprocess.run(['bash', '--norc', '-c', DRIVER, 'bash', SCRIPT, line], check=True,
                          capture_output=True, text=True, env=environment(site), cwd=site.root)
    assert done.stderr == ''
    return done.stdout.split()


def test_all_verbs_and_options(site):
    table = verbs(site)
    assert offered(site, '') == list(dict.fromkeys(words[0] for words in table))
    for noun in {words[0] for words in table if len(words) == 2}:
        assert offered(site, noun + ' ') == [w[1] for w in table if w[0] == noun]
    for words in table:
        usage = site(*words, '--help').stdout
        options = [line.split()[0] for line in usage.splitlines() if line.startswith('  --')]
        assert offered(site, ' '.join(words) + ' --') == options


@pytest.fixture(scope='module')
def filled(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp('completion'))
    site.pool()
    site.pool('tap')
    site('share', 'create', 'tank/ann')
    site('share', 'create', 'tank/bob')
    site('dataset', 'ingest', 'tank/set', site.tree())
    return site


@pytest.mark.parametrize('line, answer', [
    ('po', ['pool']), ('pool st', ['status']), ('x', []), ('x y', []), ('status ', []),
    ('pool status ', ['tank', 'tap']), ('pool status --json ta', ['tank', 'tap']),
    ('pool status tan', ['tank']), ('pool status tank ', []), ('pool create ', []),
    ('serve --port ', []), ('serve --port 1 tan', ['tank']), ('serve --host tan', []),
    ('share get tan', ['tank/']), ('share get tank/', ['tank/ann', 'tank/bob']),
    ('share get tank/b', ['tank/bob']), ('dataset get tank/', ['tank/set']),
    ('share destroy --yes tank/a', ['tank/ann']), ('share get none/', []),
    ('share get tank/ann c', ['comment']), ('pool get tank ', ['cache.size', 'comment', 'compact.rate', 'read.hedge']),
    ('share set tank/ann nfs', ['nfs.clients=', 'nfs.sec=', 'nfs.squash=']),
    ('share set tank/ann comment=x nfs.s', ['nfs.sec=', 'nfs.squash=']),
    ('share set tank/ann nfs.squash=', []), ('share set tank/ann a:b=c', []),
    ('dataset ingest tank/new t', ['tree']), ('dataset ingest --threads 2 tank/new tre', ['tree']),
    ('pool create new --data 1 --parity 1 devices/tank-0', ['devices/tank-0']),
    ('pool import --device-dir dev', ['devices']),
    ('pool create new --data=1 --parity 1 devices/tank-1', ['devices/tank-1']),
    ('--state-dir=/none pool status ', []), ('share create --owner roo', ['root']), ('share create --group roo', ['root'])])
def test_what_is_offered(filled, line, answer):
    assert offered(filled, line) == answer


def test_a_served_pool(served):
    served('share', 'create', 'tank/ann')
    assert offered(served, 'share get t') == ['tank/']
    assert offered(served, 'share get tank/') == ['tank/ann']


def test_it_is_installed(site):
    build = os.path.dirname(os.path.dirname(MILLRACE))
    subprocess.run(['cmake', '--install', build, '--prefix', site.path('usr')], check=True,
                   capture_output=True)
    for name in ('bash-completion/completions/millrace', 'man/man8/millrace.8'):
        assert os.path.isfile(site.path('usr/share', name))


def test_keys_typed_at_a_terminal(filled):
    """TAB at a prompt: the words are completed, and the line then does what it says."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(filled.root)
        os.execvpe('bash', ['bash', '--norc', '--noprofile', '-i'], environment(filled))
    out = filled.path('out')
    common = f'--state-dir {filled.state} --run-dir {filled.run_dir}'
    os.write(terminal, f'source {SCRIPT}\n'.encode())
    os.write(terminal, f'millrace {common} sha\tset tan\tbo\tcomm\tdone lab:x=1 && echo ok >{out}\n'
             .encode())
    try:
        wait_until(lambda: os.path.exists(out) and os.path.getsize(out), 'the line has run')
    finally:
        os.write(terminal, b'exit\n')
        os.close(terminal)
        os.waitpid(pid, 0)
    rows = filled.json('share', 'get', 'tank/bob', 'comment')['properties']
    assert rows[0]['value'] == 'done'

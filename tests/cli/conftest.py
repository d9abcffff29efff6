# SPDX-License-Identifier: LGPL-3.0-or-later
"""A pool of sparse files per test, the command on it, and a server without NFS."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from schemas import validate_answer

sys.dont_write_bytecode = True

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), '..', '..'))
MILLRACE = os.environ.get('MILLRACE', os.path.join(ROOT, 'build/bin/millrace'))
SMALL = 192 << 20  # bytes of a device of a pool with cells of 4 KiB
TIMEOUT = 120

OK, FAILED, USAGE, NOT_FOUND, REFUSED, DEGRADED, NOT_PERMITTED, TIMED_OUT = range(8)


class Done:
    """What a run of the command gave: exit code, text, and the answer where it was JSON."""

    def __init__(self, argv, process):
        self.argv = argv
        self.rc = process.returncode
        self.stdout, self.stderr = process.stdout, process.stderr
        self.answer = json.loads(self.stdout) if '--json' in argv and self.stdout else None

    @property
    def error(self):
        return self.answer['error']

    def __repr__(self):
        return f'{" ".join(self.argv)}: exit {self.rc}\n{self.stdout}{self.stderr}'


class Site:
    """A directory with state, run and device directories, and a copy of a build tree."""

    def __init__(self, root):
        self.root = os.fspath(root)
        self.state, self.run_dir = self.path('state'), self.path('run')
        self.devices_dir = self.path('devices')
        self.program = self.path('build/bin/millrace')
        for name in ('devices', 'build/bin', 'build/lib/ganesha', 'build/ganesha/prefix/bin'):
            os.makedirs(self.path(name))
        link_or_copy(MILLRACE, self.program)
        link_or_copy(os.path.join(os.path.dirname(MILLRACE), 'control-server'),
                        self.path('build/ganesha/prefix/bin/ganesha.nfsd'))
        open(self.path('build/lib/ganesha/libfsalnvme.so'), 'w').close()

    def path(self, *names):
        return os.path.join(self.root, *names)

    def argv(self, *args):
        return [self.program, *map(os.fspath, args), '--state-dir', self.state,
                '--run-dir', self.run_dir]

    def run(self, *args):
        argv = self.argv(*args)
        return Done(argv, subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT,
                                         stdin=subprocess.DEVNULL))

    def __call__(self, *args, rc=OK):
        """Run the command; its exit code must be RC."""
        done = self.run(*args)
        assert done.rc == rc, done
        return done

    def json(self, *args, rc=OK):
        done = self(*args, '--json', rc=rc)
        validate_answer(args, done.answer)
        assert done.stderr == ''
        assert ('error' in done.answer) == (rc not in (OK, DEGRADED)), done
        return done.answer

    def fails(self, rc, *args):
        """Run it with --json and without: the same exit code, and the same story. Returns that."""
        text = self(*args, rc=rc)
        error = self.json(*args, rc=rc)['error']
        assert error['message'] in text.stderr
        assert text.stdout == ''
        return error

    def device(self, name, size=SMALL):
        path = self.path('devices', name)
        with open(path, 'wb') as file:
            file.truncate(size)
        return path

    def devices(self, count, size=SMALL, prefix='d'):
        return [self.device(f'{prefix}{i}', size) for i in range(count)]

    def pool(self, name='tank', data=2, parity=1, count=4, **options):
        devices = self.devices(count, prefix=f'{name}-', **options)
        self('pool', 'create', name, '--data', str(data), '--parity', str(parity), '--cell', '4K',
             *devices)
        return devices

    def tree(self, name='tree', files=20):
        """A directory with a bit of everything; returns its path."""
        top = self.path(name)
        os.makedirs(os.path.join(top, 'sub', 'deep'))
        for i in range(files):
            with open(os.path.join(top, 'sub', f'f{i}'), 'wb') as file:
                file.write(bytes([i % 251]) * (i * 1000))
        os.symlink('sub/f1', os.path.join(top, 'link'))
        os.link(os.path.join(top, 'sub', 'f2'), os.path.join(top, 'hard'))
        return top

    def kill_server(self, pid, pool='tank', *host):
        """As a crash. While the server dies it may take a connection and answer nothing, and holds the lock."""
        def is_not_closed():
            done = self.run('pool', 'status', pool, *host, '--json')
            return done.rc in (OK, DEGRADED) and done.answer['pool']['state'] == 'not closed'

        os.kill(pid, signal.SIGKILL)
        wait_until(is_not_closed, 'the server is dead')

    def log(self, pool='tank'):
        with open(self.path('state', 'log', f'{pool}.log')) as file:
            return file.read().splitlines()


def link_or_copy(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def verbs(site):
    """All verbs as --help lists them: [('pool', 'create'), ..., ('status',)]."""
    text = site('--help').stdout.split('\nOptions')[0]
    return [tuple(words.split()) for words in re.findall(r'^  ([a-z]+(?: [a-z-]+)?)  +\S', text, re.M)]


def contents(paths):
    """All data of sparse files, without reading their holes: {path: [(offset, bytes)...]}."""
    result = {}
    for path in paths:
        pieces, at = [], 0
        with open(path, 'rb') as file:
            size = os.fstat(file.fileno()).st_size
            while at < size:
                try:
                    at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                except OSError:
                    break
                end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
                data = os.pread(file.fileno(), end - at, at)
                if data.strip(b'\0'):
                    pieces.append((at, data))
                at = end
        result[path] = pieces
    return result


def damage(device):
    """Every byte that is not zero, behind labels and journal, becomes another."""
    with open(device, 'r+b') as file:
        for at, data in contents([device])[device]:
            for block in range(0, len(data), 4096):
                place = at + block
                if 17 << 20 <= place < os.path.getsize(device) - (2 << 20):
                    file.seek(place)
                    file.write(bytes(255 - b for b in data[block:block + 4096]))


def wait_until(condition, what, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f'{what}: not within {timeout} s'
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def pool(site):
    """A 2+1 pool `tank` of four small devices."""
    site.devices_of_tank = site.pool()
    return site


@pytest.fixture
def served(pool):
    """The same, served."""
    pool('serve', 'tank')
    yield pool
    pool('serve', 'tank', '--stop')


@pytest.fixture(params=['idle', 'served'])
def either(request, pool):
    """A pool that is idle or served: the admin sees no difference."""
    pool.is_served = request.param == 'served'
    if pool.is_served:
        pool('serve', 'tank')
    yield pool
    if pool.is_served:
        pool('serve', 'tank', '--stop')

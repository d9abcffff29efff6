# SPDX-License-Identifier: LGPL-3.0-or-later
"""Bytes under whatever a client may do to a file, at random, beside what they ought to be.

Workers of two mounts that share nothing take turns at one file. A turn is a few operations between
an open and a close, so that the other mount sees what was done. What the file ought to be lies in
the client's memory; whoever has the turn has that as well. `--seed=N` repeats a run's operations.
"""

import os
import random

import pytest

OPTIONS = 'vers=4.2,proto=tcp'
LIMIT = 600000
FILES = 2


def punch(fd, offset, length):
    """A hole, which leaves the size as it is."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size_and_punch = 3
    if libc.fallocate64(fd, keep_size_and_punch, ctypes.c_int64(offset), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), 'punch')


class Model:
    """What a file ought to be: a length, and bytes that are zero behind it."""

    def __init__(self, path, limit):
        self.file = open(path, 'r+b')
        self.map = mmap.mmap(self.file.fileno(), 8 + limit)

    def size(self):
        return int.from_bytes(self.map[:8], 'big')

    def resize(self, size):
        before = self.size()
        if size < before:
            self.map[8 + size:8 + before] = bytes(before - size)
        self.map[:8] = size.to_bytes(8, 'big')

    def write(self, at, data):
        self.map[8 + at:8 + at + len(data)] = data
        if at + len(data) > self.size():
            self.resize(at + len(data))

    def read(self, at, length):
        return self.map[8 + at:8 + min(at + length, max(at, self.size()))]


def differ(found, wanted, what):
    """Says where, and by how much."""
    if found == wanted:
        return
    at = next((n for n, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
    raise AssertionError(f'{what}: {len(found)} bytes for {len(wanted)}, other from {at} on: '
                         f'{bytes(found[at:at + 16]).hex()} for {bytes(wanted[at:at + 16]).hex()}')


def turn(fd, path, model, chance, limit, log):
    """One operation."""
    def place():
        at = chance.choice((chance.randrange(limit), chance.randrange(limit) & -4096,
                            chance.randrange(20000), max(0, model.size() - chance.randrange(5000))))
        at = min(at, limit - 1)
        return at, min(limit - at, chance.choice((1, 100, 4096, 8192, chance.randrange(1, 150000))))

    at, length = place()
    kind = chance.choices(('write', 'read', 'truncate', 'punch', 'map', 'look', 'sync', 'direct'),
                          (25, 25, 8, 8, 12, 12, 5, 5))[0]
    log.append(f'{kind} {at} {length}')
    if kind == 'write':
        data = chance.randbytes(length)
        assert os.pwrite(fd, data, at) == length
        model.write(at, data)
    elif kind == 'read':
        differ(os.pread(fd, length, at), model.read(at, length), f'read {at} {length}')
    elif kind == 'truncate':
        os.ftruncate(fd, at)
        model.resize(at)
    elif kind == 'punch':
        punch(fd, at, length)
        end = min(at + length, model.size())
        if at < end:
            model.write(at, bytes(end - at))
    elif kind == 'map' and model.size():
        at = min(at, model.size() - 1)
        length = min(length, model.size() - at)
        data = chance.randbytes(length)
        with mmap.mmap(fd, model.size()) as memory:
            memory[at:at + length] = data
            if chance.random() < 0.5:
                memory.flush()
        model.write(at, data)
    elif kind == 'look' and model.size():
        with mmap.mmap(fd, model.size(), prot=mmap.PROT_READ) as memory:
            differ(memory[at:at + length], model.read(at, length), f'map {at} {length}')
    elif kind == 'sync':
        os.fsync(fd)
    elif kind == 'direct':
        at, length = at & -4096, (length + 4095) & -4096
        length = min(length, limit - at)
        buffer = mmap.mmap(-1, max(4096, length))
        other = os.open(path, os.O_RDWR | os.O_DIRECT)
        if chance.random() < 0.5 and length % 4096 == 0 and length:
            buffer[:length] = chance.randbytes(length)
            assert os.pwritev(other, [memoryview(buffer)[:length]], at) == length
            model.write(at, buffer[:length])
        else:
            count = os.preadv(other, [buffer], at)
            differ(buffer[:count], model.read(at, len(buffer)), f'direct {at} {len(buffer)}')
        os.close(other)


def work(path, models, seed, turns, limit):
    """Take TURNS turns; a line for each."""
    chance = random.Random(seed)
    names = sorted(os.listdir(models))
    opened = {name: Model(f'{models}/{name}', limit) for name in names}
    log = []
    for number in range(turns):
        name = chance.choice(names)
        model = opened[name]
        fcntl.flock(model.file, fcntl.LOCK_EX)
        try:
            fd = os.open(f'{path}/{name}', os.O_RDWR)
            log.append(f'-- {name}')
            assert os.fstat(fd).st_size == model.size(), (os.fstat(fd).st_size, model.size())
            for _ in range(chance.randrange(1, 12)):
                turn(fd, f'{path}/{name}', model, chance, limit, log)
            os.close(fd)
        except BaseException:
            print('\n'.join(log[-40:]), file=sys.stderr)
            raise
        fcntl.flock(model.file, fcntl.LOCK_UN)
        print(number, flush=True)


def make_models(path, models, files, limit):
    os.mkdir(models)
    for n in range(files):
        open(f'{path}/{n}', 'w').close()
        with open(f'{models}/{n}', 'wb') as file:
            file.truncate(8 + limit)


def check(path, models, limit):
    for name in os.listdir(models):
        model = Model(f'{models}/{name}', limit)
        with open(f'{path}/{name}', 'rb') as file:
            differ(file.read(), model.read(0, limit), f'file {name}, from the server')


HELPERS = [punch, Model, differ, turn]


@pytest.fixture
def workers(place, pytestconfig, request):
    """start(turns): two workers on each of two mounts; check() reads all from the server."""
    seed = pytestconfig.getoption('--seed')
    print(f'--seed={seed}')
    models = f'/tmp/{place.name}'
    mounts = [place.path, place.mount_again('other', options=OPTIONS)]
    place.call(make_models, models, FILES, LIMIT)

    class Workers:
        def start(self, turns):
            return [place.client.spawn_call(work, mounts[n % 2], models, seed + n, turns, LIMIT,
                                            helpers=HELPERS) for n in range(4)]

        def check(self):
            place.client.drop_caches()
            place.remount()
            place.call(check, models, LIMIT, helpers=[Model, differ])

    yield Workers()
    place.client.run(['rm', '-r', models])


def test_everything_at_random(workers):
    for worker in workers.start(60):
        worker.wait(600)
    workers.check()


@pytest.mark.millrace
def test_everything_at_random_while_the_server_dies(workers, site):
    started = workers.start(60)
    for turns in (8, 20):
        for worker in started:
            worker.wait_for_lines(turns, 600)
        site.server.kill9()
        site.server.start()
    for worker in started:
        worker.wait(600)
    workers.check()
    site.server.stop()
    site.pool.check()
    site.server.start()
    workers.check()

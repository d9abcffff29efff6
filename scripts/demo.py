#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""What scripts/demo shows, told as it goes: see main()."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import time

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), '..'))
sys.path.insert(0, os.path.join(TOP, 'tests/nfs'))

from harness import host  # noqa: E402
from harness.client import make_client  # noqa: E402
from harness.server import MILLRACE, Pool, Server  # noqa: E402

MNIST = '/usr/share/datasets/fashion-mnist'
ICONS = '/usr/share/icons/breeze'
IMAGES = 20000
CHECKPOINT_MIB = 192


def say(text):
    print(f'\n== {text}', flush=True)


def note(text):
    print(f'   {text}', flush=True)


def show(pool, *argv):
    """Run a verb and print it with what it says, as an admin would see it."""
    print(f'   $ millrace {" ".join(argv)}')
    done = pool.verb(*argv, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        print(f'     {line}')


# --- the dataset ---------------------------------------------------------------------------------


def find(directory, part):
    for base, _, files in os.walk(directory):
        for name in files:
            if part in name:
                return os.path.join(base, name)
    raise SystemExit(f'demo: no {part} below {directory}: is the package whole?')


def read_idx(path, head):
    opener = gzip.open if path.endswith('.gz') else open
    with opener(path, 'rb') as file:
        return file.read()[head:]


def make_dataset(target):
    """Fashion-MNIST: its archives, IMAGES of its images as files by label, and an icon theme."""
    os.makedirs(f'{target}/archives')
    images = find(MNIST, 'train-images')
    labels = find(MNIST, 'train-labels')
    for path in (images, labels):
        shutil.copy2(path, f'{target}/archives')
    pixels, label = read_idx(images, 16), read_idx(labels, 8)
    for kind in range(10):
        os.makedirs(f'{target}/images/{kind}')
    for i in range(IMAGES):
        with open(f'{target}/images/{label[i]}/{i:05}.pgm', 'wb') as file:
            file.write(b'P5 28 28 255\n' + pixels[i * 784:(i + 1) * 784])
    shutil.copytree(ICONS, f'{target}/icons', symlinks=True)


def digest_tree(root):
    """{path: what is there} of a tree: SHA-256 of files, targets of links. Runs on both sides."""
    import hashlib
    import os
    found = {}
    for base, directories, files in os.walk(root):
        for name in files + [d for d in directories if os.path.islink(f'{base}/{d}')]:
            path = os.path.join(base, name)
            key = os.path.relpath(path, root)
            if os.path.islink(path):
                found[key] = '-> ' + os.readlink(path)
            else:
                with open(path, 'rb') as file:
                    found[key] = hashlib.sha256(file.read()).hexdigest()
    return found


def compare(client, path, wanted, what):
    began = time.monotonic()
    got = client.call(digest_tree, path, timeout=1800)
    if got != wanted:
        wrong = [k for k in set(got) | set(wanted) if got.get(k) != wanted.get(k)]
        raise SystemExit(f'demo: {what}: {len(wrong)} of {len(wanted)} differ, such as {wrong[0]}')
    note(f'{what}: {len(wanted)} files and links read by the client, every SHA-256 as in the '
         f'source ({time.monotonic() - began:.0f} s)')


# --- what runs on the client -----------------------------------------------------------------------


def write_checkpoint(path, mib):
    """Writes and fsyncs a file of pseudo-random bytes; returns its SHA-256."""
    import hashlib
    import os
    import random
    source = random.Random(mib)
    digest = hashlib.sha256()
    with open(path, 'wb') as file:
        for _ in range(mib):
            block = source.randbytes(1 << 20)
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def digest_file(path):
    import hashlib
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def append_records(path, count):
    """Appends numbered records of 64 KiB, each fsynced before its number is printed."""
    import os
    with open(path, 'wb') as file:
        for i in range(count):
            file.write(i.to_bytes(8, 'little') * 8192)
            file.flush()
            os.fsync(file.fileno())
            print(i, flush=True)


def count_records(path, count):
    with open(path, 'rb') as file:
        for i in range(count):
            if file.read(65536) != i.to_bytes(8, 'little') * 8192:
                return i
    return count


# --- the show -----------------------------------------------------------------------------------------


def returned(remote):
    """What a function that was started on the client returned: its last line, as JSON."""
    return json.loads(remote.wait(timeout=1800).stdout.decode().rstrip('\n').rsplit('\n', 1)[-1])


def take_away(pool, *numbers):
    for i in numbers:
        os.rename(pool.devices[i], f'{pool.devices[i]}.away')
        note(f'device {pool.devices[i]} is gone')


def lose_two_devices(client, pool, wanted):
    say('Two of six devices are lost while the client reads and writes')
    reader = client.spawn_call(digest_tree, '/mnt/fashion/images')
    writer = client.spawn_call(write_checkpoint, '/mnt/models/during-loss', CHECKPOINT_MIB)
    take_away(pool, 1, 4)
    sha = returned(writer)
    got = returned(reader)
    images = {k[len('images/'):]: v for k, v in wanted.items() if k.startswith('images/')}
    if got != images:
        raise SystemExit('demo: what was read during the loss differs from the source')
    note(f'{len(images)} images read and a checkpoint of {CHECKPOINT_MIB} MiB written meanwhile')
    host.wait_until(lambda: lost_devices(pool) == 2, 60, 'both devices are dropped')
    client.drop_caches()
    if client.call(digest_file, '/mnt/models/during-loss', timeout=600) != sha:
        raise SystemExit('demo: the checkpoint written during the loss differs')
    note('the checkpoint written meanwhile reads back right from the four that are left')
    return sha


def lost_devices(pool):
    return sum(device['state'] != 'active' for device in pool.status()['devices'])


def crash_under_a_writer(client, server):
    say('The server is killed (kill -9) in the middle of a write and started again')
    count = 200
    writer = client.spawn_call(append_records, '/mnt/models/log', count)
    writer.wait_for_lines(40, 300)
    server.kill9()
    acknowledged = len(writer.lines())
    note(f'killed after {acknowledged} records were acknowledged as durable')
    server.start()
    writer.wait(timeout=900)
    client.drop_caches()
    if client.call(count_records, '/mnt/models/log', count, timeout=300) != count:
        raise SystemExit('demo: an acknowledged record is lost')
    note(f'the writer went on by itself; all {count} records are there')


def take_two_back(pool):
    say('The two devices are there again: they get what they missed, and two others are lost')
    for i in (1, 4):
        os.rename(f'{pool.devices[i]}.away', pool.devices[i])
    show(pool, 'pool', 'attach', 'tank')
    if lost_devices(pool):
        raise SystemExit('demo: a device is not in use again')
    take_away(pool, 0, 5)
    host.wait_until(lambda: lost_devices(pool) == 2, 60, 'both devices are dropped')


def main():
    workdir = os.path.realpath(sys.argv[1])
    shutil.rmtree(workdir, ignore_errors=True)
    os.makedirs(workdir)
    began = time.monotonic()

    say('A dataset: Fashion-MNIST and an icon theme, from Debian packages')
    source = f'{workdir}/source'
    make_dataset(source)
    wanted = digest_tree(source)
    note(f'{len(wanted)} files and links below {source}')

    say('A pool of six file-backed devices, any two of which may be lost')
    pool = Pool(workdir, name='tank', data=4, parity=2, devices=6, device_bytes=2 << 30)
    show(pool, 'pool', 'create', 'tank', '--data', '4', '--parity', '2', *pool.devices)
    show(pool, 'dataset', 'ingest', 'tank/fashion', source)
    show(pool, 'dataset', 'set', 'tank/fashion', 'nfs.clients=*:ro')
    show(pool, 'share', 'create', 'tank/models', '--mode', '0777')
    show(pool, 'share', 'set', 'tank/models', 'nfs.clients=*:rw')

    with make_client(workdir=f'{workdir}') as client:
        server = Server(pool, client.server_address)
        try:
            say('Served over NFSv4.1 and mounted by a Linux client')
            server.start()
            for volume in ('fashion', 'models'):
                client.mount(f'/tank/{volume}', f'/mnt/{volume}', port=server.port)
            note(client.run(['uname', '-srm']).stdout.decode().strip())
            compare(client, '/mnt/fashion', wanted, 'dataset')
            sha = client.call(write_checkpoint, '/mnt/models/checkpoint', CHECKPOINT_MIB,
                              timeout=1800)
            note(f'a checkpoint of {CHECKPOINT_MIB} MiB written, SHA-256 {sha[:16]}...')

            lose_two_devices(client, pool, wanted)
            crash_under_a_writer(client, server)
            take_two_back(pool)

            say('After all that')
            client.drop_caches()
            if client.call(digest_file, '/mnt/models/checkpoint', timeout=600) != sha:
                raise SystemExit('demo: the first checkpoint differs')
            note('the first checkpoint reads back right')
            compare(client, '/mnt/fashion', wanted, 'dataset, two devices short')
            show(pool, 'status')
            show(pool, 'pool', 'status', 'tank')
            for volume in ('fashion', 'models'):
                client.umount(f'/mnt/{volume}')
            server.stop()
        finally:
            server.close()
    show(pool, 'pool', 'check', 'tank')

    say(f'Done in {time.monotonic() - began:.0f} s; nothing is left running')
    print(f"""
   Ingested {len(wanted)} files from Debian packages into an erasure-coded pool (4+2), served
   them with a writable share to a Linux NFSv4.1 client, compared every byte, lost two devices
   and a server process on the way, took the devices back, lost two others, and compared again.

   To go on: the pool is still in {workdir}; try
     {os.path.relpath(MILLRACE, TOP)} pool status tank --state-dir {pool.state_dir} --run-dir {pool.run_dir}
   and, on drives of your own,
     {os.path.relpath(MILLRACE, TOP)} pool create tank --data 4 --parity 2 /dev/nvme0n1 ... /dev/nvme5n1
   README.md tells the rest.""")


if __name__ == '__main__':
    try:
        main()
    except subprocess.TimeoutExpired as error:
        raise SystemExit(f'demo: {error}')

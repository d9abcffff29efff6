# SPDX-License-Identifier: LGPL-3.0-or-later
"""The bytes of files in a share."""

import hashlib
import mmap
import os
import random
import threading


def digest(path, name):
    with open(f'{path}/{name}', 'rb') as file:
        return hashlib.sha256(file.read()).hexdigest()


def test_what_was_written_is_read_back_from_the_server(share):
    def write(path):
        data = random.Random(1).randbytes(7777777)
        with open(f'{path}/file', 'wb') as file:
            file.write(data)
            os.fsync(file.fileno())
        return hashlib.sha256(data).hexdigest()

    wanted = share.call(write)
    share.remount()
    assert share.call(digest, 'file') == wanted


def test_many_small_files_are_read_back_from_the_server(share):
    def write(path):
        for i in range(300):
            with open(f'{path}/{i}', 'wb') as file:
                file.write(b'%d\n' % i * i)

    def read(path):
        return [i for i in range(300) if open(f'{path}/{i}', 'rb').read() != b'%d\n' % i * i]

    share.call(write)
    share.remount()
    assert share.call(read) == []


def test_append_goes_to_the_end(share):
    def append(path):
        for i in range(100):
            with open(f'{path}/log', 'ab') as file:
                file.write(b'line %d\n' % i)

    share.call(append)
    share.remount()
    assert share.client.run(['cat', f'{share.path}/log']).stdout == b''.join(
        b'line %d\n' % i for i in range(100))


def test_truncated_bytes_come_back_as_zeros(share):
    def truncate(path):
        with open(f'{path}/file', 'wb') as file:
            file.write(b'x' * 300000)
            os.fsync(file.fileno())
            for size in (200001, 5000, 250000):
                file.truncate(size)
                os.fsync(file.fileno())

    def read(path):
        with open(f'{path}/file', 'rb') as file:
            return file.read() == b'x' * 5000 + bytes(245000)

    share.call(truncate)
    share.remount()
    assert share.call(read)


def test_opening_with_truncation_empties_the_file(share):
    def rewrite(path):
        for text in ('long ago there was more', 'short'):
            with open(f'{path}/file', 'w') as file:
                file.write(text)

    share.call(rewrite)
    share.remount()
    assert share.client.run(['cat', f'{share.path}/file']).stdout == b'short'


def test_a_sparse_file_reads_as_zeros_and_takes_little_space(share):
    def write(path):
        with open(f'{path}/sparse', 'wb') as file:
            for at in (0, 100 << 20, (1 << 40) + 5):
                file.seek(at)
                file.write(b'data')

    def read(path):
        with open(f'{path}/sparse', 'rb') as file:
            parts = [os.pread(file.fileno(), 12, at)
                     for at in (0, 50 << 20, (100 << 20) - 4, (1 << 40) + 1)]
        at = os.stat(f'{path}/sparse')
        return [part.decode() for part in parts], at.st_size, at.st_blocks * 512

    share.call(write)
    share.remount()
    parts, size, allocated = share.call(read)
    assert parts == ['data' + '\0' * 8, '\0' * 12, '\0' * 4 + 'data' + '\0' * 4, '\0' * 4 + 'data']
    assert size == (1 << 40) + 9
    assert allocated < 1 << 20


def test_random_writes_equal_a_model(share):
    def write(path, seed):
        chance = random.Random(seed)
        model = bytearray()
        written = 0
        with open(f'{path}/file', 'w+b', buffering=0) as file:
            while written < 20 << 20:
                data = chance.randbytes(chance.choice((1, 100, 4096, 5000, 131072, 200000)))
                at = chance.randrange(6 << 20)
                if chance.random() < 0.3:
                    at -= at % 4096
                file.seek(at)
                file.write(data)
                written += len(data)
                if at > len(model):
                    model += bytes(at - len(model))
                model[at:at + len(data)] = data
                choice = chance.random()
                if choice < 0.05:
                    os.fsync(file.fileno())
                elif choice < 0.07:
                    size = chance.randrange(7 << 20)
                    file.truncate(size)
                    del model[size:]
                    model += bytes(size - len(model))
                elif choice < 0.12:
                    at = chance.randrange(6 << 20)
                    assert os.pread(file.fileno(), 100000, at) == model[at:at + 100000]
        return hashlib.sha256(model).hexdigest()

    for seed in (1, 2):
        wanted = share.call(write, seed, timeout=600)
        share.remount()
        assert share.call(digest, 'file') == wanted, f'seed {seed}'


def test_direct_writes_and_reads_pass_the_clients_cache_by(share):
    def write_and_read(path):
        data = mmap.mmap(-1, 1 << 20)
        data[:] = random.Random(3).randbytes(1 << 20)
        file = os.open(f'{path}/file', os.O_CREAT | os.O_RDWR | os.O_DIRECT)
        for at in (0, 3 << 20, 1 << 20):
            os.pwrite(file, data, at)
        back = mmap.mmap(-1, 1 << 20)
        for at in (0, 3 << 20, 1 << 20):
            os.preadv(file, [back], at)
            assert back[:] == data[:]
        os.preadv(file, [back], 2 << 20)
        assert back[:] == bytes(1 << 20)

    share.call(write_and_read)


def test_mapped_memory_reaches_the_server(share):
    def change(path):
        with open(f'{path}/file', 'w+b') as file:
            file.truncate(1 << 20)
            with mmap.mmap(file.fileno(), 1 << 20) as memory:
                memory[4090:4100] = b'0123456789'
                memory[-3:] = b'end'
                memory.flush()

    def read(path):
        with open(f'{path}/file', 'rb') as file:
            data = file.read()
        return [len(data), data[4089:4101].decode(), data[-4:].decode(), data.count(0)]

    share.call(change)
    share.remount()
    assert share.call(read) == [1 << 20, '\x000123456789\0', '\0end', (1 << 20) - 13]


def test_writers_of_one_file_at_once_keep_their_parts(share):
    def write(path):
        def part(number):
            with open(f'{path}/file', 'r+b', buffering=0) as file:
                for step in range(50):
                    os.pwrite(file.fileno(), bytes([number]) * 1000, (step * 8 + number) * 1000)
                os.fsync(file.fileno())

        open(f'{path}/file', 'wb').close()
        writers = [threading.Thread(target=part, args=(number,)) for number in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()

    def read(path):
        with open(f'{path}/file', 'rb') as file:
            return file.read() == b''.join(bytes([n]) * 1000 for n in range(8)) * 50

    share.call(write)
    share.remount()
    assert share.call(read)


def test_another_mount_sees_what_was_closed(share):
    again = share.mount_again()
    for text in (b'first', b'second, longer', b'3rd'):
        share.client.run(['tee', f'{share.path}/file'], input=text)
        assert share.client.run(['cat', f'{again}/file']).stdout == text

# SPDX-License-Identifier: LGPL-3.0-or-later
"""What is written over RDMA is what is read, over RDMA and over TCP."""

import pytest


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.long)], ids=['4.1', '4.2'])
def path(request, rdma, mount):
    return mount('rdma', minor=request.param)


def numbers_and_sizes(path, sizes, direct):
    """Writes files that begin with the number of each NFS operation; returns which came back wrong."""
    def content(number, size):
        return (struct.pack('>II', number, 0xffffffff) + bytes([number]) * size)[:size]

    def write(name, data):
        flags = os.O_CREAT | os.O_WRONLY | (os.O_DIRECT if direct else 0)
        fd = os.open(name, flags)
        page = mmap.mmap(-1, 16384)
        page[:len(data)] = data
        assert os.write(fd, memoryview(page)[:len(data)]) == len(data)
        os.fsync(fd)
        os.close(fd)

    files = [(number, size) for number in range(0, 76) for size in sizes[number % len(sizes)]]
    for number, size in files:
        write(f'{path}/{number}-{size}', content(number, size))
    with open('/proc/sys/vm/drop_caches', 'w') as file:
        file.write('3')
    wrong = []
    for number, size in files:
        with open(f'{path}/{number}-{size}', 'rb') as file:
            if file.read() != content(number, size):
                wrong.append([number, size])
    return wrong


@pytest.mark.parametrize('direct', [False, True], ids=['buffered', 'direct'])
def test_file_data_is_data_whatever_it_looks_like(path, client, request, direct):
    every = range(1, 9001, 11 if request.config.getoption('--all') else 197)
    sizes = [[size for i, size in enumerate(every) if i % 76 == turn] or [turn + 1] for turn in range(76)]
    sizes = [turn + [1, 40, 4000] for turn in sizes]
    assert client.call(numbers_and_sizes, path, sizes, direct, timeout=580) == []


def test_sizes_around_every_limit(path, client):
    def sizes(path):
        wrong = []
        for base in (1024, 4096, 8192, 65536, 131072, 1 << 20, 3 << 20):
            for size in (base - 1, base, base + 1, base + 3):
                data = os.urandom(size)
                with open(f'{path}/{size}', 'wb') as file:
                    file.write(data)
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                with open(f'{path}/{size}', 'rb') as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    if file.read() != data:
                        wrong.append(size)
        return wrong

    assert client.call(sizes, path, timeout=300) == []


def test_checksums_over_rdma_and_tcp_are_equal(rdma, mount, client):
    path = mount('rdma')
    client.run(f'for i in 1 2 3; do head -c {{}} /dev/urandom >{path}/$i; done; head -c 20000001 /dev/urandom >{path}/4'
               .replace('{}', '333333'), timeout=300)
    over_rdma = client.run(f'cd {path} && sync && echo 3 >/proc/sys/vm/drop_caches && sha256sum *', timeout=300).stdout
    client.run(f'umount -i {path}', timeout=120)
    path = mount('tcp')
    assert client.run(f'cd {path} && sha256sum *', timeout=300).stdout == over_rdma


@pytest.mark.parametrize('way, direct', [
    ('write', 0), ('randrw', 1), pytest.param('randwrite', 0, marks=pytest.mark.long),
    pytest.param('randwrite', 1, marks=pytest.mark.long), pytest.param('randrw', 0, marks=pytest.mark.long),
    pytest.param('write', 1, marks=pytest.mark.long)])
def test_fio_reads_what_it_wrote(rdma, mount, client, request, way, direct):
    path = mount('rdma')
    size = '64m' if request.config.getoption('--all') else '8m'
    client.run(f'fio --name=t --directory={path} --rw={way} --bsrange=4k-256k --blockalign=4k --size={size} '
               f'--direct={direct} --ioengine=libaio --iodepth=16 --numjobs=2 --verify=crc32c '
               '--verify_fatal=1 --do_verify=1 --end_fsync=1', timeout=550)


def test_many_files_made_listed_renamed_removed(path, client, request):
    def many(path, count):
        from concurrent.futures import ThreadPoolExecutor

        def make(i):
            with open(f'{path}/{i}', 'w') as file:
                file.write(str(i))

        def rename(i):
            os.rename(f'{path}/{i}', f'{path}/new-{i}')

        def read(i):
            with open(f'{path}/new-{i}') as file:
                return file.read()

        with ThreadPoolExecutor(8) as threads:
            def each(work):
                return list(threads.map(work, range(count)))

            each(make)
            listed = sorted(os.listdir(path), key=int)
            each(rename)
            found = each(read)
            renamed = len(os.listdir(path))
            each(lambda i: os.unlink(f'{path}/new-{i}'))
        numbers = [str(i) for i in range(count)]
        return [listed == numbers, found == numbers, renamed == count, os.listdir(path)]

    every = request.config.getoption('--all')
    count = 10000 if every and request.node.callspec.id == 'rxe-4.1' else 1000 if every else 60
    assert client.call(many, path, count, timeout=3000) == [True, True, True, []]


def test_long_names_links_and_attributes(rdma, mount, client):
    def attributes(path):
        os.symlink('t/' * 2000, f'{path}/link')
        with open(f'{path}/file', 'w'):
            pass
        value = os.urandom(65000)
        os.setxattr(f'{path}/file', 'user.large', value)
        os.mkdir(f'{path}/dir')
        names = [f'{i:03}' + 'x' * 252 for i in range(300)]
        for name in names:
            open(f'{path}/dir/{name}', 'w').close()
        return [os.readlink(f'{path}/link') == 't/' * 2000,
                os.getxattr(f'{path}/file', 'user.large') == value,
                sorted(os.listdir(f'{path}/dir')) == names]

    assert client.call(attributes, mount('rdma', minor=2), timeout=300) == [True, True, True]

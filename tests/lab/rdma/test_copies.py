# SPDX-License-Identifier: LGPL-3.0-or-later
"""Data is not copied between drives and network where it need not be; the server counts."""

import pytest

from service import POOL

MIB = 16


def copied(service):
    return service.verb(f'pool iostat {POOL}')['pools'][0]['copied_bytes']


@pytest.mark.parametrize('minor', [1, pytest.param(2, marks=pytest.mark.long)])
def test_large_aligned_writes_and_reads_are_not_copied(rdma, service, mount, client, minor):
    path = mount('rdma', minor=minor)
    client.run(f'head -c {MIB << 20} /dev/urandom >/tmp/data')
    before = copied(service)
    client.run(f'dd if=/tmp/data of={path}/file bs=1M oflag=direct conv=fsync', timeout=300)
    assert copied(service) == before
    found = client.run(f'dd if={path}/file bs=1M iflag=direct | sha256sum', timeout=300).stdout
    assert copied(service) == before
    assert found == client.run('sha256sum </tmp/data').stdout


def test_what_is_copied_is_counted(rdma, service, mount, client):
    path = mount('rdma')
    before = copied(service)
    client.run(f'head -c 300000 /dev/urandom >{path}/file; sync -f {path}')
    written = copied(service)
    assert written - before >= 300000
    client.run(f'echo 3 >/proc/sys/vm/drop_caches; sha256sum <{path}/file')
    client.run(f'echo 3 >/proc/sys/vm/drop_caches; sha256sum <{path}/file')
    assert copied(service) - written >= 300000  # the second time, out of the cache

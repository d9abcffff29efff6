# SPDX-License-Identifier: LGPL-3.0-or-later
"""Quotas of shares, as a client meets them."""

import pytest

pytestmark = pytest.mark.millrace
OPTIONS = 'vers=4.2,proto=tcp'
MIB = 1 << 20


def write_more(path, name, at, length):
    """0, or the errno that a write, or its fsync or close, has come to."""
    try:
        fd = os.open(f'{path}/{name}', os.O_RDWR | os.O_CREAT)
        try:
            done = 0
            while done < length:
                done += os.pwrite(fd, b'x' * min(length - done, 1 << 20), at + done)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno
    return 0


def df(path):
    at = os.statvfs(path)
    return at.f_blocks * at.f_frsize, at.f_bavail * at.f_frsize


def set_quota(share, value):
    share.site.pool.set('share', share.volume, 'quota', value)


def listed(share):
    rows = share.site.pool.ask('share', 'list', share.site.pool.name)['shares']
    return next(row for row in rows if row['name'].endswith('/' + share.volume))


def test_what_is_more_is_refused(share):
    edquot = 122

    set_quota(share, '20M')
    assert share.call(write_more, 'file', 0, 15 * MIB) == 0
    assert share.call(write_more, 'other', 0, 6 * MIB) == edquot
    share.client.run(['rm', f'{share.path}/other'])
    assert share.call(write_more, 'other', 0, 5 * MIB) == 0
    assert share.call(write_more, 'third', 0, 1) == edquot
    share.remount()
    found = share.client.run(['cat', f'{share.path}/file', f'{share.path}/other']).stdout
    assert found == b'x' * (20 * MIB)
    assert listed(share)['used'] == 20 * MIB and listed(share)['quota'] == 20 * MIB
    advice = share.site.pool.status()['advice']
    assert [f'share {share.volume} has used 100 % of its quota'] == [row['what'] for row in advice]


def test_a_full_share_can_be_written_over_and_emptied(share):
    set_quota(share, '8M')
    assert share.call(write_more, 'file', 0, 8 * MIB) == 0
    for _ in range(3):
        assert share.call(write_more, 'file', 0, 8 * MIB) == 0
    share.client.run(['truncate', '-s', '1G', f'{share.path}/file'])
    share.client.run(['truncate', '-s', '2M', f'{share.path}/file'])
    assert share.call(write_more, 'file', 10 * MIB, 6 * MIB) == 0
    share.client.run(['fallocate', '-p', '-o', '0', '-l', '2M', f'{share.path}/file'])
    assert share.call(write_more, 'file', 0, 2 * MIB) == 0
    share.client.run(['rm', f'{share.path}/file'])
    assert share.call(write_more, 'next', 0, 8 * MIB) == 0


def test_it_is_the_size_that_df_shows(share):
    pool_size, _ = share.call(df)

    set_quota(share, '32M')
    assert share.call(df) == [32 * MIB, 32 * MIB]
    assert share.call(write_more, 'file', 0, 10 * MIB) == 0
    assert share.call(df) == [32 * MIB, 22 * MIB]
    set_quota(share, '4M')
    assert share.call(df) == [4 * MIB, 0]
    set_quota(share, 'none')
    size, free = share.call(df)
    assert size == pool_size and free > 32 * MIB


def test_a_change_counts_at_once_and_outlives_the_server(share):
    edquot = 122

    assert share.call(write_more, 'file', 0, 10 * MIB) == 0
    set_quota(share, '5M')
    assert share.call(write_more, 'more', 0, MIB) == edquot
    set_quota(share, '12M')
    assert share.call(write_more, 'more', 0, MIB) == 0
    share.site.server.kill9()
    share.site.server.start()
    assert share.call(write_more, 'more', 0, 2 * MIB) == 0
    assert share.call(write_more, 'more', 2 * MIB, MIB) == edquot
    set_quota(share, 'none')
    assert share.call(write_more, 'more', 2 * MIB, MIB) == 0

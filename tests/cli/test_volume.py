# SPDX-License-Identifier: LGPL-3.0-or-later
"""Datasets, shares and properties, on an idle pool and on a served one."""

import os
import shutil

import pytest

from conftest import FAILED, NOT_FOUND, REFUSED, USAGE


def properties(site, *args):
    return {p['property']: p['value'] for p in site.json(*args)['properties']}


def test_share(either):
    either('share', 'create', 'tank/a', '--owner', '1000', '--group', '100', '--mode', '0770')
    rows = either.json('share', 'list')['shares']
    assert [row['name'] for row in rows] == ['tank/a'] and rows[0]['clients'] == ''
    assert properties(either, 'share', 'get', 'tank/a', 'nfs.path', 'kind') == {
        'nfs.path': '/tank/a', 'kind': 'share'}
    either('share', 'destroy', 'tank/a', '--yes')
    assert either.json('share', 'list', 'tank')['shares'] == []


def test_names_are_one_space(either):
    either('share', 'create', 'tank/a')
    either.fails(REFUSED, 'share', 'create', 'tank/a')
    either.fails(REFUSED, 'dataset', 'ingest', 'tank/a', either.tree())
    for verb in ('seal', 'get', 'verify'):
        assert 'share' in either.fails(NOT_FOUND, 'dataset', verb, 'tank/a')['message']
    either.fails(NOT_FOUND, 'dataset', 'destroy', 'tank/a', '--yes')
    either.fails(NOT_FOUND, 'share', 'get', 'tank/none')
    either('share', 'get', 'tank/a')


def test_export_ids_are_not_used_again(either):
    ids = set()
    for _ in range(3):
        either('share', 'create', 'tank/a')
        ids.add(properties(either, 'share', 'get', 'tank/a')['nfs.export'])
        either('share', 'destroy', 'tank/a', '--yes')
    assert len(ids) == 3


def test_ingest_seals(either):
    answer = either.json('dataset', 'ingest', 'tank/set', either.tree())['ingest']
    assert answer['files'] == 20 and answer['directories'] == 2 and answer['sealed'] is True
    assert answer['bytes'] == sum(i * 1000 for i in range(20))
    assert either.json('dataset', 'list')['datasets'][0]['sealed'] is True
    report = either.json('dataset', 'verify', 'tank/set')['verify']
    assert report['files'] == 20 and report['bad_files'] == 0 and report['bytes'] > 0
    either.fails(REFUSED, 'dataset', 'ingest', 'tank/set', either.tree('other'), '--resume')
    either('dataset', 'destroy', 'tank/set', '--yes')
    assert either.json('dataset', 'list')['datasets'] == []


def test_ingest_in_parts(either):
    first, second = either.tree('one', 5), either.tree('two', 9)
    either.fails(USAGE, 'dataset', 'ingest', 'tank/set', first, '--threads', '17')
    answer = either.json('dataset', 'ingest', 'tank/set', first, '--no-seal', '--threads', '2')
    assert answer['ingest']['sealed'] is False
    answer = either.json('dataset', 'ingest', 'tank/set', first, '--no-seal', '--resume')
    assert answer['ingest']['files'] == 0 and answer['ingest']['present'] > 0
    either.fails(REFUSED, 'dataset', 'ingest', 'tank/set', second)
    either('dataset', 'seal', 'tank/set')
    either('dataset', 'seal', 'tank/set')
    assert properties(either, 'dataset', 'get', 'tank/set')['sealed'] == 'yes'


def test_ingest_names_what_it_skips(either):
    top = either.tree()
    os.mkfifo(os.path.join(top, 'pipe'))
    os.symlink('nowhere', os.path.join(top, 'dangling'))
    with open(os.path.join(os.fsencode(top), b'bad\xff'), 'w') as file:
        file.write('x')
    answer = either.json('dataset', 'ingest', 'tank/set', top)['ingest']
    assert answer['files'] == 21 and answer['skipped'] == len(answer['skipped_names'])


def beyond_the_longest_path(top):
    """A file in so many directories that its path is longer than any that can be opened."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(17):
        os.mkdir('d' * 250, dir_fd=here)
        below = os.open('d' * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open('file', os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


def within_the_longest_path(top):
    """The same without the last directory."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(16):
        below = os.open('d' * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.unlink(os.path.join('d' * 250, 'file'), dir_fd=here)
    os.rmdir('d' * 250, dir_fd=here)
    os.close(here)


def test_ingest_does_not_seal_what_lacks_names(either):
    top = either.tree()
    beyond_the_longest_path(top)
    done = either('dataset', 'ingest', 'tank/set', top, rc=FAILED)
    assert 'skipped' in done.stderr and 'too long' in done.stderr
    answer = either.json('dataset', 'ingest', 'tank/set', top, '--resume', rc=FAILED)
    assert answer['ingest']['skipped'] == 1 and answer['ingest']['sealed'] is False
    assert 'dataset seal' in answer['error']['message']
    assert properties(either, 'dataset', 'get', 'tank/set')['sealed'] == 'no'
    either('dataset', 'ingest', 'tank/as-it-is', top, rc=FAILED)
    either('dataset', 'seal', 'tank/as-it-is')
    within_the_longest_path(top)
    either('dataset', 'ingest', 'tank/set', top, '--resume')
    assert properties(either, 'dataset', 'get', 'tank/set')['sealed'] == 'yes'


def test_resume_makes_it_what_the_directory_is_now(either):
    """Modes, bytes and types that have changed since; all of it is then as it is there."""
    top = either.tree()
    either('dataset', 'ingest', 'tank/set', top, '--no-seal')
    os.chmod(os.path.join(top, 'sub', 'f3'), 0o4711)
    os.chmod(os.path.join(top, 'sub'), 0o700)
    with open(os.path.join(top, 'sub', 'f4'), 'w') as file:
        file.write('other')
    os.unlink(os.path.join(top, 'link'))
    os.mkdir(os.path.join(top, 'link'))
    answer = either.json('dataset', 'ingest', 'tank/set', top, '--resume')['ingest']
    assert (answer['files'], answer['directories']) == (1, 1) and answer['sealed'] is True
    assert answer['left'] == 0 and answer['left_names'] == []
    either('dataset', 'verify', 'tank/set')


def test_resume_does_not_seal_what_the_directory_has_no_more(either):
    top = either.tree()
    either('dataset', 'ingest', 'tank/set', top, '--no-seal')
    os.rename(os.path.join(top, 'sub', 'f3'), os.path.join(top, 'sub', 'g3'))
    shutil.rmtree(os.path.join(top, 'sub', 'deep'))
    done = either('dataset', 'ingest', 'tank/set', top, '--resume', rc=FAILED)
    assert f'{top}/sub/f3 is in the dataset, but not there any more' in done.stderr
    answer = either.json('dataset', 'ingest', 'tank/set', top, '--resume', rc=FAILED)
    assert sorted(answer['ingest']['left_names']) == [f'{top}/sub/deep', f'{top}/sub/f3']
    assert answer['ingest']['left'] == 2 and answer['ingest']['skipped'] == 0
    assert 'gone there (2)' in answer['error']['message'] and 'destroy' in answer['error']['message']
    assert properties(either, 'dataset', 'get', 'tank/set')['sealed'] == 'no'
    either('dataset', 'seal', 'tank/set')


def test_resume_tells_of_a_directory_that_became_a_file(either):
    top = either.tree()
    either('dataset', 'ingest', 'tank/set', top, '--no-seal')
    os.rmdir(os.path.join(top, 'sub', 'deep'))
    with open(os.path.join(top, 'sub', 'deep'), 'w') as file:
        file.write('x')
    answer = either.json('dataset', 'ingest', 'tank/set', top, '--resume', rc=FAILED)['ingest']
    assert [row['path'] for row in answer['skipped_names']] == [f'{top}/sub/deep']
    assert 'a directory' in answer['skipped_names'][0]['why'] and answer['left'] == 0


def test_a_relative_directory_is_the_commands(either):
    either.tree('here')
    old = os.getcwd()
    os.chdir(either.root)
    try:
        either('dataset', 'ingest', 'tank/set', 'here')
    finally:
        os.chdir(old)


def test_ingest_of_a_missing_directory_makes_nothing(either):
    either.fails(NOT_FOUND, 'dataset', 'ingest', 'tank/set', either.path('none'))
    either.fails(USAGE, 'dataset', 'ingest', 'tank/set', __file__)
    assert either.json('dataset', 'list')['datasets'] == []


def test_properties(either):
    either('share', 'create', 'tank/a')
    assert properties(either, 'share', 'get', 'tank/a', 'nfs.squash') == {'nfs.squash': 'root'}
    either('share', 'set', 'tank/a', 'nfs.clients=10.1.2.3/8:rw,192.168.0.1/32:ro,fe80::1/64:ro,*:ro',
           'nfs.squash=none', 'comment=models = all', 'lab:owner=ann')
    assert properties(either, 'share', 'get', 'tank/a', 'nfs.clients', 'nfs.squash', 'comment',
                      'lab:owner') == {
        'nfs.clients': '10.0.0.0/8:rw,192.168.0.1:ro,fe80::/64:ro,*:ro', 'nfs.squash': 'none',
        'comment': 'models = all', 'lab:owner': 'ann'}
    either('share', 'set', 'tank/a', 'nfs.clients=', 'lab:owner=')
    assert properties(either, 'share', 'get', 'tank/a', 'nfs.clients') == {'nfs.clients': ''}
    either.fails(NOT_FOUND, 'share', 'get', 'tank/a', 'lab:owner')
    either('share', 'set', 'tank/a', 'nfs.squash=')
    assert properties(either, 'share', 'get', 'tank/a', 'nfs.squash') == {'nfs.squash': 'root'}
    either('pool', 'set', 'tank', 'comment=first')
    assert properties(either, 'pool', 'get', 'tank') == {
        'cache.size': 'auto', 'comment': 'first', 'compact.rate': '64M', 'read.hedge': '500ms'}
    either('pool', 'set', 'tank', 'compact.rate=131072K')
    assert properties(either, 'pool', 'get', 'tank', 'compact.rate') == {'compact.rate': '128M'}
    either('pool', 'set', 'tank', 'compact.rate=')
    assert properties(either, 'pool', 'get', 'tank', 'compact.rate') == {'compact.rate': '64M'}


def test_the_size_of_the_cache(either):
    def size():
        return either.json('pool', 'status', 'tank')['pool']['cache_size']

    served = bool(either.is_served)
    assert (size() > 64 << 20) == served
    for value, kept, taken in (('2048k', '2M', 2 << 20), ('3000000', '3000000', 3000000),
                               ('0', '0', 0), ('1MiB', '1M', 1 << 20)):
        either('pool', 'set', 'tank', f'cache.size={value}')
        assert properties(either, 'pool', 'get', 'tank')['cache.size'] == kept
        assert size() == taken * served
    memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    either('pool', 'set', 'tank', 'cache.size=4096T')
    assert size() == memory // 2 * served
    for value in ('-1', '1K', 'all', '1P', '9999999T', '1048575'):
        error = either.fails(USAGE, 'pool', 'set', 'tank', f'cache.size={value}')
        assert 'from 1M on' in error['message']
    assert properties(either, 'pool', 'get', 'tank')['cache.size'] == '4096T'
    either('pool', 'set', 'tank', 'cache.size=')
    assert properties(either, 'pool', 'get', 'tank')['cache.size'] == 'auto'
    assert size() == memory // 8 * served
    either('pool', 'set', 'tank', 'cache.size=5M')
    if served:
        either('serve', 'tank', '--stop')
        either('serve', 'tank')
        assert size() == 5 << 20


def test_quotas(either):
    either('share', 'create', 'tank/a', '--quota', '3M')
    either('share', 'create', 'tank/b')
    assert properties(either, 'share', 'get', 'tank/a', 'quota') == {'quota': '3M'}
    assert properties(either, 'share', 'get', 'tank/b', 'quota') == {'quota': 'none'}
    shares = either.json('share', 'list')['shares']
    assert [share.get('quota') for share in shares] == [3 << 20, None]
    either('share', 'set', 'tank/a', 'quota=none')
    for text, shown in (('1500', '1500'), ('2048', '2K'), ('10GiB', '10G'), ('1024G', '1T')):
        either('share', 'set', 'tank/b', f'quota={text}')
        assert properties(either, 'share', 'get', 'tank/b', 'quota') == {'quota': shown}
    shares = either.json('share', 'list')['shares']
    assert [share.get('quota') for share in shares] == [None, 1 << 40]
    either('share', 'set', 'tank/b', 'quota=')
    assert properties(either, 'share', 'get', 'tank/b', 'quota') == {'quota': 'none'}
    assert either.fails(USAGE, 'share', 'create', 'tank/c', '--quota', '0')['code'] == 'usage'
    either('dataset', 'ingest', 'tank/set', either.tree())
    either.fails(USAGE, 'dataset', 'set', 'tank/set', 'quota=1G')


@pytest.mark.parametrize('assignment', [
    'nfs.clients=10.0.0.0/8', 'nfs.clients=*', 'nfs.clients=*:rx', 'nfs.clients=10.0.0.0/33:ro',
    'nfs.clients=host:ro', 'nfs.clients=,', 'nfs.clients=10.0.0.0/8:ro,10.1.0.0/8:rw',
    'nfs.clients=1.2.3.4/:ro', 'nfs.clients=' + ','.join(['*:ro'] * 500), 'nfs.squash=some',
    'quota=0', 'quota=-1', 'quota=1X', 'quota=all', 'quota=9999999T', 'nfs.squash', 'sealed=yes', '=x', 'comment=' + 'x' * 1001, 'comment=a\nb', 'A:b=x',
    'a:' + 'b' * 62 + '=x'], ids=lambda text: ascii(text[:40]))
def test_bad_properties(pool, assignment):
    pool('share', 'create', 'tank/a')
    error = pool.fails(USAGE, 'share', 'set', 'tank/a', 'comment=new', assignment)
    assert error['code'] == 'usage'
    assert properties(pool, 'share', 'get', 'tank/a', 'comment') == {'comment': ''}


@pytest.mark.parametrize('value', ['krb5', 'krb5i', 'krb5p', 'krb5:sys', 'none'])
def test_kerberos_is_refused(either, value):
    either('share', 'create', 'tank/a')
    error = either.fails(USAGE, 'share', 'set', 'tank/a', f'nfs.sec={value}')
    assert error['object'] == 'nfs.sec' and 'Kerberos' in error['message']
    either('share', 'set', 'tank/a', 'nfs.sec=sys')
    assert properties(either, 'share', 'get', 'tank/a', 'nfs.sec') == {'nfs.sec': 'sys'}


@pytest.mark.parametrize('rate', ['x', '-1', '1X', '1.5G', '1 G', '99999999999G', '1' * 30])
def test_bad_rates(pool, rate):
    assert pool.fails(USAGE, 'pool', 'set', 'tank', f'compact.rate={rate}')['code'] == 'usage'
    assert properties(pool, 'pool', 'get', 'tank', 'compact.rate') == {'compact.rate': '64M'}


@pytest.mark.parametrize('hedge', ['x', '-1', '500', '99ms', '0s', '61s', '1m', '1 s', '5ms5', '9' * 30 + 's'])
def test_bad_hedges(pool, hedge):
    assert pool.fails(USAGE, 'pool', 'set', 'tank', f'read.hedge={hedge}')['code'] == 'usage'
    pool('pool', 'set', 'tank', 'read.hedge=2s')
    assert properties(pool, 'pool', 'get', 'tank', 'read.hedge') == {'read.hedge': '2s'}
    pool('pool', 'set', 'tank', 'read.hedge=0')
    assert properties(pool, 'pool', 'get', 'tank', 'read.hedge') == {'read.hedge': '0'}


@pytest.mark.parametrize('name', ['tank/a/b', 'tank/', 'tank', '/a', 'tank/..', 'tank/.a', 'tank/-a',
                                  'tank/a b', 'tank/' + 'x' * 64, 'tank/' + 'x' * 256,
                                  'x' * 256 + '/a', 'tank/ä'],
                         ids=lambda text: f'{ascii(text[:10])}{len(text)}')
def test_bad_names(either, name):
    assert either.fails(USAGE, 'share', 'create', name)['code'] == 'usage'
    either.fails(USAGE, 'dataset', 'ingest', name, either.tree())
    assert either.json('share', 'list')['shares'] == []
    assert either.json('dataset', 'list')['datasets'] == []


def make_shares(site, count):
    """As long as there is room: how many there are then."""
    for made in range(count):
        done = site.run('share', 'create', f'tank/s{made}')
        if done.rc:
            assert 'No space' in done.stderr and '`millrace pool status tank`' in done.stderr
            return made
    return count


def test_a_full_pool(either):
    """ENOSPC names what to do; the space comes back, and a smaller dataset fits."""
    size = either.json('pool', 'status', 'tank')['pool']['size']
    top = either.path('big')
    os.mkdir(top)
    for i in range(16):
        with open(os.path.join(top, f'f{i}'), 'wb') as file:
            file.write(os.urandom(size // 8))
    error = either.json('dataset', 'ingest', 'tank/set', top, rc=1)['error']
    assert error['errno'] == 'ENOSPC' and 'destroy' in error['message']
    made = make_shares(either, 3)
    assert len(either.json('share', 'list')['shares']) == made
    either('pool', 'check', 'tank')
    either('dataset', 'destroy', 'tank/set', '--yes')
    either('dataset', 'ingest', 'tank/small', either.tree())
    either('dataset', 'verify', 'tank/small')

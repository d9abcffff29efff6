# SPDX-License-Identifier: LGPL-3.0-or-later
"""FSAL_VFS over RDMA, whose workers switch their credentials for each request: the kernel takes no posts
to a soft device by others than those that opened it."""

import pytest

from peer import Peer, Vfs

ADDRESS, PATH = '192.0.2.3', '/mnt/vfs'


@pytest.fixture
def vfs(lab, client):
    peer = lab.add(Peer, 'peer', server_address=ADDRESS, networks={'lan': f'{ADDRESS}/24'})
    peer.start()
    peer.share_drives()
    yield Vfs(peer)
    client.kill_commands()
    client.run(f'! mountpoint -q {PATH} || umount -i -l {PATH}', timeout=120)
    lab.remove(peer)


@pytest.mark.long
@pytest.mark.rxe
def test_workers_that_switch_credentials(vfs, client):
    vfs.mount(client, PATH, 'rdma')
    client.run(f'head -c 5000000 /dev/urandom >/tmp/data && cd {PATH} && '
               'setpriv --reuid 1000 --regid 1000 --clear-groups sh -c '
               '"for i in 1 2 3 4 5; do head -c 1000 /tmp/data >small\\$i; done; cp /tmp/data large; sync -f ."',
               timeout=300)
    client.run(f'cd {PATH} && umask 077 && cp /tmp/data roots && sync -f . && echo 3 >/proc/sys/vm/drop_caches && '
               'cmp large /tmp/data && cmp roots /tmp/data && [ "$(stat -c %u large)" = 1000 ] && '
               'for i in 1 2 3 4 5; do cmp -n 1000 small$i /tmp/data; done', timeout=300)
    assert 'nothing can be posted' not in vfs.log()

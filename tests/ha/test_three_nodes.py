# SPDX-License-Identifier: LGPL-3.0-or-later
"""Three nodes with the same drives, of which one is left."""

import pytest

from cluster import Cluster
from harness.client import make_client
from harness.host import wait_until
from harness.server import Pool


@pytest.fixture
def cluster(tmp_path):
    pool = Pool(tmp_path / 'pool').create()
    with make_client(workdir=tmp_path) as client, Cluster(tmp_path, pool, client, nodes=3) as cluster:
        yield cluster.start().serve()
    pool.close()


def states(node):
    return {each['name']: each['state'] for each in node.ask('cluster', 'status')['nodes']}


def test_who_is_left_serves_when_all_others_are_known_to_be_dead(cluster):
    """Nobody has fenced them, for want of a quorum; they can be taken out then, and not before."""
    left, second, third = cluster.nodes
    without_drives = 'of nodes with drives of their own most must run'
    left.run('touch', '/etc/millrace/fencing')  # by which the command knows that drives are for it
    for node in (second, third):
        node.kill()
    wait_until(lambda: states(left) == {left.name: 'online', second.name: 'unclean', third.name: 'unclean'}, 60, 'they are missed')
    assert 'is fenced first' in left.refused('cluster', 'remove', second.name, third.name, '--yes')
    told = {row['what']: row['next'] for row in left.ask('cluster', 'status')['advice']}
    assert 'confirm-dead' in told['there is no quorum: nothing is served'] and f'{third.name} is lost, and may be at work all the same' in told
    left.run('rm', '/etc/millrace/fencing')
    assert without_drives in ' '.join(row['next'] for row in left.ask('cluster', 'status')['advice'])
    left.run('touch', '/etc/millrace/fencing')
    assert f'nobody knows of {third.name}' in left.ask('cluster', 'confirm-dead', second.name, '--yes')['message']
    assert not left.ask('cluster', 'status')['cluster']['quorum'] and not cluster.owner()
    assert 'is fenced first' in left.refused('cluster', 'remove', second.name, third.name, '--yes')
    assert 'message' not in left.ask('cluster', 'confirm-dead', third.name, '--yes')
    assert left.ask('cluster', 'status')['cluster']['quorum']
    assert cluster.wait_until_served() is left and cluster.fenced == []
    assert 'they outvote' in left.refused('cluster', 'remove', second.name, third.name)
    left.ask('cluster', 'remove', second.name, third.name, '--yes')
    assert states(left) == {left.name: 'online'} and left.ask('cluster', 'status')['cluster']['quorum']
    assert left.run('cat', '/etc/corosync/corosync.conf').count('ring0_addr') == 1
    left.run('/usr/lib/millrace/cluster', 'claim', 'seconds=300')  # it may boot, though nobody serves meanwhile
    left.run('/usr/lib/millrace/cluster', 'release')

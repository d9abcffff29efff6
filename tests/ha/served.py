# SPDX-License-Identifier: LGPL-3.0-or-later
"""Fixtures of a cluster of two nodes, corosync's and pacemaker's, that serves a pool's share and dataset, and of a client at work."""

import os

import pytest

from cluster import Cluster
from harness.appender import Appender
from harness.client import make_client
from harness.server import Pool


@pytest.fixture(scope='module')
def client(tmp_path_factory):
    with make_client(workdir=tmp_path_factory.mktemp('client')) as client:
        yield client


@pytest.fixture(scope='module')
def cluster(client, tmp_path_factory):
    pool = Pool(tmp_path_factory.mktemp('pool')).create()
    data = tmp_path_factory.mktemp('data')
    (data / 'large').write_bytes(os.urandom(24 << 20))
    pool.ingest('set', data)
    pool.create_share('share', mode=0o777)
    with Cluster(tmp_path_factory.mktemp('cluster'), pool, client) as cluster:
        yield cluster.start().serve()
    pool.close()


@pytest.fixture
def writer(cluster, client, request):
    """At work in a directory of its own."""
    for path, options in (('/mnt/share', ''), ('/mnt/also', ',nosharecache')):
        if client.run(['mountpoint', '-q', path], check=False).rc:
            client.mount('/tank/share', path, f'vers=4.1,proto=tcp{options}', server=cluster.address)
    name = request.node.name
    client.run(['mkdir', f'/mnt/share/{name}'], timeout=120)
    yield Appender(client, f'/mnt/share/{name}', f'/mnt/also/{name}')
    client.kill_commands()


@pytest.fixture(autouse=True)
def whole(cluster):
    """Both nodes are there, before each test."""
    cluster.fenced.clear()
    for node in cluster.nodes:
        if not node.is_on():
            node.start()
    cluster.wait_for_nodes()
    cluster.clean()
    cluster.wait_until_served()


@pytest.fixture(scope='module')
def readers(cluster):
    cluster.read()

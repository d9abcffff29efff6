# SPDX-License-Identifier: LGPL-3.0-or-later
"""Clients of a cluster, which each module has as its fixture `cluster`, and their work."""

import pytest

from cluster import MINE, PORTS, SERVICE
from work import Work, mount_share


@pytest.fixture(scope='module')
def clients(cluster):
    """By their transports."""
    for transport, client in cluster.clients.items():
        client.wait_until_up()
        mount_share(cluster, client, transport)
    return cluster.clients


@pytest.fixture
def dying(lab, cluster):
    """A client that holds a lock."""
    dying = cluster.make_client('dying', 11)
    dying.start()
    dying.mount(f'/{SERVICE}/share', MINE, 'vers=4.1,proto=tcp', PORTS['tcp'], timeout=300)
    held = dying.spawn(f'exec 9>{MINE}/dying && flock 9 && echo held && sleep 1000')
    held.wait_for_lines(1, 300)
    yield dying
    lab.remove(dying)


def over(config):
    """The transports over which clients write. On a slow machine two that do so have more of the time than the failover."""
    told = config.getoption('--over') or ('both' if config.getoption('--all') else 'rdma')
    return ('rdma', 'tcp') if told == 'both' else (told,)


@pytest.fixture
def work(cluster, clients, request, number, record_property, capsys):
    """Begun; its figures go to the results, and out."""
    events = []

    def show(what, transport, figures):
        with capsys.disabled():
            print(f'\n{what} over {transport}:', *(f'{name} {value:.1f}' for name, value in figures.items()))

    def tell(transport, figures):
        record_property(transport, figures)
        show(request.node.name, transport, figures)

    def tell_of(event, by_transport):
        events.append({'event': event, **by_transport})
        record_property('events', events)
        for transport, figures in by_transport.items():
            show(event, transport, figures)

    if request.node.get_closest_marker('one_node') and not request.config.getoption('--all'):
        cluster.wait_until_served()
    else:
        cluster.wait_until_whole()
    work = Work(cluster, clients, over(request.config), request.node.name, tell, tell_of)
    yield work
    cluster.wait_until_served()  # else nobody might answer
    work.end()

# SPDX-License-Identifier: LGPL-3.0-or-later
"""The lab itself: machines, their network, their drives."""

from harness.host import wait_until


def test_what_is_written_over_tcp_is_read_again(mount, client):
    path = mount('tcp')
    client.run(f'head -c 3000000 /dev/urandom >/tmp/x && cp /tmp/x {path}/x')
    client.drop_caches()
    client.run(f'cmp /tmp/x {path}/x')


def test_a_drive_is_pulled_and_put_back(pair):
    server = pair[0]
    drive = server.drives[6]
    server.run(f'printf written | dd of={drive.path} conv=fsync')
    server.pull_drive(6)
    wait_until(lambda: not server.does(f'test -b {drive.path}'), 60, 'it has no name any more')
    server.put_drive(6)
    # The name may come, go and come again: udev takes its time over the drive that has gone.
    wait_until(lambda: server.attempt(f'head -c 7 {drive.path}').stdout == 'written', 120,
               'the drive is back, with what it held')


def test_a_cable_is_pulled_and_put_back(client):
    client.cut('lan')
    assert client.run(f'ping -c 1 -W 3 {client.server_address}', check=False).rc != 0
    client.join('lan')
    wait_until(lambda: client.run(f'ping -c 1 -W 3 {client.server_address}', check=False).rc == 0, 120,
               'the client reaches the server')


def test_what_is_not_served_is_not_reached(pair, service, client):
    """A program that listens on all addresses, for instance, before its port is opened."""
    server, connect = pair[0], f"python3 -c 'import socket; socket.create_connection((\"{service.address}\", %d), 5)'"
    server.run('systemd-run --unit=listener systemd-socket-activate --listen=0.0.0.0:2222 /bin/cat')
    assert client.run(connect % 2049, check=False).rc == 0
    assert client.run(connect % 2222, check=False).rc != 0
    server.run("nft add element inet millrace tcp_served '{ 2222 }'")
    assert client.run(connect % 2222, check=False).rc == 0
    server.run("systemctl stop listener; nft delete element inet millrace tcp_served '{ 2222 }'")

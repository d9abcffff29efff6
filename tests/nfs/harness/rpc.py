# SPDX-License-Identifier: LGPL-3.0-or-later
"""Is an NFSv4 server there? The NULL procedure of ONC RPC (RFC 5531) over TCP."""

import socket
import struct

NFS_PROGRAM = 100003
NFS_VERSION = 4
LAST_FRAGMENT = 1 << 31
CALL, REPLY = 0, 1
MSG_ACCEPTED = SUCCESS = 0


def answers_null(address, port, timeout=2):
    """Whether NFSv4's NULL at ADDRESS:PORT is answered, and with success, within TIMEOUT."""
    xid = 0x6d696c6c
    # rpcvers 2, program, version, procedure NULL; credential and verifier AUTH_NONE, empty
    call = struct.pack('>10I', xid, CALL, 2, NFS_PROGRAM, NFS_VERSION, 0, 0, 0, 0, 0)
    try:
        with socket.create_connection((address, port), timeout) as connection:
            connection.sendall(struct.pack('>I', LAST_FRAGMENT | len(call)) + call)
            with connection.makefile('rb') as file:
                # record mark; xid, REPLY, MSG_ACCEPTED; verifier AUTH_NONE, empty; SUCCESS
                reply = file.read(28)
    except OSError:
        return False
    if len(reply) < 28:
        return False
    _, answered, kind, accepted, _, _, status = struct.unpack('>7I', reply)
    return (answered, kind, accepted, status) == (xid, REPLY, MSG_ACCEPTED, SUCCESS)

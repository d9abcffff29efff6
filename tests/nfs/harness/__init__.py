# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the NFS tests stand on: a real client, a server, a pool. See tests/nfs/README.md."""

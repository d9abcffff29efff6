#!/bin/sh
# SPDX-License-Identifier: LGPL-3.0-or-later
#
# Process 1 of the User Mode Linux client. The root is the host's file system, mounted read-only;
# what the guest writes goes to tmpfs. The kernel's command line gives the millrace_* variables.
set -eu
: "${millrace_name:?}" "${millrace_agent:?}" "${millrace_address:?}"
: "${millrace_modules:?}" "${millrace_harness:?}"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8

mount -t tmpfs -o mode=755 run /run
cp "$millrace_agent" /run/agent.py
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
modprobe -d "$millrace_modules" nfsv4
mount -t tmpfs -o mode=755 mnt /mnt
mount -t tmpfs -o mode=1777 tmp /tmp

hostname "$millrace_name"
ip link set lo up
ip address add "$millrace_address" dev vec0
ip link set vec0 up

# The kernel panics when process 1 ends, and the harness sees that the client is gone.
exec /usr/bin/python3 -I /run/agent.py "$millrace_harness"

#!/bin/bash
# SPDX-License-Identifier: LGPL-3.0-or-later
#
# node.sh NAME ADDRESS/BITS SYSTEM TREE DIRECTORY DEVICES: process 1 of a node in namespaces of its own
# (cluster.py): corosync and pacemaker of the Debian in SYSTEM, until one of them ends. What the node
# changes there is in DIRECTORY/NAME, its disk. TREE, this working tree, DIRECTORY and DEVICES are the
# same in there. Its network device, lan, is put in from outside.
set -euo pipefail
name=$1 address=$2 system=$3 tree=$4 directory=$5 devices=$6
disk=$directory/$name
root=$disk/root

mount --make-rprivate /
hostname "$name"
mkdir -p "$disk/changes" "$disk/work" "$root"
mount -t overlay -o "lowerdir=$system,upperdir=$disk/changes,workdir=$disk/work" node "$root"
for place in "$tree" "$directory" "$devices" /dev; do
    mkdir -p "$root$place"
    mount --rbind "$place" "$root$place"
done
mount -t proc proc "$root/proc"
cat /proc/sys/kernel/random/uuid >"$disk/boot" # another one each time, as machines have
mount --bind "$disk/boot" "$root/proc/sys/kernel/random/boot_id"
mount -t sysfs sys "$root/sys" # of its own network devices
mount -t tmpfs -o mode=755 own "$root/run"
mount -t tmpfs -o mode=1777 own "$root/dev/shm"
mkdir -p "$root/run/millrace" "$root/run/resource-agents"
install -d -m 770 "$root/run/crm"
install -m 755 "$directory/fence_namespaces" "$root/usr/sbin/"
install -m 400 "$directory/corosync.conf" "$directory/authkey" "$root/etc/corosync/"
install -m 440 "$directory/authkey" "$root/etc/pacemaker/authkey"
mkdir -p "$root/usr/lib/ocf/lib" "$root/usr/lib/ocf/resource.d"
# As the package has them; the server's parts are in TREE.
install -m 755 "$tree/build/bin/millrace" "$root/usr/bin/"
mkdir -p "$root/usr/lib/millrace" "$root/etc/millrace"
ln -sfn "$tree"/ha/bin/* "$tree"/build/ganesha/prefix/bin/ganesha.nfsd "$tree"/build/lib/ganesha/libfsalnvme.so "$root/usr/lib/millrace/"
ln -sfn ../lib/millrace/fence "$root/usr/sbin/fence_millrace"
: >"$root/etc/millrace/cluster"
ln -sfn "$tree/ha/ocf/lib/millrace" "$root/usr/lib/ocf/lib/millrace"
ln -sfn "$tree/ha/ocf/resource.d/millrace" "$root/usr/lib/ocf/resource.d/millrace"
[ -e "$root/var/lib/millrace" ] || cp -a "$directory/state" "$root/var/lib/millrace"

ip link set lo up
until ip link show lan >"$disk/link" 2>&1; do sleep 0.05; done
ip address add "$address" dev lan
ip link set lan up

# By its numbers, which are the system's there.
owner=$(chroot "$root" id -u hacluster):$(chroot "$root" id -g hacluster)
chown "$owner" "$root/run/crm" "$root/etc/pacemaker/authkey"
export PCMK_logfile=$directory/$name.pacemaker.log
chroot "$root" corosync -f &
until chroot "$root" corosync-cfgtool -s >"$disk/cfgtool" 2>&1; do sleep 0.1; done
chroot "$root" pacemakerd -f &
wait -n

# SPDX-License-Identifier: LGPL-3.0-or-later
# What tests/appliance and tests/lab/boot need: machines, their firmware, drives to put in, a way in.
dosfstools
e2fsprogs
fdisk
jq
mtools
openssh-client
ovmf
python3
python3-pytest
qemu-system-x86
qemu-utils
yq
zstd

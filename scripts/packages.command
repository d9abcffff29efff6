# SPDX-License-Identifier: LGPL-3.0-or-later
# What tests/cli needs beyond what it was built with.
bash
mandoc
python3-jsonschema
python3-pytest-xdist
systemd
util-linux

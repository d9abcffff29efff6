# SPDX-License-Identifier: LGPL-3.0-or-later
"""Other versions of the image that was built: its root file system with some files changed."""

import os
import subprocess
import tempfile

from machine import ROOT

VERSION = 'usr/lib/millrace/version'
TRIAL = 'usr/lib/systemd/system/millrace-trial.service.d'
# What fails by itself, or within a trial that is shorter than an admin's.
PANICS = {'usr/lib/systemd/system/millrace-setup.service.d/panic.conf':
          '[Service]\nExecStartPre=/bin/sh -c "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger"\n'}
SERVES_NOT = {'usr/lib/millrace/ganesha.nfsd': None,
              f'{TRIAL}/short.conf': '[Service]\nEnvironment=MILLRACE_TRIAL_SECONDS=30\n'}
STARTS_NOT = {'boot/vmlinuz': None}
FINDS_NO_INIT = {'usr/sbin/init': None, 'usr/bin/sh': None, 'usr/bin/dash': None, 'usr/bin/bash': None}


def root_of(update, path):
    """The root file system in an update file."""
    with open(path, 'wb') as root:
        payload = subprocess.Popen(['tar', '-x', '-O', '-f', update, 'root.zst'], stdout=subprocess.PIPE)
        subprocess.run(['zstd', '-q', '-d', '-c'], stdin=payload.stdout, stdout=root, check=True)
        assert payload.wait() == 0


def debugfs(root, commands):
    done = subprocess.run(['debugfs', '-w', '-f', '-', root], input=commands, check=True, capture_output=True,
                          text=True)
    wrong = [line for line in done.stderr.splitlines()[1:] if 'already exists' not in line]
    assert not wrong, done.stderr


def make(old, version, changes, update):
    """An update file to VERSION: the root file system in OLD with CHANGES {path: text, or None: gone}."""
    with tempfile.TemporaryDirectory() as directory:
        root, commands = os.path.join(directory, 'root'), ''
        root_of(old, root)
        for number, (path, text) in enumerate({VERSION: version + '\n', **changes}.items()):
            if text is None or path == VERSION:
                commands += f'rm {path}\n'
            else:
                commands += f'mkdir {os.path.dirname(path)}\n'
            if text is not None:
                new = os.path.join(directory, str(number))
                with open(new, 'w') as file:
                    file.write(text)
                os.chmod(new, 0o644)
                commands += f'write {new} {path}\n'
        debugfs(root, commands)
        subprocess.run([os.path.join(ROOT, 'appliance', 'update-file'), root, version, update], check=True,
                       env={**os.environ, 'ZSTD_CLEVEL': '1'})

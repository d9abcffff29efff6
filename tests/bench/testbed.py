# SPDX-License-Identifier: LGPL-3.0-or-later
"""What figures were taken on, and with which commands."""

import os
import platform
import shlex
import subprocess

commands = []  # as text, each once, in the order in which they were first run


def ran(argv, places=()):
    """Remember a command; the directories PLACES are left out of it."""
    text = shlex.join(map(str, argv))
    for place in places:
        text = text.replace(place, 'DIR')
    if text not in commands:
        commands.append(text)


def describe(directory):
    with open('/proc/meminfo') as file:
        memory = int(file.readline().split()[1])
    return {'cpu': cpu(), 'cores': len(os.sched_getaffinity(0)), 'memory_gib': round(memory / (1 << 20)),
            'kernel': platform.release(), 'system': system(), 'disk': disk(directory)}


def system():
    return platform.freedesktop_os_release()['PRETTY_NAME']


def cpu():
    with open('/proc/cpuinfo') as file:
        for line in file:
            if line.startswith('model name'):
                return line.split(':', 1)[1].strip()
    return platform.machine()


def disk(directory):
    """The file system that DIRECTORY is on, and its device."""
    done = subprocess.run(['findmnt', '-n', '-o', 'SOURCE,FSTYPE', '-T', directory],
                          capture_output=True, text=True)
    source, _, kind = done.stdout.strip().partition(' ')
    size = os.statvfs(directory)
    model = read(f'/sys/block/{os.path.basename(source)}/device/model') or 'no model named'
    return f'{kind.strip()} on {source} ({model}), {size.f_blocks * size.f_frsize / 1e9:,.0f} GB'


def read(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ''

# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the devices themselves can do, by fio."""

import json
import os
import resource
import subprocess

from testbed import ran


def fill(paths, size):
    """Write every byte of the devices once."""
    run(paths, '--rw=write', '--bs=1M', '--iodepth=16', f'--size={size * len(paths)}',
        '--end_fsync=1')


def sequential(paths, kind, size, depth):
    """SIZE bytes over all devices in turn, 1 MiB at a time; KIND is read or write."""
    return run(paths, f'--rw={kind}', '--bs=1M', f'--iodepth={depth}', f'--size={size}',
               *(['--end_fsync=1'] if kind == 'write' else []))


def random(paths, size, depth, jobs, seconds):
    """4 KiB anywhere in the first SIZE bytes of all devices together."""
    return run(paths, '--rw=randread', '--bs=4k', f'--iodepth={depth // jobs}',
               f'--numjobs={jobs}', f'--size={size}', '--norandommap', '--randrepeat=0',
               '--file_service_type=random', '--time_based', f'--runtime={seconds}')


def run(paths, *options):
    """Returns what the measuring programs print: seconds, cpu, bytes, operations."""
    before = cpu_of_children()
    command = ['fio', '--name=raw', f'--filename={":".join(paths)}', '--ioengine=io_uring',
               '--direct=1', '--group_reporting', '--file_service_type=roundrobin:1',
               '--fixedbufs=1', '--registerfiles=1', '--output-format=json', *options]
    ran(command, {os.path.dirname(path) for path in paths})
    done = subprocess.run(command, capture_output=True, text=True)
    cpu = cpu_of_children() - before
    if done.returncode != 0:
        raise RuntimeError(f'fio: {done.stderr}{done.stdout}')
    job = json.loads(done.stdout[done.stdout.index('{'):])['jobs'][0]
    part = job['write'] if job['write']['total_ios'] else job['read']
    return {'seconds': part['runtime'] / 1e3, 'cpu': cpu,
            'bytes': part['io_bytes'], 'operations': part['total_ios']}


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

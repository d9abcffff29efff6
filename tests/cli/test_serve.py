# SPDX-License-Identifier: LGPL-3.0-or-later
"""Serving, and the control socket: what the server hears, and what it survives."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess

import pytest

from conftest import NOT_FOUND, OK, REFUSED, USAGE, Site, wait_until
from schemas import validate


class Raw:
    """The control socket without the command."""

    def __init__(self, site):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(site.path('run', 'tank.sock'))

    def send(self, data):
        self.socket.sendall(data)

    def lines(self):
        data = b''
        while True:
            more = self.socket.recv(65536)
            if not more:
                return [json.loads(line) for line in data.splitlines()]
            data += more

    def ask(self, data):
        self.send(data)
        return self.lines()[-1]


def test_serve_and_stop(pool):
    answer = pool.json('serve', 'tank')
    assert answer['pid'] > 0
    mode = os.stat(pool.path('run', 'tank.sock')).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    assert pool.json('pool', 'status', 'tank')['pool']['state'] == 'served'
    assert pool.json('status')['pools'][0]['state'] == 'served'
    pool.fails(REFUSED, 'serve', 'tank')
    for verb in (('export', 'tank'), ('destroy', 'tank', '--yes'), ('import', 'tank')):
        assert 'stop' in pool.fails(REFUSED, 'pool', *verb)['message']
    pool('serve', 'tank', '--stop')
    assert not os.path.exists(pool.path('run', 'tank.sock'))
    assert pool.json('pool', 'status', 'tank')['pool']['state'] == 'idle'
    pool.fails(NOT_FOUND, 'serve', 'tank', '--stop')


def test_pools_of_one_name(pool, tmp_path):
    """It is the one with the UUID that it is told, whichever is known here."""
    def uuid_of(site):
        return site.json('pool', 'status', 'tank')['pool']['uuid']

    elsewhere = Site(tmp_path / 'elsewhere')
    elsewhere.pool()
    other = uuid_of(elsewhere)
    assert 'UUID' in pool.fails(NOT_FOUND, 'serve', 'tank', '--uuid', other)['message']
    pool.fails(USAGE, 'serve', 'tank', '--uuid', other[:-1])
    own = uuid_of(pool)
    for uuid, place in ((own, ()), (other, ('--device-dir', elsewhere.devices_dir))):
        pool('serve', 'tank', '--uuid', uuid, *place)
        assert uuid_of(pool) == uuid
        pool('serve', 'tank', '--stop')
        assert uuid_of(pool) == own  # what is known here stays, as long as that is there


def open_files(pid):
    names = []
    for fd in os.listdir(f'/proc/{pid}/fd'):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f'/proc/{pid}/fd/{fd}'))
    return names


def test_a_stop_that_is_interrupted_is_not_told_as_done(pool):
    """The server was told, and goes on: here it is this test."""
    os.makedirs(pool.run_dir, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(pool.path('run', 'tank.sock'))
        listener.listen()
        process = subprocess.Popen(pool.argv('serve', 'tank', '--stop'), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        connection = listener.accept()[0]
        assert json.loads(connection.recv(65536))['args']['stop'] is True
        connection.sendall(b'{"schema":1,"result":{}}\n')
        connection.close()
        wait_until(lambda: not any(name.startswith('socket') for name in open_files(process.pid)),
                   'the answer has been read')
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1 and stdout == '' and 'has not ended yet' in stderr


def test_the_configuration(pool):
    pool('serve', 'tank', '--listen', '127.0.0.1', '--port', '12345', '--lease', '10', '--rdma-connections', '8',
         '--rdma-memory', '64M')
    pool('serve', 'tank', '--stop')
    path = pool.path('run', 'tank', 'ganesha.conf')
    with open(path) as file:
        text = file.read()
    for part in ('Server_FSAL = NVME;', 'Bind_Addr = 127.0.0.1;', 'NFS_Port = 12345;',
                 'Lease_Lifetime = 10;', 'Grace_Period = 15;',
                 'RPC_Max_RDMA_Connections = 8;', 'RPC_RDMA_Memory = 64;', 'pool = "tank";',
                 f'devices = "{":".join(pool.devices_of_tank)}";',
                 f'Plugins_Dir = "{pool.path("build/lib/ganesha")}";'):
        assert part in text
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_foreground_becomes_the_server(pool):
    process = subprocess.Popen(pool.argv('serve', 'tank', '--foreground'), stdout=subprocess.PIPE,
                               text=True)
    assert process.stdout.readline() == 'serving tank\n'
    pool('share', 'create', 'tank/a')
    assert process.stdout.readline() == 'added a\n'
    process.terminate()
    assert process.wait(60) == OK
    process.stdout.close()


def test_a_server_that_cannot_start_says_why(pool):
    with open(pool.path('build/ganesha/prefix/bin/ganesha.nfsd.sh'), 'w') as file:
        file.write('#!/bin/sh\necho cannot open the port >&2\nexit 2\n')
        os.fchmod(file.fileno(), 0o755)
    os.replace(file.name, pool.path('build/ganesha/prefix/bin/ganesha.nfsd'))
    done = pool('serve', 'tank', rc=1)
    assert 'cannot open the port' in done.stderr and 'exit 2' in done.stderr
    answer = pool.json('serve', 'tank', rc=1)
    assert answer['notes'] == ['cannot open the port']


GANESHA_LOG = '''\
21/11/2026 20:50:14 : epoch 1 : vm : ganesha.nfsd-9[main] main :MAIN :WARN :Failed to set a flag
21/11/2026 20:50:14 : epoch 1 : vm : ganesha.nfsd-9[main] main :MAIN :EVENT :Server package initialized
21/11/2026 20:50:14 : epoch 1 : vm : ganesha.nfsd-9[main] Bind :DISP :WARN :Cannot bind (Address in use)
21/11/2026 20:50:14 : epoch 1 : vm : ganesha.nfsd-9[main] Bind :DISP :FATAL :Error binding
21/11/2026 20:50:14 : epoch 1 : vm : ganesha.nfsd-9[main] gsh :NFS STARTUP :MAJ :stack backtrace follows:
/usr/lib/libganesha_nfsd.so.6.5(+0x4be91)[0x7f0402010e91]
'''


def test_the_reason_is_the_last_line(pool):
    with open(pool.path('said'), 'w') as file:
        file.write(GANESHA_LOG)
    with open(pool.path('build/ganesha/prefix/bin/new'), 'w') as file:
        file.write(f'#!/bin/sh\ncat {pool.path("said")} >&2\nexit 2\n')
        os.fchmod(file.fileno(), 0o755)
    os.replace(file.name, pool.path('build/ganesha/prefix/bin/ganesha.nfsd'))
    lines = pool('serve', 'tank', rc=1).stderr.splitlines()
    log = pool.path('state', 'log', 'tank.log')
    assert lines == ['millrace: tank: the server could not start (exit 2): Cannot bind (Address in '
                     f'use): Error binding; its log is {log}']


def test_too_few_devices_are_told_before_a_server_starts(pool):
    for path in pool.devices_of_tank[:2]:
        os.unlink(path)
    error = pool.fails(1, 'serve', 'tank')
    assert error['message'].startswith('2 of 4 active devices are missing') and error['object'] == 'tank'
    assert not os.path.exists(pool.path('state', 'log', 'tank.log'))


def put_before_the_server(pool, script):
    """SCRIPT ends with the server in "$server"."""
    server = pool.path('build/ganesha/prefix/bin/ganesha.nfsd')
    os.rename(server, f'{server}.real')
    with open(f'{server}.new', 'w') as file:
        file.write(f'#!/bin/sh\nserver={server}.real\n{script}')
        os.fchmod(file.fileno(), 0o755)
    os.replace(file.name, server)


@pytest.mark.parametrize('words', [('--wait', '1'), ('--wait', '1000', '--idle', '1')], ids=['at all', 'idle'])
def test_a_server_that_does_not_come_up(pool, words):
    put_before_the_server(pool, 'echo waiting\nexec sleep 1000\n')
    assert 'waiting' in pool('serve', 'tank', *words, rc=7).stderr


def test_a_server_that_works_for_long(pool):
    """As one that loads many files: it is waited for longer than for one that does nothing."""
    put_before_the_server(pool, """now() { read -r up _ </proc/uptime; now=${up%.*}; }
now; end=$((now + 5))
while now; [ $now -lt $end ]; do :; done
exec "$server" "$@"
""")
    pool('serve', 'tank', '--wait', '1000', '--idle', '1')
    pool('serve', 'tank', '--stop')


def test_idle_is_of_a_start(pool):
    assert '--idle' in pool.fails(USAGE, 'serve', 'tank', '--stop', '--idle', '9')['message']


def test_no_server_is_built(pool):
    os.unlink(pool.path('build/lib/ganesha/libfsalnvme.so'))
    pool.fails(NOT_FOUND, 'serve', 'tank')


def test_serving_what_is_not_ours(pool):
    pool.fails(REFUSED, 'serve', 'tank', '--host', 'other')
    pool.fails(NOT_FOUND, 'serve', 'none')
    pool('pool', 'export', 'tank')
    pool.fails(REFUSED, 'serve', 'tank', '--device-dir', pool.devices_dir)


def test_nobody_seals_a_dataset_before_its_ingest(served):
    """Not even in the moment when it is made: the ingest has it from then on."""
    tree = served.tree()
    for i in range(6):
        name = f'tank/set{i}'
        seal = json.dumps({'schema': 1, 'verb': ['dataset', 'seal'], 'args': {'volume': name}})
        process = subprocess.Popen(served.argv('dataset', 'ingest', name, tree),
                                   stdout=subprocess.DEVNULL)
        while process.poll() is None:
            error = Raw(served).ask(seal.encode() + b'\n').get('error', {'code': 'ok'})
            assert error['code'] in ('ok', 'not-found', 'refused'), error
        assert process.returncode == OK
        files = served.json('dataset', 'get', name, 'files')['properties'][0]['value']
        assert files == '24'


def refuses(site):
    try:
        Raw(site).socket.close()
    except ConnectionRefusedError:
        return True
    return False


def test_after_a_crash(pool):
    pid = pool.json('serve', 'tank')['pid']
    pool('share', 'create', 'tank/a')
    pool.kill_server(pid)
    pool('share', 'create', 'tank/b')
    assert len(pool.json('share', 'list')['shares']) == 2
    pool('serve', 'tank')
    assert len(pool.json('share', 'list')['shares']) == 2
    pool('serve', 'tank', '--stop')


def test_a_socket_that_a_killed_server_left(pool):
    """Is no pool; and it goes, but not while somebody holds the lock, who may be about to listen."""
    pid = pool.json('serve', 'tank')['pid']
    pool.fails(REFUSED, 'pool', 'export', 'tank', '--force')
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: refuses(pool), 'the server is dead')
    os.unlink(pool.path('state', 'pools', 'tank.json'))
    with open(pool.path('run', 'tank.lock')) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert pool.json('status')['pools'] == []
        assert os.path.exists(pool.path('run', 'tank.sock'))
    assert pool.json('status')['pools'] == []
    assert not os.path.exists(pool.path('run', 'tank.sock'))


# --- what the server hears ------------------------------------------------------------------------

def test_the_server_hears_of_changes(served):
    served('share', 'create', 'tank/a')
    served('share', 'set', 'tank/a', 'nfs.clients=*:rw', 'comment=x')
    served('dataset', 'ingest', 'tank/set', served.tree(), '--no-seal')
    served('dataset', 'seal', 'tank/set')
    served('dataset', 'seal', 'tank/set')
    served('pool', 'set', 'tank', 'comment=y')
    served('share', 'destroy', 'tank/a', '--yes')
    assert served.log() == ['serving tank', 'added a', 'changed a comment=x', 'added set',
                            'changed (pool) comment=y', 'removing a']


def test_what_the_server_refuses_is_undone(served):
    served('share', 'create', 'tank/a')
    served('share', 'set', 'tank/a', 'comment=old')
    served.fails(1, 'share', 'set', 'tank/a', 'lab:x=1', 'comment=refuse')
    rows = {p['property']: p['value'] for p in served.json('share', 'get', 'tank/a')['properties']}
    assert rows['comment'] == 'old' and 'lab:x' not in rows
    assert served.log()[-1] == 'changed a comment=old'
    served('share', 'create', 'tank/stuck')
    served.fails(REFUSED, 'share', 'destroy', 'tank/stuck', '--yes')
    assert len(served.json('share', 'list')['shares']) == 2


def test_many_at_once(served):
    processes = [subprocess.Popen(served.argv('share', 'create', f'tank/s{i}')) for i in range(12)]
    assert [p.wait(60) for p in processes] == [OK] * 12
    assert len(served.json('share', 'list')['shares']) == 12


def test_many_at_once_on_an_idle_pool(pool):
    processes = [subprocess.Popen(pool.argv('share', 'create', f'tank/s{i}')) for i in range(6)]
    assert [p.wait(60) for p in processes] == [OK] * 6
    assert len(pool.json('share', 'list')['shares']) == 6


def test_progress_is_told(served):
    source = served.tree()
    for verb, args in ((['dataset', 'ingest'], {'volume': 'tank/set', 'source': source}),
                       (['dataset', 'verify'], {'volume': 'tank/set'}),
                       (['pool', 'check'], {'pool': 'tank'})):
        raw = Raw(served)
        raw.send(json.dumps({'schema': 1, 'verb': verb, 'args': args}).encode() + b'\n')
        lines = raw.lines()
        progress = [line['progress'] for line in lines if 'progress' in line]
        assert progress and 'result' in lines[-1], verb
        for one in progress:
            validate('progress', one)


# --- what the socket survives ---------------------------------------------------------------------

GOOD = b'{"schema":1,"verb":["share","list"],"args":{}}\n'


@pytest.mark.parametrize('line', [
    b'\n', b'{}\n', b'[]\n', b'null\n', b'\0\0\0\n', b'\xff\xfe\n', b'{"schema":2}\n', b'{"schema":1}\n',
    b'{"schema":1,"verb":[]}\n', b'{"schema":1,"verb":"share"}\n', b'{"schema":1,"verb":[1,2],"args":{}}\n',
    b'{"schema":1,"verb":["share","none"],"args":{}}\n', b'{"schema":1,"verb":["share","list"]}\n',
    b'{"schema":1,"verb":["share","list"],"args":[]}\n',
    b'{"schema":1,"verb":["share","list"],"args":{"none":1}}\n',
    b'{"schema":1,"verb":["share","list"],"args":{"pool":1}}\n',
    b'{"schema":1,"verb":["share","list","x"],"args":{}}\n',
    b'{"schema":1,"verb":["share","create"],"args":{}}\n',
    b'{"schema":1,"verb":["share","create"],"args":{"volume":"tank/a","mode":-1}}\n',
    b'{"schema":1,"verb":["share","create"],"args":{"volume":"tank/a","mode":1e99}}\n',
    b'{"schema":1,"verb":["share","set"],"args":{"volume":"tank/a","property":[]}}\n',
    b'{"schema":1,"verb":["share","set"],"args":{"volume":"tank/a","property":["a",1]}}\n',
    b'{"schema":1,"verb":["dataset","ingest"],"args":{"volume":"tank/a","source":"relative"}}\n',
    b'{"schema":1,"schema":1,"verb":["share","list"],"args":{}}\n',
    b'[' * 5000 + b'\n', b'"' + b'x' * 65000 + b'"\n', GOOD[:-2] + b'\n'],
    ids=lambda line: line[:60].decode(errors='replace').strip())
def test_garbage_is_answered(served, line):
    answer = Raw(served).ask(line)
    assert answer['schema'] == 1 and answer['error']['code'] == 'usage'
    assert 'result' in Raw(served).ask(GOOD)


def test_a_line_without_end(served):
    raw = Raw(served)
    raw.send(b'x' * 66000)
    assert raw.lines()[-1]['error']['errno'] == 'EINVAL'


def test_verbs_that_no_server_runs(served):
    answer = Raw(served).ask(b'{"schema":1,"verb":["pool","destroy"],"args":{"pool":"tank"}}\n')
    assert answer['error']['code'] == 'refused'
    answer = Raw(served).ask(b'{"schema":1,"verb":["pool","status"],"args":{"pool":"other"}}\n')
    assert answer['error']['code'] == 'not-found'


def test_clients_that_leave(served):
    for data in (b'', b'{', GOOD[:20], GOOD):
        for _ in range(30):
            raw = Raw(served)
            raw.send(data)
            raw.socket.close()
    wait_until(lambda: 'result' in Raw(served).ask(GOOD), 'the server answers')


def test_clients_that_say_nothing(served):
    """They take all places, are sent away in the end, and the next is served."""
    silent = [Raw(served) for _ in range(64)]
    extra = Raw(served)
    for raw in silent[::2]:
        raw.send(b'{"schema"')
    for raw in silent:
        assert raw.lines()[-1]['error']['code'] == 'time-out'
    assert 'result' in extra.ask(GOOD)


def test_as_many_verbs_as_there_may_be(served):
    """Whether the server is alive is asked all the same: a cluster would end it."""
    served('share', 'create', 'tank/a')
    held = served.path('held')
    open(held, 'wb').close()
    change = json.dumps({'schema': 1, 'verb': ['share', 'set'], 'args': {
        'volume': 'tank/a', 'property': [f'comment=wait:{held}']}}).encode() + b'\n'
    changing = [Raw(served) for _ in range(16)]
    for raw in changing:
        raw.send(change)

    def is_refused(request):
        return 'too many verbs' in Raw(served).ask(request).get('error', {}).get('message', '')

    wait_until(lambda: is_refused(GOOD), 'no verb more is taken')
    assert not is_refused(b'{"schema":1,"verb":["serve"],"args":{"pool":"tank","probe":true}}\n')
    os.unlink(held)
    for raw in changing:
        assert 'result' in raw.lines()[-1]


def test_stopping_with_clients_that_say_nothing(pool):
    pool('serve', 'tank')
    silent = [Raw(pool) for _ in range(5)]
    pool('serve', 'tank', '--stop')
    for raw in silent:
        raw.lines()


def test_a_client_that_leaves_stops_its_ingest(served):
    top = served.path('many')
    os.mkdir(top)
    for i in range(3000):
        with open(os.path.join(top, f'f{i}'), 'wb') as file:
            file.write(b'x' * 5000)
    process = subprocess.Popen(served.argv('dataset', 'ingest', 'tank/set', top, '--threads', '1'),
                               stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: served.json('dataset', 'list')['datasets'], 'the ingest has begun')
    process.kill()
    process.wait()

    def is_sealed():
        served.run('dataset', 'ingest', 'tank/set', top, '--resume')  # refused until it has stopped
        return served.json('dataset', 'list')['datasets'][0]['sealed']

    wait_until(is_sealed, 'the ingest is resumed')
    report = served.json('dataset', 'verify', 'tank/set')['verify']
    assert report['files'] == 3000 and report['bad_files'] == 0


def test_other_users_are_kept_out(served):
    assert os.geteuid() == 0, 'these tests are for root'
    for place in (served.root, os.path.dirname(served.root)):
        while place not in ('/', '/tmp'):
            os.chmod(place, 0o755)
            place = os.path.dirname(place)
    argv = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups',
            *served.argv('share', 'list', 'tank', '--json')]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 6 and json.loads(done.stdout)['error']['code'] == 'not-permitted'
    os.chmod(served.path('run', 'tank.sock'), 0o666)
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 6 and 'root' in json.loads(done.stdout)['error']['message']


def test_what_goes_together(pool):
    for words in (('--force',), ('--stop', '--probe'), ('--probe', '--fenced'), ('--enable', '--probe'), ('--probe', '--end-grace'), ('--end-grace', '--fenced')):
        pool.fails(USAGE, 'serve', 'tank', *words)
    pool.fails(NOT_FOUND, 'serve', 'tank', '--probe')
    pool.fails(NOT_FOUND, 'serve', 'tank', '--end-grace')
    pool.fails(NOT_FOUND, 'serve', 'tank', '--stop', '--force')


def test_stop_by_force(pool):
    pool('serve', 'tank')
    assert 'has stopped' in pool.json('serve', 'tank', '--stop', '--force')['message']
    pool.fails(NOT_FOUND, 'serve', 'tank', '--probe')

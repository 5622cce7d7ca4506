"""The command `cluster` on one machine: tasks that it stops name the lost task, and other programs
cannot reach their ports, or a line says how to close them.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.clusters import ENDLESS, MODES, TRAIN, UNDER_WAY
from tests.support.files import quoted
from tests.support.outputs import check_line
from tests.support.programs import (
    ROOT,
    Finished,
    assert_ended,
    environment,
    launched,
    run_process,
)
from tests.support.runs import plan_of
from tf_cnn.cluster.private_network import PrivateNetwork, is_private

pytestmark = pytest.mark.distributed

OPEN = 'listen on all addresses'
# Makes a network namespace as an ordinary user and enters it from another process, as the
# launcher's processes do. 4 is PR_SET_DUMPABLE.
AS_USER = """
import ctypes, os, signal
from tf_cnn.cluster import private_network
from tf_cnn.system import tether
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1)
reading, writing = os.pipe()
keeper = os.fork()
if keeper == 0:
    try:
        private_network._enter_new_network()
        os.write(writing, b'1')
    except OSError as error:
        os.write(writing, b'0' + error.strerror.encode())
    signal.pause()
answer = os.read(reading, 1000)
if answer == b'1':
    before = os.geteuid()
    tether._enter_network(str(keeper))
    assert os.geteuid() == before
    assert private_network.is_private()
os.kill(keeper, signal.SIGKILL)
print(answer.decode())
"""
# Runs the command `cluster` with STAND_IN, which prints its network, in place of the benchmark.
WITH_STAND_IN = """
import os, sys
from tf_cnn.launch import hosts
import tf_cnn_benchmarks
hosts.PROGRAM = (sys.executable, sys.argv[1])
sys.exit(tf_cnn_benchmarks.main(['cluster', *sys.argv[2:]]))
"""
STAND_IN = "import os; print(os.readlink('/proc/self/ns/net'))"
# Runs a command where no network namespace can be made.
WITHOUT_NETWORKS = [
    'unshare',
    '--user',
    '--map-root-user',
    'sh',
    '-c',
    'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"',
    'sh',
]


def refusal() -> str:
    """Returns why this system allows no network namespace; '' if it allows one."""
    try:
        PrivateNetwork().close()
    except OSError as error:
        return f'no network namespace can be made here: {error}'
    return ''


needs_namespace = pytest.mark.skipif(bool(refusal()), reason=refusal())


def test_nothing_outside_reaches_a_cluster_and_tasks_that_it_stops_name_the_lost_one(tmp_path):
    """The launcher's signal arrives before the tasks notice the loss."""
    (mode_flags, jobs), lost = MODES['two_servers'], 'ps 1'
    flags = f'{TRAIN} {mode_flags} {ENDLESS} --result_file={quoted(tmp_path)}/result.json'
    words = f'cluster --ps={jobs["ps"]} --verbose -- {flags}'
    reason = rf'{lost} \(127\.0\.0\.1:\d+\) was lost'
    with launched(words, tmp_path, environment(PYTHONUNBUFFERED='1')) as launcher:
        launcher.await_line(UNDER_WAY)
        lines = launcher.lines(r'^(\w+ \d+) is process (\d+) of this machine')
        pids = {task: int(pid) for task, pid in lines}
        if not refusal():
            assert OPEN not in launcher.err
            [network] = {os.readlink(f'/proc/{pid}/ns/net') for pid in pids.values()}
            assert network != os.readlink('/proc/self/ns/net')
            addresses = Path(f'/proc/{pids[lost]}/cmdline').read_text()
            ports = re.findall(r'127\.0\.0\.1:(\d+)', addresses)
            assert len(ports) == len(pids)
            for port in ports:
                with socket.socket() as stranger:
                    assert stranger.connect_ex(('127.0.0.1', int(port)))
        os.kill(pids[lost], signal.SIGKILL)
        assert launcher.has_ended(60)
        assert (launcher.exit_code, launcher.left_others) == (128 + signal.SIGKILL, False)
        assert_ended([*pids.values()])
        for task in pids.keys() - {lost}:
            message = rf'^{task} +\| tf_cnn_benchmarks: (?:error|warning): .*{reason}'
            assert launcher.lines(message), task
    [record] = launcher.results
    assert re.search(reason, record.reason or '')


def test_an_ordinary_user_makes_and_enters_a_private_network():
    process = run_process([sys.executable, '-c', AS_USER], ROOT)
    assert process.code == 0, process.err
    answer = process.out.strip()
    if answer != '1':
        pytest.skip(f'this system does not let an ordinary user make a network: {answer[1:]}')


@pytest.mark.skipif(
    subprocess.run([*WITHOUT_NETWORKS, 'true'], capture_output=True).returncode != 0,
    reason='no user namespace can be made here',
)
def test_where_no_network_can_be_made_a_cluster_uses_this_machines_unless_it_must_be_private(
    tmp_path,
):
    program = tmp_path / 'program.py'
    program.write_text(STAND_IN)

    def run(words: str) -> Finished:
        command = [sys.executable, '-c', WITH_STAND_IN, program, *words.split()]
        return run_process([*WITHOUT_NETWORKS, *command], ROOT)

    assert run('') == (0, f'{os.readlink("/proc/self/ns/net")}\n', '')
    refused = run('--private_network')
    assert refused.code == 1
    check_line(refused.err.strip(), '--private_network=true', 'No space left on device')


@pytest.mark.skipif(is_private(), reason='this machine has no network')
def test_the_workers_warn_alike_of_open_ports_and_how_to_close_them():
    """A launcher shows the same line only once."""
    hosts = '--ps_hosts=127.0.0.1:2003 --worker_hosts=127.0.0.1:2002,127.0.0.1:2001'
    first, second = (
        plan_of(f'{hosts} --job_name=worker --task_index={index}').warnings for index in range(2)
    )
    assert first == second
    [line] = [line for line in first if OPEN in line]
    facts = 'iptables', '--dports 2001,2002,2003 ', '2001, 2002, 2003', 'read and write the files'
    check_line(line, *facts)

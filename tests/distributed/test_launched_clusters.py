"""Other programs cannot reach the ports of a cluster on one machine, or a line says how to close
them.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.clusters import ENDLESS, TRAIN, UNDER_WAY, all_modes, cluster_command
from tests.support.outputs import check_line
from tests.support.programs import ROOT, Finished, launched, run_process
from tf_cnn.cluster.private_network import PrivateNetwork, is_private

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


@needs_namespace
@pytest.mark.parametrize('mode', ['distributed_all_reduce', *all_modes(('parameter_server',))])
def test_nothing_outside_reaches_a_cluster_on_one_machine(tmp_path, mode):
    result = tmp_path / 'result.json'
    flags = f'{TRAIN} --variable_update={mode} {ENDLESS} --result_file={result}'
    words = cluster_command(f'--private_network --verbose -- {flags}')
    with launched(words, tmp_path) as launcher:
        launcher.await_line(UNDER_WAY)
        pids = launcher.lines(r' is process (\d+) of this machine')
        assert len(pids) == 3
        [network] = {os.readlink(f'/proc/{pid}/ns/net') for pid in pids}
        assert network != os.readlink('/proc/self/ns/net')
        addresses = launcher.err + Path(f'/proc/{pids[0]}/cmdline').read_text()
        ports = {int(port) for port in re.findall(r'127\.0\.0\.1:(\d+)', addresses)}
        assert ports
        for port in ports:
            with socket.socket() as stranger:
                assert stranger.connect_ex(('127.0.0.1', port)) != 0
        assert OPEN not in launcher.err
        launcher.send(signal.SIGINT)
        assert launcher.has_ended(60)
        assert (launcher.exit_code, launcher.left_others) == (130, False)
    assert result.exists()
    assert not any(Path(f'/proc/{pid}').exists() for pid in pids)


def test_an_ordinary_user_makes_and_enters_a_private_network():
    process = run_process([sys.executable, '-c', AS_USER], ROOT, 60.0)
    assert process.code == 0, process.err
    answer = process.out.strip()
    if answer != '1':
        pytest.skip(f'this system does not let an ordinary user make a network: {answer[1:]}')


@pytest.mark.skipif(
    subprocess.run([*WITHOUT_NETWORKS, 'true'], capture_output=True).returncode != 0,
    reason='no user namespace can be made here',
)
@pytest.mark.skipif(is_private(), reason='this machine has no network')
def test_without_a_private_network_a_line_names_the_open_ports_and_how_to_close_them():
    def run(words: str) -> Finished:
        return run_process([*WITHOUT_NETWORKS, *cluster_command(words)])

    trained = run(f'--workers=2 -- {TRAIN} --num_batches=2')
    assert trained.code == 0, trained.err
    # Both workers write the warning; `cluster` shows it once.
    [line] = [line for line in trained.err.splitlines() if OPEN in line]
    [ports] = re.findall(r'--dports ([\d,]+) ', line)
    assert len(ports.split(',')) == 3
    facts = 'iptables', ports.replace(',', ', '), 'read and write the files'
    check_line(line.partition('| ')[2], *facts)
    refused = run(f'--private_network -- {TRAIN}')
    assert refused.code == 1
    check_line(refused.err.strip(), '--private_network=true', 'No space left on device')

"""A cluster on one machine: nothing outside of it reaches its ports, or a line says how to close
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

from tests.distributed.milestones import UNDER_WAY
from tests.distributed.processes import ROOT, await_line, cluster_command, launched
from tests.distributed.scenarios import ENDLESS, FLAGS
from tests.support.outputs import check_line
from tf_cnn.cluster.private_network import PrivateNetwork, is_private

OPEN = 'listen on all addresses'
_PR_SET_DUMPABLE = 4
# Makes a network namespace as an ordinary user and enters it from another process, as the
# launcher's processes do.
AS_USER = f"""
import ctypes, os, signal
from tf_cnn.cluster import private_network
from tf_cnn.system import tether
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl({_PR_SET_DUMPABLE}, 1)
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


def why_none() -> str:
    """Returns why this system allows no network namespace; '' if it allows one."""
    try:
        PrivateNetwork().close()
    except OSError as error:
        return f'no network namespace can be made here: {error}'
    return ''


needs_namespace = pytest.mark.skipif(bool(why_none()), reason=why_none())


@needs_namespace
@pytest.mark.parametrize('mode', ['parameter_server', 'distributed_all_reduce'])
def test_nothing_outside_reaches_a_cluster_on_one_machine(tmp_path: Path, mode: str) -> None:
    result = tmp_path / 'result.json'
    flags = (*FLAGS, f'--variable_update={mode}', ENDLESS, f'--result_file={result}')
    with launched(
        cluster_command('--private_network', '--verbose', '--', *flags), tmp_path
    ) as cluster:
        await_line(cluster, UNDER_WAY)
        pids = re.findall(r' is process (\d+) of this machine', cluster.err)
        assert len(pids) == 3
        networks = {os.readlink(f'/proc/{pid}/ns/net') for pid in pids}
        assert len(networks) == 1
        assert networks != {os.readlink('/proc/self/ns/net')}
        addresses = cluster.err + Path(f'/proc/{pids[0]}/cmdline').read_text()
        ports = {int(port) for port in re.findall(r'127\.0\.0\.1:(\d+)', addresses)}
        assert ports
        for port in ports:
            with socket.socket() as stranger:
                assert stranger.connect_ex(('127.0.0.1', port)) != 0
        assert OPEN not in cluster.err
        cluster.send(signal.SIGINT)
        assert cluster.has_ended(60)
        assert cluster.exit_code == 130
        assert not cluster.left_others
    assert result.exists()
    assert not any(Path(f'/proc/{pid}').exists() for pid in pids)


def test_an_ordinary_user_makes_and_enters_a_private_network() -> None:
    run = subprocess.run(
        [sys.executable, '-c', AS_USER],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    if run.stdout.strip() != '1':
        pytest.skip(
            f'this system does not let an ordinary user make a network namespace: {run.stdout[1:]}'
        )


def in_user_namespace(*words: str) -> list[str]:
    """Returns a command that runs where no network namespace can be made."""
    limit = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    return ['unshare', '--user', '--map-root-user', 'sh', '-c', limit, 'sh', *words]


@pytest.mark.skipif(
    subprocess.run(in_user_namespace('true'), capture_output=True, check=False).returncode != 0,
    reason='no user namespace can be made here',
)
@pytest.mark.skipif(is_private(), reason='this machine has no network')
def test_where_no_network_can_be_made_a_line_says_what_is_open_and_how_to_close_it(
    tmp_path: Path,
) -> None:
    words = cluster_command('--workers=2', '--', *FLAGS, '--num_batches=2').argv
    run = subprocess.run(
        in_user_namespace(*words), capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stderr.splitlines() if OPEN in line]
    # Both workers write it, and it is shown once.
    assert len(lines) == 1
    [ports] = re.findall(r'--dports ([\d,]+) ', lines[0])
    assert len(ports.split(',')) == 3
    check_line(
        lines[0].partition('| ')[2],
        'iptables',
        ports.replace(',', ', '),
        'read and write the files',
    )
    words = cluster_command('--private_network', '--', *FLAGS).argv
    run = subprocess.run(
        in_user_namespace(*words), capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 1
    check_line(run.stderr.strip(), '--private_network=true', 'No space left on device')

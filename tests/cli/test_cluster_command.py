"""The subcommand cluster: the command line of each process, and their addresses, cores and GPUs."""

import os
import re
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.files import quoted
from tests.support.machines import use_pynvml
from tests.support.outputs import check_line
from tf_cnn.cli import cluster as cluster_command
from tf_cnn.launch.commands import make_commands
from tf_cnn.launch.hosts import ClusterTask, reserve_addresses, share_cores
from tf_cnn.plan.parsing import parse_argv

SERVED = [ClusterTask('ps', 0, 'p:1'), ClusterTask('worker', 0, 'a:1')]
SERVED += [ClusterTask('worker', 1, 'b:1')]
CONTROLLED = [*SERVED[1:], ClusterTask('controller', 0, 'c:1')]


@pytest.mark.unit
def test_only_the_chief_writes_files_that_any_task_could_write(tmp_path):
    flag_file = tmp_path / 'flags'
    flag_file.write_text('--graph_file=graph\n')
    files = '--trace_file=trace --partitioned_graph_file_prefix=parts --tfprof_file=profile'
    flags = [f'--flagfile={flag_file}', '--train_dir=d', *files.split()]
    for command in make_commands(flags, SERVED, {}):
        params = parse_argv(command.argv[2:]).params
        assert params.checkpoints.train_dir == 'd'
        instruments = params.instruments
        paths = (
            instruments.trace_file,
            instruments.graph_file,
            instruments.partitioned_graph_file_prefix,
            instruments.tfprof_file,
        )
        expected = ('trace', 'graph', 'parts', 'profile')
        assert paths == (expected if command.name == 'worker 0' else (None,) * 4)


@pytest.mark.unit
@pytest.mark.parametrize(('gpus', 'expected'), [('2,3', '2,3'), (None, '0,1,2,3')])
def test_a_controller_keeps_the_gpus_of_its_host_and_a_worker_sees_its_own(gpus, expected):
    worker = replace(CONTROLLED[0], gpus=gpus)
    environ = {'PATH': '/bin', 'CUDA_VISIBLE_DEVICES': '0,1,2,3'}
    commands = make_commands([], [worker, *CONTROLLED[1:]], environ)
    visible_gpus = {
        command.name: (command.env or {})['CUDA_VISIBLE_DEVICES'] for command in commands
    }
    assert visible_gpus == {
        'worker 0': expected,
        'worker 1': '0,1,2,3',
        'controller 0': '0,1,2,3',
    }


@pytest.mark.unit
def test_each_worker_gets_as_many_cores():
    assert share_cores(range(5), 2) == [(0, 1), (2, 3)]
    assert share_cores(range(2), 2) == [(0,), (1,)]
    assert share_cores(range(2), 5) == [(0,), (1,), (0,), (1,), (0,)]


@pytest.mark.unit
def test_a_reserved_port_is_for_the_server_that_it_is_meant_for():
    with reserve_addresses(20) as addresses, reserve_addresses(20) as more_addresses:
        assert len({*addresses, *more_addresses}) == 40
        host, port = addresses[0].split(':')
        with socket.socket() as stranger, pytest.raises(OSError, match='in use'):
            stranger.bind((host, int(port)))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(('0.0.0.0', int(port)))
            server.listen()
            # The client reaches the server, not the socket that reserves the port.
            with socket.create_connection((host, int(port)), timeout=10) as client:
                assert server.accept()[1] == client.getsockname()
    with socket.socket() as anyone:
        anyone.bind((host, int(addresses[1].split(':')[1])))


def replace_program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Replaces the benchmark by another program."""
    path = folder / 'program.py'
    path.write_text(f'import os, sys\n{text}')
    monkeypatch.setattr('tf_cnn.launch.hosts.PROGRAM', (sys.executable, str(path)))


def started(err: str) -> list[str]:
    return re.findall(r'^(\w+ \d) is process', err, re.MULTILINE)


PROGRAM = """
print('TF_CONFIG' in os.environ, len(os.sched_getaffinity(0)), file=sys.stderr)
print('total images/sec: 2.00')
"""


@pytest.mark.distributed
@pytest.mark.parametrize(
    'argv',
    ['--ps=2 --', '--ps=2 --verbose --', '--ps=2 -- --verbose=1'],
    ids=['', 'cluster', 'run'],
)
def test_a_cluster_prints_its_result_once(capsys, monkeypatch, tmp_path, argv):
    replace_program(tmp_path, monkeypatch, PROGRAM)
    monkeypatch.setenv('TF_CONFIG', '{}')
    flags = f'{argv} --model=lenet --graph_file={quoted(tmp_path)}/graph'
    assert cluster_command.main(shlex.split(flags)) == 0
    out, err = capsys.readouterr()
    assert out == 'total images/sec: 2.00\n'
    warning, *lines = err.splitlines()
    assert warning.startswith('tf_cnn_benchmarks: warning: ')
    check_line(warning, 'worker 0', '--graph_file')
    if '--verbose' not in argv:
        assert lines == []
        return
    assert sorted(started(err)) == ['ps 0', 'ps 1', 'worker 0', 'worker 1']
    num_cores = len(os.sched_getaffinity(0))
    share = max(1, num_cores // 2)
    assert sorted(line for line in lines if ' | ' in line) == [
        f'ps 0     | False {num_cores}',
        'ps 0     | total images/sec: 2.00',
        f'ps 1     | False {num_cores}',
        'ps 1     | total images/sec: 2.00',
        f'worker 0 | False {share}',
        f'worker 1 | False {share}',
        'worker 1 | total images/sec: 2.00',
    ]


@pytest.mark.distributed
def test_the_flags_of_the_subcommand_take_effect(capsys, monkeypatch, tmp_path):
    replace_program(tmp_path, monkeypatch, 'raise SystemExit(5)')
    flags = '--workers=3 --restart=1 --verbose -- --variable_update=collective_all_reduce'
    assert cluster_command.main(flags.split()) == 5
    err = capsys.readouterr().err
    assert started(err) == ['worker 0', 'worker 1', 'worker 2'] * 2
    assert len([line for line in err.splitlines() if '1 of 1 time' in line]) == 1


# ---- GPUs: each worker sees its own, and nobody else any -----------------------------------------


@pytest.mark.distributed
@pytest.mark.parametrize(
    ('flag', 'expected'),
    [
        ('--num_gpus=2', {'ps 0': '', 'worker 0': '0,1', 'worker 1': '2,3'}),
        # The workers share the chosen GPUs.
        ('--gpu_indices=3,1', {'ps 0': '', 'worker 0': '3', 'worker 1': '1'}),
        # The controller needs to know whether there are GPUs, and hides them itself.
        (
            '--variable_update=distributed_all_reduce',
            {'controller 0': 'None', 'worker 0': '0', 'worker 1': '1'},
        ),
    ],
)
def test_the_processes_see_their_gpus(flag, expected, capsys, monkeypatch, tmp_path):
    use_pynvml(monkeypatch, tmp_path, 4)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    sees = "print(1); print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'), file=sys.stderr)"
    replace_program(tmp_path, monkeypatch, sees)
    # The variables of an outer job do not concern these processes.
    monkeypatch.setenv('SLURM_GPUS_ON_NODE', '1')
    monkeypatch.setenv('SLURM_GPUS_PER_TASK', '1')
    assert cluster_command.main(['--verbose', '--', *flag.split()]) == 0
    err = capsys.readouterr().err
    assert dict(re.findall(r'^(\w+ \d) +\| sees ?(.*)$', err, re.MULTILINE)) == expected

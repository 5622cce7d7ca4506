"""The subcommand cluster: the command line of each process, and their addresses, cores and GPUs."""

import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.machines import use_pynvml, write_pynvml
from tests.support.outputs import check_line, refused
from tests.support.programs import CORES, STARTED, members
from tf_cnn.cli import cluster as cluster_command
from tf_cnn.cluster.discovery import find_cluster
from tf_cnn.launch.commands import make_commands
from tf_cnn.launch.hosts import Command, reserve_addresses, share_cores
from tf_cnn.run.parsing import parse_argv

ROOT = Path(cluster_command.__file__).resolve().parents[2]


def commands_of(
    *run_flags: str,
    num_ps: int = 1,
    num_workers: int = 2,
    environment: dict[str, str] | None = None,
    cores: list[tuple[int, ...] | None] | None = None,
    controller_hosts: Sequence[str] = (),
) -> list[Command]:
    ps_hosts = [f'127.0.0.1:{1000 + index}' for index in range(num_ps)]
    worker_hosts = [f'127.0.0.1:{2000 + index}' for index in range(num_workers)]
    found = members(ps_hosts, worker_hosts, controller_hosts, cores=cores)
    return make_commands(run_flags, found, environment or {})


@pytest.mark.unit
def test_each_process_is_told_who_it_is_and_who_the_others_are() -> None:
    commands = commands_of('--model=lenet', '--num_batches=3', num_ps=2, num_workers=3)
    assert [command.name for command in commands] == [
        'ps 0',
        'ps 1',
        'worker 0',
        'worker 1',
        'worker 2',
    ]
    assert [command.is_server for command in commands] == [True, True, False, False, False]
    assert [command.has_result for command in commands] == [False, False, True, False, False]
    assert {command.argv[:2] for command in commands} == {
        (sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'))
    }
    for command in commands:
        params = parse_argv(command.argv[2:]).params
        assert (params.run.model, params.run.num_batches) == ('lenet', 3)
        cluster = find_cluster(params, command.env or {})
        assert cluster is not None
        assert f'{cluster.job} {cluster.index}' == command.name
        assert cluster.ps_hosts == ('127.0.0.1:1000', '127.0.0.1:1001')
        assert cluster.worker_hosts == ('127.0.0.1:2000', '127.0.0.1:2001', '127.0.0.1:2002')


@pytest.mark.unit
def test_a_controller_has_the_result_and_its_workers_end_when_it_has() -> None:
    flags = ('--variable_update=distributed_all_reduce', '--device=cpu', '--graph_file=graph')
    commands = commands_of(
        *flags, num_ps=0, cores=[(0,), (1,)], controller_hosts=['127.0.0.1:3000']
    )
    assert [command.name for command in commands] == ['worker 0', 'worker 1', 'controller 0']
    assert [command.is_server for command in commands] == [True, True, False]
    assert [command.has_result for command in commands] == [False, False, True]
    assert [command.cores for command in commands] == [(0,), (1,), None]
    params = [parse_argv(command.argv[2:]).params for command in commands]
    assert [own.instruments.graph_file for own in params] == [None, None, 'graph']
    clusters = [find_cluster(own, {}) for own in params]
    assert [str(cluster and cluster.own_task) for cluster in clusters] == [
        *('worker 0 (127.0.0.1:2000)', 'worker 1 (127.0.0.1:2001)', 'controller 0 (127.0.0.1:3000)')
    ]
    # No flag names parameter servers if there are none.
    assert not any('ps_hosts' in word for command in commands for word in command.argv)


@pytest.mark.unit
def test_files_that_all_would_write_go_to_the_chief_alone(tmp_path: Path) -> None:
    flag_file = tmp_path / 'flags'
    flag_file.write_text(f'--graph_file={tmp_path}/graph\n')
    flags = (
        '--trace_file=trace',
        f'--flagfile={flag_file}',
        '--partitioned_graph_file_prefix=parts',
        '--train_dir=d',
    )
    found = {command.name: parse_argv(command.argv[2:]).params for command in commands_of(*flags)}
    chief = found.pop('worker 0')
    assert (chief.instruments.trace_file, chief.instruments.graph_file) == (
        'trace',
        f'{tmp_path}/graph',
    )
    assert (chief.instruments.partitioned_graph_file_prefix, chief.checkpoints.train_dir) == (
        'parts',
        'd',
    )
    for params in found.values():
        files = (
            params.instruments.trace_file,
            params.instruments.graph_file,
            params.instruments.partitioned_graph_file_prefix,
            params.instruments.tfprof_file,
        )
        assert files == (None, None, None, None)
        assert params.checkpoints.train_dir == 'd'


@pytest.mark.unit
def test_the_cluster_around_the_caller_is_not_that_of_the_processes() -> None:
    around = {
        'TF_CONFIG': '{}',
        'SLURM_PROCID': '3',
        'OMPI_COMM_WORLD_RANK': '1',
        'PMI_RANK': '1',
        'PMIX_RANK': '0',
    }
    kept = {'PATH': '/bin', 'http_proxy': 'http://proxy'}
    for command in commands_of(environment={**around, **kept}):
        assert command.env == kept


@pytest.mark.unit
def test_each_worker_gets_as_many_cores() -> None:
    assert share_cores(range(5), 2) == [(0, 1), (2, 3)]
    assert share_cores(range(2), 2) == [(0,), (1,)]
    assert share_cores(range(2), 5) == [(0,), (1,), (0,), (1,), (0,)]


@pytest.mark.unit
def test_a_reserved_port_is_for_the_server_that_it_is_meant_for() -> None:
    with reserve_addresses(20) as addresses, reserve_addresses(20) as others:
        assert len({*addresses, *others}) == 40
        host, port = addresses[0].split(':')
        with socket.socket() as stranger, pytest.raises(OSError, match='in use'):
            stranger.bind((host, int(port)))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(('0.0.0.0', int(port)))
            server.listen()
            # It is the server that is reached, not the one who holds the port.
            with socket.create_connection((host, int(port)), timeout=10) as client:
                assert server.accept()[1] == client.getsockname()
    with socket.socket() as anyone:
        anyone.bind((host, int(addresses[1].split(':')[1])))


PROGRAM = """
import os, sys
print('TF_CONFIG' in os.environ, len(os.sched_getaffinity(0)), file=sys.stderr)
print('total images/sec: 2.00')
"""


def replace_program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Replaces the benchmark by another program."""
    path = folder / 'program.py'
    path.write_text(text)
    monkeypatch.setattr('tf_cnn.launch.hosts.COMMAND', str(path))


@pytest.mark.distributed
@pytest.mark.parametrize('verbose', ['', 'cluster', 'run'])
def test_a_cluster_prints_its_result_once(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    verbose: str,
) -> None:
    replace_program(tmp_path, monkeypatch, PROGRAM)
    monkeypatch.setenv('TF_CONFIG', '{}')
    own_flags = ['--ps=2', *(['--verbose'] if verbose == 'cluster' else [])]
    run_flags = [
        '--model=lenet',
        f'--graph_file={tmp_path / "graph"}',
        *(['--verbose=1'] if verbose == 'run' else []),
    ]
    assert cluster_command.main([*own_flags, '--', *run_flags]) == 0
    out, err = capsys.readouterr()
    assert out == 'total images/sec: 2.00\n'
    first, *lines = err.splitlines()
    assert first.startswith('tf_cnn_benchmarks: warning: ')
    check_line(first, 'worker 0', '--graph_file')
    if not verbose:
        assert lines == []
        return
    names = ['ps 0', 'ps 1', 'worker 0', 'worker 1']
    assert sorted(line.split(STARTED)[0] for line in lines if STARTED in line) == names
    share = max(1, len(CORES) // 2)
    assert sorted(line for line in lines if ' | ' in line) == [
        f'ps 0     | False {len(CORES)}',
        'ps 0     | total images/sec: 2.00',
        f'ps 1     | False {len(CORES)}',
        'ps 1     | total images/sec: 2.00',
        f'worker 0 | False {share}',
        f'worker 1 | False {share}',
        'worker 1 | total images/sec: 2.00',
    ]


@pytest.mark.distributed
def test_the_flags_of_the_subcommand_take_effect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_program(tmp_path, monkeypatch, 'raise SystemExit(5)')
    argv = ['--workers=3', '--restart=1', '--verbose']
    assert cluster_command.main([*argv, '--', '--variable_update=collective_all_reduce']) == 5
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(STARTED)[0] for line in lines if STARTED in line] == [
        'worker 0',
        'worker 1',
        'worker 2',
    ] * 2
    assert len([line for line in lines if '1 of 1 time' in line]) == 1


# ---- GPUs: each worker sees its own, and nobody else any -----------------------------------------


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four GPUs, and a program in place of the benchmark that tells what it sees."""
    use_pynvml(monkeypatch, write_pynvml(tmp_path, 4))
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    sees = "print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'), file=sys.stderr)"
    replace_program(tmp_path, monkeypatch, f'import os, sys\n{sees}\n')


@pytest.mark.unit
def test_each_worker_gets_its_gpus_and_parameter_servers_none() -> None:
    environment = {'PATH': '/bin', 'CUDA_VISIBLE_DEVICES': '0,1,2,3'}
    for gpus, expected in (
        (['0,1', '2,3'], ['', '0,1', '2,3', '0,1,2,3']),
        (None, ['0,1,2,3'] * 4),
    ):
        commands = make_commands(
            (), members(['h:1'], ['h:2', 'h:3'], ['h:4'], gpus=gpus), environment
        )
        assert [command.name for command in commands] == [
            'ps 0',
            'worker 0',
            'worker 1',
            'controller 0',
        ]
        assert [(command.env or {})['CUDA_VISIBLE_DEVICES'] for command in commands] == expected


@pytest.mark.distributed
@pytest.mark.usefixtures('four_gpus')
@pytest.mark.parametrize(
    ('flag', 'listed', 'expected'),
    [
        ('--num_gpus=2', None, {'ps 0': '', 'worker 0': '0,1', 'worker 1': '2,3'}),
        (
            '',
            'GPU-35a2,GPU-15a2,GPU-05a2',
            {'ps 0': '', 'worker 0': 'GPU-35a2', 'worker 1': 'GPU-15a2'},
        ),
        # They share the chosen ones out.
        ('--gpu_indices=3,1', None, {'ps 0': '', 'worker 0': '3', 'worker 1': '1'}),
        ('--device=cpu', None, {'ps 0': '', 'worker 0': '', 'worker 1': ''}),
        # The controller needs to know whether there are GPUs, and hides them itself.
        (
            '--variable_update=distributed_all_reduce',
            None,
            {'controller 0': 'None', 'worker 0': '0', 'worker 1': '1'},
        ),
    ],
)
def test_the_processes_see_their_gpus(
    flag: str,
    listed: str | None,
    expected: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if listed:
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', listed)
    # What an outer job says about its own tasks is nothing to these.
    monkeypatch.setenv('SLURM_GPUS_ON_NODE', '1')
    monkeypatch.setenv('SLURM_GPUS_PER_TASK', '1')
    assert cluster_command.main(['--verbose', '--', *flag.split()]) == 0
    err = capsys.readouterr().err
    assert dict(re.findall(r'^(\w+ \d) +\| sees ?(.*)$', err, re.MULTILINE)) == expected


@pytest.mark.unit
@pytest.mark.usefixtures('four_gpus')
@pytest.mark.parametrize(
    ('argv', 'listed', 'facts'),
    [
        (['--workers=5'], None, ['--num_gpus=1', '5 workers', '5 GPUs', '4', '--device=cpu']),
        (['--', '--num_gpus=3'], None, ['--num_gpus=3', '6 GPUs', '4']),
        ([], '3', ['--num_gpus=1', '2 GPUs', 'CUDA_VISIBLE_DEVICES=3']),
    ],
)
def test_too_few_gpus_are_refused_before_anything_starts(
    argv: list[str], listed: str | None, facts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if listed:
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', listed)
    with refused(*facts):
        cluster_command.main(argv)

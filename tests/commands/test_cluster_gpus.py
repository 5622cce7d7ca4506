"""The subcommand cluster shares out the GPUs of the machine: each worker sees its own, and nobody else any."""

import re
from pathlib import Path

import pytest

from commands import cluster as cluster_command
from commands.cluster import make_commands
from tests.support.machines import use_pynvml, write_pynvml
from tests.support.outputs import refused
from tests.support.programs import members

PROGRAM = """
import os, sys
flags = dict(word.split('=') for word in sys.argv[1:])
print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'), file=sys.stderr)
"""


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four GPUs, and a program in place of the benchmark that tells what it sees."""
    use_pynvml(monkeypatch, write_pynvml(tmp_path, 4))
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    program = tmp_path / 'program.py'
    program.write_text(PROGRAM)
    monkeypatch.setattr('cluster.hosts._PROGRAM', str(program))


@pytest.mark.unit
def test_each_worker_gets_its_gpus_and_parameter_servers_none() -> None:
    environment = {'PATH': '/bin', 'CUDA_VISIBLE_DEVICES': '0,1,2,3'}
    for gpus, expected in ((['0,1', '2,3'], ['', '0,1', '2,3', '0,1,2,3']), (None, ['0,1,2,3'] * 4)):
        commands = make_commands((), members(['h:1'], ['h:2', 'h:3'], ['h:4'], gpus=gpus), environment)
        assert [command.name for command in commands] == ['ps 0', 'worker 0', 'worker 1', 'controller 0']
        assert [(command.env or {})['CUDA_VISIBLE_DEVICES'] for command in commands] == expected


@pytest.mark.distributed
@pytest.mark.usefixtures('four_gpus')
@pytest.mark.parametrize(
    ('flags', 'listed', 'expected'),
    [
        (['--num_gpus=2'], None, {'ps 0': '', 'worker 0': '0,1', 'worker 1': '2,3'}),
        ([], 'GPU-35a2,GPU-15a2,GPU-05a2', {'ps 0': '', 'worker 0': 'GPU-35a2', 'worker 1': 'GPU-15a2'}),
        # They share the chosen ones out.
        (['--gpu_indices=3,1'], None, {'ps 0': '', 'worker 0': '3', 'worker 1': '1'}),
        (['--device=cpu', '--num_gpus=8'], None, {'ps 0': '', 'worker 0': '', 'worker 1': ''}),
        # The controller needs to know whether there are GPUs, and hides them itself.
        (
            ['--variable_update=distributed_all_reduce'],
            None,
            {'controller 0': 'None', 'worker 0': '0', 'worker 1': '1'},
        ),
    ],
)
def test_the_processes_see_their_gpus(
    flags: list[str],
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
    assert cluster_command.main(['--verbose', '--', *flags]) == 0
    err = capsys.readouterr().err
    assert dict(re.findall(r'^(\w+ \d) +\| sees ?(.*)$', err, re.MULTILINE)) == expected
    told = dict(re.findall(r'(\w+ \d) is process .* with(?:out)? GPUs ?(.*)$', err, re.MULTILINE))
    assert told == {name: gpus for name, gpus in expected.items() if gpus != 'None'}


@pytest.mark.unit
@pytest.mark.usefixtures('four_gpus')
@pytest.mark.parametrize(
    ('argv', 'listed', 'facts'),
    [
        (['--workers=5'], None, ['--num_gpus=1', '5 workers', '5 GPUs', '4', '--device=cpu']),
        (['--workers=2', '--', '--num_gpus=3'], None, ['--num_gpus=3', '6 GPUs', '4', '--num_gpus=2']),
        (['--workers=2'], '3', ['--num_gpus=1', '2 GPUs', 'CUDA_VISIBLE_DEVICES=3']),
    ],
)
def test_too_few_gpus_are_refused_before_anything_starts(
    argv: list[str],
    listed: str | None,
    facts: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if listed:
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', listed)
    with refused(*facts):
        cluster_command.main(argv)
    assert capfd.readouterr() == ('', '')

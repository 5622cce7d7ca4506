"""The subcommand sweep: what it lists, plans, refuses and prints."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tf_cnn.cli.sweep
from tests.support.hosts import NEEDED, make_hosts
from tests.support.outputs import check_line, refused
from tests.support.sample_results import created, failed_run, plan_of, sample_record, starter
from tf_cnn.cli.sweep import main
from tf_cnn.results.document import Failure, Result
from tf_cnn.sweep.run_plan import run_plan
from tf_cnn.sweep.sweep_file import list_shipped_sweeps
from tf_cnn.sweep.texts import result_table

ROOT = Path(tf_cnn.cli.sweep.__file__).resolve().parents[2]
GRIDS = ('--grid=--variable_update=replicated,parameter_server', '--grid', 'shape=1*1,2*1+1')


def rows_of(markdown: str) -> list[list[str]]:
    """The cells of a table in Markdown, without the line below its titles."""
    titles, _, *rows = [
        line for line in markdown.replace('\\|', '/').splitlines() if line.startswith('|')
    ]
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in (titles, *rows)]


@pytest.mark.unit
def test_the_sweeps_that_come_with_the_program_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(['--help']) == 0
    text = ' '.join(capsys.readouterr().out.split())
    assert ', '.join(list_shipped_sweeps()) in text


@pytest.mark.unit
def test_a_dry_run_lists_commands_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*GRIDS, '--repeats=3', '--dry_run', '--', '--model=lenet', '--num_batches=5']) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    check_line(lines[0], '3 configurations', '3 runs of each', '9')
    assert [line.strip() for line in lines[2:7:2]] == [
        'tf_cnn_benchmarks --model=lenet --num_batches=5 --variable_update=replicated --num_gpus=1',
        'tf_cnn_benchmarks --model=lenet --num_batches=5 --variable_update=parameter_server '
        '--num_gpus=1',
        'tf_cnn_benchmarks cluster --workers=2 --ps=1 -- --model=lenet --num_batches=5 '
        '--variable_update=parameter_server --num_gpus=1',
    ]
    check_line(lines[7], 'left out 1 combination', 'replicated', '2*1+1')
    assert (len(lines), err, list(tmp_path.iterdir())) == (8, '', [])


@pytest.mark.unit
def test_a_sweep_that_continues_keeps_its_plan(tmp_path: Path) -> None:
    folder = created(tmp_path, plan_of(tmp_path, '[grid]\nbatch_size = [1, 2]\n'))
    with refused('--repeats'):
        main(['--resume', str(folder.path), '--repeats=3'])
    with refused('--grid'):
        main(['--grid=batch_size=1,3', str(folder.path), '--resume'])


@pytest.mark.distributed
def test_the_table_is_printed_and_a_failure_ends_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(
        tmp_path,
        '[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [10, 20]\nshape = ["1*1", "1*1+1"]\n',
    )
    folder = created(tmp_path, plan)
    assert run_plan(plan, folder, starter(tmp_path, plan, {'--batch_size=20': 'fail'})) == 1
    out, err = capsys.readouterr()
    assert rows_of(out)[1:] == [
        ['10', '1*1', '100.00', '1.00', 'baseline', 'ok'],
        ['10', '1*1+1', '100.00', '1.00', 'too few runs', 'ok'],
        ['20', '1*1', '', '', '', 'failed: the disk is on fire'],
        ['20', '1*1+1', '', '', '', 'failed: the disk is on fire'],
    ]
    assert out == (folder.path / 'table.md').read_text()
    assert str(folder.path) in err
    # Once more: everything is there.
    assert run_plan(plan, folder, starter(tmp_path, plan, {'': 'fail'})) == 1
    assert capsys.readouterr().out == out


@pytest.mark.distributed
def test_the_largest_batch_size_is_a_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'find_batch_size = true\n[flags]\nbatch_size = 4\n[grid]\nxla = [false, true]\n'
    plan = plan_of(tmp_path, text)
    program = starter(tmp_path, plan, {'--xla=False': 5, '--xla=True': 9})
    assert run_plan(plan, created(tmp_path, plan), program) == 0
    assert rows_of(capsys.readouterr().out) == [
        ['xla', 'W*G+P', 'largest batch size', 'images/sec', 'speed-up', 'verdict'],
        ['false', '1*1', '5', '50.00', '1.00', 'baseline'],
        ['true', '1*1', '9', '90.00', '1.80', 'too few runs'],
    ]


@pytest.mark.distributed
def test_real_runs_of_one_process_and_of_a_cluster(tmp_path: Path) -> None:
    argv = [
        'sweep',
        '--grid=--shape=1*1,1*1+1',
        f'--output={tmp_path}/out',
        '--',
        '--model=trivial',
        '--device=cpu',
    ]
    argv += ['--batch_size=2', '--num_batches=3', '--num_warmup_batches=1']
    command = [sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), *argv]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert [row[0] for row in rows_of(ran.stdout)[1:]] == ['1*1', '1*1+1']


@pytest.mark.unit
@pytest.mark.parametrize(
    ('hosts', 'shape', 'expected'),
    [
        ('a,b', '2*1+1', ('a,b', 2, 1)),
        ('a,[fd00::1],c', '2*1+1', ('a,[fd00::1]', 2, 1)),
        ('a:0,b,c', '1*1+1', ('a:0,b', 1, 1)),
        ('a:2,b:2', '2*1+1', ('a:2', 2, 1)),
        ('a,b', '4*1+2', ('a,b', 4, 2)),
    ],
)
def test_clusters_of_a_sweep_are_on_the_hosts_after_the_dashes(
    hosts: str, shape: str, expected: tuple[str, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        '--dry_run',
        f'--grid=shape=8*1,{shape}',
        '--',
        f'--hosts={hosts}',
        '--variable_update=parameter_server',
    ]
    assert main([*argv, '--remote_dir=/x']) == 0
    out = capsys.readouterr().out
    # Whether this machine has a GPU says nothing of the hosts.
    assert '--device' not in out
    command = next(shlex.split(line) for line in out.splitlines() if 'cluster' in line)
    chosen, workers, servers = expected
    assert command[2:6] == [
        f'--hosts={chosen}',
        '--remote_dir=/x',
        f'--workers={workers}',
        f'--ps={servers}',
    ]
    assert '8*1' in next(line for line in out.splitlines() if line.startswith('left out'))


@pytest.mark.distributed
@pytest.mark.long
@NEEDED
def test_a_link_of_100_mbit_between_two_hosts_limits_the_bandwidth(tmp_path: Path) -> None:
    words = [
        '--grid=shape=2*1',
        '--grid=exchange_bytes=4096,4194304',
        f'--output={tmp_path / "out"}',
        '--',
    ]
    words += [
        '--hosts=node1,node2',
        '--exchange_only',
        '--variable_update=collective_all_reduce',
        '--device=cpu',
    ]
    with make_hosts(2, rate_mbit=100) as network:
        command = network.command(
            sys.executable, ROOT / 'tf_cnn_benchmarks.py', 'sweep', *words, '--num_batches=2'
        )
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
    _, small, large = rows_of(ended.stdout)
    assert float(small[2].strip('! ')) < float(large[2].strip('! '))
    assert 0.7 * 0.0125 < float(large[4]) <= 0.0125


@pytest.mark.unit
def test_repeats_have_an_interval_and_failures_a_reason(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[grid]\nshape = ["1*1", "1*2", "1*4", "1*8"]\n')
    rates: list[list[float]] = [[], [90, 100, 110], [200, 200], [50, 100, 200]]
    outcomes: list[list[Result | Failure]] = [
        [sample_record(seconds=[32 / rate] * 13, gap=0.0) for rate in own] for own in rates
    ]
    outcomes[0].append(failed_run(reason='a | b'))
    outcomes[2].append(failed_run(reason='c'))
    table = result_table(
        plan, {one.id: runs for one, runs in zip(plan.configurations, outcomes, strict=True)}
    )
    assert rows_of(table.as_markdown()) == [
        ['W*G+P', 'images/sec', '95 % interval', 'runs', 'speed-up', 'verdict', 'status'],
        ['1*1', '', '', '0', '', '', 'failed: a / b'],
        # 3 / (1/90 + 1/100 + 1/110); the seconds have a relative standard error of 0.058, times
        # Student's t, 4.303.
        ['1*2', '99.33', '77.39 to 127.50', '3', '1.00', 'baseline', 'ok'],
        ['1*4', '200.00', '', '2', '2.01', 'too few runs', 'failed: c'],
        ['1*8', '85.71', '16.86 to 435.84', '3', '0.86', 'no significant difference', 'ok'],
    ]
    assert len({len(line) for line in table.as_markdown().splitlines()}) == 1


@pytest.mark.unit
def test_exchanges_alone_have_bandwidths(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, '[flags]\nexchange_only = true\n[grid]\nexchange_bytes = [4096, 8000000]\n'
    )
    outcomes = {}
    for one, size, seconds in zip(
        plan.configurations, (4096, 8_000_000), ([0.001], [0.01, 0.03]), strict=True
    ):
        run, model = {'role': 'exchange-only', 'precision': 'fp32'}, {'parameters': size // 4}
        outcomes[one.id] = [
            sample_record(seconds=seconds, cluster={'num_workers': 4}, run=run, model=model)
        ]
    assert rows_of(result_table(plan, outcomes).as_markdown()) == [
        ['bytes', 'W*G+P', 'ms', 'algbw GB/s', 'busbw GB/s', 'doubtful runs'],
        ['4096', '1*1', '! 1.000', '0.004096', '0.006144', 'too short'],
        # 8 MB in a mean of 20 ms; 4 devices send 2 * 3 / 4 as much.
        ['8000000', '1*1', '! 20.000', '0.4', '0.6', 'too short'],
    ]

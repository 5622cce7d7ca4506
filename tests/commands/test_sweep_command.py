"""The subcommand sweep: what it lists, plans, refuses and prints."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import commands.sweep
from commands.sweep import SweepRow, format_results, main, run_plan, table_rows
from comparison.intervals import estimate_runs
from sweeps.sweep_file import shipped
from tests.support.hosts import NEEDED, make_hosts
from tests.support.outputs import check_line, refused
from tests.support.sample_results import created, plan_of, record_of, sample_document, starter

ROOT = Path(commands.sweep.__file__).resolve().parent.parent
GRIDS = ('--grid=--variable_update=replicated,parameter_server', '--grid', 'shape=1*1,2*1+1')


@pytest.mark.unit
def test_the_sweeps_that_come_with_the_program_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['--list']) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*shipped()]
    assert main(['--help']) == 0
    text = ' '.join(capsys.readouterr().out.split())
    assert ', '.join(shipped()) in text


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
        'tf_cnn_benchmarks --model=lenet --num_batches=5 --variable_update=parameter_server --num_gpus=1',
        'tf_cnn_benchmarks cluster --workers=2 --ps=1 -- --model=lenet --num_batches=5 '
        '--variable_update=parameter_server --num_gpus=1',
    ]
    check_line(lines[7], 'left out 1 combination', 'replicated', '2*1+1')
    assert (len(lines), err, list(tmp_path.iterdir())) == (8, '', [])


@pytest.mark.unit
@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        ([], ('--grid',)),
        (['precision', '--grid=batch_size=1,2'], ('precision', '--grid')),
        (['precison'], ('precison', 'precision')),
        (['precision', '--memory_limit=much'], ('--memory_limit=much',)),
        (['precision', '--', '--precision=fp32'], ('--precision=fp32',)),
        (['precision', '--resume'], ('--resume',)),
        (['precision', '--find_batch_size', '--repeats=1', '--', '--device=cpu'], ('--find_batch_size', 'batch_size')),
        (['--grid=xla=true,false', '--find_batch_size', '--', '--device=cpu'], ('--memory_limit',)),
        (['--resume', '.'], ('sweep.json',)),
        (['exchange', '--', '--hosts=a,a'], ('--hosts=a,a',)),
        (['exchange', '--', '--ssh=ssh'], ('--ssh=ssh', '--hosts')),
        (['precision', '--', '--hosts=a,b'], ('--hosts=a,b', 'one process')),
        (
            ['--grid=shape=4*1', '--', '--hosts=a:1,b:1', '--variable_update=collective_all_reduce'],
            ('--hosts=a:1,b:1',),
        ),
    ],
)
def test_wrong_use_is_refused(
    argv: list[str], facts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(*facts):
        main(argv)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.unit
def test_a_sweep_that_continues_keeps_its_plan(tmp_path: Path) -> None:
    folder = created(tmp_path, plan_of(tmp_path, '[grid]\nbatch_size = [1, 2]\n'))
    with refused('--repeats'):
        main(['--resume', str(folder.path), '--repeats=3'])
    with refused(folder.path, 'batch_size'):
        main(['--grid=batch_size=1,3', f'--output={folder.path}', '--resume'])


@pytest.mark.distributed
def test_the_table_is_printed_and_a_failure_ends_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path, '[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [10, 20]\nshape = ["1*1", "1*1+1"]\n')
    folder = created(tmp_path, plan)
    assert run_plan(plan, folder, starter(tmp_path, plan, {'--batch_size=20': 'fail'})) == 1
    out, err = capsys.readouterr()
    assert [[cell.strip() for cell in line.strip('|').split('|')] for line in out.splitlines()][2:] == [
        ['10', '1*1', '100.00', '1.00', 'ok'],
        ['10', '1*1+1', '100.00', '1.00', 'ok'],
        ['20', '1*1', '', '', 'failed: the disk is on fire'],
        ['20', '1*1+1', '', '', 'failed: the disk is on fire'],
    ]
    assert out == (folder.path / 'table.md').read_text()
    assert str(folder.path) in err
    # Once more: everything is there.
    assert run_plan(plan, folder, starter(tmp_path, plan, {'': 'fail'})) == 1
    assert capsys.readouterr().out == out


@pytest.mark.distributed
def test_the_largest_batch_size_is_a_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'find_batch_size = true\nmemory_limit = "1GiB"\n[flags]\nbatch_size = 4\n[grid]\nxla = [false, true]\n'
    plan = plan_of(tmp_path, text)
    program = starter(tmp_path, plan, {'--xla=False': 5, '--xla=True': 9})
    assert run_plan(plan, created(tmp_path, plan), program) == 0
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ['xla', 'W*G+P', 'largest batch size', 'images/sec', 'speed-up']
    assert rows[2:] == [['false', '1*1', '5', '50.00', '1.00'], ['true', '1*1', '9', '90.00', '1.80']]


@pytest.mark.distributed
def test_real_runs_of_one_process_and_of_a_cluster(tmp_path: Path) -> None:
    argv = ['--grid=--shape=1*1,1*1+1', f'--output={tmp_path}/out', '--', '--model=trivial', '--device=cpu']
    ran = subprocess.run(
        [
            sys.executable,
            'tf_cnn_benchmarks.py',
            'sweep',
            *argv,
            '--batch_size=2',
            '--num_batches=3',
            '--num_warmup_batches=1',
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert [line.split('|')[1].strip() for line in ran.stdout.splitlines()[2:]] == ['1*1', '1*1+1']


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
    argv = ['--dry_run', f'--grid=shape=8*1,{shape}', '--', f'--hosts={hosts}', '--variable_update=parameter_server']
    assert main([*argv, '--interface=lo']) == 0
    out = capsys.readouterr().out
    # Whether this machine has a GPU says nothing of the hosts.
    assert '--device' not in out
    command = next(shlex.split(line) for line in out.splitlines() if 'cluster' in line)
    chosen, workers, servers = expected
    assert command[2:6] == [f'--hosts={chosen}', '--interface=lo', f'--workers={workers}', f'--ps={servers}']
    assert '8*1' in next(line for line in out.splitlines() if line.startswith('left out'))


@pytest.mark.unit
def test_exchanges_alone_have_bandwidths(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[flags]\nexchange_only = true\n[grid]\nexchange_bytes = [4096, 8000000]\n')
    found = []
    for size, seconds in ((4096, [0.001]), (8_000_000, [0.01, 0.03])):
        document = sample_document(
            seconds=seconds,
            run={'role': 'exchange-only', 'precision': 'fp32'},
            model={'parameters': size // 4},
            cluster={'num_workers': 4},
        )
        found.append([record_of(document)])
    outcomes = {one.id: records for one, records in zip(plan.configurations, found, strict=True)}
    lines = format_results(*table_rows(plan, outcomes)).splitlines()
    cells = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    assert cells[0] == ['bytes', 'W*G+P', 'ms', 'algbw GB/s', 'busbw GB/s']
    # 8 MB in a mean of 20 ms; 4 devices send 2 * 3 / 4 as much.
    assert cells[2:] == [
        ['4096', '1*1', '1.000', '0.004096', '0.006144'],
        ['8000000', '1*1', '20.000', '0.4', '0.6'],
    ]


@pytest.mark.distributed
@pytest.mark.long
@NEEDED
def test_a_link_of_100_mbit_between_two_hosts_limits_the_bandwidth(tmp_path: Path) -> None:
    words = ['--grid=shape=2*1', '--grid=exchange_bytes=4096,4194304', f'--output={tmp_path / "out"}', '--']
    words += ['--hosts=node1,node2', '--exchange_only', '--variable_update=collective_all_reduce', '--device=cpu']
    with make_hosts(2, rate_mbit=100) as network:
        command = network.command(sys.executable, ROOT / 'tf_cnn_benchmarks.py', 'sweep', *words, '--num_batches=2')
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
    small, large = (line.split('|') for line in ended.stdout.splitlines()[2:])
    assert float(small[3]) < float(large[3])
    assert 0.7 * 0.0125 < float(large[5]) <= 0.0125


@pytest.mark.unit
def test_a_table_has_speed_ups_against_the_first_row() -> None:
    rows = [
        SweepRow({'variable_update': 'replicated', 'batch_size': '32', 'shape': '1*1'}, estimate_runs([100.0])),
        SweepRow(
            {'variable_update': 'parameter_server', 'batch_size': '32', 'shape': '2*1+1'}, estimate_runs([154.321])
        ),
    ]
    assert format_results(('variable_update', 'batch_size', 'shape'), rows).splitlines() == [
        '| variable_update  | batch size | W*G+P | images/sec | speed-up |',
        '| ---------------- | ---------- | ----- | ---------: | -------: |',
        '| replicated       | 32         | 1*1   |     100.00 |     1.00 |',
        '| parameter_server | 32         | 2*1+1 |     154.32 |     1.54 |',
    ]


@pytest.mark.unit
def test_repeats_have_an_interval_and_failures_a_reason() -> None:
    rows = [
        SweepRow({'shape': '1*1'}, None, 'failed: a | b'),
        SweepRow({'shape': '1*2'}, estimate_runs([90.0, 100.0, 110.0])),
        SweepRow({'shape': '1*4'}, estimate_runs([200.0, 200.0]), 'failed: c'),
        SweepRow({'shape': '1*8'}, estimate_runs([50.0, 100.0, 200.0])),
    ]
    lines = format_results(('shape',), rows).splitlines()
    cells = [[cell.strip() for cell in line.replace('\\|', '/').strip('|').split('|')] for line in lines]
    assert cells[0] == ['W*G+P', 'images/sec', '95 % interval', 'runs', 'speed-up', 'status']
    assert cells[2:] == [
        ['1*1', '', '', '0', '', 'failed: a / b'],
        # 3 / (1/90 + 1/100 + 1/110); the seconds have a relative standard error of 0.058, times Student's t, 4.303.
        ['1*2', '99.33', '77.39 to 127.50', '3', '1.00', 'ok'],
        ['1*4', '200.00', '', '2', '2.01', 'failed: c'],
        ['1*8', '85.71', '16.86 to 435.84', '3', '0.86', 'ok'],
    ]
    assert len({len(line) for line in lines}) == 1

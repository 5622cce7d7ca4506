"""The subcommand sweep: what it lists, plans, refuses and prints."""

import io
import re
import shlex
import sys

import pytest

from tests.support.files import quoted
from tests.support.hosts import NEEDED, make_hosts
from tests.support.outputs import check_line, refused
from tests.support.programs import PROGRAM, run, run_main, run_process
from tests.support.sample_results import failed_run, sample_record, write_sample
from tests.sweep.fake_runs import fake_runner, make_sweep, plan_of
from tf_cnn.cli.sweep import main
from tf_cnn.lab.sweep_file import list_shipped_sweeps
from tf_cnn.results.document import Failure, Result
from tf_cnn.sweep.run_plan import result_table, run_plan
from tf_cnn.sweep.runner import Runner


def rows_of(markdown: str) -> list[list[str]]:
    """The cells of a table in Markdown, without the line below its titles."""
    titles, _, *rows = [
        line for line in markdown.replace('\\|', '/').splitlines() if line.startswith('|')
    ]
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in (titles, *rows)]


@pytest.mark.unit
def test_the_sweeps_that_come_with_the_program_are_listed():
    out, _ = run_main('sweep', '--help')
    assert ', '.join(list_shipped_sweeps()) in ' '.join(out.split())


@pytest.mark.unit
def test_a_dry_run_lists_commands_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grids = ('--grid=--variable_update=replicated,parameter_server', '--grid', 'shape=1*1,2*1+1')
    flags = '--model=lenet --num_batches=5'
    out, err = run_main('sweep', *grids, '--repeats=3', '--dry_run', '--', *flags.split())
    lines = out.splitlines()
    check_line(lines[0], '3 configurations', '3 runs of each', '9')
    on_servers = f'{flags} --variable_update=parameter_server --num_gpus=1'
    assert [line.strip() for line in lines[2:7:2]] == [
        f'tf_cnn_benchmarks {flags} --variable_update=replicated --num_gpus=1',
        f'tf_cnn_benchmarks {on_servers}',
        f'tf_cnn_benchmarks cluster --workers=2 --ps=1 -- {on_servers}',
    ]
    check_line(lines[7], 'left out 1 combination', 'replicated', '2*1+1')
    assert (len(lines), err, list(tmp_path.iterdir())) == (8, '', [])


@pytest.mark.unit
def test_a_sweep_that_continues_keeps_its_plan(tmp_path):
    _, folder = make_sweep(tmp_path, '[grid]\nbatch_size = [1, 2]\n')
    with refused('--repeats'):
        main(['--resume', str(folder.path), '--repeats=3'])
    with refused('--grid'):
        main(['--grid=batch_size=1,3', str(folder.path), '--resume'])


@pytest.mark.distributed
def test_the_table_is_printed_and_a_failure_ends_with_exit_code_1(tmp_path, capsys):
    grid = '[grid]\nbatch_size = [10, 20]\nshape = ["1*1", "1*1+1"]\n'
    plan, folder = make_sweep(tmp_path, f'[flags]\nmodel = "lenet"\n{grid}')
    assert run_plan(plan, folder, fake_runner(tmp_path, {'--batch_size=20': 'fail'})) == 1
    out, err = capsys.readouterr()
    assert rows_of(out)[1:] == [
        ['10', '1*1', '100', '1.00', 'baseline', 'ok'],
        ['10', '1*1+1', '100', '1.00', 'too few runs', 'ok'],
        ['20', '1*1', '', '', '', 'failed: the disk is on fire'],
        ['20', '1*1+1', '', '', '', 'failed: the disk is on fire'],
    ]
    assert out == (folder.path / 'table.md').read_text()
    assert str(folder.path) in err
    # Once more: everything is there.
    assert run_plan(plan, folder, fake_runner(tmp_path, {'--batch_size=10': 'fail'})) == 1
    assert capsys.readouterr().out == out


@pytest.mark.distributed
def test_the_largest_batch_size_is_a_column(tmp_path, capsys):
    text = 'find_batch_size = true\n[flags]\nbatch_size = 4\n[grid]\nxla = [false, true]\n'
    program = fake_runner(tmp_path, {'--xla=False': 5, '--xla=True': 9})
    assert run_plan(*make_sweep(tmp_path, text), program) == 0
    assert rows_of(capsys.readouterr().out) == [
        ['xla', 'W*G+P', 'largest batch size', 'images/sec', 'speed-up', 'verdict'],
        ['false', '1*1', '5', '50.0', '1.00', 'baseline'],
        ['true', '1*1', '9', '90.0', '1.80', 'too few runs'],
    ]


@pytest.mark.distributed
def test_real_runs_of_one_process_and_of_a_cluster(tmp_path):
    grid = f'--grid=--shape=1*1,1*1+1 --output={quoted(tmp_path)}/out'
    flags = '--model=trivial --device=cpu --batch_size=2 --num_batches=3 --num_warmup_batches=1'
    code, out, err = run(f'sweep {grid} -- {flags}')
    assert code == 0, err
    assert [row[0] for row in rows_of(out)[1:]] == ['1*1', '1*1+1']


@pytest.mark.unit
def test_clusters_of_a_sweep_are_on_the_hosts_after_the_dashes():
    for hosts, shape, flags in (
        ('a,b', '2*1+1', '--hosts=a,b --remote_dir=/x --workers=2 --ps=1'),
        ('a,[fd00::1],c', '2*1+1', '--hosts=a,[fd00::1] --remote_dir=/x --workers=2 --ps=1'),
        ('a:0,b,c', '1*1+1', '--hosts=a:0,b --remote_dir=/x --workers=1 --ps=1'),
        ('a:2,b:2', '2*1+1', '--hosts=a:2 --remote_dir=/x --workers=2 --ps=1'),
        ('a,b', '4*1+2', '--hosts=a,b --remote_dir=/x --workers=4 --ps=2'),
        # One process, on the first host.
        ('a,b', '1*2', '--hosts=a --remote_dir=/x --workers=1 --ps=0'),
    ):
        after = ('--', f'--hosts={hosts}', '--variable_update=parameter_server', '--remote_dir=/x')
        out, _ = run_main('sweep', '--dry_run', f'--grid=shape=8*1,{shape}', *after)
        # A GPU of this machine does not show whether the hosts have one.
        assert '--device' not in out
        command = next(line for line in out.splitlines() if 'cluster' in line)
        assert shlex.split(command)[2:6] == flags.split()
        assert '8*1' in next(line for line in out.splitlines() if line.startswith('left out'))


@pytest.mark.distributed
@pytest.mark.long
@NEEDED
def test_a_link_of_25_mbit_between_two_hosts_limits_the_bandwidth(tmp_path):
    grids = ('--grid=shape=2*1', '--grid=exchange_bytes=4096,4194304', f'--output={tmp_path}/out')
    flags = ('--hosts=node1,node2', '--exchange_only', '--variable_update=collective_all_reduce')
    steps = ('--num_batches=2', '--num_warmup_batches=2')
    argv = ('sweep', *grids, '--', *flags, '--device=cpu', *steps)
    with make_hosts(2, rate_mbit=25) as network:
        command = network.command(*PROGRAM, *argv)
        process = run_process(command)
        assert process.code == 0, process.err
    _, small, large = rows_of(process.out)
    assert float(small[2].strip('! ')) < float(large[2].strip('! '))
    # In GB/s. The link is slow and the tensor large, so that a loaded machine is still faster.
    assert 0.7 * 0.003125 < float(large[4]) <= 0.003125


@pytest.mark.unit
def test_repeats_have_an_interval_and_failures_a_reason(tmp_path):
    plan = plan_of(tmp_path, '[grid]\nshape = ["1*1", "1*2", "1*4", "1*8"]\n')
    outcomes: dict[str, list[Result | Failure]] = {
        configuration.id: [sample_record(rate=rate, noise=0) for rate in rates]
        for configuration, rates in zip(
            plan.configurations, ([], [90, 100, 110], [200, 200], [50, 100, 200]), strict=True
        )
    }
    outcomes[plan.configurations[0].id].append(failed_run(reason='a | b'))
    outcomes[plan.configurations[2].id].append(failed_run(reason='c'))
    table = result_table(plan, outcomes).as_markdown()
    assert rows_of(table) == [
        ['W*G+P', 'images/sec', '95 % interval', 'runs', 'speed-up', 'verdict', 'status'],
        ['1*1', '', '', '0', '', '', 'failed: a / b'],
        # 3 / (1/90 + 1/100 + 1/110); the seconds have a relative standard error of 0.058, times
        # Student's t, 4.303.
        ['1*2', '99.3', '77.4 to 128', '3', '1.00', 'baseline', 'ok'],
        ['1*4', '200', '', '2', '2.01', 'too few runs', 'failed: c'],
        ['1*8', '85.7', '16.9 to 436', '3', '0.86', 'no significant difference', 'ok'],
    ]
    assert len({len(line) for line in table.splitlines()}) == 1


@pytest.mark.unit
@pytest.mark.parametrize('columns', [80, 200])
def test_the_table_of_a_sweep_fits_the_terminal(tmp_path, monkeypatch, columns):
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', str(columns))
    grid = 'variable_update = ["distributed_replicated", "parameter_server"]\nshape = ["2*1+1"]'
    plan, folder = make_sweep(tmp_path, f'repeats = 3\n[grid]\nbatch_size = [8, 16]\n{grid}\n')
    for configuration in plan.configurations:
        for number in (1, 2, 3):
            path = folder.results / f'{configuration.id}.{number}.json'
            write_sample(path, rate=9000, seed=number, num_steps=800)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, 'isatty', lambda: True)
    monkeypatch.setattr(sys, 'stdout', terminal)
    assert run_plan(plan, folder, Runner(())) == 0
    text = re.sub(r'\x1b\[\d*m', '', terminal.getvalue())
    assert max(map(len, text.splitlines())) <= columns
    assert text.count('distributed_replicated') == 2
    assert text.count('no significant difference') == 3
    assert rows_of((folder.path / 'table.md').read_text())[0][0] == 'batch size'


@pytest.mark.unit
def test_exchanges_alone_have_bandwidths(tmp_path):
    grid = '[grid]\nexchange_bytes = [4096, 8000000]\n'
    plan = plan_of(tmp_path, f'[flags]\nexchange_only = true\n{grid}')
    small, large = (
        sample_record(
            seconds=seconds,
            cluster={'num_workers': 4},
            flags={'compact_gradient_transfer': precision == 'bf16'},
            run={'role': 'exchange-only', 'precision': precision},
            model={'parameters': parameters},
        )
        for precision, parameters, seconds in (
            ('fp32', 1024, [0.001]),
            ('bf16', 4_000_000, [0.01, 0.03]),
        )
    )
    ids = [configuration.id for configuration in plan.configurations]
    table = result_table(plan, {ids[0]: [small], ids[1]: [large]})
    assert rows_of(table.as_markdown()) == [
        ['bytes', 'W*G+P', 'ms', 'algbw GB/s', 'busbw GB/s', 'doubtful runs'],
        ['4096', '1*1', '! 1.000', '0.004096', '0.006144', 'too short'],
        # 8 MB in a mean of 20 ms; 4 devices send 2 * 3 / 4 as much.
        ['8000000', '1*1', '! 20.000', '0.4', '0.6', 'too short'],
    ]

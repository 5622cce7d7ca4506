"""`all_reduce` measures exchanges here and between two hosts, and writes the links that `predict` reads."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from commands.all_reduce import main, table_of
from scaling.exchanges import link_bandwidth
from scaling.links import LinkRow, read_links
from tests.support.hosts import NEEDED, make_hosts
from tests.support.outputs import check_line, refused
from tests.support.sample_results import FAKE, await_waiting, environment, runs_in

ROOT = Path(__file__).resolve().parent.parent.parent
RATE_MBIT = 100.0


@pytest.mark.distributed
@pytest.mark.long
def test_one_process_measures_each_exchange_and_goes_on_where_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output, links = tmp_path / 'out', tmp_path / 'links.json'
    argv = [f'--output={output}', '--sizes=4k,64k', '--exchanges=copies,ring', '--steps=3', f'--links_file={links}']
    assert main([*argv, '--', '--device=cpu']) == 0
    out = capfd.readouterr().out
    assert [row.split()[:3] for row in out.splitlines() if '1*2' in row] == [
        [name, '1*2', size] for name in ('copies', 'ring') for size in ('4096', '65536')
    ]
    found = read_links(str(links)).rows
    assert [(row.exchange, row.bytes, row.devices, row.dtype) for row in found] == [
        (name, size, 2, 'float32') for name in ('copies', 'ring') for size in (4096, 65536)
    ]
    results = sorted((output / 'results').iterdir())
    assert {json.loads(path.read_text())['run']['role'] for path in results} == {'exchange-only'}
    results[0].unlink()
    assert main([*argv, '--resume', '--', '--device=cpu']) == 0
    assert capfd.readouterr().err.count('ms/step') == 1


@pytest.mark.parametrize(
    ('argv', 'named'),
    [
        ('--devices=1', '--devices=1'),
        ('--hosts=a,b --workers=2', '--workers=2'),
        ('--exchanges=pigeons', 'pigeons'),
        ('--sizes=1', '--sizes=1'),
        ('--resume', '--output'),
        ('--hosts=a,a', '--hosts'),
        ('--hosts=a:0,b,c', 'a:0'),
        ('--hosts=a', 'a:2'),
        ('--links_file=/dev/null/links.json', '--links_file=/dev/null/links.json'),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    argv: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(named):
        main([*argv.split(), '--', '--device=cpu'])
    assert not list(tmp_path.iterdir())


@pytest.mark.distributed
@pytest.mark.long
@NEEDED
@pytest.mark.parametrize('exchange', ['collective', 'parameter_servers'])
def test_a_link_of_100_mbit_is_found_between_two_hosts(exchange: str, tmp_path: Path) -> None:
    links = tmp_path / 'links.json'
    words = ['--hosts=node1,node2', '--devices=1', '--sizes=4k,4m', f'--exchanges={exchange}', '--steps=2']
    words += [f'--output={tmp_path / "out"}', f'--links_file={links}', '--', '--device=cpu', '--num_warmup_batches=1']
    with make_hosts(2, rate_mbit=RATE_MBIT, latency_ms=0.2) as network:
        command = network.command(sys.executable, ROOT / 'tf_cnn_benchmarks.py', 'all_reduce', *words)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
    assert re.search(rf'{exchange} +2\*1', ended.stdout), ended.stdout
    small, large = read_links(str(links)).rows
    assert (small.hosts, small.workers, small.bytes, large.bytes) == (2, 2, 4096, 4 << 20)
    assert small.seconds < large.seconds
    found = link_bandwidth(large)
    assert found
    assert 0.7 * RATE_MBIT < 8e-6 * found <= RATE_MBIT


@pytest.mark.distributed
@pytest.mark.long
@NEEDED
def test_one_worker_fills_the_link_to_its_server(tmp_path: Path) -> None:
    links = tmp_path / 'links.json'
    words = ['--hosts=node1,node2', '--devices=1', '--model=lenet', '--exchanges=parameter_servers', '--steps=2']
    words += [f'--output={tmp_path / "out"}', f'--links_file={links}', '--', '--device=cpu', '--num_warmup_batches=1']
    with make_hosts(2, rate_mbit=RATE_MBIT) as network:
        command = network.command(sys.executable, ROOT / 'tf_cnn_benchmarks.py', 'all_reduce', *words)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert ended.returncode == 0, ended.stderr
    rows = read_links(str(links)).rows
    assert [(row.hosts, row.server_hosts, row.workers, row.servers) for row in rows] == [(2, 1, 1, 1), (2, 0, 2, 1)]
    # One worker sends over the link, the other one of two is where the server is.
    for row in rows:
        found = link_bandwidth(row)
        assert found
        assert 0.7 * RATE_MBIT < 8e-6 * found <= RATE_MBIT


# The command, with the small program in place of the real one.
COMMAND = (
    'import sys, commands.all_reduce, tf_cnn_benchmarks as b; commands.all_reduce.PROGRAM = {!r}; sys.exit(b.main())'
)


def measuring(folder: Path, *words: str, behaviours: Mapping[str, object] | None = None) -> 'subprocess.Popen[str]':
    """Starts `all_reduce` with runs of the small program."""
    return subprocess.Popen(
        [sys.executable, '-c', COMMAND.format(FAKE), *words],
        cwd=folder,
        env={**os.environ, 'PYTHONPATH': str(ROOT), **environment(folder, behaviours)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.distributed
def test_ctrl_c_says_how_to_continue_and_that_does(tmp_path: Path) -> None:
    words = ['all_reduce', '--exchanges=copies,ring', '--model=lenet', '--', '--device=cpu']
    with measuring(tmp_path, *words, behaviours={'--all_reduce_spec=xring': 'wait'}) as process:
        await_waiting(tmp_path, 2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    line = check_line(said.splitlines()[-2], '1 of 2 done')
    program, *again = shlex.split(line.partition('continue with: ')[2])
    assert program == 'tf_cnn_benchmarks'
    with measuring(tmp_path, *again) as process:
        table, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert [row.split()[0] for row in table.splitlines() if '1*2' in row] == ['copies', 'ring']
    assert len(runs_in(tmp_path)) == 3


# The runs of four hosts with one server: the hosts, workers and servers of each.
ONE_SERVER = [('a:0,b', 1, 1), ('a:0,b,c', 2, 1), ('a,b,c,d', 4, 1)]


def runs_of(folder: Path, *words: str) -> list[list[str]]:
    """The words of each run of a cluster, none of which works."""
    with measuring(folder, 'all_reduce', *words, behaviours={'cluster': 'fail'}) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    return [list(run) for run in runs_in(folder)]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ('hosts', 'ps', 'expected'),
    [
        ('a,b', 1, [('a:0,b', 1, 1), ('a,b', 2, 1)]),
        ('a,b', 2, [('a:0,b', 1, 1), ('a,b', 2, 1), ('a:0,b', 1, 2), ('a,b', 2, 2)]),
        ('a:2,[fd00::1],c', 1, [('a:0,[fd00::1]', 1, 1), ('a:0,[fd00::1],c', 2, 1), ('a:2,[fd00::1],c', 4, 1)]),
        # Two workers leave two hosts to the servers. On two hosts of two workers they fill one.
        ('a,b,c,d', 2, [*ONE_SERVER, ('a:0,b:0,c', 1, 2), ('a:0,b:0,c,d', 2, 2), ('a,b,c,d', 4, 2)]),
        ('a:2,b:2', 1, [('a:0,b:2', 1, 1), ('a:0,b:2', 2, 1), ('a:2,b:2', 4, 1)]),
    ],
)
def test_fewer_workers_are_on_other_hosts_than_the_servers(
    hosts: str, ps: int, expected: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    words = [f'--hosts={hosts}', f'--ps={ps}', '--exchanges=parameter_servers', '--model=googlenet', '--devices=1']
    runs = runs_of(tmp_path, *words)
    assert [run[1:4] for run in runs] == [
        [f'--hosts={placed}', f'--workers={workers}', f'--ps={servers}'] for placed, workers, servers in expected
    ]
    # Whether this machine has a GPU says nothing of the hosts.
    assert not any(word.startswith('--device=') for run in runs for word in run)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ('words', 'expected'),
    [
        # Tensors of more than 4 MiB in 32 bits are cut, by two servers or more.
        (('--sizes=4k,4m,16m', '--ps=4'), [('2', 1 << 24), ('4', 1 << 24)]),
        (('--sizes=2m,4m', '--ps=2', '--dtype=float16'), [('2', 1 << 23)]),
        # LeNet has a variable of 6.4 MB.
        (('--model=lenet', '--ps=2'), [('2', None)] * 2),
    ],
)
def test_servers_are_also_measured_with_whole_variables_where_some_are_cut(
    words: tuple[str, ...], expected: list[tuple[str, int | None]], tmp_path: Path
) -> None:
    several = '--exchanges=parameter_servers,parameter_servers_whole'
    runs = runs_of(tmp_path, '--workers=2', '--devices=1', several, *words)
    whole = [run for run in runs if '--slice_variables=False' in run]
    assert [
        (
            next(word.partition('=')[2] for word in run if word.startswith('--ps=')),
            next((int(word.partition('=')[2]) for word in run if word.startswith('--exchange_bytes=')), None),
        )
        for run in whole
    ] == expected
    assert len(runs) > len(whole)


@pytest.mark.parametrize('words', ['--ps=1', '--ps=2 --sizes=4k,4m', '--ps=2 --model=googlenet'])
def test_whole_variables_are_refused_where_none_is_cut(words: str) -> None:
    argv = ['--workers=2', '--devices=1', '--exchanges=parameter_servers_whole', *words.split()]
    with refused('--exchanges=parameter_servers_whole', 'parameter_servers,collective'):
        main([*argv, '--', '--device=cpu'])


@pytest.mark.distributed
@pytest.mark.long
def test_whole_variables_are_measured_on_two_servers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    links = tmp_path / 'links.json'
    argv = ['--workers=2', '--devices=1', '--ps=2', '--sizes=8m', '--exchanges=parameter_servers_whole', '--steps=2']
    argv += [f'--output={tmp_path / "out"}', f'--links_file={links}', '--', '--device=cpu', '--num_warmup_batches=1']
    assert main(argv) == 0
    out, err = capfd.readouterr()
    assert 'no effect' not in err
    assert re.search(r'parameter_servers_whole +2\*1\+2', out), out
    (row,) = read_links(str(links)).rows
    assert (row.exchange, row.servers, row.bytes, row.slices) == ('parameter_servers', 2, 1 << 23, False)


@pytest.mark.unit
def test_one_device_has_no_bus_bandwidth() -> None:
    row = LinkRow('parameter_servers', 'float32', 1, 1, 1, 1, 4096, 1, 4096, 0.001)
    table = table_of([row])
    assert table.rows[0][[column.title for column in table.columns].index('busbw MB/s')] == ''

"""`cluster --each` and `--pairs` over a real ssh, on hosts in namespaces."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import NEEDED, Network, make_hosts
from tests.support.outputs import check_line
from tests.support.programs import PROGRAM, Finished, run_process
from tf_cnn.results.collection import collect

pytestmark = [pytest.mark.distributed, NEEDED]

STEPS = '--device=cpu --batch_size=2 --num_batches=3 --num_warmup_batches=1'


@pytest.fixture(scope='module')
def network() -> Iterator[Network]:
    with make_hosts(3, rate_mbit=200) as network:
        yield network


def fleet(network: Network, words: str, flags: str, folder: Path) -> Finished:
    command = ['cluster', *words.split(), f'--output={folder}', '--', *flags.split()]
    return run_process(network.command(*PROGRAM, *command))


def test_each_host_runs_by_itself_and_one_that_cannot_be_reached_is_a_row(network, tmp_path):
    words = '--hosts=node1,10.77.0.2,node9 --each --rounds=2'
    process = fleet(network, words, f'--model=trivial {STEPS}', tmp_path / 'out')
    assert process.code == 1
    collection = collect([str(tmp_path / 'out/results')])
    places = [(run.machine['hostname'], run.shape) for run in collection.results]
    assert sorted(places) == [('node1', '1*1')] * 2 + [('node2', '1*1')] * 2
    [failure] = collection.failures
    assert failure.source.endswith('results/node9/node9.1.json')
    check_line(failure.reason, 'node9', 'cannot connect')
    # The result names hosts as they name themselves.
    assert '10.77.0.2 is the host node2' in process.err.splitlines()
    assert 'node9/node9.1.json' in process.out
    # The same command has nothing left to run.
    again = fleet(network, words, f'--model=trivial {STEPS}', tmp_path / 'out')
    assert (again.code, again.out) == (1, process.out)


def test_a_host_with_two_names_is_refused_before_anything_runs(network, tmp_path):
    process = fleet(network, '--hosts=node1,10.77.0.1 --each', '--model=trivial', tmp_path / 'out')
    assert (process.code, process.out) == (2, '')
    check_line(process.err, '--hosts', 'node1', '10.77.0.1', 'both')
    assert not (tmp_path / 'out').exists()


def test_a_sweep_over_hosts_has_a_row_of_one_host_and_an_efficiency(network, tmp_path):
    words = ['--grid=shape=1*1,2*1', f'--output={tmp_path}/out', '--', '--hosts=node1,node2']
    flags = f'--model=trivial --variable_update=collective_all_reduce {STEPS}'
    process = run_process(network.command(*PROGRAM, 'sweep', *words, *flags.split()))
    assert process.code == 0, process.err
    lines = [line for line in process.out.splitlines() if line.startswith('|')]
    titles, _, *rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    one, two = (dict(zip(titles, row, strict=True)) for row in rows)
    assert (one['W*G+P'], one['speed-up'], one['efficiency']) == ('1*1', '1.00', '1.00')
    assert float(two['efficiency']) == pytest.approx(float(two['speed-up']) / 2, abs=0.006)


def test_a_host_with_a_slow_link_is_named_by_its_pairs(network, tmp_path):
    shape = 'root tbf rate 10mbit burst 20kb limit 1mb'
    network.hosts[2].run('tc', 'qdisc', 'replace', 'dev', 'eth0', *shape.split())
    words = '--hosts=node1,node2,node3,node9 --pairs --rounds=1 --fail_below=0.6'
    flags = f'--exchange_bytes=500000 {STEPS}'
    process = fleet(network, words, flags, tmp_path / 'out')
    assert process.code == 1
    first, *table = process.out.splitlines()
    assert re.match(r"node3's link is slow: 0\.\d\d of the others' \(2 of 2 pairs\)", first)
    rates = [line.split()[2:] for line in table if re.match(r' *\d node\d ', line)]
    numbers = [[float(cell) for cell in row if cell != 'failed'] for row in rates]
    assert [len(row) for row in numbers] == [2, 2, 2, 0]
    # The links carry 1.25 and 25 MB/s, and a little more at once after a pause.
    assert 0.5 < min(numbers[2]) <= max(numbers[2]) < 2
    assert max(map(max, numbers[:3])) < 27
    check_line(next(line for line in table if 'cannot connect' in line), 'node2 with node9')

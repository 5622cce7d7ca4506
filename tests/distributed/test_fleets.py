"""`cluster --each` and `--pairs` over a real ssh, on hosts in namespaces."""

import json
import re
import shlex
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


def measure(network: Network, words: str, folder: Path, flags: str = '') -> Finished:
    argv = [*shlex.split(words), f'--output={folder}', *(['--', *flags.split()] if flags else [])]
    return run_process(network.command(*PROGRAM, *argv))


def test_each_host_runs_by_itself_and_one_that_cannot_be_reached_is_a_row(network, tmp_path):
    words = 'cluster --hosts=node1,10.77.0.2,node9 --each --rounds=2'
    flags = f'--model=trivial {STEPS}'
    process = measure(network, words, tmp_path / 'out', flags)
    assert process.code == 1
    collection = collect([str(tmp_path / 'out/results')])
    places = [(run.machine['hostname'], run.shape) for run in collection.results]
    assert sorted(places) == [('node1', '1*1')] * 2 + [('node2', '1*1')] * 2
    [failure] = collection.failures
    assert failure.source.endswith('results/node9/node9.1.json')
    check_line(failure.reason, 'node9', 'cannot connect')
    # The result names hosts as they name themselves.
    assert '10.77.0.2 is the host node2' in process.err.splitlines()
    check_line(process.out.splitlines()[0], 'node9')
    # The same command has nothing left to run.
    again = measure(network, words, tmp_path / 'out', flags)
    assert (again.code, again.out) == (1, process.out)


def test_any_command_runs_on_each_host_and_on_each_pair(network, tmp_path):
    rate = r"--rate='^rate: (\S+)' --rounds=3 --format=json"
    # Hosts do not have the variables of this machine.
    command = (
        """--command='sleep 2; echo rate: $(test $(hostname) = node2 && echo {n}8 || echo 100)'"""
    )
    words = f'cluster --hosts=node1,node2,node3 --each --grid=n=4 --fail_below=0.9 {command} {rate}'
    process = measure(network, words, tmp_path / 'each')
    assert process.code == 1, process.err
    check_line(json.loads(process.out)['answer'], 'node2 is slower than the others: ratio 0.480')
    command = "--command='echo {rank} of {size} at {first}: $(hostname); echo rate: 10'"
    words = f'cluster --hosts=node1,node2,node3 --pairs {command} {rate}'
    process = measure(network, words, tmp_path / 'pairs')
    assert process.code == 0, process.err
    check_line(json.loads(process.out)['answer'], 'all links agree', '3 pairs')
    log = (tmp_path / 'pairs/logs/node2+node3.1.log').read_text()
    assert sorted(re.findall(r'(\d of 2 at node2: node\d)', log)) == [
        '0 of 2 at node2: node2',
        '1 of 2 at node2: node3',
    ]


def test_a_host_with_two_names_is_refused_before_anything_runs(network, tmp_path):
    words = 'cluster --hosts=node1,10.77.0.1 --each'
    process = measure(network, words, tmp_path / 'out', '--model=trivial')
    assert (process.code, process.out) == (2, '')
    check_line(process.err, '--hosts', 'node1', '10.77.0.1', 'both')
    assert not (tmp_path / 'out').exists()


def test_a_sweep_over_hosts_has_a_row_of_one_host_and_an_efficiency(network, tmp_path):
    flags = f'--model=trivial --variable_update=collective_all_reduce {STEPS}'
    words = 'sweep --grid=shape=1*1,2*1 --format=json'
    process = measure(network, words, tmp_path / 'out', f'--hosts=node1,node2 {flags}')
    assert process.code == 0, process.err
    one, two = json.loads(process.out)['rows']
    assert (one['setting']['shape'], one['verdict']) == ('1*1', 'baseline')
    assert two['efficiency'] == pytest.approx(two['ratio'] / 2)


def test_a_host_with_a_slow_link_is_named_by_its_pairs(network, tmp_path):
    shape = 'root tbf rate 10mbit burst 20kb limit 1mb'
    network.hosts[2].run('tc', 'qdisc', 'replace', 'dev', 'eth0', *shape.split())
    words = 'cluster --hosts=node1,node2,node3,node9 --pairs --rounds=1 --fail_below=0.6'
    process = measure(network, words, tmp_path / 'out', f'--exchange_bytes=500000 {STEPS}')
    assert process.code == 1
    first, *table = process.out.splitlines()
    assert re.search(r"node3's link is slow: 0\.\d\d of the others' \(2 of 2 pairs\)", first)
    rows = {}
    for line in table:
        if match := re.match(r' *\d (node\d) +(.*)', line):
            rows[match[1]] = [float(cell) for cell in match[2].split() if cell != 'failed']
    assert [len(rows[f'node{number}']) for number in (1, 2, 3, 9)] == [2, 2, 2, 0]
    # The links carry 1.25 and 25 MB/s, and a little more at once after a pause.
    assert 0.5 < min(rows['node3']) <= max(rows['node3']) < 2
    assert max(map(max, (rows['node1'], rows['node2']))) < 27
    assert any('cannot connect' in line for line in (*table, *process.err.splitlines()))

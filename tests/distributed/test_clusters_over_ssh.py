"""Clusters over a real ssh, on hosts in namespaces: every mode trains, if one process ends, all
end; `cluster --each` and `--pairs`.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import NEEDED, Host, Network, make_hosts
from tests.support.outputs import check_line
from tests.support.programs import PROGRAM, ROOT, Finished, catches_sigterm, launched, run_process
from tf_cnn.results.collection import collect

pytestmark = [pytest.mark.distributed, NEEDED]


HOSTS = '--hosts=node1,node2,node3'
UP = r'^(\w+ \d) +\| is up at (\S+) in (.*) with (\S+)$'
# Stands in for the program: a process that listens at its address, and has a child.
STAND_IN = """
import os, signal, socket, subprocess, sys
flags = dict(word.removeprefix('--').partition('=')[::2] for word in sys.argv[1:])
address = flags[flags['job_name'] + '_hosts'].split(',')[int(flags['task_index'])]
host, port = address.split(':')
server = socket.create_server((host, int(port)))
child = subprocess.Popen(['sleep', '1000'])
switch = os.environ.get('TF_ENABLE_ONEDNN_OPTS')
print('is up at', host, 'in', os.getcwd(), 'with', switch, file=sys.stderr, flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(3)
"""


def files_of(host: Host) -> set[str]:
    """Returns what is in the folders that each host has for itself."""
    return {*host.run('find', '/tmp', '/dev/shm', '-maxdepth', '1').split()}


@pytest.fixture(scope='module')
def shared_network() -> Iterator[tuple[Network, list[set[str]]]]:
    with make_hosts(3) as network:
        # The hosts see some files of this machine, such as the program if it is in /tmp.
        yield network, [files_of(host) for host in network.hosts]


@pytest.fixture
def network(shared_network: tuple[Network, list[set[str]]]) -> Iterator[Network]:
    """Yields three hosts; fails if the test leaves processes or files there."""
    network, files = shared_network
    yield network
    # An idle machine needs less than 5 seconds, a loaded one longer.
    deadline = time.monotonic() + 30
    leftovers = None
    while leftovers != []:
        assert time.monotonic() < deadline, leftovers
        leftovers = [
            line
            for host in network.hosts
            for line in map(' '.join, host.processes().values())
            if 'sshd: /' not in line and 'sshd -D' not in line
        ]
        leftovers += [
            file
            for host, files_before in zip(network.hosts, files, strict=True)
            for file in files_of(host) - files_before
        ]


@pytest.fixture(scope='module')
def stand_in(shared_network: tuple[Network, list[set[str]]]) -> str:
    """Returns options of `cluster` that start four processes of STAND_IN instead of the program."""
    folder = shared_network[0].folder / 'stand_in'
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.suffix == '.py' or (path / '__init__.py').exists():
            (folder / path.name).symlink_to(path)
    (folder / 'tf_cnn_benchmarks.py').unlink()
    (folder / 'tf_cnn_benchmarks.py').write_text(STAND_IN)
    return f'--remote_dir={folder} --ps=1 --verbose -- --device=cpu'


def command(network: Network, words: str) -> list[str]:
    """Returns the command line of `cluster` at the desk of the network."""
    return network.command(*PROGRAM, 'cluster', *shlex.split(words))


def newest(host: Host, words: str) -> int:
    """Returns the newest process of a host with these words in its command line."""
    return max(pid for pid, line in host.processes().items() if words in ' '.join(line))


@pytest.mark.parametrize(
    ('mode', 'options'),
    [
        # More servers than hosts: host by host, they are not in the order of their indices.
        ('parameter_server', '--ps=3'),
        ('collective_all_reduce', ''),
    ],
)
def test_every_mode_trains_on_several_hosts(mode, options, network):
    model = '--model=trivial --data_name=cifar10 --device=cpu'
    flags = f'{model} --batch_size=3 --num_batches=3 --num_warmup_batches=1'
    words = f'--hosts=node1,node2 {options} -- {flags} --variable_update={mode}'
    process = run_process(command(network, words))
    assert process.code == 0, process.err
    assert len(re.findall(r'^total images/sec: [0-9.]+$', process.out, re.MULTILINE)) == 1
    assert '6 global' in process.out


def test_processes_run_where_and_how_the_user_says(network, stand_in, tmp_path):
    # Only settings of libraries reach the hosts. A host uses the launcher's folder if it has it.
    environ = {**os.environ, 'TF_ENABLE_ONEDNN_OPTS': '1', 'TF_CONFIG': '{}'}
    words = command(network, f'--hosts=node1:2,node3 {stand_in}')
    with launched(words, tmp_path, environ) as launcher:
        launcher.await_line(UP, times=4)
        launcher.send(signal.SIGTERM)
        assert launcher.has_ended()
    assert launcher.exit_code == 128 + signal.SIGTERM
    first, third = network.hosts[0].address, network.hosts[2].address
    assert sorted(launcher.lines(UP)) == [
        ('ps 0', first, os.getcwd(), '1'),
        ('worker 0', first, os.getcwd(), '1'),
        ('worker 1', first, os.getcwd(), '1'),
        ('worker 2', third, os.getcwd(), '1'),
    ]


@pytest.mark.parametrize(
    ('victims', 'exit_code', 'facts'),
    [
        (['tf_cnn_benchmarks.py'], 128 + 9, ['worker 1', 'signal 9']),
        # The kernel ends the processes of a killed launcher, as on one machine, but not their
        # children, which keep the connection open.
        (
            ['tf_cnn.launch.remote', 'sleep'],
            1,
            ['worker 1', 'the connection to node2 has ended'],
        ),
        (['sshd: root'], 1, ['worker 1', 'the connection to node2 has ended']),
    ],
    ids=['process', 'parent', 'sshd'],
)
def test_all_end_when_one_is_killed(victims, exit_code, facts, network, stand_in, tmp_path):
    with launched(command(network, f'{HOSTS} {stand_in}'), tmp_path) as launcher:
        launcher.await_line(UP, times=4)
        for pid in [newest(network.hosts[1], victim) for victim in victims]:
            # The second one may end with the first.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert launcher.has_ended()
        assert launcher.exit_code == exit_code
        [error] = launcher.errors
        check_line(error, *facts)


def test_all_end_when_the_launcher_is_killed(network, stand_in, tmp_path):
    with launched(command(network, f'{HOSTS} {stand_in}'), tmp_path) as launcher:
        launcher.await_line(UP, times=4)
        launcher.kill()


@pytest.mark.parametrize('secs', [0.3, 1.2])
def test_ctrl_c_leaves_nothing_behind_in_any_phase(secs, network, stand_in, tmp_path):
    with launched(command(network, f'{HOSTS} {stand_in}'), tmp_path) as launcher:
        # Before the program has its handler, Python would print a traceback. Afterwards the signal
        # may come while it imports, connects, or starts processes.
        deadline = time.monotonic() + 60
        while not catches_sigterm(launcher.pid):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(secs)
        launcher.send(signal.SIGINT)
        assert launcher.has_ended()
    assert launcher.exit_code in (130, -signal.SIGINT)
    assert 'Traceback' not in launcher.err


# Calls the command `cluster` with each argument in turn.
CLUSTERS = """
import shlex, sys, tf_cnn_benchmarks
for words in sys.argv[1:]:
    flags = shlex.split(words) + ['--', '--model=trivial', '--device=cpu']
    print(tf_cnn_benchmarks.main(['cluster', *flags]))
"""


def test_hosts_that_cannot_be_used_are_named_in_a_line_each(network):
    facts_by_options = {
        '--hosts=node1,node9': ['node9', 'cannot connect', '`ssh node9`'],
        '--hosts=node1,10.77.0.99': ['10.77.0.99', 'cannot connect', 'No route to host'],
        "--hosts=node1 --ssh='ssh -o PubkeyAuthentication=no'": [
            'node1',
            'Permission denied',
            'without a password',
        ],
        '--hosts=node1 --remote_python=/no/python': ['node1', '/no/python', '--remote_python'],
        '--hosts=node1 --remote_python=/bin/false': ['node1', '/bin/false', '--remote_python'],
        '--hosts=node1 --remote_dir=/no/folder': ['node1', '/no/folder', '--remote_dir'],
        '--hosts=node1 --remote_dir=/usr': [
            'node1',
            '/usr',
            'tf_cnn_benchmarks.py',
            '--remote_dir',
        ],
    }
    process = run_process(network.command(sys.executable, '-c', CLUSTERS, *facts_by_options), ROOT)
    assert process.out == '1\n' * len(facts_by_options)
    for line, facts in zip(process.err.splitlines(), facts_by_options.values(), strict=True):
        check_line(line, *facts)


# ---- \`--each\` and \`--pairs\` ------------------------------------------------------------------


STEPS = '--device=cpu --batch_size=2 --num_batches=3 --num_warmup_batches=1'


@pytest.fixture(scope='module')
def linked_hosts() -> Iterator[Network]:
    with make_hosts(3, rate_mbit=200) as linked_hosts:
        yield linked_hosts


def measure(linked_hosts: Network, words: str, folder: Path, flags: str = '') -> Finished:
    argv = [*shlex.split(words), f'--output={folder}', *(['--', *flags.split()] if flags else [])]
    return run_process(linked_hosts.command(*PROGRAM, *argv))


def test_each_host_runs_by_itself_and_one_that_cannot_be_reached_is_a_row(linked_hosts, tmp_path):
    words = 'cluster --hosts=node1,10.77.0.2,node9 --each --rounds=2'
    flags = f'--model=trivial {STEPS}'
    process = measure(linked_hosts, words, tmp_path / 'out', flags)
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
    again = measure(linked_hosts, words, tmp_path / 'out', flags)
    assert (again.code, again.out) == (1, process.out)


def test_any_command_runs_on_each_host_and_on_each_pair(linked_hosts, tmp_path):
    rate = r"--rate='^rate: (\S+)' --rounds=3 --format=json"
    # Hosts do not have the variables of this machine.
    command = (
        """--command='sleep 2; echo rate: $(test $(hostname) = node2 && echo {n}8 || echo 100)'"""
    )
    words = f'cluster --hosts=node1,node2,node3 --each --grid=n=4 --fail_below=0.9 {command} {rate}'
    process = measure(linked_hosts, words, tmp_path / 'each')
    assert process.code == 1, process.err
    check_line(json.loads(process.out)['answer'], 'node2 is slower than the others: ratio 0.480')
    command = "--command='echo {rank} of {size} at {first}: $(hostname); echo rate: 10'"
    words = f'cluster --hosts=node1,node2,node3 --pairs {command} {rate}'
    process = measure(linked_hosts, words, tmp_path / 'pairs')
    assert process.code == 0, process.err
    check_line(json.loads(process.out)['answer'], 'all links agree', '3 pairs')
    log = (tmp_path / 'pairs/logs/node2+node3.1.log').read_text()
    assert sorted(re.findall(r'(\d of 2 at node2: node\d)', log)) == [
        '0 of 2 at node2: node2',
        '1 of 2 at node2: node3',
    ]


def test_a_host_with_two_names_is_refused_before_anything_runs(linked_hosts, tmp_path):
    words = 'cluster --hosts=node1,10.77.0.1 --each'
    process = measure(linked_hosts, words, tmp_path / 'out', '--model=trivial')
    assert (process.code, process.out) == (2, '')
    check_line(process.err, '--hosts', 'node1', '10.77.0.1', 'both')
    assert not (tmp_path / 'out').exists()


def test_a_sweep_over_hosts_has_a_row_of_one_host_and_an_efficiency(linked_hosts, tmp_path):
    flags = f'--model=trivial --variable_update=collective_all_reduce {STEPS}'
    words = 'sweep --grid=shape=1*1,2*1 --format=json'
    process = measure(linked_hosts, words, tmp_path / 'out', f'--hosts=node1,node2 {flags}')
    assert process.code == 0, process.err
    one, two = json.loads(process.out)['rows']
    assert (one['setting']['shape'], one['verdict']) == ('1*1', 'baseline')
    assert two['efficiency'] == pytest.approx(two['ratio'] / 2)


def test_a_host_with_a_slow_link_is_named_by_its_pairs(linked_hosts, tmp_path):
    shape = 'root tbf rate 10mbit burst 20kb limit 1mb'
    linked_hosts.hosts[2].run('tc', 'qdisc', 'replace', 'dev', 'eth0', *shape.split())
    words = 'cluster --hosts=node1,node2,node3,node9 --pairs --rounds=1 --fail_below=0.6'
    process = measure(linked_hosts, words, tmp_path / 'out', f'--exchange_bytes=500000 {STEPS}')
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

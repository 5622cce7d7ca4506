"""Slurm and Open MPI, both real, start clusters between two hosts, which train, end, and tell of a
loss.
"""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.distributed.milestones import FIRST_STEP
from tests.distributed.processes import DEADLINE_SECS, await_line, environment, launched
from tests.distributed.scenarios import errors_of
from tests.distributed.whole_batch import TOTAL_LINE
from tests.support.hosts import NEEDED, Host, Network, make_hosts
from tests.support.outputs import check_line
from tf_cnn.launch.hosts import Command

pytestmark = [pytest.mark.distributed, NEEDED]

_SBIN = os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin', '/sbin'])
_SLURM = ('slurmctld', 'slurmd', 'srun', 'sbatch', 'sinfo', 'scontrol', 'munged')
NEEDED_SLURM = pytest.mark.skipif(
    not all(shutil.which(name, path=_SBIN) for name in _SLURM),
    reason='Slurm is not installed: slurm-wlm and munge',
)
NEEDED_OPEN_MPI = pytest.mark.skipif(
    not shutil.which('mpirun'), reason='Open MPI is not installed: openmpi-bin'
)
_SLURM_SECS = 30.0
# The hosts have more to do than their cores, and may have fewer than Slurm is told.
_SLURM_CONFIG = """
ClusterName=test
SlurmctldHost=node1
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation=/run/slurmctld
SlurmctldPidFile=/run/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir=/run/slurmd
SlurmdPidFile=/run/slurmd.pid
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=node[1-2] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""

PROGRAM = str(Path(__file__).resolve().parent.parent.parent / 'tf_cnn_benchmarks.py')
RUN = (
    *(
        sys.executable,
        PROGRAM,
        '--model=trivial',
        '--device=cpu',
        '--batch_size=2',
        '--num_warmup_batches=1',
    ),
    *('--display_every=1', '--connect_timeout_secs=120'),
)
SERVED, COLLECTIVE = (
    ('--variable_update=parameter_server',),
    ('--variable_update=collective_all_reduce',),
)
SHORT, ENDLESS = '--num_batches=5', '--num_batches=1000000'
DOCUMENT = Path(PROGRAM).parent / 'docs' / 'launchers.md'
# What makes its batch scripts fit two small nodes.
SMALLER = {
    r'#SBATCH --gres=.*\n': '',
    r'--nodes=\d+': '--nodes=2',
    r'--ntasks=\d+': '--ntasks=3',
    r'--cpus-per-task=\d+': '--cpus-per-task=1',
    'python tf_cnn_benchmarks.py': ' '.join(RUN),
    '--model=resnet50 --batch_size=64 --num_gpus=8': SHORT,
}
# As mpirun is used by root, whose ranks may use all cores.
MPIRUN = ('mpirun', '--allow-run-as-root', '--bind-to', 'none')
# A rank prints where it runs, and the cluster that it finds.
PLACE = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[1])
from tf_cnn.cluster.discovery import find_cluster
from tf_cnn.system.errors import UsageError
from tf_cnn.run.parsing import parse_argv
try:
    cluster = find_cluster(parse_argv(sys.argv[2:]).params, os.environ)
    found = cluster and {'spec': cluster.spec, 'source': cluster.source}
    found = found and found | {'own': str(cluster.own_task)}
except UsageError as error:
    found = {'error': str(error)}
print(json.dumps({'host': socket.gethostname(), 'found': found}) + '\\n', end='', flush=True)
"""


@pytest.fixture(scope='module')
def network() -> Iterator[Network]:
    with make_hosts(2) as made:
        yield made


@pytest.fixture(scope='module')
def slurm(network: Network) -> dict[str, str]:
    """The environment for commands of Slurm. Its servers end with the hosts."""
    folder = network.folder
    (folder / 'slurm.conf').write_text(_SLURM_CONFIG.format(folder=folder))
    (folder / 'munge.key').touch(0o600)
    (folder / 'munge.key').write_bytes(os.urandom(64))
    environ = {**environment(), 'PATH': _SBIN, 'SLURM_CONF': str(folder / 'slurm.conf')}
    first = network.hosts[0]
    for host in network.hosts:
        host.run('mkdir', '-p', '/run/munge', '/run/slurmd', '/run/slurmctld')
        files = {
            'socket': '/run/munge/munge.socket.2',
            'pid-file': '/run/munged.pid',
            'seed-file': '/run/munge.seed',
        }
        files |= {
            'key-file': str(folder / 'munge.key'),
            'log-file': str(folder / f'munged-{host.name}.log'),
        }
        host.run(
            'munged', '--force', *(f'--{name}={path}' for name, path in files.items()), env=environ
        )
    first.run('slurmctld', env=environ)
    for host in network.hosts:
        host.run('slurmd', '-N', host.name, env=environ)
    deadline = time.monotonic() + _SLURM_SECS
    states = ''
    while states.split() != ['idle', 'idle']:
        if time.monotonic() > deadline:
            logs = '\n'.join(log.read_text() for log in folder.glob('slurm*.log'))
            pytest.fail(f'Slurm does not start; its nodes are {states}\n{logs}')
        states = first.run(
            'sinfo', '--noheader', '--Node', '--format=%t', env=environ, check=False
        ).stdout
    return environ


def ranks_on(host: Host) -> list[int]:
    """The processes of the program on a host."""
    return [pid for pid, words in host.processes().items() if PROGRAM in words[:2]]


def assert_trained(out: str) -> None:
    """Asserts that both workers have written the same total."""
    totals = re.findall(TOTAL_LINE, out, re.MULTILINE)
    assert len(totals) == 2
    assert len({*totals}) == 1


def assert_none_left(network: Network) -> None:
    """Asserts that no process of the program is left on a host, nor is soon."""
    deadline = time.monotonic() + 10
    while any(map(ranks_on, network.hosts)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def placed(
    host: Host, launcher: Sequence[str], flags: Sequence[str], environ: dict[str, str]
) -> list[dict]:
    """What the ranks print that a launcher starts on this host and others."""
    rank = (sys.executable, '-c', PLACE, str(Path(PROGRAM).parent), *flags)
    lines = host.run(*launcher, *rank, env=environ).stdout.splitlines()
    return [json.loads(line) for line in lines]


def assert_agree(ranks: Sequence[dict], source: str, **expected: Sequence[str]) -> None:
    """Asserts that each rank runs where the others expect it, on these hosts: {job: hosts in
    order}.
    """
    spec = ranks[0]['found']['spec']
    assert {
        job: [address.partition(':')[0] for address in addresses] for job, addresses in spec.items()
    } == expected
    owns = []
    for rank in ranks:
        found = rank['found']
        assert found['spec'] == spec
        assert found['source'] == source
        host = found['own'].partition('(')[2].partition(':')[0]
        assert host in (rank['host'], '127.0.0.1')
        owns.append(found['own'])
    assert sorted(owns) == sorted(
        f'{job} {index} ({address})'
        for job, addresses in spec.items()
        for index, address in enumerate(addresses)
    )


# ---- Slurm ---------------------------------------------------------------------------------------


@NEEDED_SLURM
@pytest.mark.parametrize(
    ('options', 'hosts'),
    [
        (('--ntasks=3', '--nodes=2'), ('node1', 'node1', 'node2')),
        (('--ntasks-per-node=1', '--nodes=2', '--distribution=cyclic'), ('node1', 'node2')),
        (
            ('--ntasks=5', '--nodes=2', '--overcommit'),
            ('node1', 'node1', 'node1', 'node2', 'node2'),
        ),
        (('--ntasks=2', '--nodes=1'), ('127.0.0.1', '127.0.0.1')),
    ],
    ids=['3 tasks', 'one on each node', 'overcommit', 'one node'],
)
def test_tasks_of_slurm_find_each_other(
    network: Network, slurm: dict[str, str], options: Sequence[str], hosts: Sequence[str]
) -> None:
    first = network.hosts[0]
    assert_agree(placed(first, ('srun', *options), COLLECTIVE, slurm), 'Slurm', worker=[*hosts])
    if len(hosts) == 3:
        ranks = placed(first, ('srun', *options), (*SERVED, '--num_ps=1'), slurm)
        assert_agree(ranks, 'Slurm', ps=[*hosts[:1]], worker=[*hosts[1:]])


@NEEDED_SLURM
def test_all_tasks_of_slurm_refuse_an_order_of_which_they_cannot_be_sure(
    network: Network, slurm: dict[str, str]
) -> None:
    ranks = placed(
        network.hosts[0], ('srun', '-n3', '-N2', '--distribution=cyclic'), COLLECTIVE, slurm
    )
    assert len(ranks) == 3
    for rank in ranks:
        check_line(
            rank['found']['error'],
            'SLURM_PROCID=',
            'node1 with 2, node2 with 1',
            '--distribution=block',
        )


@NEEDED_SLURM
@pytest.mark.parametrize(
    'number', [pytest.param(0, marks=pytest.mark.all_modes), 1], ids=['1 ps', 'collective']
)
def test_batch_scripts_of_the_documentation_train_and_end(
    network: Network, slurm: dict[str, str], tmp_path: Path, number: int
) -> None:
    first, job = network.hosts[0], network.folder / f'job{number}'
    script = re.findall(r'^```bash\n(.*?)^```$', DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)[
        number
    ]
    for found, smaller in SMALLER.items():
        script = re.sub(found, smaller, script)
    job.with_suffix('.sh').write_text(script)
    sbatch = ('sbatch', '--parsable', f'--output={job}.out', f'{job}.sh')
    show = ('scontrol', '--oneliner', 'show', 'job', first.run(*sbatch, env=slurm).stdout.strip())
    deadline = time.monotonic() + DEADLINE_SECS
    while re.search(
        'JobState=(PENDING|RUNNING|COMPLETING) ', shown := first.run(*show, env=slurm).stdout
    ):
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)
    # pytest shows it if the test fails.
    print(out := Path(f'{job}.out').read_text())
    assert 'JobState=COMPLETED ' in shown
    assert_trained(out)
    assert_none_left(network)


@NEEDED_SLURM
def test_the_others_tell_of_a_task_of_slurm_that_is_killed(
    network: Network, slurm: dict[str, str], tmp_path: Path
) -> None:
    srun = network.hosts[0].command(
        'srun', '--ntasks=3', '--nodes=2', *RUN, *SERVED, '--num_ps=1', ENDLESS
    )
    with launched(Command('srun', srun, slurm), tmp_path) as process:
        await_line(process, FIRST_STEP)
        # The only rank of the second host.
        (pid,) = ranks_on(network.hosts[1])
        os.kill(pid, signal.SIGKILL)
        assert process.has_ended(DEADLINE_SECS)
        assert process.exit_code == 128 + signal.SIGKILL
        assert re.search('node2: task 2: Killed', process.err)
        # The other worker and the parameter server.
        errors = errors_of(process)
        assert len(errors) == 2
        for error in errors:
            check_line(error, 'worker 1 (node2:')
    assert_none_left(network)


# ---- Open MPI ------------------------------------------------------------------------------------


@NEEDED_OPEN_MPI
def test_ranks_of_open_mpi_find_each_other_on_one_host_and_ask_for_hosts_on_two(
    network: Network,
) -> None:
    first = network.hosts[0]
    ranks = placed(first, (*MPIRUN, '--host', 'node1:3'), (*SERVED, '--num_ps=1'), environment())
    assert_agree(ranks, 'Open MPI', ps=['127.0.0.1'], worker=['127.0.0.1', '127.0.0.1'])
    for rank in placed(first, (*MPIRUN, '--host', 'node1:2,node2:1'), COLLECTIVE, environment()):
        check_line(
            rank['found']['error'],
            'OMPI_COMM_WORLD_RANK=',
            'Open MPI',
            '--worker_hosts=HOST:PORT,... with 3',
        )


@NEEDED_OPEN_MPI
def test_mpirun_starts_a_cluster_over_ssh_that_trains_and_ends(
    network: Network, tmp_path: Path
) -> None:
    hosts = ('--ps_hosts=node1:50000', '--worker_hosts=node1:50001,node2:50001')
    options = (*MPIRUN, '--host', 'node1:2,node2:1', '-x', 'PYTHONPATH')
    mpirun = network.hosts[0].command(*options, *RUN, *SERVED, *hosts, SHORT)
    with launched(Command('mpirun', mpirun, environment()), tmp_path) as process:
        assert process.has_ended(DEADLINE_SECS)
        assert process.exit_code == 0
        assert_trained(process.out)
    assert_none_left(network)

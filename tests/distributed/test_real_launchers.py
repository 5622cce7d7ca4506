"""The real Slurm and Open MPI start clusters on two hosts, which train, end and name lost tasks."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.distributed.clusters import TOTAL_LINE
from tests.support.hosts import NEEDED, Host, Network, make_hosts
from tests.support.outputs import check_line
from tests.support.programs import DEADLINE_SECS, PROGRAM, ROOT, environment, launched, run_process

pytestmark = [pytest.mark.distributed, NEEDED]

SBIN = os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin', '/sbin'])
SLURM = ('slurmctld', 'slurmd', 'srun', 'sbatch', 'sinfo', 'scontrol', 'munged')
NEEDED_SLURM = pytest.mark.skipif(
    not all(shutil.which(name, path=SBIN) for name in SLURM),
    reason='Slurm is not installed: slurm-wlm and munge',
)
NEEDED_OPEN_MPI = pytest.mark.skipif(
    not shutil.which('mpirun'), reason='Open MPI is not installed: openmpi-bin'
)
# More processes than cores; a host may have fewer cores than this configuration says.
SLURM_CONFIG = """
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
RUN = (
    f'{" ".join(PROGRAM)} --model=trivial --device=cpu --batch_size=2 '
    '--num_warmup_batches=1 --display_every=1 --connect_timeout_secs=120'
)
SERVED, COLLECTIVE = (
    '--variable_update=parameter_server --num_ps=1',
    '--variable_update=collective_all_reduce',
)
SHORT = '--num_batches=5'
# Replacements that fit the batch scripts of docs/launchers.md to two small nodes.
SMALLER = {
    r'#SBATCH --gres=.*\n': '',
    r'--nodes=\d+': '--nodes=2',
    r'--ntasks=\d+': '--ntasks=3',
    r'--cpus-per-task=\d+': '--cpus-per-task=1',
    'python tf_cnn_benchmarks.py': RUN,
    '--model=resnet50 --batch_size=64 --num_gpus=8': SHORT,
}
# Root must allow itself to use mpirun; ranks may use all cores.
MPIRUN = 'mpirun --allow-run-as-root --bind-to none'
# Each rank prints its host and the cluster that the program detects.
PLACE = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[1])
from tf_cnn.plan.discovery import find_cluster
from tf_cnn.system.errors import UsageError
from tf_cnn.plan.parsing import parse_argv
try:
    cluster = find_cluster(parse_argv(sys.argv[2:]).params, os.environ)
    answer = cluster and {'spec': cluster.spec, 'source': cluster.source}
    answer = answer and answer | {'task': str(cluster.own_task)}
except UsageError as error:
    answer = {'error': str(error)}
print(json.dumps({'host': socket.gethostname(), 'answer': answer}) + '\\n', end='', flush=True)
"""


@pytest.fixture(scope='module')
def network() -> Iterator[Network]:
    with make_hosts(2) as hosts:
        yield hosts


@pytest.fixture(scope='module')
def slurm(network: Network) -> dict[str, str]:
    """Starts Slurm's servers, which end with the hosts; returns the variables of its commands."""
    folder = network.folder
    (folder / 'slurm.conf').write_text(SLURM_CONFIG.format(folder=folder))
    (folder / 'munge.key').touch(0o600)
    (folder / 'munge.key').write_bytes(os.urandom(64))
    environ = environment(PATH=SBIN, SLURM_CONF=str(folder / 'slurm.conf'))
    first = network.hosts[0]
    for host in network.hosts:
        munged = (
            f'munged --force --socket=/run/munge/munge.socket.2 --pid-file=/run/munged.pid '
            f'--seed-file=/run/munge.seed --key-file={folder}/munge.key '
            f'--log-file={folder}/munged-{host.name}.log'
        )
        host.run('mkdir', '-p', '/run/munge', '/run/slurmd', '/run/slurmctld')
        host.run(*munged.split(), **environ)
    states = ''
    for _ in range(4):
        # Beside much other work a server may not get ready. The next start replaces it.
        first.run('slurmctld', **environ)
        for host, node in zip(network.hosts, ('node1', 'node2'), strict=True):
            host.run('slurmd', '-N', node, **environ)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            command = ['sinfo', '--noheader', '--Node', '--format=%t']
            states = run_process(first.command(*command), **environ).out
            if states.split() == ['idle', 'idle']:
                return environ
    logs = '\n'.join(log.read_text() for log in folder.glob('slurm*.log'))
    pytest.fail(f'Slurm does not start; its nodes are {states}\n{logs}')


def assert_trained(out: str) -> None:
    """Asserts that both workers have written the same total."""
    first, second = re.findall(TOTAL_LINE, out, re.MULTILINE)
    assert first == second


def wait_for_all_to_end(network: Network) -> None:
    """Waits until no process of the program runs on any host."""
    deadline = time.monotonic() + 10
    while any(
        PROGRAM[1] in words[:2] for host in network.hosts for words in host.processes().values()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rank_answers(host: Host, launcher: str, flags: str, environ: dict[str, str]) -> list[dict]:
    """Starts ranks with a launcher on this host; returns what each rank prints."""
    rank = (sys.executable, '-c', PLACE, str(ROOT), *flags.split())
    lines = host.run(*launcher.split(), *rank, **environ).splitlines()
    return [json.loads(line) for line in lines]


def assert_agree(ranks: Sequence[dict], source: str, **hosts: Sequence[str]) -> None:
    """Asserts that all ranks have detected the same cluster, and run on its hosts.

    hosts: the hosts of each job, in order.
    """
    spec = ranks[0]['answer']['spec']
    names = {job: [address.split(':')[0] for address in spec[job]] for job in spec}
    assert names == hosts
    for rank in ranks:
        assert (rank['answer']['spec'], rank['answer']['source']) == (spec, source)
        host = re.search(r'\((.*):', rank['answer']['task'])
        assert host
        assert host[1] in (rank['host'], '127.0.0.1')
    tasks = [
        f'{job} {index} ({address})' for job in spec for index, address in enumerate(spec[job])
    ]
    assert sorted(rank['answer']['task'] for rank in ranks) == sorted(tasks)


def run_batch_script(host: Host, job: Path, script: str, environ: dict[str, str]) -> str:
    """Returns the output of a job of Slurm that must end with 0."""
    job.with_suffix('.sh').write_text(script)
    sbatch = ('sbatch', '--parsable', f'--output={job}.out', f'{job}.sh')
    show = ('scontrol', '--oneliner', 'show', 'job', host.run(*sbatch, **environ).strip())
    is_under_way = 'JobState=(PENDING|RUNNING|COMPLETING) '
    deadline = time.monotonic() + DEADLINE_SECS
    while re.search(is_under_way, status := host.run(*show, **environ)):
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
    # pytest shows the log if the test fails.
    print(out := Path(f'{job}.out').read_text())
    assert 'JobState=COMPLETED ' in status
    return out


# ---- Slurm ---------------------------------------------------------------------------------------


@NEEDED_SLURM
@pytest.mark.parametrize(
    ('options', 'hosts'),
    [
        ('--ntasks=3 --nodes=2', 'node1 node1 node2'),
        ('--ntasks-per-node=1 --nodes=2 --distribution=cyclic', 'node1 node2'),
        ('--ntasks=2 --nodes=1', '127.0.0.1 127.0.0.1'),
    ],
)
def test_tasks_of_slurm_find_each_other(network, slurm, options, hosts):
    first, names = network.hosts[0], hosts.split()
    assert_agree(rank_answers(first, f'srun {options}', COLLECTIVE, slurm), 'Slurm', worker=names)
    if len(names) == 3:
        ranks = rank_answers(first, f'srun {options}', SERVED, slurm)
        assert_agree(ranks, 'Slurm', ps=names[:1], worker=names[1:])


@NEEDED_SLURM
def test_a_batch_script_of_the_documentation_trains_and_ends(network, slurm):
    first, job = network.hosts[0], network.folder / 'job'
    page = (ROOT / 'docs' / 'launchers.md').read_text()
    script = re.findall(r'^```bash\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)[1]
    for pattern, smaller in SMALLER.items():
        script = re.sub(pattern, smaller, script)
    out = run_batch_script(first, job, script, slurm)
    assert_trained(out)
    wait_for_all_to_end(network)


@NEEDED_SLURM
def test_a_batch_script_measures_each_node_by_a_step_of_srun(network, slurm):
    job = network.folder / 'each'
    script = (
        '#!/bin/sh\n#SBATCH --nodes=2 --ntasks=2\n'
        f'{" ".join(PROGRAM)} cluster --each --ssh=srun --rounds=1 --output={job} '
        "--hosts=$(scontrol show hostnames | paste -sd,) --rate='rate: (.*)' "
        "--command='echo rate: $(hostname | tr -dc 0-9)0'\n"
    )
    out = run_batch_script(network.hosts[0], job, script, slurm)
    assert re.findall('host=(node.): (.*),', out) == [('node1', '10.0'), ('node2', '20.0')]
    # The script is one process, though Slurm gives it a rank.
    assert 'warning' not in out


# ---- Open MPI ------------------------------------------------------------------------------------


@NEEDED_OPEN_MPI
def test_ranks_of_open_mpi_find_each_other_on_one_host_and_ask_for_hosts_on_two(network):
    first = network.hosts[0]
    ranks = rank_answers(first, f'{MPIRUN} --host node1:3', SERVED, environment())
    assert_agree(ranks, 'Open MPI', ps=['127.0.0.1'], worker=['127.0.0.1', '127.0.0.1'])
    on_two = f'{MPIRUN} --host node1:2,node2:1'
    for rank in rank_answers(first, on_two, COLLECTIVE, environment()):
        facts = 'OMPI_COMM_WORLD_RANK=', 'Open MPI', '--worker_hosts=HOST:PORT,... with 3'
        check_line(rank['answer']['error'], *facts)
    hosts = '--ps_hosts=node1:50000 --worker_hosts=node1:50001,node2:50001'
    ranks = rank_answers(
        first, on_two, f'--variable_update=parameter_server {hosts}', environment()
    )
    assert_agree(ranks, 'the flags', ps=['node1'], worker=['node1', 'node2'])


@NEEDED_OPEN_MPI
def test_mpirun_starts_a_cluster_over_ssh_that_trains_and_ends(network, tmp_path):
    hosts = '--worker_hosts=node1:50001,node2:50001'
    ranks = f'{MPIRUN} --host node1:1,node2:1 -x PYTHONPATH'
    mpirun = f'{ranks} {RUN} {COLLECTIVE} {hosts} {SHORT}'
    with launched(network.hosts[0].command(*mpirun.split()), tmp_path) as process:
        assert process.has_ended()
        assert process.exit_code == 0
        assert_trained(process.out)
    wait_for_all_to_end(network)

"""The commands and scripts of the pages about clusters work."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cluster.discovery import Cluster, find_cluster
from commands import cluster as command
from params import Params, parse_argv
from tests.support.machines import hydra
from tests.support.programs import members

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ('distributed', 'launchers', 'modes')
DOC = '\n'.join((ROOT / 'docs' / f'{page}.md').read_text() for page in PAGES)
SCRIPTS = re.findall(r'^```bash\n(.*?)^```$', DOC, flags=re.MULTILINE | re.DOTALL)
INDENTED = '\n'.join(line[4:] for line in DOC.splitlines() if line.startswith('    '))
# A line that ends with a backslash goes on in the next one.
COMMANDS = [
    shlex.split(line)
    for line in re.sub(r'\\\n', '', '\n'.join([INDENTED, *SCRIPTS])).splitlines()
    if 'tf_cnn_benchmarks.py' in line
]


def flags_of(words: list[str]) -> list[str]:
    return words[words.index('tf_cnn_benchmarks.py') + 1 :]


def run_commands(launcher: str) -> list[list[str]]:
    return [words for words in COMMANDS if words[0] == launcher and 'cluster' not in words]


def parse(flags: list[str]) -> Params:
    """The settings. All flags have an effect in a cluster."""
    parsed = parse_argv(flags)
    assert not parsed.warnings
    return parsed.params


def jobs_of(clusters: list[Cluster | None]) -> list[tuple[str, int]]:
    """The role of each process, which must all see the same cluster."""
    found = [cluster for cluster in clusters if cluster]
    assert len(found) == len(clusters)
    assert len({(cluster.ps_hosts, cluster.worker_hosts) for cluster in found}) == 1
    assert len(found) == len(found[0].tasks)
    return [(cluster.job, cluster.index) for cluster in found]


def test_every_command_line_is_of_a_known_kind() -> None:
    """So that the tests below cover all of them."""
    kinds = [words[0] if 'cluster' not in words else 'cluster' for words in COMMANDS]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        'cluster': 2,
        'python': 4,
        'srun': 2,
        'mpirun': 2,
        'mpiexec': 1,
        'horovodrun': 1,
    }


def test_the_example_on_one_machine_makes_a_cluster() -> None:
    (words,) = [words for words in COMMANDS if 'cluster' in words and '--ps=1' in words and '--workers=2' in words]
    assert flags_of(words)[:4] == ['cluster', '--ps=1', '--workers=2', '--']
    commands = command.make_commands(flags_of(words)[4:], members(['127.0.0.1:1'], ['127.0.0.1:2', '127.0.0.1:3']), {})
    roles = jobs_of([find_cluster(parse(list(one.argv[2:])), {}) for one in commands])
    assert roles == [('ps', 0), ('worker', 0), ('worker', 1)]


def test_the_example_on_several_hosts_makes_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    (words,) = [words for words in COMMANDS if 'cluster' in words and any('--hosts' in word for word in words)]
    assert command.main(['--dry_run', *flags_of(words)[1:]]) == 0
    assert re.findall('^# (.*)$', capsys.readouterr().out, re.MULTILINE) == [
        *('ps 0 on node1', 'worker 0 on node1', 'worker 1 on node2', 'worker 2 on node3')
    ]


def test_the_commands_by_hand_are_one_cluster_of_each_kind() -> None:
    commands = [flags_of(words) for words in run_commands('python')]
    controlled = [flags for flags in commands if any('controller' in flag for flag in flags)]
    others = [flags for flags in commands if flags not in controlled]
    expected = ([('ps', 0), ('ps', 1), ('worker', 0), ('worker', 1)], [('controller', 0), ('worker', 0), ('worker', 1)])
    for shown, roles in zip((others, controlled), expected, strict=True):
        # The text says that the processes of the other machine have another index.
        firsts = [flags for flags in shown if '--task_index=0' in flags]
        seconds = [[flag.replace('--task_index=0', '--task_index=1') for flag in flags] for flags in firsts]
        assert sorted(jobs_of([find_cluster(parse(flags), {}) for flags in [*shown, *seconds]])) == roles


def slurm_environment(
    rank: int, nodes: list[str], counts: str, node: int, local_rank: int, size: int
) -> dict[str, str]:
    return {
        'SLURM_JOB_ID': '4711',
        'SLURM_STEP_ID': '0',
        'SLURM_STEP_NUM_TASKS': str(size),
        'SLURM_PROCID': str(rank),
        'SLURM_LOCALID': str(local_rank),
        'SLURM_STEP_NODELIST': ','.join(nodes),
        'SLURM_STEP_TASKS_PER_NODE': counts,
        'SLURMD_NODENAME': nodes[node],
        'SLURM_DISTRIBUTION': 'block',
    }


@pytest.mark.parametrize(
    ('number', 'places', 'counts'),
    [(0, [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)], '2,1(x3)'), (1, [(0, 0), (1, 0), (2, 0), (3, 0)], '1(x4)')],
    ids=['ps', 'collective'],
)
def test_the_tasks_of_each_slurm_script_are_one_cluster(
    number: int, places: list[tuple[int, int]], counts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SCRIPTS[number]
    options = dict(re.findall(r'^#SBATCH --([\w-]+)=(\S+)$', script, flags=re.MULTILINE))
    assert options['nodes'] == '4'
    assert int(options.get('ntasks', 4 * int(options.get('ntasks-per-node', 0)))) == len(places)
    nodes = [f'n{node}' for node in range(4)]
    flags = flags_of(run_commands('srun')[number])
    clusters = []
    for rank, (node, local_rank) in enumerate(places):
        environment = slurm_environment(rank, nodes, counts, node, local_rank, len(places))
        monkeypatch.setenv('SLURM_STEP_NUM_TASKS', environment['SLURM_STEP_NUM_TASKS'])
        clusters.append(find_cluster(parse(flags), environment))
    assert all(cluster and cluster.source == 'Slurm' for cluster in clusters)
    jobs = [job for job, _ in jobs_of(clusters)]
    assert jobs == ['ps'] * (len(places) - 4) + ['worker'] * 4


@pytest.mark.parametrize(('number', 'num_nodes', 'num_ps'), [(0, 1, 1), (1, 2, 2)], ids=['one machine', 'two hosts'])
def test_the_ranks_of_each_mpirun_are_one_cluster(
    number: int, num_nodes: int, num_ps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = run_commands('mpirun')[number]
    size = int(words[words.index('-np') + 1])
    clusters: list[Any] = []
    for rank in range(size):
        environment = {
            'OMPI_COMM_WORLD_SIZE': str(size),
            'OMPI_COMM_WORLD_RANK': str(rank),
            'OMPI_COMM_WORLD_LOCAL_RANK': str(rank // num_nodes),
            'OMPI_COMM_WORLD_LOCAL_SIZE': str(size // num_nodes),
            'PMIX_NAMESPACE': 'prterun-n0-4711@1',
        }
        monkeypatch.setenv('OMPI_COMM_WORLD_SIZE', str(size))
        clusters.append(find_cluster(parse(flags_of(words)), environment))
    assert [job for job, _ in jobs_of(clusters)] == ['ps'] * num_ps + ['worker'] * (size - num_ps)
    # With --map-by node, rank after rank: each host has the tasks that its addresses say.
    if num_nodes > 1:
        assert 'node' in words
        assert [cluster.own.host.split(':')[0] for cluster in clusters] == ['10.0.0.1', '10.0.0.2'] * 2


def test_the_ranks_of_mpiexec_are_one_cluster() -> None:
    (words,) = run_commands('mpiexec')
    clusters = [find_cluster(parse(flags_of(words)), hydra(rank, 3, 3)) for rank in range(3)]
    assert [job for job, _ in jobs_of(clusters)] == ['ps', 'worker', 'worker']


def test_horovod_needs_no_hosts() -> None:
    (params,) = [parse(flags_of(words)) for words in run_commands('horovodrun')]
    assert params.variable_update == 'horovod'
    assert find_cluster(params, {}) is None

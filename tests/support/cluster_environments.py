"""The environment variables that launchers set, and the cluster that a process finds from them."""

import json
from collections.abc import Mapping
from typing import Any

from cluster.discovery import Cluster, find_cluster
from params import Params

# The source that a cluster given by flags reports.
FLAGS = 'the flags'
PS, WORKERS = ('10.0.0.1:2222',), ('10.0.0.2:2222', '10.0.0.3:2222')
HOSTS: dict[str, Any] = {'ps_hosts': ','.join(PS), 'worker_hosts': ','.join(WORKERS)}
COLLECTIVE: dict[str, Any] = {'variable_update': 'collective_all_reduce'}
CONTROLLED: dict[str, Any] = {
    'variable_update': 'distributed_all_reduce',
    'controller_host': '10.0.0.9:2222',
    'worker_hosts': '10.0.0.2:2222,10.0.0.3:2222',
}


def controlled(job: str, index: int) -> Cluster:
    """The cluster of CONTROLLED, seen from one of its tasks."""
    return Cluster((), WORKERS, job, index, FLAGS, ('10.0.0.9:2222',))


def find(environ: Mapping[str, str] | None = None, **flags: Any) -> Cluster | None:
    """The cluster that a process with these flags and this environment finds, or None."""
    return find_cluster(Params(**flags), environ or {})


def found(environ: Mapping[str, str] | None = None, **flags: Any) -> Cluster:
    """Like find, for a process that must be in a cluster."""
    cluster = find(environ, **flags)
    assert cluster is not None
    return cluster


# What Kubeflow's training operator writes (kubeflow/training-operator, pkg/controller.v1/tensorflow/tensorflow.go,
# genTFConfigJSONStr): hosts are the headless services of the replicas; an evaluator gets the cluster but is not in it.
def tf_config(job: str, index: int | str, **cluster: list[str] | dict[str, str]) -> dict[str, str]:
    config = {'cluster': cluster, 'task': {'type': job, 'index': index}, 'environment': 'cloud'}
    return {'TF_CONFIG': json.dumps(config)}


def replicas(job: str, count: int) -> list[str]:
    return [f'cnn-{job}-{i}.train.svc:2222' for i in range(count)]


TF_JOB = {'chief': replicas('chief', 1), 'worker': replicas('worker', 2), 'ps': replicas('ps', 1)}


def slurm_batch(**changes: str) -> dict[str, str]:
    """The environment of a batch script of 3 nodes and 5 tasks, as Slurm 22.05 sets it (sbatch(1))."""
    return {
        'SLURMD_NODENAME': 'gpu01',
        'SLURM_JOB_ID': '1207',
        'SLURM_JOB_NODELIST': 'gpu[01-03]',
        'SLURM_JOB_NUM_NODES': '3',
        'SLURM_LOCALID': '0',
        'SLURM_NODEID': '0',
        'SLURM_NODELIST': 'gpu[01-03]',
        'SLURM_NPROCS': '5',
        'SLURM_NTASKS': '5',
        'SLURM_PROCID': '0',
        'SLURM_TASKS_PER_NODE': '3,1(x2)',
        **changes,
    }


PLACES = [('gpu01', 0), ('gpu01', 1), ('gpu01', 2), ('gpu02', 0), ('gpu03', 0)]


def slurm_step(rank: int, **changes: str) -> dict[str, str]:
    """The environment of one task of `srun` in that script, as Slurm 22.05 sets it (srun(1), OUTPUT ENVIRONMENT)."""
    node, local_rank = PLACES[rank]
    return {
        **slurm_batch(),
        'SLURMD_NODENAME': node,
        'SLURM_DISTRIBUTION': 'block',
        'SLURM_LOCALID': str(local_rank),
        'SLURM_NODEID': str(int(node[-1]) - 1),
        'SLURM_PROCID': str(rank),
        'SLURM_STEPID': '0',
        'SLURM_STEP_ID': '0',
        'SLURM_STEP_NODELIST': 'gpu[01-03]',
        'SLURM_STEP_NUM_NODES': '3',
        'SLURM_STEP_NUM_TASKS': '5',
        'SLURM_STEP_TASKS_PER_NODE': '3,1(x2)',
        **changes,
    }


def open_mpi(rank: int, size: int, local_size: int, **changes: str) -> dict[str, str]:
    """The environment that mpirun of Open MPI 4.1 sets (docs.open-mpi.org, "environment variables"; 5 has them too)."""
    return {
        'OMPI_COMM_WORLD_RANK': str(rank),
        'OMPI_COMM_WORLD_SIZE': str(size),
        'OMPI_COMM_WORLD_LOCAL_RANK': str(rank % local_size),
        'OMPI_COMM_WORLD_LOCAL_SIZE': str(local_size),
        'OMPI_COMM_WORLD_NODE_RANK': str(rank % local_size),
        'OMPI_UNIVERSE_SIZE': str(size),
        'PMIX_NAMESPACE': '1265238017',
        'PMIX_RANK': str(rank),
        'PMIX_VERSION': '4.2.2rc2',
        **changes,
    }


def open_mpi_in_slurm(rank: int, **changes: str) -> dict[str, str]:
    """Open MPI in a Slurm job with 2 ranks on each of 3 nodes: the Slurm step is that of Open MPI's daemon."""
    node = rank // 2
    daemon = {
        'SLURMD_NODENAME': f'gpu0{node + 1}',
        'SLURM_DISTRIBUTION': 'cyclic',
        'SLURM_LOCALID': '0',
        'SLURM_NODEID': str(node),
        'SLURM_PROCID': str(node),
        'SLURM_STEP_NUM_TASKS': '3',
        'SLURM_STEP_TASKS_PER_NODE': '1(x3)',
        'SLURM_TASKS_PER_NODE': '1(x3)',
    }
    return {**slurm_step(0), **daemon, **open_mpi(rank, 6, 2), **changes}


def pmix(rank: int, **changes: str) -> dict[str, str]:
    """What a PMIx launcher (prterun) sets: PMIx_server_setup_fork of OpenPMIx sets the rank, but no size."""
    return {'PMIX_NAMESPACE': 'prterun-gpu01-4711@1', 'PMIX_RANK': str(rank), 'PMIX_HOSTNAME': 'gpu01', **changes}

"""Imitates other machines: Linux's files about them, their job schedulers, GPUs and libraries."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.files import DATA, write_files
from tf_cnn.cluster.topology import Cluster
from tf_cnn.plan.discovery import find_cluster
from tf_cnn.plan.params import Params

# Files of /proc and /sys that were captured on other machines, a folder for each.
MACHINES = DATA / 'machines'


# ---- cluster environments ------------------------------------------------------------------------
# The environment variables that launchers set, and the cluster that a process finds from them.

COLLECTIVE: dict[str, Any] = {'variable_update': 'collective_all_reduce'}


def find(environ: Mapping[str, str] | None = None, **flags: Any) -> Cluster | None:
    return find_cluster(Params().with_values(**flags), environ or {})


def cluster_of(environ: Mapping[str, str] | None = None, **flags: Any) -> Cluster:
    cluster = find(environ, **flags)
    assert cluster is not None
    return cluster


# What Kubeflow's training operator writes (kubeflow/training-operator,
# pkg/controller.v1/tensorflow/tensorflow.go, genTFConfigJSONStr): hosts are the headless services
# of the replicas; an evaluator gets the cluster but is not in it.
def tf_config(job: str, index: int | str, **cluster: list[str] | dict[str, str]) -> dict[str, str]:
    config = {'cluster': cluster, 'task': {'type': job, 'index': index}, 'environment': 'cloud'}
    return {'TF_CONFIG': json.dumps(config)}


def replicas(job: str, count: int) -> list[str]:
    return [f'cnn-{job}-{i}.train.svc:2222' for i in range(count)]


TF_JOB = {'chief': replicas('chief', 1), 'worker': replicas('worker', 2), 'ps': replicas('ps', 1)}


def slurm_batch(**changes: str) -> dict[str, str]:
    """Variables of a batch script of 3 nodes and 5 tasks, as Slurm 22.05 sets them (sbatch(1))."""
    return {
        'SLURMD_NODENAME': 'gpu01',
        'SLURM_JOB_ID': '1207',
        'SLURM_JOB_NODELIST': 'gpu[01-03]',
        'SLURM_LOCALID': '0',
        'SLURM_NODEID': '0',
        'SLURM_NTASKS': '5',
        'SLURM_PROCID': '0',
        **changes,
    }


def slurm_step(rank: int, **changes: str) -> dict[str, str]:
    """The environment of one task of `srun` in that script, as Slurm 22.05 sets it (srun(1), OUTPUT
    ENVIRONMENT).
    """
    places = [('gpu01', 0), ('gpu01', 1), ('gpu01', 2), ('gpu02', 0), ('gpu03', 0)]
    node, local_rank = places[rank]
    return {
        **slurm_batch(),
        'SLURMD_NODENAME': node,
        'SLURM_DISTRIBUTION': 'block',
        'SLURM_LOCALID': str(local_rank),
        'SLURM_NODEID': str(int(node[-1]) - 1),
        'SLURM_PROCID': str(rank),
        'SLURM_STEP_ID': '0',
        'SLURM_STEP_NODELIST': 'gpu[01-03]',
        'SLURM_STEP_NUM_TASKS': '5',
        'SLURM_STEP_TASKS_PER_NODE': '3,1(x2)',
        **changes,
    }


def open_mpi(rank: int, size: int, local_size: int, **changes: str) -> dict[str, str]:
    """The environment that mpirun of Open MPI 4.1 sets (docs.open-mpi.org, "environment variables";
    5 has them too).
    """
    return {
        'OMPI_COMM_WORLD_RANK': str(rank),
        'OMPI_COMM_WORLD_SIZE': str(size),
        'OMPI_COMM_WORLD_LOCAL_RANK': str(rank % local_size),
        'OMPI_COMM_WORLD_LOCAL_SIZE': str(local_size),
        'PMIX_NAMESPACE': '1265238017',
        'PMIX_RANK': str(rank),
        **changes,
    }


def hydra(rank: int, size: int, local_size: int, **changes: str) -> dict[str, str]:
    """What mpiexec of MPICH 4.0 sets, as captured; Intel MPI's sets the same except the name of the
    host.
    """
    return {
        'MPIR_CVAR_CH3_INTERFACE_HOSTNAME': f'gpu0{rank // local_size + 1}',
        'MPI_LOCALNRANKS': str(local_size),
        'MPI_LOCALRANKID': str(rank % local_size),
        'PMI_FD': '6',
        'PMI_RANK': str(rank),
        'PMI_SIZE': str(size),
        **changes,
    }


# ---- nvml ----------------------------------------------------------------------------------------
# NVIDIA's management library, as its package pynvml shows it, on a machine with equal GPUs.

_MODULE = """
class NVMLError(Exception):
    def __init__(self, value=3):
        self.value = value

class _Memory:
    total = 40 << 30

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_ERROR_GPU_IS_LOST = 1, 2, 0, 15
nvmlInit = nvmlShutdown = lambda: None
nvmlSystemGetDriverVersion = lambda: '550.54.15'
nvmlSystemGetCudaDriverVersion = lambda: 12090
nvmlDeviceGetCount = lambda: {num_gpus}
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetName = lambda gpu: 'NVIDIA A100-SXM4-40GB'
nvmlDeviceGetUUID = lambda gpu: f'GPU-{{gpu}}5a2'
nvmlDeviceGetMemoryInfo = lambda gpu: _Memory
nvmlDeviceGetCudaComputeCapability = lambda gpu: {capability}
nvmlDeviceGetMaxClockInfo = lambda gpu, kind: 1410 if kind == NVML_CLOCK_SM else 1215
nvmlDeviceGetEnforcedPowerLimit = nvmlDeviceGetPowerManagementDefaultLimit = lambda gpu: 400_000
nvmlDeviceGetTotalEnergyConsumption = lambda gpu: 5_000_000
nvmlDeviceGetClockInfo = lambda gpu, kind: 1410
nvmlDeviceGetCurrentClocksEventReasons = lambda gpu: 0
nvmlDeviceGetTemperature = lambda gpu, sensor: 60
nvmlDeviceGetComputeRunningProcesses_v3 = lambda gpu: []
"""


def write_pynvml(folder: Path, num_gpus: int, *, capability: tuple[int, int] = (8, 0)) -> Path:
    """Writes pynvml.py to a folder, for PYTHONPATH, and returns its path."""
    text = _MODULE.format(num_gpus=num_gpus, capability=capability)
    return write_files(folder, {'pynvml.py': text}) / 'pynvml.py'


def use_pynvml(
    monkeypatch: pytest.MonkeyPatch, folder: Path, num_gpus: int, **options: Any
) -> ModuleType:
    """Lets this process import the module of write_pynvml."""
    module = ModuleType('pynvml')
    exec(write_pynvml(folder, num_gpus, **options).read_text(), vars(module))
    monkeypatch.setitem(sys.modules, 'pynvml', module)
    return module


# ---- libraries -----------------------------------------------------------------------------------


def compile_library(folder: Path, name: str, code: str = 'int nothing;') -> Path:
    """Makes a stand-in for one of NVIDIA's libraries by the C compiler of the machine."""
    command = ['cc', '-shared', '-fPIC', '-x', 'c', '-', '-o', str(folder / name)]
    subprocess.run(command, input=code, text=True, check=True)
    return folder / name

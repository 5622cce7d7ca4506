"""Imitates other machines: Linux's files about them, their job schedulers, GPUs and libraries."""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from tf_cnn.cluster.discovery import find_cluster
from tf_cnn.cluster.topology import Cluster
from tf_cnn.machine.missing_gpu import check_libraries
from tf_cnn.machine.tensorflow_build import tensorflow_build
from tf_cnn.run.params import Params

# ---- captured machines ---------------------------------------------------------------------------
# The files in which Linux describes some machines, as captured there, for tests that read them.

EPYC_FLAGS = (
    'fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse '
    'sse2 ht syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl nonstop_tsc '
    'cpuid extd_apicid amd_dcm aperfmperf pni pclmulqdq monitor ssse3 fma cx16 sse4_1 sse4_2 '
    'movbe popcnt aes xsave avx f16c rdrand lahf_lm cmp_legacy svm abm sse4a misalignsse '
    '3dnowprefetch topoext fsgsbase bmi1 avx2 smep bmi2 rdseed adx smap clflushopt sha_ni xsaveopt'
)
# A virtual machine of AWS Graviton2, an ARM processor.
GRAVITON = {
    'proc/cpuinfo': (
        'processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 '
        'crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs\nCPU implementer\t: '
        '0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n'
    ),
    'sys/devices/system/cpu/possible': '0\n',
    'sys/devices/system/cpu/online': '0\n',
    'sys/devices/system/cpu/cpu0/topology/core_siblings_list': '0\n',
}
# A container has its own namespace of control groups.
CONTAINER = {
    'proc/self/cgroup': '0::/\n',
    'sys/fs/cgroup/cpu.max': '150000 100000\n',
    'sys/fs/cgroup/memory.max': '4294967296\n',
    'sys/fs/cgroup/cpu.stat': 'usage_usec 5000000\nnr_periods 100\nnr_throttled '
    '40\nthrottled_usec 2500000\n',
}
# A batch system limits the job; the process is in the group of a step of the job, which has no
# limit of its own.
BATCH_JOB = {
    'proc/self/cgroup': '0::/system.slice/job_7/step_0\n',
    'sys/fs/cgroup/system.slice/cpu.max': 'max 100000\n',
    'sys/fs/cgroup/system.slice/job_7/cpu.max': '400000 100000\n',
    'sys/fs/cgroup/system.slice/job_7/memory.max': '8589934592\n',
    'sys/fs/cgroup/system.slice/job_7/cpu.stat': 'usage_usec 9000000\nthrottled_usec 700000\n',
    'sys/fs/cgroup/system.slice/job_7/step_0/cpu.max': 'max 100000\n',
    'sys/fs/cgroup/system.slice/job_7/step_0/memory.max': 'max\n',
    'sys/fs/cgroup/system.slice/job_7/step_0/cpu.stat': 'usage_usec 8000000\nthrottled_usec 0\n',
}


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding='utf-8')
    return root


def epyc_2_sockets() -> dict[str, str]:
    """A server with two AMD EPYC 7451, 24 cores with two threads each."""
    files = {
        'etc/os-release': 'NAME="Ubuntu"\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.4 '
        'LTS"\nID=ubuntu\n',
        'proc/cpuinfo': ''.join(
            f'processor\t: {i}\nvendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 1\n'
            'model name\t: AMD EPYC 7451 24-Core Processor\nphysical id\t: '
            f'{i // 24 % 2}\nsiblings\t: 48\n'
            f'core id\t\t: {i % 24}\ncpu cores\t: 24\nflags\t\t: {EPYC_FLAGS}\nbogomips\t: '
            '4590.83\n\n'
            for i in range(96)
        ),
    }
    for i in range(96):
        topology = f'sys/devices/system/cpu/cpu{i}/topology'
        files[f'{topology}/core_siblings_list'] = '0-23,48-71\n' if i % 48 < 24 else '24-47,72-95\n'
        files[f'sys/devices/system/cpu/cpufreq/policy{i}/scaling_governor'] = 'performance\n'
    return files


def use_host(monkeypatch: pytest.MonkeyPatch, *, memory_bytes: int = 2**38) -> None:
    """Imitates what psutil and Python say of that server, all of whose cores the process may
    use.
    """
    monkeypatch.setattr(platform, 'node', lambda: 'epyc')
    monkeypatch.setattr(psutil, 'cpu_count', lambda logical=True: 96 if logical else 48)
    monkeypatch.setattr(psutil.Process, 'cpu_affinity', lambda process: list(range(96)))
    monkeypatch.setattr(
        psutil,
        'virtual_memory',
        lambda: SimpleNamespace(total=memory_bytes, available=memory_bytes),
    )


# ---- cluster environments ------------------------------------------------------------------------
# The environment variables that launchers set, and the cluster that a process finds from them.

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
    """Returns the cluster of CONTROLLED, seen from one of its tasks."""
    return Cluster((), WORKERS, job, index, FLAGS, ('10.0.0.9:2222',))


def find(environ: Mapping[str, str] | None = None, **flags: Any) -> Cluster | None:
    return find_cluster(Params().replace(**flags), environ or {})


def found(environ: Mapping[str, str] | None = None, **flags: Any) -> Cluster:
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


PLACES = [('gpu01', 0), ('gpu01', 1), ('gpu01', 2), ('gpu02', 0), ('gpu03', 0)]


def slurm_step(rank: int, **changes: str) -> dict[str, str]:
    """The environment of one task of `srun` in that script, as Slurm 22.05 sets it (srun(1), OUTPUT
    ENVIRONMENT).
    """
    node, local_rank = PLACES[rank]
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


# ---- fake nvml -----------------------------------------------------------------------------------
# NVIDIA's management library, as its package pynvml shows it, on a machine with equal GPUs.

_MODULE = """
class NVMLError(Exception):
    pass

class _Memory:
    total = 40 << 30

NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
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
nvmlDeviceGetEnforcedPowerLimit = lambda gpu: 400_000
"""


def write_pynvml(folder: Path, num_gpus: int, *, capability: tuple[int, int] = (8, 0)) -> Path:
    """Writes pynvml.py to a folder, for PYTHONPATH, and returns its path."""
    folder.mkdir(exist_ok=True)
    path = folder / 'pynvml.py'
    path.write_text(_MODULE.format(num_gpus=num_gpus, capability=capability))
    return path


def use_pynvml(monkeypatch: pytest.MonkeyPatch, path: Path) -> ModuleType:
    """Lets this process import the module that write_pynvml wrote."""
    spec = importlib.util.spec_from_file_location('pynvml', path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, 'pynvml', module)
    return module


def without_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'pynvml', None)


# ---- compiled libraries --------------------------------------------------------------------------
# Shared libraries for tests, made by the C compiler of the machine.

BUILD = tensorflow_build()
NEEDED = [
    pytest.mark.skipif(
        not (BUILD and BUILD.cuda_version), reason='TensorFlow is built without CUDA'
    ),
    pytest.mark.skipif(shutil.which('cc') is None, reason='there is no C compiler'),
]


def compile_library(folder: Path, name: str, code: str = 'int nothing;') -> Path:
    command = ['cc', '-shared', '-fPIC', '-x', 'c', '-', '-o', str(folder / name)]
    subprocess.run(command, input=code, text=True, check=True)
    return folder / name


def compile_cuda(folder: Path, *left_out: str) -> dict[str, str]:
    """Makes stand-ins for NVIDIA's libraries; returns the environment in which they can be
    opened.
    """
    library = compile_library(folder, 'libgood.so')
    for name in check_libraries():
        if not name.startswith(left_out):
            shutil.copy(library, folder / name)
    return {**os.environ, 'LD_LIBRARY_PATH': str(folder)}

"""Describes the machine, the software versions and the environment variables of a run. Does not
import TensorFlow.
"""

import functools
import hashlib
import importlib.metadata
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tf_cnn.machine import cgroups
from tf_cnn.machine.gpus import describe_gpus
from tf_cnn.machine.processors import describe_processor, usable_cores
from tf_cnn.system.kernel_files import ROOT, read_key_values, read_text
from tf_cnn.system.place import FOLDER, PACKAGE

_ASK_SECS = 1.0
_GIBIBYTE = 2**30
# The environment variables that set libraries, by their first word. Terraform and Kubernetes name
# variables alike, and names with these words may hold secrets. What a launcher sets differs from
# run to run. All of these are neither stored nor passed to other hosts.
_OF_LIBRARIES = re.compile(
    '(TF|GRPC|HOROVOD|MALLOC|NCCL|XLA|OMP|GOMP|KMP|ONEDNN|DNNL)_[A-Z0-9_]+|GLIBC_TUNABLES|'
    'NVIDIA_TF32_OVERRIDE'
)
_SECRET = re.compile('KEY|TOKEN|SECRET|PASS|CRED|AUTH')
_OF_OTHERS = re.compile('TF_(CONFIG|VAR_.*|CLI.*|ENCRYPTION|HTTP_.*)|GRPC_PROXY.*')
_OF_ONE_RUN = re.compile(
    'NCCL_(COMM_ID|HOSTID)|.*_(RANK|SIZE|ADDR|ADDRESS|HOST|HOSTNAME)|.*_PORT(_.*)?'
)
# These belong to one host, and are not passed to others.
_HOST_VARIABLES = frozenset(('CUDA_VISIBLE_DEVICES', 'LD_PRELOAD'))
# The names that container runtimes generate: the first digits of a container's id, and the name of
# a pod, which Kubernetes ends with five characters of its alphabet.
_CONTAINER = re.compile('[0-9a-f]{12}')
_POD = re.compile('.+-[bcdfghjklmnpqrstvwxz2456789]{5}')
# The first line of /etc/hosts in a pod with a separate host name. In a pod with its node's name,
# kubelet writes a longer line.
_HOSTS_OF_POD = '# Kubernetes-managed hosts file.'


def describe_machine(
    num_intra_threads: int = 0,
    num_inter_threads: int = 0,
    threads_reason: str | None = None,
    cores: Sequence[int] | None = None,
    root: Path = ROOT,
) -> dict[str, Any]:
    """Returns the object "machine" of a result; unknown values are None.

    A number of threads of 0 is TensorFlow's default, a thread for each core of the affinity. cores
    are those that this process may use when the run starts; None for those that it may use now.
    """
    processor = describe_processor(root)
    processor['cpu_model'] = (
        processor['cpu_model'] or _model_by_lscpu(root) or platform.machine() or None
    )
    affinity = list(cores) if cores else usable_cores()
    default = len(affinity or ()) or processor['num_cores']
    gpus, driver = describe_gpus()
    machine: dict[str, Any] = {
        'hostname': platform.node() or None,
        'os': read_key_values(root / 'etc/os-release')
        .get('PRETTY_NAME', platform.system())
        .strip('\'"')
        or None,
        'kernel': platform.release() or None,
        **processor,
        'memory_bytes': psutil.virtual_memory().total,
        'affinity': affinity,
        'cgroup_cpus': cgroups.cpu_limit(root),
        'cgroup_memory_bytes': cgroups.memory_limit(root),
        'load_average': load_average(),
        'gpus': gpus,
        'versions': _versions(driver, has_gpus=bool(gpus)),
        'threads': {
            'intra_op': num_intra_threads or default,
            'inter_op': num_inter_threads or default,
            'reason': threads_reason,
        },
        'fingerprint': '',
    }
    machine['fingerprint'] = fingerprint(machine, root)
    return machine


def library_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns only the environment variables that change how libraries compute, sorted by name."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if is_library_variable(name) or name in _HOST_VARIABLES
    }


def is_library_variable(name: str) -> bool:
    """Whether an environment variable sets a library in a way that every host of a run should
    share.
    """
    if not _OF_LIBRARIES.fullmatch(name) or _SECRET.search(name):
        return False
    return not (_OF_OTHERS.fullmatch(name) or _OF_ONE_RUN.fullmatch(name))


def fingerprint(machine: Mapping[str, Any], root: Path = ROOT) -> str:
    """Returns a short hash that identifies a machine: its name, processor, cores, memory and GPUs,
    not its software.

    The name that Docker, Podman or Kubernetes generates for a container changes with each start, so
    the GPUs' UUIDs replace it. Names of hosts may look alike (rack-22475), so the files of the
    container must show it, too. Equal machines without GPUs then have the same hash, unless the
    user names their containers (docker run --hostname). /etc/machine-id does not help: in a
    container it is the image's, and often empty.
    """
    memory = machine['memory_bytes']
    is_generated = _is_generated(machine['hostname'] or '', root)
    identifiers = [
        None if is_generated else machine['hostname'],
        machine['cpu_model'],
        machine['num_cores'],
        # Rounded, because kernels reserve different amounts.
        memory and round(memory / _GIBIBYTE),
        *(gpu['uuid' if is_generated else 'name'] for gpu in machine['gpus']),
    ]
    return hashlib.sha256('\n'.join(map(str, identifiers)).encode()).hexdigest()[:12]


def _is_generated(hostname: str, root: Path) -> bool:
    """Whether a container runtime generated the host name of this process."""
    if _CONTAINER.fullmatch(hostname):
        # The whole id, 64 digits, is in the paths of the files that the runtime mounts, such as
        # /etc/hostname.
        return (
            re.search(rf'\b{hostname}[0-9a-f]{{52}}\b', read_text(root / 'proc/self/mountinfo'))
            is not None
        )
    return bool(_POD.fullmatch(hostname)) and read_text(root / 'etc/hosts').startswith(
        _HOSTS_OF_POD
    )


def has_generated_name(machine: Mapping[str, Any]) -> bool:
    """Whether a container runtime generated the host name of the machine in a result."""
    name = machine.get('hostname') or ''
    looks_generated = _CONTAINER.fullmatch(name) or _POD.fullmatch(name)
    return bool(looks_generated) and fingerprint(machine) != machine.get('fingerprint')


@functools.cache
def git_commit(folder: Path = FOLDER) -> str | None:
    """Returns the commit of the checkout in a folder, or of the program installed there, with
    '-dirty' if files of the commit were changed; None if unknown.

    The answer is cached, since the running code is the code that was imported.
    """
    # A program that is installed within the checkout of another project does not belong to that
    # checkout.
    if not (folder / '.git').exists():
        # Written by setup.py.
        return read_text(folder / PACKAGE.name / 'commit.txt').strip() or None
    words = ('describe', '--always', '--dirty', '--abbrev=40', '--exclude=*')
    return _command_output('git', '-C', str(folder), *words)


def short_commit(commit: str) -> str:
    number, _, change = commit.partition('-')
    return f'{number[:12]}{change and f"-{change}"}'


def load_average() -> list[float]:
    """Returns the average number of threads that ran or waited for a core in the last 1, 5 and 15
    minutes.
    """
    return [round(load, 2) for load in psutil.getloadavg()]


def free_memory(root: Path = ROOT) -> int:
    """Returns the bytes that this process can allocate without swapping, in its group's limits."""
    available: int = psutil.virtual_memory().available
    group_memory = cgroups.available_memory(root)
    return available if group_memory is None else min(available, group_memory)


def _model_by_lscpu(root: Path) -> str | None:
    """Returns the names that lscpu has for ARM processors, since Linux knows only numbers. Some
    machines have two kinds.
    """
    output = _command_output('lscpu', '--sysroot', str(root)) or ''
    return ' + '.join(re.findall(r'^\s*Model name:\s*(.+)$', output, re.MULTILINE)) or None


def _command_output(*command: str) -> str | None:
    """Returns a program's output; None if it is missing, fails or takes more than a second."""
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_SECS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None


def _versions(driver: str | None, *, has_gpus: bool) -> dict[str, str | None]:
    # TensorFlow is not imported for this, since that takes seconds. Its build info names the
    # versions of CUDA that it was built for; without packages of these, the system has them.
    tensorflow = sys.modules.get('tensorflow')
    build = tensorflow.sysconfig.get_build_info() if tensorflow else {}
    libraries = {
        'cuda': _package('nvidia-cuda-runtime-cu12') or build.get('cuda_version'),
        'cudnn': _package('nvidia-cudnn-cu12') or build.get('cudnn_version'),
        'nccl': _package('nvidia-nccl-cu12'),
    }
    return {
        'python': platform.python_version(),
        'tensorflow': tensorflow.__version__ if tensorflow else tensorflow_version(),
        'numpy': _package('numpy'),
        **(libraries if has_gpus else dict.fromkeys(libraries)),
        'driver': driver,
    }


def tensorflow_version() -> str | None:
    """Returns the version of the installed TensorFlow, without importing it."""
    return _package('tensorflow', 'tensorflow-cpu')


@functools.cache
def _package(*names: str) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None

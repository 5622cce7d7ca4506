"""Facts of machines: from files captured there, from psutil here, and of GPUs from stand-ins for
NVIDIA's library.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.support.machines import (
    BATCH_JOB,
    CONTAINER,
    GRAVITON,
    epyc_2_sockets,
    use_host,
    use_pynvml,
    without_pynvml,
    write_files,
    write_pynvml,
)
from tf_cnn.machine import cgroups
from tf_cnn.machine.gpus import describe_gpus, has_nvidia_gpu, visible_indices
from tf_cnn.machine.processors import describe_processor
from tf_cnn.machine.run_environment import (
    describe_machine,
    fingerprint,
    free_memory,
    git_commit,
    library_variables,
)
from tf_cnn.results.summary import format_machine
from tf_cnn.system import errors

pytestmark = pytest.mark.unit

ROOT = Path(errors.__file__).resolve().parents[2]


def test_a_server_with_two_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_host(monkeypatch, memory_bytes=263_846_044 * 1024)
    facts = describe_machine(root=write_files(tmp_path, epyc_2_sockets()))
    assert facts['cpu_model'] == 'AMD EPYC 7451 24-Core Processor'
    assert (facts['num_cores'], facts['num_physical_cores'], facts['num_sockets']) == (96, 48, 2)
    assert facts['memory_bytes'] == 263_846_044 * 1024
    assert facts['affinity'] == list(range(96))
    assert facts['governor'] == 'performance'
    assert facts['is_virtual'] is False
    assert {'avx2', 'fma', 'f16c', 'sse4_1'} <= set(facts['cpu_features'])
    assert 'smep' not in facts['cpu_features']
    assert (facts['hostname'], facts['os']) == ('epyc', 'Ubuntu 22.04.4 LTS')
    assert (facts['cgroup_cpus'], facts['cgroup_memory_bytes']) == (None, None)


@pytest.mark.skipif(shutil.which('lscpu') is None, reason='lscpu is not here')
def test_an_arm_server_has_a_model_though_linux_does_not_name_it(tmp_path: Path) -> None:
    facts = describe_machine(root=write_files(tmp_path, GRAVITON))
    assert facts['cpu_model'] == 'Neoverse-N1'
    assert facts['num_sockets'] == 1
    assert (facts['is_virtual'], facts['governor']) == (None, None)
    assert facts['cpu_features'] == ['asimd', 'asimddp', 'asimdhp', 'asimdrdm', 'fphp']


def test_this_machine_is_what_lscpu_says() -> None:
    listed = json.loads(
        subprocess.run(['lscpu', '-J'], capture_output=True, check=True, timeout=10).stdout
    )
    says: dict[str, str] = {}

    def note(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            says[row['field'].rstrip(':')] = row['data']
            note(row.get('children', []))

    note(listed['lscpu'])
    facts = describe_processor(Path('/'))
    assert facts['num_cores'] == int(says['CPU(s)'])
    assert facts['cpu_model'].endswith(' '.join(says['Model name'].split()))
    if facts['num_sockets']:
        assert facts['num_sockets'] == int(says['Socket(s)'])
        assert facts['num_physical_cores'] == int(says['Core(s) per socket']) * facts['num_sockets']


def test_a_container_has_its_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_host(monkeypatch)
    facts = describe_machine(root=write_files(tmp_path, epyc_2_sockets() | CONTAINER))
    assert (facts['cgroup_cpus'], facts['cgroup_memory_bytes']) == (1.5, 2**32)
    assert cgroups.cpu_seconds(tmp_path) == pytest.approx(5.0)
    assert cgroups.throttled_seconds(tmp_path) == pytest.approx(2.5)
    assert format_machine(facts)[0].startswith('AMD EPYC 7451 24-Core Processor, 1.5 of 96 cores; ')
    # The group of a container of another host's namespace is not mounted there.
    write_files(tmp_path, {'proc/self/cgroup': '0::/docker/4f2a\n'})
    assert cgroups.cpu_limit(tmp_path) == 1.5


def test_the_limit_of_a_group_holds_for_the_groups_in_it(tmp_path: Path) -> None:
    root = write_files(tmp_path, BATCH_JOB)
    assert (cgroups.cpu_limit(root), cgroups.memory_limit(root)) == (4.0, 2**33)
    assert cgroups.throttled_seconds(root) == pytest.approx(0.7)
    assert cgroups.cpu_seconds(root) == pytest.approx(8.0)


def test_what_a_group_uses_is_not_left_but_for_pages_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_host(monkeypatch)
    root = write_files(tmp_path, CONTAINER)
    assert cgroups.available_memory(root) == 2**32
    used = {
        'memory.current': f'{3 * 2**30}\n',
        'memory.stat': 'inactive_file 1000\nactive_file 24\n',
    }
    write_files(root / 'sys/fs/cgroup', used)
    assert cgroups.available_memory(root) == free_memory(root) == 2**30 + 1024
    use_host(monkeypatch, memory_bytes=1024)
    assert free_memory(root) == 1024
    (root / 'proc/self/cgroup').unlink()
    assert cgroups.available_memory(root) is None


def test_without_these_files_there_is_no_limit(tmp_path: Path) -> None:
    facts = describe_machine(root=tmp_path)
    assert facts['num_cores'] == os.cpu_count()
    for name in ('num_sockets', 'cgroup_cpus', 'governor', 'is_virtual'):
        assert facts[name] is None
    json.dumps(facts, allow_nan=False)


def test_this_machine_is_what_its_kernel_says() -> None:
    facts, cores = describe_machine(), sorted(os.sched_getaffinity(0))
    assert (facts['hostname'], facts['kernel']) == (os.uname().nodename, os.uname().release)
    assert facts['affinity'] == cores
    assert facts['memory_bytes'] == psutil.virtual_memory().total
    assert facts['load_average'] == pytest.approx(os.getloadavg(), abs=1)
    assert all(load == round(load, 2) for load in facts['load_average'] or ())
    # The threads that TensorFlow takes.
    assert facts['threads'] == {'intra_op': len(cores), 'inter_op': len(cores), 'reason': None}
    versions = facts['versions']
    assert (versions['python'], versions['numpy']) == (platform.python_version(), np.__version__)
    assert facts['gpus'] or versions['cuda'] is versions['cudnn'] is versions['nccl'] is None
    assert describe_machine(4, 2, 'why')['threads'] == {
        'intra_op': 4,
        'inter_op': 2,
        'reason': 'why',
    }


@pytest.mark.parametrize(
    'device',
    [
        'dev/nvidia0',
        'proc/driver/nvidia/gpus/0000:01:00.0/information',
        'usr/lib/wsl/lib/libcuda.so.1',
    ],
)
def test_a_gpu_is_found_by_what_its_driver_makes(device: str, tmp_path: Path) -> None:
    others = {'dev/kfd': '', 'dev/nvidiactl': '', 'dev/dxg': ''}
    assert not has_nvidia_gpu({}, write_files(tmp_path, others))
    root = write_files(tmp_path, {device: ''})
    assert has_nvidia_gpu({}, root)
    assert has_nvidia_gpu({'CUDA_VISIBLE_DEVICES': '1'}, root)
    for hidden in ('', '-1', 'NoDevFiles'):
        assert not has_nvidia_gpu({'CUDA_VISIBLE_DEVICES': hidden}, root)


def fingerprint_with(root: Path = Path('/nothing'), **changes: Any) -> str:
    gpus = [{'name': 'A100', 'uuid': changes.pop('uuid', 'GPU-1')}]
    machine = {
        'hostname': 'epyc',
        'cpu_model': 'EPYC',
        'num_cores': 96,
        'memory_bytes': 2**38,
        'gpus': gpus,
    }
    return fingerprint(machine | changes, root)


def test_the_fingerprint_tells_machines_apart_and_lasts() -> None:
    first = fingerprint_with()
    assert len(first) == 12
    # Another kernel leaves a little less memory.
    assert (
        first == fingerprint_with(memory_bytes=2**38 - 6_000_000) == fingerprint_with(uuid='GPU-2')
    )
    for name, value in {
        'hostname': 'another',
        'num_cores': 48,
        'cpu_model': 'Xeon',
        'gpus': [],
    }.items():
        assert fingerprint_with(Path('/nothing'), **{name: value}) != first


def mounts_of_container(folder: str) -> dict[str, str]:
    """What a container sees of its mounts, in the form of proc(5)."""
    return {
        'proc/self/mountinfo': f'711 690 259:1 {folder}/hostname /etc/hostname rw - ext4 '
        '/dev/root rw\n'
    }


_ID = '7c' * 26
CONTAINERS = {
    'docker': lambda name: mounts_of_container(f'/var/lib/docker/containers/{name}{_ID}'),
    'podman': lambda name: mounts_of_container(
        f'/containers/storage/overlay-containers/{name}{_ID}/userdata'
    ),
    'kubernetes': lambda name: {
        'etc/hosts': f'# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n10.1.2.3\t{name}\n'
    },
}
GENERATED = {
    'docker': ('3f2a9c81d0be', '00aa11bb22cc'),
    'podman': ('3f2a9c81d0be', '00aa11bb22cc'),
    'kubernetes': ('train-7d9c5b6f4d-x2x8z', 'train-7d9c5b6f4d-9b2kq'),
}


@pytest.mark.parametrize('runtime', CONTAINERS)
def test_a_name_that_a_container_runtime_generated_is_no_part_of_the_fingerprint(
    runtime: str, tmp_path: Path
) -> None:
    names = GENERATED[runtime]
    roots = [write_files(tmp_path / name, CONTAINERS[runtime](name)) for name in names]
    first, other = (
        fingerprint_with(root, hostname=name) for root, name in zip(roots, names, strict=True)
    )
    assert first == other
    # A name that somebody chose tells machines apart, and GPUs do without one.
    more = [
        fingerprint_with(roots[0], hostname=name) for name in ('bench-1', 'bench-2', 'deadbeef0000')
    ]
    assert len({first, *more, fingerprint_with(roots[0], hostname=names[0], uuid='GPU-2')}) == 5


@pytest.mark.parametrize(
    'names',
    [
        ('rack-22475', 'rack-22476'),
        ('node-x2x8z', 'node-9b2kq'),
        # Named by the address of the network card.
        ('0025904c1f2a', '0025904c1f2b'),
        ('3f' * 32, '4f' * 32),
    ],
)
def test_a_name_of_a_host_counts_however_generated_it_looks(
    names: tuple[str, str], tmp_path: Path
) -> None:
    host_network = {
        'etc/hosts': '# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n'
    }
    host_network |= mounts_of_container(f'/var/lib/docker/containers/{"ab" * 32}')
    for root in (tmp_path / 'nothing', write_files(tmp_path / 'pod', host_network)):
        assert len({fingerprint_with(root, hostname=name) for name in names}) == 2


def test_only_variables_that_change_the_computation_are_kept() -> None:
    names = (
        'TF_XLA_FLAGS OMP_NUM_THREADS KMP_AFFINITY GOMP_CPU_AFFINITY CUDA_VISIBLE_DEVICES '
        'NCCL_DEBUG XLA_FLAGS LD_PRELOAD MALLOC_ARENA_MAX HOROVOD_FUSION_THRESHOLD MALLOC_CHECK_ '
        'GRPC_VERBOSITY GLIBC_TUNABLES TF_GPU_HOST_MEM_LIMIT_IN_MB TF_NUM_INTRAOP_THREADS '
        'NCCL_IB_ADDR_RANGE NVIDIA_TF32_OVERRIDE'
    )
    kept = dict.fromkeys(names.split(), '1')
    others = {
        'HOME': '/h',
        'AWS_SECRET_ACCESS_KEY': 's',
        'MY_TF_TOKEN': 's',
        'CUDA_VISIBLE_DEVICES_OLD': '1',
        'LD': '',
    }
    # What a launcher tells each process differs from run to run, and would make each run a setting
    # of its own.
    others |= dict.fromkeys(
        ('TF_CONFIG', 'NCCL_COMM_ID', 'HOROVOD_RANK', 'HOROVOD_LOCAL_SIZE', 'HOROVOD_HOSTNAME'), '1'
    )
    others |= {'HOROVOD_GLOO_RENDEZVOUS_PORT': '40123'}
    # Secrets of other programs that begin alike.
    others |= dict.fromkeys(
        ('TF_VAR_db_password', 'TF_TOKEN_app_terraform_io', 'HOROVOD_SECRET_KEY'), 's'
    )
    others |= dict.fromkeys(
        ('TF_VAR_DB', 'TF_CLI_ARGS', 'TF_ENCRYPTION', 'TF_HTTP_USERNAME', 'GRPC_PROXY'), 's'
    )
    # Those of Kubernetes, for services of these names.
    others |= dict.fromkeys(
        ('TF_SERVING_SERVICE_HOST', 'TF_SERVING_PORT', 'GRPC_PORT_80_TCP_ADDR'), '10.0.0.1'
    )
    prefixes = ('KMP', 'XLA', 'ONEDNN', 'GOMP', 'NCCL', 'OMP', 'TF', 'GRPC', 'MALLOC')
    words = (
        'TOKEN',
        'API_KEY',
        'CLIENT_SECRET',
        'PASSWORD',
        'DB_PASS',
        'CREDENTIALS',
        'AUTH_HEADER',
    )
    others |= {f'{prefix}_{word}': 's' for prefix in prefixes for word in words}
    assert library_variables(kept | others) == kept
    assert list(library_variables(kept)) == sorted(kept)


def test_the_commit_is_that_of_the_programs_own_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ('-c', 'user.name=A', '-c', 'user.email=a@example.org')
        command = ['git', '-C', str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git('init', '-q')
    assert git_commit(tmp_path) is None
    git_commit.cache_clear()
    git('commit', '-q', '--allow-empty', '-m', 'first')
    assert git_commit(tmp_path) == git('rev-parse', 'HEAD')
    installed = tmp_path / 'venv' / 'site-packages'
    installed.mkdir(parents=True)
    assert git_commit(installed) is None


def test_what_a_gpu_does_not_know_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = use_pynvml(monkeypatch, write_pynvml(tmp_path, 3))

    def unknown(*arguments: object) -> object:
        raise library.NVMLError

    monkeypatch.setattr(
        library, 'nvmlDeviceGetEnforcedPowerLimit', lambda gpu: unknown() if gpu else 400_000
    )
    # The driver has lost the third GPU.
    monkeypatch.setattr(
        library, 'nvmlDeviceGetHandleByIndex', lambda index: unknown() if index == 2 else index
    )
    gpus, _ = describe_gpus()
    assert gpus[1:] == [gpus[0] | {'uuid': 'GPU-15a2', 'power_limit_watts': None}]
    lines = format_machine(describe_machine())
    assert lines[1].startswith(
        'NVIDIA A100-SXM4-40GB x 2, 40 GiB each, compute capability 8.0; driver 550.54.15'
    )
    monkeypatch.setattr(library, 'nvmlInit', unknown)
    assert describe_gpus() == ([], None)
    without_pynvml(monkeypatch)
    assert describe_gpus() == ([], None)


@pytest.mark.skipif(shutil.which('cc') is None, reason='no C compiler is here')
def test_gpus_and_their_energy_are_found_with_nvml(tmp_path: Path) -> None:
    source = ROOT / 'tests/support/nvml_stand_in.c'
    library = tmp_path / 'libnvidia-ml.so.1'
    subprocess.run(
        ['cc', '-shared', '-fPIC', '-o', str(library), str(source)], check=True, timeout=60
    )
    code = (
        'import json; from tf_cnn.machine.gpus import describe_gpus; from tf_cnn.machine.meters '
        'import EnergyMeter\ndef energy(devices):\n'
        '    meter = EnergyMeter("gpu", {"CUDA_VISIBLE_DEVICES": devices}); meter.start(); return '
        'meter.stop()\n'
        'print(json.dumps([describe_gpus(), energy("0"), energy("GPU-0"), energy("0,1"), '
        'energy("")]))'
    )
    environment = os.environ | {'LD_LIBRARY_PATH': str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, '-c', code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    (gpus, driver), first, by_name, both, none = json.loads(ran.stdout)
    assert driver == '550.54.15'
    assert [gpu['uuid'] for gpu in gpus] == ['GPU-05a2', 'GPU-15a2']
    assert gpus[0] == {
        'name': 'NVIDIA A100-SXM4-40GB',
        'uuid': 'GPU-05a2',
        'memory_bytes': 40 * 2**30,
        'compute_capability': '8.0',
        'max_clock_mhz': 1410,
        'max_memory_clock_mhz': 1215,
        'power_limit_watts': 400.0,
    }
    # The second GPU does not count its energy.
    assert (first, by_name, both, none) == (['NVML', 2.5], ['NVML', 2.5], None, None)


def test_visible_gpus_are_chosen_as_cuda_does() -> None:
    uuids = ['GPU-05a2', 'GPU-15a2', 'GPU-15ff']
    for chosen, expected in (
        (None, [0, 1, 2]),
        ('2,0', [2, 0]),
        ('', []),
        ('-1', []),
        ('1,7,0', [1]),
        ('GPU-15f,GPU-0', [2, 0]),
        ('GPU-15', []),
    ):
        environ = {} if chosen is None else {'CUDA_VISIBLE_DEVICES': chosen}
        assert visible_indices(uuids, environ) == expected, chosen

"""Properties of machines: from files captured there, from psutil here, and of GPUs from stand-ins
for NVIDIA's library.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from tests.support.files import write_files
from tests.support.machines import MACHINES, compile_library, use_pynvml
from tests.support.programs import ROOT, run_python
from tf_cnn.machine import cgroups
from tf_cnn.machine.gpus import describe_gpus, has_nvidia_gpu, visible_indices
from tf_cnn.machine.processors import describe_processor
from tf_cnn.machine.run_environment import (
    describe_machine,
    fingerprint,
    free_memory,
    git_commit,
    library_variables,
    short_commit,
)
from tf_cnn.results.summary import format_machine

pytestmark = pytest.mark.unit


def use_host(monkeypatch: pytest.MonkeyPatch, memory_bytes: int = 2**38) -> None:
    """Imitates what psutil and Python say on epyc_7451, a server with two sockets, 24 cores in each
    and two threads in each core, which the process may all use.
    """
    memory = SimpleNamespace(total=memory_bytes, available=memory_bytes)
    monkeypatch.setattr(platform, 'node', lambda: 'epyc')
    monkeypatch.setattr(psutil, 'cpu_count', lambda logical=True: 96 if logical else 48)
    monkeypatch.setattr(psutil.Process, 'cpu_affinity', lambda process: list(range(96)))
    monkeypatch.setattr(psutil, 'virtual_memory', lambda: memory)


def test_a_server_with_two_sockets(monkeypatch):
    use_host(monkeypatch, memory_bytes=263_846_044 * 1024)
    facts = describe_machine(root=MACHINES / 'epyc_7451')
    expected = {
        'hostname': 'epyc',
        'os': 'Ubuntu 22.04.4 LTS',
        'cpu_model': 'AMD EPYC 7451 24-Core Processor',
        'num_cores': 96,
        'num_physical_cores': 48,
        'num_sockets': 2,
        'memory_bytes': 263_846_044 * 1024,
        'affinity': list(range(96)),
        'governor': 'performance',
        'frequency_driver': 'acpi-cpufreq',
        'energy_preference': None,
        'is_virtual': False,
        'cgroup_cpus': None,
        'cgroup_memory_bytes': None,
    }
    assert {name: facts[name] for name in expected} == expected
    assert {'avx2', 'fma', 'f16c', 'sse4_1'} <= set(facts['cpu_features'])
    assert 'smep' not in facts['cpu_features']


def test_the_energy_preferences_of_all_cores_are_listed():
    # Somebody set the first core by hand.
    facts = describe_machine(root=MACHINES / 'intel_pstate')
    assert (facts['governor'], facts['frequency_driver']) == ('powersave', 'intel_pstate')
    assert facts['energy_preference'] == 'balance_power, performance'


@pytest.mark.skipif(shutil.which('lscpu') is None, reason='lscpu is not here')
def test_an_arm_server_has_a_model_though_linux_does_not_name_it():
    facts = describe_machine(root=MACHINES / 'graviton2')
    assert (facts['cpu_model'], facts['num_sockets']) == ('Neoverse-N1', 1)
    assert (facts['is_virtual'], facts['governor']) == (None, None)
    assert facts['cpu_features'] == ['asimd', 'asimddp', 'asimdhp', 'asimdrdm', 'fphp']


def test_this_machine_is_described_as_by_lscpu():
    lscpu = subprocess.run(['lscpu'], capture_output=True, check=True, timeout=10, text=True)
    rows = [line.partition(':') for line in lscpu.stdout.splitlines()]
    says = {name.strip(): value.strip() for name, _, value in rows}
    facts = describe_processor(Path('/'))
    assert facts['num_cores'] == int(says['CPU(s)'])
    assert facts['cpu_model'].endswith(' '.join(says['Model name'].split()))
    if facts['num_sockets']:
        assert facts['num_sockets'] == int(says['Socket(s)'])
        assert facts['num_physical_cores'] == int(says['Core(s) per socket']) * facts['num_sockets']


def test_a_container_has_its_quota(tmp_path, monkeypatch):
    use_host(monkeypatch)
    for name in ('epyc_7451', 'container'):
        shutil.copytree(MACHINES / name, tmp_path, dirs_exist_ok=True)
    facts = describe_machine(root=tmp_path)
    assert (facts['cgroup_cpus'], facts['cgroup_memory_bytes']) == (1.5, 2**32)
    assert cgroups.cpu_seconds(tmp_path) == pytest.approx(5.0)
    assert cgroups.throttled_seconds(tmp_path) == pytest.approx(2.5)
    assert format_machine(facts)[0].startswith('AMD EPYC 7451 24-Core Processor, 1.5 of 96 cores; ')
    # The path of a group in the host's namespace does not exist in the container.
    write_files(tmp_path, {'proc/self/cgroup': '0::/docker/4f2a\n'})
    assert cgroups.cpu_limit(tmp_path) == 1.5


def test_the_limit_of_a_group_holds_for_the_groups_in_it():
    # A batch system limits the job. The process is in the group of a step, which has no limit.
    root = MACHINES / 'batch_job'
    assert (cgroups.cpu_limit(root), cgroups.memory_limit(root)) == (4.0, 2**33)
    assert cgroups.throttled_seconds(root) == pytest.approx(0.7)
    assert cgroups.cpu_seconds(root) == pytest.approx(8.0)


def use_combined_mount(cgroup: Path) -> None:
    """RHEL mounts both controllers in one folder."""
    shutil.copytree(cgroup / 'cpuacct', cgroup / 'cpu', dirs_exist_ok=True)
    shutil.rmtree(cgroup / 'cpuacct')
    (cgroup / 'cpu').rename(cgroup / 'cpu,cpuacct')


def use_container(cgroup: Path) -> None:
    """The group of a container, /job_7, is the top of what is mounted there."""
    for controller in ('cpu', 'cpuacct', 'memory'):
        (cgroup / controller / 'job_7').rename(cgroup / 'job_7')
        shutil.rmtree(cgroup / controller)
        (cgroup / 'job_7').rename(cgroup / controller)


def use_version_2(cgroup: Path) -> None:
    """The controllers are of version 2, which is mounted beside version 1."""
    (cgroup.parents[2] / 'proc/self/cgroup').write_text('4:devices:/\n0::/job_7\n')
    files = {
        'cpu.max': '50000 100000\n',
        'cpu.stat': 'usage_usec 19429159\nthrottled_usec 1840917\n',
        'memory.max': '6442450944\n',
        'memory.current': '10862592\n',
    }
    write_files(cgroup / 'unified/job_7', files)


@pytest.mark.parametrize(
    'change', [lambda cgroup: None, use_combined_mount, use_container, use_version_2]
)
def test_limits_and_counters_are_the_same_however_groups_are_mounted(tmp_path, change):
    # Two processes worked in a step of a job with half a core and 6 GiB, and read a file.
    root = shutil.copytree(MACHINES / 'cgroup_v1', tmp_path / 'root')
    change(root / 'sys/fs/cgroup')
    assert (cgroups.cpu_limit(root), cgroups.memory_limit(root)) == (0.5, 6 * 2**30)
    assert cgroups.throttled_seconds(root) == pytest.approx(1.840917)
    assert cgroups.cpu_seconds(root) == pytest.approx(19.429159)
    # 89 MB are in use, 78 MB of them by pages of files.
    assert cgroups.available_memory(root) == 6 * 2**30 - 10_862_592


def test_a_process_in_the_root_group_has_no_limit(tmp_path):
    root = shutil.copytree(MACHINES / 'cgroup_v1', tmp_path / 'root')
    lines = (root / 'proc/self/cgroup').read_text().replace('/job_7/step_0', '/')
    write_files(root, {'proc/self/cgroup': lines})
    limits = [cgroups.cpu_limit, cgroups.memory_limit, cgroups.available_memory]
    assert [limit(root) for limit in limits] == [None, None, None]
    assert cgroups.throttled_seconds(root) == 0.0


def test_free_memory_of_a_group_includes_the_pages_of_files(tmp_path, monkeypatch):
    use_host(monkeypatch)
    root = shutil.copytree(MACHINES / 'container', tmp_path / 'container')
    assert cgroups.available_memory(root) == 2**32
    pages = 'inactive_file 1000\nactive_file 24\n'
    used = {'memory.current': f'{3 * 2**30}\n', 'memory.stat': pages}
    write_files(root / 'sys/fs/cgroup', used)
    assert cgroups.available_memory(root) == free_memory(root) == 2**30 + 1024
    use_host(monkeypatch, memory_bytes=1024)
    assert free_memory(root) == 1024
    (root / 'proc/self/cgroup').unlink()
    assert cgroups.available_memory(root) is None


def test_without_these_files_there_is_no_limit(tmp_path):
    facts = describe_machine(root=tmp_path)
    assert facts['num_cores'] == os.cpu_count()
    for name in ('num_sockets', 'cgroup_cpus', 'governor', 'is_virtual'):
        assert facts[name] is None
    json.dumps(facts, allow_nan=False)


def test_this_machine_is_described_as_by_its_kernel():
    facts, cores = describe_machine(), sorted(os.sched_getaffinity(0))
    assert (facts['hostname'], facts['kernel']) == os.uname()[1:3]
    assert facts['affinity'] == cores
    assert facts['memory_bytes'] == psutil.virtual_memory().total
    assert facts['load_average'] == pytest.approx(os.getloadavg(), abs=1)
    assert all(load == round(load, 2) for load in facts['load_average'] or ())
    versions = facts['versions']
    assert (versions['python'], versions['numpy']) == (platform.python_version(), np.__version__)
    assert facts['gpus'] or versions['cuda'] is versions['cudnn'] is versions['nccl'] is None


@pytest.mark.parametrize(
    'device',
    [
        'dev/nvidia0',
        'proc/driver/nvidia/gpus/0000:01:00.0/information',
        'usr/lib/wsl/lib/libcuda.so.1',
    ],
)
def test_a_gpu_is_recognised_by_its_drivers_files(device, tmp_path):
    other_files = dict.fromkeys(('dev/kfd', 'dev/nvidiactl', 'dev/dxg'), '')
    assert not has_nvidia_gpu({}, write_files(tmp_path, other_files))
    root = write_files(tmp_path, {device: ''})
    assert has_nvidia_gpu({}, root)
    assert has_nvidia_gpu({'CUDA_VISIBLE_DEVICES': '1'}, root)
    for hidden in ('', '-1', 'NoDevFiles'):
        assert not has_nvidia_gpu({'CUDA_VISIBLE_DEVICES': hidden}, root)


def fingerprint_with(root: Path = Path('/nothing'), uuid: str = 'GPU-1', **changes: Any) -> str:
    machine = {
        'hostname': 'epyc',
        'cpu_model': 'EPYC',
        'num_cores': 96,
        'memory_bytes': 2**38,
        'gpus': [{'name': 'A100', 'uuid': uuid}],
    }
    return fingerprint(machine | changes, root)


def test_the_fingerprint_tells_machines_apart_and_lasts():
    first = fingerprint_with()
    assert len(first) == 12
    # Another kernel leaves a little less memory.
    assert first == fingerprint_with(memory_bytes=2**38 - 6_000_000)
    assert first == fingerprint_with(uuid='GPU-2')
    other_machines: list[dict[str, Any]] = [
        {'hostname': 'another'},
        {'num_cores': 48},
        {'cpu_model': 'Xeon'},
        {'gpus': []},
    ]
    for changes in other_machines:
        assert fingerprint_with(**changes) != first, changes


@pytest.mark.parametrize(
    ('runtime', 'file', 'names'),
    [
        ('docker', 'proc/self/mountinfo', ('3f2a9c81d0be', '00aa11bb22cc')),
        ('podman', 'proc/self/mountinfo', ('3f2a9c81d0bf', '00aa11bb22cd')),
        ('kubernetes', 'etc/hosts', ('train-7d9c5b6f4d-x2x8z', 'train-7d9c5b6f4d-9b2kq')),
    ],
)
def test_a_name_that_a_container_runtime_generated_is_no_part_of_the_fingerprint(
    tmp_path, runtime, file, names
):
    text = (MACHINES / runtime / file).read_text()
    root, other = (
        write_files(tmp_path / name, {file: text.replace('NAME', name)}) for name in names
    )
    generated = fingerprint_with(root, hostname=names[0])
    assert generated == fingerprint_with(other, hostname=names[1])
    # Names that users choose tell machines apart, and so do GPUs.
    user_names = ('bench-1', 'bench-2', 'deadbeef0000')
    fingerprints = {fingerprint_with(root, hostname=name) for name in user_names}
    fingerprints.add(fingerprint_with(root, hostname=names[0], uuid='GPU-2'))
    assert len(fingerprints | {generated}) == 5


def test_a_name_of_a_host_counts_however_generated_it_looks():
    names = ['rack-22475', 'rack-22476', 'node-x2x8z', 'node-9b2kq', '3f' * 32, '4f' * 32]
    # These are addresses of network cards.
    names += ['0025904c1f2a', '0025904c1f2b']
    for root in (Path('/nothing'), MACHINES / 'kubernetes_host_network'):
        assert len({fingerprint_with(root, hostname=name) for name in names}) == len(names)


def test_only_variables_that_change_the_computation_are_recorded():
    relevant = (
        'TF_XLA_FLAGS OMP_NUM_THREADS KMP_AFFINITY GOMP_CPU_AFFINITY CUDA_VISIBLE_DEVICES '
        'NCCL_DEBUG XLA_FLAGS LD_PRELOAD MALLOC_ARENA_MAX HOROVOD_FUSION_THRESHOLD MALLOC_CHECK_ '
        'GRPC_VERBOSITY GLIBC_TUNABLES TF_GPU_HOST_MEM_LIMIT_IN_MB TF_NUM_INTRAOP_THREADS '
        'NCCL_IB_ADDR_RANGE NVIDIA_TF32_OVERRIDE'
    )
    irrelevant = (
        'HOME AWS_SECRET_ACCESS_KEY MY_TF_TOKEN CUDA_VISIBLE_DEVICES_OLD LD '
        # Launchers set these to other values in each run, so each run would be another setting.
        'TF_CONFIG NCCL_COMM_ID HOROVOD_RANK HOROVOD_LOCAL_SIZE HOROVOD_HOSTNAME '
        'HOROVOD_GLOO_RENDEZVOUS_PORT '
        # Secrets of other programs that begin alike.
        'TF_VAR_db_password TF_TOKEN_app_terraform_io HOROVOD_SECRET_KEY TF_VAR_DB TF_CLI_ARGS '
        'TF_ENCRYPTION TF_HTTP_USERNAME GRPC_PROXY '
        # Variables that Kubernetes sets for services of these names.
        'TF_SERVING_SERVICE_HOST TF_SERVING_PORT GRPC_PORT_80_TCP_ADDR'
    )
    prefixes = 'KMP XLA ONEDNN GOMP NCCL OMP TF GRPC MALLOC'
    secrets = 'TOKEN API_KEY CLIENT_SECRET PASSWORD DB_PASS CREDENTIALS AUTH_HEADER'
    names = [*relevant.split(), *irrelevant.split()]
    names += [f'{prefix}_{secret}' for prefix in prefixes.split() for secret in secrets.split()]
    assert [*library_variables(dict.fromkeys(names, '1'))] == sorted(relevant.split())


def test_the_commit_is_from_the_programs_checkout(tmp_path):
    def git(*arguments: str) -> str:
        who = ('-c', 'user.name=A', '-c', 'user.email=a@example.org')
        command = ['git', '-C', str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git('init', '-q')
    assert git_commit(tmp_path) is None
    git_commit.cache_clear()
    (tmp_path / 'file').touch()
    git('add', 'file')
    git('commit', '-q', '-m', 'first')
    git('tag', 'v1')
    assert git_commit(tmp_path) == (commit := git('rev-parse', 'HEAD'))
    git_commit.cache_clear()
    (tmp_path / 'file').write_text('changed')
    assert git_commit(tmp_path) == f'{commit}-dirty'
    assert short_commit(f'{commit}-dirty') == f'{commit[:12]}-dirty'
    installed = tmp_path / 'venv' / 'site-packages'
    installed.mkdir(parents=True)
    assert git_commit(installed) is None


def test_unknown_values_of_a_gpu_are_none(tmp_path, monkeypatch):
    library = use_pynvml(monkeypatch, tmp_path, 3)

    def unknown(gpu: int = 0) -> object:
        raise library.NVMLError

    def power_limit(gpu: int) -> object:
        return unknown() if gpu else 400_000

    def handle(index: int) -> object:
        return unknown() if index == 2 else index

    monkeypatch.setattr(library, 'nvmlDeviceGetEnforcedPowerLimit', power_limit)
    # The driver has lost the third GPU.
    monkeypatch.setattr(library, 'nvmlDeviceGetHandleByIndex', handle)
    gpus, _ = describe_gpus()
    assert gpus[1:] == [gpus[0] | {'uuid': 'GPU-15a2', 'power_limit_watts': None}]
    assert format_machine(describe_machine())[1].startswith(
        'NVIDIA A100-SXM4-40GB x 2, 40 GiB each, compute capability 8.0; driver 550.54.15'
    )
    monkeypatch.setattr(library, 'nvmlInit', unknown)
    assert describe_gpus() == ([], None)
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    assert describe_gpus() == ([], None)


@pytest.mark.skipif(shutil.which('cc') is None, reason='no C compiler is here')
def test_gpus_their_energy_and_noise_are_found_with_nvml(tmp_path):
    code = """
import json
from tf_cnn.machine.gpu_meter import GpuMeter
from tf_cnn.machine.gpus import describe_gpus
from tf_cnn.machine.meters import EnergyMeter
def energy(devices):
    meter = EnergyMeter('gpu', {'CUDA_VISIBLE_DEVICES': devices})
    meter.start()
    return meter.stop()
noise = GpuMeter(2, {}, sample_secs=3600)
noise.start()
noise.sample()
print(json.dumps([describe_gpus(), [*map(energy, ['0', 'GPU-0', '0,1', ''])], noise.stop()]))
"""
    # For two GPUs.
    source = (ROOT / 'tests/support/nvml_stand_in.c').read_text()
    compile_library(tmp_path, 'libnvidia-ml.so.1', source)
    output = run_python(code, LD_LIBRARY_PATH=str(tmp_path)).out
    (gpus, driver), energies, noise = json.loads(output)
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
        'default_power_limit_watts': 500.0,
    }
    # The second GPU does not count its energy.
    assert energies == [['NVML', 2.5], ['NVML', 2.5], None, None]
    # Only the first GPU has a thermometer.
    assert (noise['gpu_clock_share'], noise['gpu_max_celsius']) == (0.5, 71)
    assert (noise['gpu_power_cap_share'], noise['gpu_other_processes']) == (1.0, 1)


def test_visible_gpus_are_chosen_as_cuda_does():
    uuids = ['GPU-05a2', 'GPU-15a2', 'GPU-15ff']
    assert visible_indices(uuids, {}) == [0, 1, 2]
    for visible, expected in {
        '2,0': [2, 0],
        '': [],
        '-1': [],
        '1,7,0': [1],
        'GPU-15f,GPU-0': [2, 0],
        'GPU-15': [],
    }.items():
        assert visible_indices(uuids, {'CUDA_VISIBLE_DEVICES': visible}) == expected, visible

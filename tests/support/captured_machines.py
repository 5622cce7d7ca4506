"""The files in which Linux describes some machines, as captured there, for tests that read them."""

from collections.abc import Mapping
from pathlib import Path

EPYC_FLAGS = (
    'fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx '
    'mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl nonstop_tsc cpuid extd_apicid amd_dcm aperfmperf pni '
    'pclmulqdq monitor ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm cmp_legacy svm abm '
    'sse4a misalignsse 3dnowprefetch topoext fsgsbase bmi1 avx2 smep bmi2 rdseed adx smap clflushopt sha_ni xsaveopt'
)
GRAVITON_FEATURES = (
    'fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs'
)
# Version 2 in a container has a namespace of its own; version 1 shows the groups of the host.
CONTAINER_V2 = {
    'proc/self/cgroup': '0::/\n',
    'proc/self/mountinfo': (
        '612 611 0:53 / / rw,relatime - overlay overlay rw,lowerdir=/l\n'
        '620 612 0:27 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n'
    ),
    'sys/fs/cgroup/cpu.max': '150000 100000\n',
    'sys/fs/cgroup/memory.max': '4294967296\n',
    'sys/fs/cgroup/cpu.stat': 'usage_usec 5000000\nnr_periods 100\nnr_throttled 40\nthrottled_usec 2500000\n',
}
CONTAINER_V1 = {
    'proc/self/cgroup': (
        '12:memory:/docker/4f2a\n11:cpuset:/docker/4f2a\n4:cpu,cpuacct:/docker/4f2a\n1:name=systemd:/docker/4f2a\n0::/\n'
    ),
    'proc/self/mountinfo': (
        '801 800 0:30 /docker/4f2a /sys/fs/cgroup/systemd ro - cgroup cgroup rw,xattr,name=systemd\n'
        '804 800 0:33 /docker/4f2a /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct\n'
        '807 800 0:36 /docker/4f2a /sys/fs/cgroup/memory ro,nosuid master:19 - cgroup cgroup rw,memory\n'
    ),
    'sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us': '150000\n',
    'sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us': '100000\n',
    'sys/fs/cgroup/cpu,cpuacct/cpu.stat': 'nr_periods 100\nnr_throttled 40\nthrottled_time 2500000000\n',
    'sys/fs/cgroup/cpu,cpuacct/cpuacct.usage': '5000000000\n',
    'sys/fs/cgroup/memory/memory.limit_in_bytes': '4294967296\n',
}
# A batch system limits the job, and the process is in a group of its step, which has no limit of its own.
BATCH_JOB = {
    'proc/self/cgroup': '0::/system.slice/job_7/step_0\n',
    'proc/self/mountinfo': '34 23 0:29 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n',
    'sys/fs/cgroup/system.slice/cpu.max': 'max 100000\n',
    'sys/fs/cgroup/system.slice/job_7/cpu.max': '400000 100000\n',
    'sys/fs/cgroup/system.slice/job_7/memory.max': '8589934592\n',
    'sys/fs/cgroup/system.slice/job_7/cpu.stat': 'usage_usec 9000000\nthrottled_usec 700000\n',
    'sys/fs/cgroup/system.slice/job_7/step_0/cpu.max': 'max 100000\n',
    'sys/fs/cgroup/system.slice/job_7/step_0/memory.max': 'max\n',
    'sys/fs/cgroup/system.slice/job_7/step_0/cpu.stat': 'usage_usec 8000000\nthrottled_usec 0\n',
}


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Writes texts to these paths under a folder, and returns the folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding='utf-8')
    return root


def epyc_2_sockets() -> dict[str, str]:
    """A server with two AMD EPYC 7451, 24 cores with two threads each."""
    files = _common('epyc', 263_846_044, '0-95') | {
        'proc/cpuinfo': ''.join(
            f'processor\t: {i}\nvendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 1\n'
            f'model name\t: AMD EPYC 7451 24-Core Processor\nphysical id\t: {i // 24 % 2}\nsiblings\t: 48\n'
            f'core id\t\t: {i % 24}\ncpu cores\t: 24\nflags\t\t: {EPYC_FLAGS}\nbogomips\t: 4590.83\n\n'
            for i in range(96)
        ),
        'sys/class/dmi/id/sys_vendor': 'Supermicro\n',
        'sys/class/dmi/id/product_name': 'AS -2023US-TR4\n',
    }
    for i in range(96):
        topology = f'sys/devices/system/cpu/cpu{i}/topology'
        files[f'{topology}/thread_siblings_list'] = f'{i % 48},{i % 48 + 48}\n'
        files[f'{topology}/core_siblings_list'] = '0-23,48-71\n' if i % 48 < 24 else '24-47,72-95\n'
        files[f'sys/devices/system/cpu/cpufreq/policy{i}/scaling_governor'] = 'performance\n'
    return files


def graviton() -> dict[str, str]:
    """A virtual machine with 16 cores of AWS Graviton2, an ARM processor."""
    files = _common('ip-172-31-4-9', 65_094_204, '0-15') | {
        'proc/cpuinfo': ''.join(
            f'processor\t: {i}\nBogoMIPS\t: 243.75\nFeatures\t: {GRAVITON_FEATURES}\nCPU implementer\t: 0x41\n'
            'CPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n'
            for i in range(16)
        ),
        'sys/class/dmi/id/sys_vendor': 'Amazon EC2\n',
        'sys/class/dmi/id/product_name': 'm6g.4xlarge\n',
    }
    for i in range(16):
        topology = f'sys/devices/system/cpu/cpu{i}/topology'
        files[f'{topology}/thread_siblings_list'] = f'{i}\n'
        files[f'{topology}/core_siblings_list'] = '0-15\n'
    return files


def _common(hostname: str, kibibytes: int, cores: str) -> dict[str, str]:
    return {
        'etc/os-release': 'NAME="Ubuntu"\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\nID=ubuntu\n',
        'proc/meminfo': f'MemTotal:       {kibibytes} kB\nMemFree:        1000000 kB\n',
        'proc/loadavg': '0.25 0.50 0.75 1/900 12345\n',
        'proc/self/status': f'Name:\tpython\nVmHWM:\t  123456 kB\nCpus_allowed:\tffff\nCpus_allowed_list:\t{cores}\n',
        'proc/sys/kernel/hostname': f'{hostname}\n',
        'proc/sys/kernel/osrelease': '5.15.0-105-generic\n',
    }

"""The processors of a machine. Does not import TensorFlow."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from machine.kernel_files import read_text

# The features that make products of matrices fast: vectors, fused multiply-adds, 16-bit formats, tiles.
_FEATURES = re.compile(r'ssse3|sse4.*|avx.*|fma4?|f16c|amx.*|asimd.*|neon.*|sve.*|sme(?!p).*|bf16|i8mm|fphp|vsx')
# ARM processors report their maker and part as numbers. These are the names of the parts in servers and boards, as
# lscpu of util-linux has them (sys-utils/lscpu-arm.c).
_ARM_PARTS: Mapping[tuple[int, int], str] = {
    (0x41, 0xD03): 'ARM Cortex-A53',
    (0x41, 0xD07): 'ARM Cortex-A57',
    (0x41, 0xD08): 'ARM Cortex-A72',
    (0x41, 0xD0B): 'ARM Cortex-A76',
    (0x41, 0xD0C): 'ARM Neoverse-N1',
    (0x41, 0xD40): 'ARM Neoverse-V1',
    (0x41, 0xD42): 'ARM Cortex-A78AE',
    (0x41, 0xD49): 'ARM Neoverse-N2',
    (0x41, 0xD4F): 'ARM Neoverse-V2',
    (0x42, 0x516): 'Broadcom ThunderX2',
    (0x43, 0x0A1): 'Cavium ThunderX-88XX',
    (0x43, 0x0AF): 'Cavium ThunderX2-99xx',
    (0x46, 0x001): 'FUJITSU A64FX',
    (0x48, 0xD01): 'HiSilicon Kunpeng-920',
    (0x4E, 0x004): 'NVIDIA Carmel',
    (0xC0, 0xAC3): 'Ampere Ampere-1',
    (0xC0, 0xAC4): 'Ampere Ampere-1a',
}
# The names that firmware gives to virtual machines.
_VIRTUAL = re.compile(r'KVM|QEMU|VMware|VirtualBox|Virtual Machine|HVM domU|Google Compute|OpenStack|Bochs|Parallels')


def processor_facts(root: Path) -> dict[str, Any]:
    """Returns the processor's part of the facts of a machine; unknown values are None, features an empty list."""
    processors = _processors(root)
    first = processors[0] if processors else {}
    features = (first.get('flags') or first.get('Features') or '').split()
    sockets = (root / 'sys/devices/system/cpu').glob('cpu[0-9]*/topology/core_siblings_list')
    return {
        # Some boards have fast and slow processors.
        'cpu_model': ' + '.join(dict.fromkeys(filter(None, map(_model, processors)))) or None,
        'num_cores': psutil.cpu_count(),
        'num_physical_cores': psutil.cpu_count(logical=False),
        'num_sockets': len({read_text(path) for path in sockets} - {''}) or None,
        'cpu_features': sorted(name for name in features if _FEATURES.fullmatch(name)),
        'is_virtual': _is_virtual(features, root),
        'governor': _governor(root),
    }


def usable_cores() -> list[int] | None:
    """Returns the logical cores that this process may use; None on systems that bind no process to cores."""
    return psutil.Process().cpu_affinity() if hasattr(psutil.Process, 'cpu_affinity') else None


def _processors(root: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for line in read_text(root / 'proc/cpuinfo').splitlines():
        name, _, value = (part.strip() for part in line.partition(':'))
        if name == 'processor' and value.isdigit():
            found.append({})
        if name and found:
            found[-1][name] = value
    return found


def _model(rows: Mapping[str, str]) -> str | None:
    maker, part = (_number(rows.get(name)) for name in ('CPU implementer', 'CPU part'))
    if maker is not None and part is not None:
        return _ARM_PARTS.get((maker, part), f'ARM implementer {maker:#x} part {part:#x}')
    return ' '.join((rows.get('model name') or rows.get('cpu') or '').split()) or None


def _number(text: str | None) -> int | None:
    try:
        return int(text or '', 0)
    except ValueError:
        return None


def _is_virtual(features: Iterable[str], root: Path) -> bool | None:
    """Whether this is a virtual machine (a container on a real machine is not); None if unknown."""
    if 'hypervisor' in features or read_text(root / 'sys/hypervisor/type'):
        return True
    firmware = ' '.join(read_text(root / f'sys/class/dmi/id/{name}') for name in ('sys_vendor', 'product_name')).strip()
    if _VIRTUAL.search(firmware):
        return True
    if firmware.startswith('Amazon EC2'):
        # Graviton has no flag for hypervisors; instances without a hypervisor have names like c7g.metal.
        return '.metal' not in firmware
    if firmware or 'sse2' in features:
        return False
    return None


def _governor(root: Path) -> str | None:
    """Returns how the clock of the processors is chosen; several ways are listed: 'performance, powersave'."""
    policies = (root / 'sys/devices/system/cpu/cpufreq').glob('policy*/scaling_governor')
    return ', '.join(sorted({governor for path in policies if (governor := read_text(path))})) or None

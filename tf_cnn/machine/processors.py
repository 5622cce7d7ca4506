"""The processors of a machine. Does not import TensorFlow."""

import os
import re
from pathlib import Path
from typing import Any

import psutil

from tf_cnn.system.kernel_files import read_text

# Rows of /proc/cpuinfo. ARM calls the flags Features, and does not name the model.
_MODEL = re.compile(r'^model name\s*:\s*(.+)$', re.MULTILINE)
_FLAGS = re.compile(r'^(?:flags|Features)\s*:\s*(.+)$', re.MULTILINE)
# The features that make products of matrices fast: vectors, fused multiply-adds, 16-bit formats,
# tiles.
_FEATURES = re.compile(
    r'ssse3|sse4.*|avx.*|fma4?|f16c|amx.*|asimd.*|neon.*|sve.*|sme(?!p).*|bf16|i8mm|fphp'
)
# Linux's names of the features for 16-bit arithmetic on x86 and ARM. F16C only converts.
_ARITHMETIC = {
    'fp16': {'avx512_fp16', 'amx_fp16', 'fphp'},
    'bf16': {'avx512_bf16', 'amx_bf16', 'bf16'},
}


def has_native_arithmetic(precision: str, root: Path) -> bool:
    """Returns whether the processor adds and multiplies in fp16, or multiplies in bf16; True if
    that is unknown.
    """
    features = _features(read_text(root / 'proc/cpuinfo'))
    return not features or not _ARITHMETIC[precision].isdisjoint(features)


def _features(cpuinfo: str) -> list[str]:
    return match[1].split() if (match := _FLAGS.search(cpuinfo)) else []


def describe_processor(root: Path) -> dict[str, Any]:
    """Returns the values of the processor in the object "machine" of a result; unknown values are
    None, unknown features an empty list.
    """
    text = read_text(root / 'proc/cpuinfo')
    features = _features(text)
    sockets = (root / 'sys/devices/system/cpu').glob('cpu[0-9]*/topology/core_siblings_list')

    def policies_value(name: str) -> str | None:
        # A policy is the frequency of one core, or of several.
        paths = (root / 'sys/devices/system/cpu/cpufreq').glob(f'policy*/{name}')
        return ', '.join(sorted({read_text(path) for path in paths} - {''})) or None

    return {
        'cpu_model': ' + '.join(
            dict.fromkeys(' '.join(model.split()) for model in _MODEL.findall(text))
        )
        or None,
        'num_cores': psutil.cpu_count(),
        'num_physical_cores': psutil.cpu_count(logical=False),
        'num_sockets': len({read_text(path) for path in sockets} - {''}) or None,
        'cpu_features': sorted(name for name in features if _FEATURES.fullmatch(name)),
        # On x86, every hypervisor sets this flag.
        'is_virtual': 'hypervisor' in features if 'sse2' in features else None,
        'governor': policies_value('scaling_governor'),
        'frequency_driver': policies_value('scaling_driver'),
        'energy_preference': policies_value('energy_performance_preference'),
    }


def process_cores() -> tuple[int, ...]:
    """Returns the logical cores that this process may use, sorted; all on systems that bind no
    process to cores.
    """
    return tuple(sorted(usable_cores() or range(os.cpu_count() or 1)))


def usable_cores() -> list[int] | None:
    """Returns the logical cores that this process may use; None on systems that bind no process to
    cores.
    """
    return psutil.Process().cpu_affinity() if hasattr(psutil.Process, 'cpu_affinity') else None

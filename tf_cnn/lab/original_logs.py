"""Reads the printed output of one run of this program, or of the original tf_cnn_benchmarks.

Logs in the field have time stamps, ranks or pod names before each line, so the parser searches each
line for a label. This takes time linear in the line's length.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_cnn.results.console import IN_TF32
from tf_cnn.results.document import AnyResult, Result
from tf_cnn.system.errors import UsageError, format_flag

_LABELS = (
    'TensorFlow|Model|Dataset|Mode|Batch size|Devices|Data format|Precision|Optimizer|Variables|'
    'AllReduce|Staged vars|Workers'
)
_BANNER_LINE = re.compile(rf'(?<![A-Za-z])({_LABELS}):\s+(\S.*?)\s*$', re.MULTILINE)
_PER_DEVICE = re.compile(r'(?<![\d.])(\d+) per device')
_STEP = re.compile(r'\d\s+images/sec: (\S+) \+/- ')
_TOTAL = re.compile(r'total images/sec: *(.*?)\s*$', re.MULTILINE)
_ON_SERVER = re.compile(r'(?<![A-Za-z])On ps (\d+):')
_TASK = re.compile(r'/task:?(\d+)')


@dataclass(frozen=True)
class Log:
    """What a log says about its run, with the attributes of a Result that `compare` uses.

    Attributes:
      flags: the flags that the banner shows, by name.
      workload: see Result.workload; an unknown value is None.
      images_per_second: the total, or the rate of the last step line if the log ends before.
      tensorflow: the version, such as 1.13; None if unknown.
      reason: why the log is incomplete; None if it is complete.
    """

    source: str
    id: str
    shape: str
    flags: Mapping[str, Any]
    workload: Mapping[str, object]
    images_per_second: float
    tensorflow: str | None
    reason: str | None

    unit: ClassVar[str] = Result.unit
    images: ClassVar[float] = math.nan
    started_at: ClassVar[str | None] = None
    program: ClassVar[None] = None
    limits: ClassVar[Mapping[str, object]] = {}
    environment: ClassVar[Mapping[str, str]] = {}

    @property
    def is_complete(self) -> bool:
        return self.reason is None

    @property
    def given_flags(self) -> Mapping[str, str]:
        return {name: format_flag(name, value) for name, value in self.flags.items()}

    @property
    def batch_size(self) -> int | None:
        return self.flags.get('batch_size')

    @property
    def machine(self) -> Mapping[str, Any]:
        return {'versions': {'tensorflow': self.tensorflow}}


def _read_model(banner: Mapping[str, str]) -> str | None:
    """Returns the model's name; the original's banner has other names for some of its models."""
    name = re.sub(
        r'^official_resnet_(\d+)(?:_v1|(_v2))$', r'official_resnet\1\2', banner.get('Model', '')
    )
    return 'lenet' if name == 'lenet5' else name or None


# What `compare` compares.
Run = AnyResult | Log


def documents(runs: Iterable[Run]) -> list[AnyResult]:
    """Returns the runs with known noise."""
    return [run for run in runs if not isinstance(run, Log)]


def read_log(text: str, source: str) -> Log:
    """Reads the log of one run; the log may contain lines of other programs.

    The last total counts: an evaluation during training may print an earlier one. Of the tasks of a
    job, the first banner counts.

    Raises UsageError if the log has neither step lines nor a total, if its total is not a number,
    or if it has runs of several models.
    """
    digest = hashlib.sha256(text.encode(errors='replace')).hexdigest()[:24]
    text = '\n'.join(text.splitlines())
    banner: dict[str, str] = {}
    # Other programs print lines that look like a banner (lscpu: Model) before it.
    for name, value in _BANNER_LINE.findall(text, max(text.find('TensorFlow:'), 0)):
        if banner.setdefault(name, value) != value and name in ('Model', 'Variables'):
            raise UsageError(f'{source}: it has several runs; give a file for each run')
    totals, rates = _TOTAL.findall(text), _STEP.findall(text)
    try:
        rate = float((totals or rates)[-1])
    except (IndexError, ValueError):
        raise UsageError(
            f'{source}: it is no result, and no log of a run: it has no line with a number after '
            '"total images/sec:"; give a file that --result_file wrote, or the text that a run '
            'printed'
        ) from None
    per_device = _PER_DEVICE.search(text)
    batch_size = int(per_device[1]) if per_device else None
    shape = _shape(banner, batch_size, len({*_ON_SERVER.findall(text)}))
    return Log(
        source,
        digest,
        shape,
        _read_flags(banner, batch_size),
        _read_workload(banner),
        rate,
        banner.get('TensorFlow'),
        None if totals else 'the log has no line "total images/sec:"',
    )


def _devices(banner: Mapping[str, str]) -> list[str]:
    return re.findall(r"'([^']*)'", banner.get('Devices', ''))


def _shape(banner: Mapping[str, str], batch_size: int | None, num_servers: int) -> str:
    """Returns W*G+P; ? for an unknown number. Horovod lists the devices of all workers."""
    devices, workers = _devices(banner), banner.get('Workers', '').partition(' ')[0]
    tasks = {match[1] for device in devices if (match := _TASK.search(device))}
    per_worker = len(devices)
    if devices and devices[0].startswith('horovod/'):
        workers, per_worker = str(len(devices)), 1
    elif len(tasks) > 1:
        workers, per_worker = str(len(tasks)), len(devices) // len(tasks)
    elif not workers and devices and batch_size:
        global_size = int(banner.get('Batch size', '0').partition(' ')[0])
        workers = str(max(global_size // (batch_size * len(devices)), 1))
    servers = f'+{num_servers}' if num_servers else ''
    return f'{workers or "?"}*{per_worker or "?"}{servers}'


def _read_flags(banner: Mapping[str, str], batch_size: int | None) -> dict[str, object]:
    precision, devices = banner.get('Precision', 'fp32'), _devices(banner)
    flags = {
        'model': _read_model(banner),
        'batch_size': batch_size,
        'variable_update': banner.get('Variables'),
        'optimizer': banner.get('Optimizer'),
        'data_format': banner.get('Data format', '').partition(' ')[0] or None,
        'precision': precision.partition(' ')[0] if banner else None,
        # A banner without TF32 may come from a version that does not report it.
        'tf32': precision.endswith(IN_TF32) or None,
        'all_reduce_spec': None if (spec := banner.get('AllReduce')) == 'None' else spec,
        # The line stands only in the banner of a staged run.
        'staged_vars': banner.get('Staged vars') == 'True' if banner else None,
        'device': devices[0].rpartition('/')[2].partition(':')[0].lower() if devices else None,
        'num_gpus': len(devices) or None,
    }
    return {name: value for name, value in flags.items() if value is not None}


def _read_workload(banner: Mapping[str, str]) -> dict[str, object]:
    data_set, _, kind = banner.get('Dataset', '').partition(' (')
    # 'training', 'forward-only', 'evaluation'; in some versions 'BenchmarkMode.TRAIN' and the like.
    mode, roles = banner.get('Mode', '').lower(), ('forward-only', 'evaluation', 'training')
    return {
        'model': _read_model(banner),
        'data_set': None if data_set in ('', 'synthetic') else data_set,
        'is_synthetic': kind.startswith('synthetic') if kind else data_set == 'synthetic' or None,
        'image_size': None,
        'role': next((role for role in roles if role.partition('-')[0][:4] in mode), None),
    }

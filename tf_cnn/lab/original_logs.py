"""Reads the printed output of one run of this program, or of the original tf_cnn_benchmarks.

Logs in the field have time stamps, ranks or pod names before each line, so the parser searches each
line for a label. This takes time linear in the line's length.
"""

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from tf_cnn.managers.modes import MODES
from tf_cnn.results.console import IN_TF32
from tf_cnn.results.document import AnyResult, Result
from tf_cnn.system.errors import UsageError, format_flag, plural

_LABELS = (
    'TensorFlow',
    'Model',
    'Dataset',
    'Mode',
    'SingleSess',
    'Batch size',
    'Num batches',
    'Num epochs',
    'Devices',
    'Data format',
    'Precision',
    'Layout optimizer',
    'Optimizer',
    'Variables',
    'AllReduce',
    'Sync',
    'Staged vars',
    'Workers',
)
_BANNER_LINE = re.compile(rf'(?<![A-Za-z])({"|".join(_LABELS)}):\s+(\S.*)')
_NUMBER = r'\d{1,12}(?:\.\d{1,12})?'
# A number with separators between its digits, or with a unit, is not read in part.
_RATE = re.compile(rf'\s*({_NUMBER}|[-+]?(?:nan|inf))(?!\w|\W\d)', re.IGNORECASE)
_SPREAD = re.compile(rf'\s*({_NUMBER}) \+/- ({_NUMBER}) \(jitter = ({_NUMBER})\)')
_PER_DEVICE = re.compile(rf'(?<![\d.])({_NUMBER}) per device')
_ON_SERVER = re.compile(r'(?<![A-Za-z])On ps (\d+):')
_TASK = re.compile(r'/task:?(\d+)')
_BATCH_SIZE_OF_A_DEVICE = 'per device'


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
    flags: Mapping[str, object]
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
        size = self.flags.get('batch_size')
        return size if isinstance(size, int) else None

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
AnyRun = TypeVar('AnyRun', bound=Run)


def documents(runs: Iterable[Run]) -> list[AnyResult]:
    """Returns the runs with known noise."""
    return [run for run in runs if not isinstance(run, Log)]


def read_log(text: str, source: str) -> Log:
    """Reads the log of one run; the log may contain lines of other programs.

    The tasks of one job are one run, whether their lines are mixed or follow each other.

    Raises UsageError if the log has neither step lines nor a total, if its total is not a number,
    or if it has several runs.
    """
    banners, num_servers, rates, total = _search_lines(text.splitlines())
    banner = {name: next(iter(values)) for name, values in banners.items()}
    devices = re.findall(r"'([^']*)'", banner.get('Devices', ''))
    num_workers, num_devices = _shape(banner, devices)
    if (num_runs := _count_runs(banners, banner, num_workers or 1)) > 1:
        raise UsageError(
            f'{source}: it has the output of {plural(num_runs, "run")}; give a file for each run'
        )
    rate = _read_rate(total, rates, num_workers or math.inf, source)
    shape = f'{num_workers or "?"}*{num_devices or "?"}'
    return Log(
        source,
        hashlib.sha256(text.encode(errors='replace')).hexdigest()[:24],
        f'{shape}+{num_servers}' if num_servers else shape,
        _read_flags(banner, devices, num_devices),
        _read_workload(banner),
        rate,
        banner.get('TensorFlow') or None,
        None if total is not None else 'the log ends before its total',
    )


def _search_lines(
    lines: Iterable[str],
) -> tuple[dict[str, Counter[str]], int, list[float], str | None]:
    """Returns (banners, number of parameter servers, rates of the step lines, last total).

    banners: how often each value of each label appears, since each task prints a banner.
    """
    banners: dict[str, Counter[str]] = defaultdict(Counter)
    servers: set[str] = set()
    version, rates, total = '', list[float](), None
    for line in lines:
        before, label, after = line.partition('images/sec:')
        before = before.rstrip()
        if label and before.endswith('total'):
            # An evaluation during training may print an earlier total; the last one counts.
            if match := _RATE.match(after):
                total = match[1]
            elif re.search(r'\d', after):
                total = after.strip()
        elif label:
            if before[-1:].isdigit() and (match := _SPREAD.match(after)):
                rates.append(float(match[1]))
        elif match := _BANNER_LINE.search(line):
            name, value = match[1], match[2].strip()
            if name == 'TensorFlow':
                version = value
            elif name == 'Model' and len(value.split()) == 1:
                # Lines of another program may have been read as a banner before the first step.
                if value not in banners['Model'] and not rates:
                    banners.clear()
                banners['Model'][value] += 1
                banners['TensorFlow'][version] += 1
            elif name != 'Model' and banners:
                banners[name][value] += 1
        elif banners and (match := _PER_DEVICE.search(line)):
            banners[_BATCH_SIZE_OF_A_DEVICE][match[1]] += 1
        elif match := _ON_SERVER.search(line):
            servers.add(match[1])
    return banners, len(servers), rates, total


def _read_rate(total: str | None, rates: Sequence[float], num_workers: float, source: str) -> float:
    """Returns the total, or without one the last rate of a step line.

    Raises UsageError unless it is a rate near the rates of the step lines. A step line has the rate
    of one worker or of all.
    """
    if total is None and not rates:
        raise UsageError(
            f'{source}: it is neither a result nor a log with images/sec in it; give a file that '
            '--result_file wrote, or the text that a run printed'
        )
    rate = rates[-1] if rates else math.nan
    if total is not None:
        rate = float(total) if _RATE.fullmatch(total) else math.nan
    if not math.isfinite(rate):
        raise UsageError(
            f'{source}: its total images/sec is {total}, which is not a plain number such as '
            '2643.67; give the log of another run, or mend the line'
        )
    if rates and not min(rates) / 2 <= rate <= 2 * num_workers * max(rates):
        raise UsageError(
            f'{source}: its total images/sec is {total}, and its step lines have '
            f'{min(rates):g} to {max(rates):g}; give the log of another run'
        )
    return rate


def _read_flags(
    banner: Mapping[str, str], devices: Sequence[str], num_devices: int | None
) -> dict[str, object]:
    precision = banner.get('Precision', 'fp32')
    batch_size = _first_number(banner.get(_BATCH_SIZE_OF_A_DEVICE))
    flags = {
        'model': _read_model(banner),
        'batch_size': None if batch_size is None else int(batch_size),
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
        'num_gpus': num_devices,
    }
    return {name: value for name, value in flags.items() if value is not None}


def _read_workload(banner: Mapping[str, str]) -> dict[str, object]:
    data_set, _, kind = banner.get('Dataset', '').partition(' (')
    return {
        'model': _read_model(banner),
        'data_set': None if data_set in ('', 'synthetic') else data_set,
        'is_synthetic': kind.startswith('synthetic') if kind else data_set == 'synthetic' or None,
        'image_size': None,
        'role': _role(banner.get('Mode', '')),
    }


def _shape(banner: Mapping[str, str], devices: Sequence[str]) -> tuple[int | None, int | None]:
    """Returns (workers, devices of each worker); None for an unknown number."""
    workers = _first_number(banner.get('Workers'))
    if not devices:
        return int(workers) if workers else None, None
    if devices[0].startswith('horovod/'):
        # The line lists the devices of all workers.
        return len(devices), 1
    tasks = {match[1] for device in devices if (match := _TASK.search(device))}
    if len(tasks) > 1:
        return len(tasks), len(devices) // len(tasks)
    global_size = _first_number(banner.get('Batch size'))
    size = _first_number(banner.get(_BATCH_SIZE_OF_A_DEVICE))
    if not workers and global_size and size:
        workers = max(global_size // (size * len(devices)), 1)
    return int(workers) if workers else None, len(devices)


def _count_runs(
    banners: Mapping[str, Counter[str]], banner: Mapping[str, str], num_workers: int
) -> int:
    """Returns how many runs a log has: more banners than tasks, banners that differ, or the same
    task several times.
    """
    num_banners = sum(banners['Model'].values()) if banners else 0
    if num_banners < 2:
        return 1
    mode = MODES.get(banner.get('Variables', ''))
    # A controller prints for all workers.
    num_tasks = 1 if mode and mode.has_controller else num_workers
    # The tasks of a job print the same banner except for their devices.
    different = [len(values) for name, values in banners.items() if name != 'Devices']
    repeated = [
        count
        for devices, count in banners['Devices'].items()
        if len({*_TASK.findall(devices)}) == 1
    ]
    return max(math.ceil(num_banners / num_tasks), *different, *repeated)


def _role(mode: str) -> str | None:
    # 'training', 'forward-only', 'evaluation'; in some versions 'BenchmarkMode.TRAIN' and the like.
    lowered = mode.lower()
    for word, role in (('forward', 'forward-only'), ('eval', 'evaluation'), ('train', 'training')):
        if word in lowered:
            return role
    return None


def _first_number(text: str | None) -> float | None:
    match = re.search(_NUMBER, text or '')
    return float(match[0]) or None if match else None

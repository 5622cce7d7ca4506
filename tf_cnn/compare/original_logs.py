"""Reads the printed output of this program, or of the original tf_cnn_benchmarks.

Logs in the field have time stamps, ranks or pod names before each line, so the parser searches each
line for a label. This takes time linear in the line's length.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from tf_cnn.managers.modes import MODES
from tf_cnn.results.console import IN_TF32
from tf_cnn.results.document import Result
from tf_cnn.system.errors import UsageError, format_flag, plural

_LABELS = (
    *(
        'TensorFlow',
        'Model',
        'Dataset',
        'Mode',
        'SingleSess',
        'Batch size',
        'Num batches',
        'Num epochs',
        'Devices',
    ),
    *(
        'NUMA bind',
        'Data format',
        'Precision',
        'Layout optimizer',
        'Optimizer',
        'Variables',
        'AllReduce',
        'Sync',
    ),
    'Workers',
)
_BANNER_LINE = re.compile(rf'(?<![A-Za-z])({"|".join(_LABELS)}):\s+(\S.*)')
_NUMBER = r'\d{1,12}(?:\.\d{1,12})?'
_RATE = re.compile(rf'\s*({_NUMBER})')
_NO_RATE = re.compile(r'\s*([-+]?(?:nan|inf)\w*)', re.IGNORECASE)
_SPREAD = re.compile(rf'\s*({_NUMBER}) \+/- ({_NUMBER}) \(jitter = ({_NUMBER})\)')
_PER_DEVICE = re.compile(rf'(?<![\d.])({_NUMBER}) per device')
# The tasks of a job print the same banner except for these lines.
_LABELS_OF_TASKS = ('Devices', 'NUMA bind')
_ON_SERVER = re.compile(r'(?<![A-Za-z])On ps (\d+):')


@dataclass
class _LogContent:
    """The content of a log: the output of one or several tasks.

    Attributes:
      banner: the first value of each banner line, by label.
      ps_numbers: the numbers of the parameter servers; only this program prints them.
      last_step: images/sec of the last step line.
      invalid_total: the text of the last total, if it is not a number.
      total: images/sec of the last total; an evaluation during training may print an earlier one.
      models: the model of each banner; each task or run prints a banner.
      banner_values: all values of each banner line, by label.
      devices_of_tasks: the `Devices` line of each banner, if its devices belong to one task.
    """

    banner: dict[str, str] = field(default_factory=dict)
    batch_size_per_device: float | None = None
    ps_numbers: set[str] = field(default_factory=set)
    last_step: float | None = None
    total: float | None = None
    invalid_total: str | None = None
    models: list[str] = field(default_factory=list)
    banner_values: dict[str, dict[str, None]] = field(default_factory=dict)
    devices_of_tasks: list[str] = field(default_factory=list)

    @property
    def devices(self) -> list[str]:
        return re.findall(r"'([^']*)'", self.banner.get('Devices', ''))

    @property
    def global_batch_size(self) -> float | None:
        return _first_number(self.banner.get('Batch size'))

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """(workers, devices per worker); None if unknown."""
        devices, workers = self.devices, _first_number(self.banner.get('Workers'))
        tasks = {match[1] for device in devices if (match := re.search(r'/task:?(\d+)', device))}
        if not devices:
            return int(workers) if workers else None, None
        if devices[0].startswith('horovod/'):
            # The line lists the devices of all workers.
            return len(devices), 1
        if len(tasks) > 1:
            return len(tasks), len(devices) // len(tasks)
        if not workers and self.global_batch_size and self.batch_size_per_device:
            workers = max(self.global_batch_size // (self.batch_size_per_device * len(devices)), 1)
        return int(workers) if workers else None, len(devices)

    @property
    def num_tasks(self) -> int:
        """The number of tasks that print a banner; 1 if unknown."""
        mode = MODES.get(self.banner.get('Variables', ''))
        # A controller prints for all workers.
        return 1 if mode and mode.has_controller else self.shape[0] or 1

    @property
    def differing_banner_lines(self) -> dict[str, list[str]]:
        """The banner lines that differ between runs: label -> values."""
        if len(self.models) < 2:
            return {}
        return {
            name: [*texts]
            for name, texts in self.banner_values.items()
            if name not in _LABELS_OF_TASKS and len(texts) > 1
        }

    @property
    def num_runs(self) -> int:
        """The number of runs that the log contains, as far as it shows."""
        same_task = max(Counter(self.devices_of_tasks).values(), default=1)
        by_banner = max(map(len, self.differing_banner_lines.values()), default=1)
        return max(same_task, by_banner, math.ceil(len(self.models) / self.num_tasks))

    def add_banner_line(self, name: str, value: str) -> None:
        self.banner.setdefault(name, value)
        self.banner_values.setdefault(name, {})[value] = None
        if name == 'Devices' and len({*re.findall(r'/task:?(\d+)', value)}) == 1:
            self.devices_of_tasks.append(value)


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


# What `compare` compares.
Run = Result | Log
AnyRun = TypeVar('AnyRun', bound=Run)


def documents(runs: Iterable[Run]) -> list[Result]:
    """Returns the runs whose steps are known."""
    return [run for run in runs if isinstance(run, Result)]


def read_log(text: str, source: str) -> Log:
    """Reads the log of one run; the log may contain lines of other programs.

    The tasks of one job are one run, whether their lines are mixed or follow each other.

    Raises UsageError if the log has neither step lines nor a total, if its total is not a number,
    or if it has several runs: more banners than the job has workers, banners that differ, or the
    same task twice.
    """
    run = _parse_log(text)
    if run.invalid_total:
        raise UsageError(
            f'{source}: its total images/sec is {run.invalid_total}, which is not a rate; '
            'give the log of another run'
        )
    if run.total is None and run.last_step is None:
        raise UsageError(
            f'{source}: it is neither a result nor a log with images/sec in it; give a file that '
            '--result_file wrote, or the text that a run printed'
        )
    if run.num_runs > 1:
        differences = ''.join(
            f' ({name}: {" and ".join(texts)})'
            for name, texts in [*run.differing_banner_lines.items()][:1]
        )
        raise UsageError(
            f'{source}: it has the output of {plural(run.num_runs, "run")}{differences}; give a '
            'file for each run'
        )
    identity = hashlib.sha256(text.encode(errors='replace')).hexdigest()[:24]
    return _make_log(run, source, identity)


def _parse_log(text: str) -> _LogContent:
    run = _LogContent()
    version: dict[str, str] = {}
    for line in text.splitlines():
        before, label, after = line.partition('images/sec:')
        if label:
            before = before.rstrip()
            if before.endswith('total'):
                if rate := _RATE.match(after):
                    run.total, run.invalid_total = float(rate[1]), None
                elif no_rate := _NO_RATE.match(after):
                    run.invalid_total = no_rate[1]
            elif before[-1:].isdigit() and (step_match := _SPREAD.match(after)):
                run.last_step = float(step_match[1])
        elif banner_match := _BANNER_LINE.search(line):
            name, value = banner_match[1], banner_match[2].strip()
            if name == 'TensorFlow':
                version = {name: value}
            elif name == 'Model' and len(value.split()) == 1:
                # Lines of another program may have been read as a banner before the first step.
                if run.banner.get(name) != value and not run.last_step:
                    run.banner, run.models, run.banner_values, run.devices_of_tasks = {}, [], {}, []
                run.models.append(value)
                for each_name, each_value in {**version, name: value}.items():
                    run.add_banner_line(each_name, each_value)
            elif name != 'Model' and run.banner:
                run.add_banner_line(name, value)
        elif batch_match := _PER_DEVICE.search(line):
            run.batch_size_per_device = run.batch_size_per_device or float(batch_match[1])
            if run.banner:
                run.banner_values.setdefault('Batch size of a device', {})[batch_match[1]] = None
        elif server_match := _ON_SERVER.search(line):
            run.ps_numbers.add(server_match[1])
    return run


def _make_log(run: _LogContent, source: str, identity: str) -> Log:
    banner = run.banner
    data_set, _, kind = banner.get('Dataset', '').partition(' (')
    num_workers, num_devices = run.shape
    workers, devices = (str(number) if number else '?' for number in (num_workers, num_devices))
    precision = banner.get('Precision', 'fp32')
    flags = {
        'model': banner.get('Model'),
        'batch_size': None if run.batch_size_per_device is None else int(run.batch_size_per_device),
        'variable_update': banner.get('Variables'),
        'optimizer': banner.get('Optimizer'),
        'data_format': banner.get('Data format', '').partition(' ')[0] or None,
        'precision': precision.partition(' ')[0] if banner else None,
        # A banner without TF32 may come from a version that does not report it.
        'tf32': precision.endswith(IN_TF32) or None,
        'all_reduce_spec': banner.get('AllReduce'),
        'device': run.devices[0].rpartition('/')[2].partition(':')[0].lower()
        if run.devices
        else None,
        'num_gpus': num_devices,
    }
    workload = {
        'model': banner.get('Model'),
        'data_set': None if data_set in ('', 'synthetic') else data_set,
        'is_synthetic': kind.startswith('synthetic') if kind else data_set == 'synthetic' or None,
        'image_size': None,
        'role': _role(banner.get('Mode', '')),
    }
    rate = run.last_step if run.total is None else run.total
    return Log(
        source,
        identity,
        f'{workers}*{devices}' + (f'+{len(run.ps_numbers)}' if run.ps_numbers else ''),
        {name: value for name, value in flags.items() if value is not None},
        workload,
        math.nan if rate is None else rate,
        banner.get('TensorFlow'),
        None if run.total is not None else 'the log ends before its total',
    )


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

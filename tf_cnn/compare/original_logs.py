"""Reads the printed output of a run of the original tf_cnn_benchmarks, or of this program, as a
result.

People's logs are decorated with time stamps, ranks and names of pods, so lines are searched for
their labels, in time linear in their length. Missing facts are None.
"""

import hashlib
import math
import re
from collections import Counter
from dataclasses import dataclass, field

from tf_cnn.managers.modes import MODES
from tf_cnn.results import sections
from tf_cnn.results.console import IN_TF32
from tf_cnn.results.document import SCHEMA_VERSION, Result
from tf_cnn.results.sections import with_unknowns
from tf_cnn.system.errors import UsageError, plural

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
_FACT = re.compile(rf'(?<![A-Za-z])({"|".join(_LABELS)}):\s+(\S.*)')
_NUMBER = r'\d{1,12}(?:\.\d{1,12})?'
_RATE = re.compile(rf'\s*({_NUMBER})')
_NO_RATE = re.compile(r'\s*([-+]?(?:nan|inf)\w*)', re.IGNORECASE)
_SPREAD = re.compile(rf'\s*({_NUMBER}) \+/- ({_NUMBER}) \(jitter = ({_NUMBER})\)')
_PER_DEVICE = re.compile(rf'(?<![\d.])({_NUMBER}) per device')
# The tasks of a job print the same facts, but for these.
_OF_TASK = ('Devices', 'NUMA bind')
_ON_SERVER = re.compile(r'(?<![A-Za-z])On ps (\d+):')


@dataclass
class _Output:
    """What a run printed, in one or several tasks.

    Attributes:
      facts: the values of the banner's lines, by label.
      servers: the numbers of the parameter servers, which this program prints.
      last_step: images/sec so far, standard error, jitter.
      no_total: the text of a total that is no number; None if the last one is a number.
      total: images/sec of the run; the last one, as an evaluation during training may print another
        one before.
      models: the model of each banner: of each task, or each run.
      values: all different values of each line of the banners, by label.
      devices_of_tasks: the devices in each banner, where they name one task.
    """

    facts: dict[str, str] = field(default_factory=dict)
    per_device: float | None = None
    servers: set[str] = field(default_factory=set)
    last_step: tuple[float, float, float] | None = None
    total: float | None = None
    no_total: str | None = None
    models: list[str] = field(default_factory=list)
    values: dict[str, dict[str, None]] = field(default_factory=dict)
    devices_of_tasks: list[str] = field(default_factory=list)

    @property
    def devices(self) -> list[str]:
        return re.findall(r"'([^']*)'", self.facts.get('Devices', ''))

    @property
    def global_batch(self) -> float | None:
        return _first_number(self.facts.get('Batch size'))

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """(workers, devices of each); None if unknown."""
        devices, workers = self.devices, _first_number(self.facts.get('Workers'))
        tasks = {found[1] for device in devices if (found := re.search(r'/task:?(\d+)', device))}
        if not devices:
            return int(workers) if workers else None, None
        if devices[0].startswith('horovod/'):
            # Lists the devices of all workers.
            return len(devices), 1
        if len(tasks) > 1:
            return len(tasks), len(devices) // len(tasks)
        if not workers and self.global_batch and self.per_device:
            workers = max(self.global_batch // (self.per_device * len(devices)), 1)
        return int(workers) if workers else None, len(devices)

    @property
    def num_tasks(self) -> int:
        """How many tasks of the job print a banner; 1 if unknown."""
        mode = MODES.get(self.facts.get('Variables', ''))
        # A controller prints for all workers.
        return 1 if mode and mode.has_controller else self.shape[0] or 1

    @property
    def different(self) -> dict[str, list[str]]:
        """The lines of the banners in which runs differ, by label."""
        if len(self.models) < 2:
            return {}
        return {
            name: [*texts]
            for name, texts in self.values.items()
            if name not in _OF_TASK and len(texts) > 1
        }

    @property
    def num_runs(self) -> int:
        """How many runs printed the text, as far as it shows."""
        same_task = max(Counter(self.devices_of_tasks).values(), default=1)
        by_facts = max(map(len, self.different.values()), default=1)
        return max(same_task, by_facts, math.ceil(len(self.models) / self.num_tasks))

    def add(self, name: str, value: str) -> None:
        """Adds a line of a banner."""
        self.facts.setdefault(name, value)
        self.values.setdefault(name, {})[value] = None
        if name == 'Devices' and len({*re.findall(r'/task:?(\d+)', value)}) == 1:
            self.devices_of_tasks.append(value)


class LogRecord(Result):
    """What a log says about a run."""


def is_log(result: Result) -> bool:
    """Whether a result was read from a log, so that most of its facts are unknown."""
    return isinstance(result, LogRecord)


def read_log(text: str, source: str) -> LogRecord:
    """Reads the log of one run, which may contain lines of other programs.

    The tasks of one job are one run, whether their lines are mixed or follow each other. Raises
    UsageError if the log has neither step lines nor a total, if its total is no number, or if it
    has several runs: more banners than the job has workers, a banner that differs from another one,
    or the same task twice.
    """
    run = _read(text)
    if run.no_total:
        raise UsageError(
            f'{source}: its total images/sec is {run.no_total}, which is not a rate; give the log '
            'of another run'
        )
    if run.total is None and run.last_step is None:
        raise UsageError(
            f'{source}: it is neither a result nor a log with images/sec in it; give a file that '
            '--result_file wrote, or the text that a run printed'
        )
    if run.num_runs > 1:
        differences = ''.join(
            f' ({name}: {" and ".join(texts)})' for name, texts in [*run.different.items()][:1]
        )
        raise UsageError(
            f'{source}: it has the output of {plural(run.num_runs, "run")}{differences}; give a '
            'file for each run'
        )
    result = _record(run, hashlib.sha256(text.encode(errors='replace')).hexdigest()[:24])
    result.source = source
    return result


def _read(text: str) -> _Output:
    run = _Output()
    version: dict[str, str] = {}
    for line in text.splitlines():
        before, label, after = line.partition('images/sec:')
        if label:
            before = before.rstrip()
            if before.endswith('total'):
                if rate := _RATE.match(after):
                    run.total, run.no_total = float(rate[1]), None
                elif no_rate := _NO_RATE.match(after):
                    run.no_total = no_rate[1]
            elif before[-1:].isdigit() and (step := _SPREAD.match(after)):
                run.last_step = float(step[1]), float(step[2]), float(step[3])
        elif fact := _FACT.search(line):
            name, value = fact[1], fact[2].strip()
            if name == 'TensorFlow':
                version = {name: value}
            elif name == 'Model' and len(value.split()) == 1:
                # Before the first step, what another program printed may have been read as facts.
                if run.facts.get(name) != value and not run.last_step:
                    run.facts, run.models, run.values, run.devices_of_tasks = {}, [], {}, []
                run.models.append(value)
                for each_name, each_value in {**version, name: value}.items():
                    run.add(each_name, each_value)
            elif name != 'Model' and run.facts:
                run.add(name, value)
        elif each := _PER_DEVICE.search(line):
            run.per_device = run.per_device or float(each[1])
            if run.facts:
                run.values.setdefault('Batch size of a device', {})[each[1]] = None
        elif server := _ON_SERVER.search(line):
            run.servers.add(server[1])
    return run


def _record(run: _Output, identity: str) -> LogRecord:
    facts = run.facts
    data_set, _, kind = facts.get('Dataset', '').partition(' (')
    devices = run.devices
    num_workers, num_devices = run.shape
    rate, error, jitter = run.last_step or (run.total, None, None)
    precision = facts.get('Precision', 'fp32')
    setting = {
        'batch_size': None if run.per_device is None else int(run.per_device),
        'variable_update': facts.get('Variables'),
        'optimizer': facts.get('Optimizer'),
        'data_format': facts.get('Data format', '').partition(' ')[0] or None,
        'precision': precision.partition(' ')[0] if facts else None,
        # A banner without TF32 may come from a program that does not report it.
        'tf32': precision.endswith(IN_TF32) or None,
        'all_reduce_spec': facts.get('AllReduce'),
    }
    written = {'model': facts.get('Model'), **setting, 'num_gpus': num_devices}
    flags = {name: value for name, value in written.items() if value is not None}
    reason = None if run.total is not None else 'the log ends before its total'
    workers_text, devices_text = (
        str(number) if number else '?' for number in (num_workers, num_devices)
    )
    return with_unknowns(
        LogRecord,
        schema_version=SCHEMA_VERSION,
        id=identity,
        is_complete=reason is None,
        ended=with_unknowns(sections.Ending, reason=reason),
        command=sections.CommandSection(
            (), flags, {name: f'--{name}={value}' for name, value in flags.items()}
        ),
        run=with_unknowns(
            sections.RunSection,
            **setting,
            role=_role(facts.get('Mode', '')),
            sync={'True': True, 'False': False}.get(facts.get('Sync', '')),
            device=devices[0].rpartition('/')[2].partition(':')[0].lower() if devices else None,
            data_set=None if data_set in ('', 'synthetic') else data_set,
            is_synthetic=kind.startswith('synthetic')
            if kind
            else (True if data_set == 'synthetic' else None),
            global_batch_size=run.global_batch,
        ),
        cluster=with_unknowns(
            sections.ClusterSection,
            shape=f'{workers_text}*{devices_text}'
            + (f'+{len(run.servers)}' if run.servers else ''),
            num_workers=num_workers,
            devices_per_worker=num_devices,
            num_ps=len(run.servers) or None,
        ),
        model=with_unknowns(sections.ModelSection, name=facts.get('Model')),
        workers=(),
        throughput=with_unknowns(
            sections.ThroughputSection,
            images_per_second=rate if run.total is None else run.total,
            images_per_second_of_steps=rate,
            standard_error=error,
            jitter=jitter,
        ),
        machine={'versions': {'tensorflow': facts.get('TensorFlow')}, 'fingerprint': None},
        warnings=(),
    )


def _role(mode: str) -> str | None:
    # 'training', 'forward-only', 'evaluation'; in some versions 'BenchmarkMode.TRAIN' and the like.
    lowered = mode.lower()
    for part, role in (('forward', 'forward-only'), ('eval', 'evaluation'), ('train', 'training')):
        if part in lowered:
            return role
    return None


def _first_number(text: str | None) -> float | None:
    found = re.search(_NUMBER, text or '')
    return float(found[0]) or None if found else None

"""Reads the printed output of the original tf_cnn_benchmarks, and of this program, as results.

A log contains less than a result; unknown values are None. Its step lines have the rate over all timed steps so far,
with one decimal. The seconds between two lines are reconstructed from these rates, with their precision, and replace
step seconds. In the document `steps_per_value` is the number of steps in each of these values, and `num_printed_steps`
the number of steps up to the last line.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from comparison.intervals import MIN_STEPS
from errors import UsageError
from results.console import IN_TF32, PERHAPS_IN_TF32
from results.document import RESULT, SCHEMA_VERSION, Record

# A launcher or a logging library puts a prefix before each line: 'worker 0 | ', '[1,0]<stdout>:', 'I0504 ...] '.
_WORKER = re.compile(r'^\s*([\w .:/-]*?\d) *\| ')
_BEFORE = r'^(?:.*[|\]>:]\s*)?'
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
    'NUMA bind',
    'Data format',
    'Precision',
    'Layout optimizer',
    'Optimizer',
    'Variables',
    'AllReduce',
    'Sync',
    'Workers',
)
_FACT = re.compile(rf'{_BEFORE}({"|".join(_LABELS)}): +(.*?)\s*$')
_PER_DEVICE = re.compile(r'([0-9.]+) per device\s*$')
_STEP = re.compile(
    r'(?:^|[^\d.])(\d+)\s+images/sec: ([0-9.]+) \+/- ([0-9.]+) \(jitter = ([0-9.]+)\)(?:\s+(-?[0-9.]+|-?nan|-?inf)\b)?'
)
_TOTAL = re.compile(rf'{_BEFORE}total images/sec: ([0-9.]+)\s*$')
_ON_SERVER = re.compile(rf'{_BEFORE}On ps \d+: ')
_ESCAPES = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')

# The reason if a log has no interval.
TOO_LITTLE = 'the log holds too little for an interval'


@dataclass
class _Run:
    """The output of one worker about one run: the facts of its banner, its step lines, its total."""

    facts: dict[str, str] = field(default_factory=dict)
    per_device: int | None = None
    num_servers: int = 0
    # Step number, images/sec so far, standard error, jitter, loss.
    steps: list[tuple[int, float, float, float, float | None]] = field(default_factory=list)
    total: float | None = None

    @property
    def is_empty(self) -> bool:
        return not self.steps and self.total is None


def read_logs(text: str, source: str) -> list[Record]:
    """Reads a log, which may contain several runs one after the other, and lines of other programs.

    For a cluster whose lines have prefixes such as `worker 0 | `, reads the run of the first worker, whose total is
    that of all workers.

    Raises:
      UsageError: the log has neither step lines nor a total; the message names the source.
    """
    runs = [run for run in _runs(text) if not run.is_empty]
    if not runs:
        raise UsageError(
            f'{source}: it is neither a result nor a log with images/sec in it; give a file that --result_file wrote, '
            'or the text that a run printed'
        )
    names = [source] if len(runs) == 1 else [f'{source} (run {number})' for number in range(1, len(runs) + 1)]
    digest = hashlib.sha256(text.encode(errors='replace')).hexdigest()[:24]
    return [
        Record(name, _document(run, f'{digest}-{i}')) for i, (run, name) in enumerate(zip(runs, names, strict=True))
    ]


def printed_spread(record: Record) -> float | None:
    """Returns the relative spread of the steps of a log, from the last printed +/-; None if it is not a log.

    The +/- is the standard error of the rates of n steps, their standard deviation over √n, rounded to 0.1.
    """
    found = record.document['throughput']
    num_steps = record.document.get('num_printed_steps')
    if not num_steps:
        return None
    return float(max(found['standard_error'], 0.05) * math.sqrt(num_steps) / found['images_per_second_of_steps'])


def is_log(record: Record) -> bool:
    """Whether a record was read from a log, so that most of its facts are unknown."""
    return 'steps_per_value' in record.document


def _runs(text: str) -> list[_Run]:
    """Returns the runs of the first worker that printed a rate."""
    workers: dict[str, list[_Run]] = {}
    for line in _ESCAPES.sub('', text).splitlines():
        marked = _WORKER.match(line)
        runs = workers.setdefault(marked[1] if marked else '', [])
        fact = _FACT.match(line)
        begins = fact and fact[1] in ('TensorFlow', 'Model') and runs and (fact[1] in runs[-1].facts or runs[-1].steps)
        if not runs or begins:
            runs.append(_Run())
        _note(runs[-1], line, fact)
    found = (runs for runs in workers.values() if any(not run.is_empty for run in runs))
    return next(found, [])


def _note(run: _Run, line: str, fact: re.Match[str] | None) -> None:
    if fact:
        run.facts.setdefault(fact[1], fact[2])
    elif per_device := _PER_DEVICE.search(line):
        run.per_device = int(float(per_device[1]))
    elif _ON_SERVER.match(line):
        run.num_servers += 1
    elif step := _STEP.search(line):
        loss = float(step[5]) if step[5] else None
        run.steps.append((int(step[1]), float(step[2]), float(step[3]), float(step[4]), loss))
    elif total := _TOTAL.match(line):
        # An evaluation during training prints a total of its own, before that of the run.
        run.total = float(total[1])


# Long, because the document is one literal, which reads best in one piece.
def _document(run: _Run, identity: str) -> dict[str, Any]:
    facts = run.facts
    data_set, _, kind = facts.get('Dataset', '').partition(' (')
    role = _role(facts.get('Mode', ''))
    devices = re.findall(r"'([^']*)'", facts.get('Devices', ''))
    global_batch = _first_number(facts.get('Batch size'))
    per_device = run.per_device
    num_devices = len(devices) or None
    num_workers = None
    if global_batch and per_device and num_devices:
        num_workers = max(int(global_batch) // (per_device * num_devices), 1)
    last = run.steps[-1] if run.steps else None
    rate = run.total if run.total is not None else last[1] if last else None
    steps = _steps(run.steps, global_batch)
    num_timed = int(_first_number(facts.get('Num batches')) or 0) or (last[0] if last else None)
    setting = {
        'model': facts.get('Model'),
        'batch_size': per_device,
        'variable_update': facts.get('Variables'),
        'optimizer': facts.get('Optimizer'),
        'data_format': _first_word(facts.get('Data format')),
        'precision': facts.get('Precision', 'fp32').removesuffix(IN_TF32).removesuffix(PERHAPS_IN_TF32)
        if facts
        else None,
        # A banner without TF32 may come from a program that does not report it.
        'tf32': facts.get('Precision', '').endswith(IN_TF32) or None,
        'all_reduce_spec': facts.get('AllReduce'),
    }
    flags = {name: value for name, value in {**setting, 'num_gpus': num_devices}.items() if value is not None}
    is_synthetic = kind.startswith('synthetic') if kind else (True if data_set == 'synthetic' else None)
    reason = None if run.total is not None else 'the log ends before its total'
    return {
        'schema': RESULT,
        'schema_version': SCHEMA_VERSION,
        'id': identity,
        'complete': reason is None,
        'ended': {'exit_code': None, 'reason': reason},
        'started_at': None,
        'ended_at': None,
        'program': {'version': None, 'git_commit': None},
        'command': {
            'argv': None,
            'flags': flags,
            'given': {name: f'--{name}={value}' for name, value in flags.items()},
        },
        'run': {
            **{name: value for name, value in setting.items() if name != 'model'},
            'role': role,
            'sync': {'True': True, 'False': False}.get(facts.get('Sync', '')),
            'devices': devices,
            'device': devices[0].rpartition('/')[2].partition(':')[0].lower() if devices else None,
            'data_set': None if data_set in ('', 'synthetic') else data_set,
            'is_synthetic': is_synthetic,
            'image_size': None,
            'global_batch_size': global_batch,
            'images_per_step': global_batch,
            'num_warmup': None,
            'num_timed': num_timed,
        },
        'cluster': {
            'shape': _shape(num_workers, num_devices, run.num_servers),
            'num_workers': num_workers,
            'devices_per_worker': num_devices,
            'num_ps': run.num_servers or None,
            'tasks': [],
        },
        'model': {'name': facts.get('Model'), 'parameters': None, 'gflops_per_image': None},
        'workers': [{'task': None, 'host': None, 'steps': steps}] if steps else [],
        'throughput': {
            'images_per_second': rate,
            'images_per_second_of_steps': last[1] if last else rate,
            'standard_error': last[2] if last else None,
            'jitter': last[3] if last else None,
        },
        'steps_per_value': _steps_per_value(run.steps),
        'num_printed_steps': last[0] if last else None,
        'machine': {'versions': {'tensorflow': facts.get('TensorFlow')}, 'fingerprint': None},
        'warnings': []
        if len(steps.get('seconds', ())) >= MIN_STEPS
        else [{'code': 'too_little_for_an_interval', 'text': TOO_LITTLE}],
    }


def _steps(lines: Sequence[tuple[int, float, float, float, float | None]], images: float | None) -> Mapping[str, Any]:
    """Returns the steps of a document, each an interval between two lines; empty if the lines do not suffice.

    Skips the first line, that of step 1, so that all intervals have the same number of steps.
    """
    every = _steps_per_value(lines)
    chosen = [line for line in lines if every and line[0] % every == 0]
    numbers = np.array([line[0] for line in chosen], dtype=np.float64)
    rates = np.array([line[1] for line in chosen], dtype=np.float64)
    if not chosen or np.any(rates <= 0):
        return {}
    # Without the batch size the unit is unknown, but only relative errors matter.
    ends = numbers * (images or 1.0) / rates
    seconds = np.diff(ends, prepend=0.0)
    is_regular = np.array_equal(numbers, np.arange(1, len(chosen) + 1) * float(every or 0))
    if not is_regular or np.any(seconds <= 0):
        return {}
    size = len(chosen)
    return {
        'phase': ['timed'] * size,
        'index': [line[0] for line in chosen],
        'global_step': [None] * size,
        'start': (ends - seconds).tolist(),
        'seconds': seconds.tolist(),
        'loss': [line[4] if line[4] is not None and np.isfinite(line[4]) else None for line in chosen],
        'top_1': None,
        'top_5': None,
        'learning_rate': None,
        'input_wait': None,
        'between': {},
    }


def _steps_per_value(lines: Sequence[tuple[int, float, float, float, float | None]]) -> int | None:
    """Returns the number of steps between two step lines; None if there are fewer than two lines."""
    numbers = [line[0] for line in lines]
    return numbers[-1] - numbers[-2] if len(numbers) > 1 else None


def _role(mode: str) -> str | None:
    # 'training', 'forward-only', 'evaluation'; in some versions 'BenchmarkMode.TRAIN' and the like.
    lowered = mode.lower()
    for part, role in (('forward', 'forward-only'), ('eval', 'evaluation'), ('train', 'training')):
        if part in lowered:
            return role
    return None


def _shape(num_workers: int | None, num_devices: int | None, num_servers: int) -> str:
    workers, devices = (str(number) if number else '?' for number in (num_workers, num_devices))
    return f'{workers}*{devices}' + (f'+{num_servers}' if num_servers else '')


def _first_word(text: str | None) -> str | None:
    return text.split()[0] if text else None


def _first_number(text: str | None) -> float | None:
    found = next(_numbers(text or ''), None)
    return found if found else None


def _numbers(text: str) -> Iterator[float]:
    return (float(number) for number in re.findall(r'[0-9]+(?:\.[0-9]+)?', text))

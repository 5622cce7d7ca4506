"""Reads the printed output of the original tf_cnn_benchmarks, and of this program, as results.

People's logs are decorated with time stamps, ranks and names of pods, so lines are searched for their labels, in time
linear in their length. Missing facts are None.
"""

import gzip
import hashlib
import io
import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from errors import UsageError
from params.modes import MODES
from results import sections
from results.console import IN_TF32, PERHAPS_IN_TF32
from results.document import MOST_BYTES, SCHEMA_VERSION, Result
from results.sections import with_unknowns

_LABELS = (
    *('TensorFlow', 'Model', 'Dataset', 'Mode', 'SingleSess', 'Batch size', 'Num batches', 'Num epochs', 'Devices'),
    *('NUMA bind', 'Data format', 'Precision', 'Layout optimizer', 'Optimizer', 'Variables', 'AllReduce', 'Sync'),
    'Workers',
)
# Facts that differ between the tasks of one job.
_TASK_LINES = ('Devices', 'NUMA bind')
_FACT = re.compile(rf'(?<![A-Za-z])({"|".join(_LABELS)}):\s+(\S.*)')
_NUMBER = r'\d{1,12}(?:\.\d{1,12})?'
_RATE = re.compile(rf'\s*({_NUMBER})')
_STEP = re.compile(
    rf'\s*({_NUMBER}) \+/- ({_NUMBER}) \(jitter = ({_NUMBER})\)(?:\s+(-?{_NUMBER}|-?nan|-?inf)(?![\d.]))?'
)
_ON_SERVER = re.compile(r'(?<![A-Za-z])On ps \d+:')
_ESCAPES = re.compile(r'\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b\n]*\x07?|[()][A-Z0-9]|[=>78])')
# What differs between the prefixes of one process: times, and the places in the code of logging libraries.
_TIMES = re.compile(r'\d{4}-\d\d-\d\d|\d\d?:\d\d:\d\d(?:[.,]\d{1,9})?|\d{9,}(?:\.\d{1,9})?|[^\s/]*\.py:\d+')
_LONGEST_PREFIX = 200
# The keys of lines that are JSON objects, as container runtimes write them.
_TEXT_KEYS = ('log', 'message', 'msg')
# The rates of the tasks of one synchronous job differ by less than this.
_SAME_JOB = 0.01


@dataclass
class _Output:
    """The output of one task about one run.

    Attributes:
      speaker: what stands before its lines and has a number, such as a rank or a pod; else empty.
      facts: the values of the banner's lines, by label.
      num_servers: the number of parameter servers, which this program prints.
      steps: step number, images/sec so far, standard error, jitter.
      total: images/sec of the run; the last one, as an evaluation during training may print another one before.
    """

    speaker: str = ''
    facts: dict[str, str] = field(default_factory=dict)
    per_device: int | None = None
    num_servers: int = 0
    steps: list[tuple[int, float, float, float]] = field(default_factory=list)
    total: float | None = None

    @property
    def rate(self) -> float | None:
        return self.total if self.total is not None else self.steps[-1][1] if self.steps else None

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
    def num_tasks(self) -> float:
        """How many tasks of the job print a rate; infinite if unknown."""
        mode = MODES.get(self.facts.get('Variables', ''))
        # A controller prints for all workers.
        return 1 if mode and mode.has_controller else self.shape[0] or math.inf

    def is_of_one_job_with(self, others: Sequence['_Output'], *, has_speakers: bool) -> bool:
        """Whether this can be another task of the job of `others`, rather than a repeat."""
        first = others[0]
        if self._setting != first._setting:
            return False
        if has_speakers:
            return self.speaker not in {other.speaker for other in others}
        # The tasks of a synchronous job end together.
        rates = self.rate or 0.0, first.rate or 0.0
        return self.facts.get('Sync') == 'False' or abs(rates[0] - rates[1]) <= _SAME_JOB * max(rates)

    @property
    def _setting(self) -> dict[str, Any]:
        return {name: value for name, value in self.facts.items() if name not in _TASK_LINES}


class LogRecord(Result, kw_only=True):
    """What a log says about a run; num_printed_steps is the number of its last step line, None without one."""

    num_printed_steps: int | None


def decode_log(data: bytes, source: str) -> str:
    """Decodes text in UTF-8 or UTF-16, plain or gzip; UsageError if that is cut off or too large."""
    if data.startswith(b'\x1f\x8b'):
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise UsageError(f'{source}: it cannot be decompressed ({error}); copy it again') from None
        if len(data) > MOST_BYTES:
            raise UsageError(f'{source}: it has more than the {MOST_BYTES} bytes that are read; give a smaller file')
    if data.startswith((b'\xff\xfe', b'\xfe\xff')):
        return data.decode('utf-16', errors='replace')
    if 0 in data[:2]:
        return data.decode('utf-16-be' if data[0] == 0 else 'utf-16-le', errors='replace')
    return data.decode('utf-8-sig', errors='replace')


def read_logs(text: str, source: str) -> list[LogRecord]:
    """Reads a log, which may contain several runs one after the other, and lines of other programs.

    The tasks of one job are one run, whether their lines are mixed or follow each other: as many outputs with one
    banner as the banner names workers, if they have prefixes of their own, or rates that differ by less than 1 %.
    Raises UsageError if the log has neither step lines nor a total.
    """
    runs = _runs([found for found in _outputs(text) if found.rate is not None])
    if not runs:
        raise UsageError(
            f'{source}: it is neither a result nor a log with images/sec in it; give a file that --result_file wrote, '
            'or the text that a run printed'
        )
    names = [source] if len(runs) == 1 else [f'{source} (run {number})' for number in range(1, len(runs) + 1)]
    digest = hashlib.sha256(text.encode(errors='replace')).hexdigest()[:24]
    results = [_record(run, f'{digest}-{i}') for i, run in enumerate(runs)]
    for result, name in zip(results, names, strict=True):
        result.source = name
    return results


def printed_spread(result: Result) -> float | None:
    """Returns the relative spread of the steps of a log, from the last printed +/-; None if it is not a log.

    The +/- is the standard error of the rates of n steps, their standard deviation over √n, rounded to 0.1.
    """
    num_steps, found = num_printed_steps(result), result.throughput
    if not num_steps or not found.images_per_second_of_steps:
        return None
    return max(found.standard_error or 0.0, 0.05) * math.sqrt(num_steps) / found.images_per_second_of_steps


def is_log(result: Result) -> bool:
    """Whether a result was read from a log, so that most of its facts are unknown."""
    return isinstance(result, LogRecord)


def num_printed_steps(result: Result) -> int | None:
    """Returns the number of the last step line of a log; None if there is none, or this is no log."""
    return result.num_printed_steps if isinstance(result, LogRecord) else None


def _outputs(text: str) -> list[_Output]:
    outputs: list[_Output] = []
    latest: dict[str, _Output] = {}
    versions: dict[str, str] = {}

    def output_of(prefix: str) -> _Output:
        if not outputs:
            outputs.append(_Output())
        return latest.get(_speaker(prefix), outputs[-1])

    for line in map(_unwrapped, _ESCAPES.sub('', text).splitlines()):
        before, label, after = line.partition('images/sec:')
        before = before.rstrip()
        if label:
            words = before.removesuffix('total')
            prefix = before.rstrip('0123456789')
            number = before[len(prefix) :]
            if words != before:
                if rate := _RATE.match(after):
                    output_of(words).total = float(rate[1])
            elif number and len(number) <= 12 and (step := _STEP.match(after)):
                output_of(prefix).steps.append((int(number), float(step[1]), float(step[2]), float(step[3])))
        elif fact := _FACT.search(line):
            speaker, name, value = _speaker(line[: fact.start()]), fact[1], fact[2].strip()
            if name == 'TensorFlow':
                versions[speaker] = value
            elif name == 'Model' and len(value.split()) == 1:
                outputs.append(_Output(speaker, {'Model': value}))
                latest[speaker] = outputs[-1]
                if speaker in versions:
                    outputs[-1].facts['TensorFlow'] = versions.pop(speaker)
            elif name != 'Model' and outputs and not (found := output_of(line[: fact.start()])).steps:
                found.facts.setdefault(name, value)
        elif ' per device' in line and outputs:
            before = line.partition(' per device')[0]
            prefix = before.rstrip('0123456789.')
            if re.fullmatch(_NUMBER, before[len(prefix) :]):
                output_of(prefix).per_device = int(float(before[len(prefix) :]))
        elif outputs and (server := _ON_SERVER.search(line)):
            output_of(line[: server.start()]).num_servers += 1
    return outputs


def _runs(outputs: Sequence[_Output]) -> list[_Output]:
    runs: list[list[_Output]] = []
    has_speakers = len({found.speaker for found in outputs}) > 1
    for found in outputs:
        num_tasks = found.num_tasks
        open_runs = (run for run in runs if len(run) < num_tasks) if num_tasks > 1 else ()
        run = next((run for run in open_runs if found.is_of_one_job_with(run, has_speakers=has_speakers)), None)
        if run:
            run.append(found)
        else:
            runs.append([found])
    return [run[0] for run in runs]


def _unwrapped(line: str) -> str:
    if line[:1] != '{':
        return line
    try:
        found = json.loads(line)
    except (RecursionError, ValueError):
        return line
    return next((found[key] for key in _TEXT_KEYS if isinstance(found.get(key), str)), line)


def _speaker(prefix: str) -> str:
    """Returns the part of a line's prefix that tells tasks apart; empty if there is no number in it."""
    found = ' '.join(_TIMES.sub('', prefix[:_LONGEST_PREFIX]).split())
    return found if any(map(str.isdigit, found)) else ''


def _record(run: _Output, identity: str) -> LogRecord:
    facts = run.facts
    data_set, _, kind = facts.get('Dataset', '').partition(' (')
    devices = run.devices
    num_workers, num_devices = run.shape
    last = run.steps[-1] if run.steps else None
    precision = facts.get('Precision', 'fp32')
    setting = {
        'batch_size': run.per_device,
        'variable_update': facts.get('Variables'),
        'optimizer': facts.get('Optimizer'),
        'data_format': facts.get('Data format', '').partition(' ')[0] or None,
        'precision': precision.removesuffix(IN_TF32).removesuffix(PERHAPS_IN_TF32) if facts else None,
        # A banner without TF32 may come from a program that does not report it.
        'tf32': precision.endswith(IN_TF32) or None,
        'all_reduce_spec': facts.get('AllReduce'),
    }
    written = {'model': facts.get('Model'), **setting, 'num_gpus': num_devices}
    flags = {name: value for name, value in written.items() if value is not None}
    reason = None if run.total is not None else 'the log ends before its total'
    return with_unknowns(
        LogRecord,
        schema_version=SCHEMA_VERSION,
        id=identity,
        is_complete=reason is None,
        ended=with_unknowns(sections.Ending, reason=reason),
        command=sections.CommandSection((), flags, {name: f'--{name}={value}' for name, value in flags.items()}),
        run=with_unknowns(
            sections.RunSection,
            **setting,
            role=_role(facts.get('Mode', '')),
            sync={'True': True, 'False': False}.get(facts.get('Sync', '')),
            device=devices[0].rpartition('/')[2].partition(':')[0].lower() if devices else None,
            data_set=None if data_set in ('', 'synthetic') else data_set,
            is_synthetic=kind.startswith('synthetic') if kind else (True if data_set == 'synthetic' else None),
            global_batch_size=run.global_batch,
        ),
        cluster=with_unknowns(
            sections.ClusterSection,
            shape=_shape(num_workers, num_devices, run.num_servers),
            num_workers=num_workers,
            devices_per_worker=num_devices,
            num_ps=run.num_servers or None,
        ),
        model=with_unknowns(sections.ModelSection, name=facts.get('Model')),
        workers=(),
        throughput=with_unknowns(
            sections.ThroughputSection,
            images_per_second=run.rate,
            images_per_second_of_steps=last[1] if last else run.rate,
            standard_error=last[2] if last else None,
            jitter=last[3] if last else None,
        ),
        num_printed_steps=last[0] if last else None,
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


def _shape(num_workers: int | None, num_devices: int | None, num_servers: int) -> str:
    workers, devices = (str(number) if number else '?' for number in (num_workers, num_devices))
    return f'{workers}*{devices}' + (f'+{num_servers}' if num_servers else '')


def _first_number(text: str | None) -> float | None:
    found = re.search(_NUMBER, text or '')
    return float(found[0]) or None if found else None

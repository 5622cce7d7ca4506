"""Results and failures as documents, and the files that hold them. Does not import TensorFlow.

docs/results.md describes the documents, tf_cnn/results/result.schema.json is their JSON Schema.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from tf_cnn.results import sections
from tf_cnn.results.sections import (
    START_PHASES,
    Integer,
    NotNegative,
    Number,
    Section,
    Time,
    about,
    check_time,
)
from tf_cnn.system.documents import DocumentError, as_json, decode_json, read_text
from tf_cnn.system.errors import UsageError

# The values of "schema": a result, a run of another program, and a run without a result.
RESULT = 'tf_cnn_benchmarks.result'
COMMAND_RESULT = 'tf_cnn_benchmarks.command'
FAILURE = 'tf_cnn_benchmarks.failure'
_SCHEMAS = (RESULT, COMMAND_RESULT, FAILURE)
SCHEMA_VERSION: Literal[1] = 1
# The largest result that is read, in bytes; it has some million steps.
MAX_BYTES = 256 << 20
# The values of the machine section that limit no process: names, the load, and values that are
# compared separately. The bytes of its memory change a little with each start.
_NOT_LIMITS = frozenset(
    ('hostname', 'os', 'memory_bytes', 'load_average', 'gpus', 'versions', 'threads', 'fingerprint')
)
# The limits that the machines of other workers have, too, if they are set.
_QUOTAS = ('cgroup_cpus', 'cgroup_memory_bytes')
# The units of runs of other programs.
COMMAND_RATE, COMMAND_TIME = 'rates per second', 'times in seconds'
WALL_TIME = 'wall times in seconds'
# Far from the range where arithmetic overflows.
_Positive = Annotated[float, Meta(ge=1e-100, le=1e100)]


class _Document(Section, dict=True, tag_field='schema'):
    schema_version: Literal[1]

    # The path of the file that was read; not part of the document.
    source = ''


class Result(_Document, tag=RESULT, kw_only=True):
    """A result, as BenchmarkCNN.result and --result_file have it. Unknown values are null."""

    id: Annotated[str, about('Different for each run.')]
    is_complete: Annotated[bool, about('Whether the run took all of its steps.')] = msgspec.field(
        name='complete'
    )
    exit_status: sections.ExitSection
    started_at: Annotated[Time, about('UTC, ISO 8601.')]
    ended_at: Time
    program: sections.ProgramSection
    command: sections.CommandSection
    run: sections.RunSection
    cluster: sections.ClusterSection
    model: sections.ModelSection
    workers: Annotated[
        Sequence[sections.WorkerSection],
        about('The chief first. Workers that were lost are missing.'),
    ]
    throughput: sections.ThroughputSection
    statistics: sections.StatisticsSection
    phases: Annotated[
        Mapping[str, Number | None],
        about(
            'Seconds of each phase before the first timed step; first_step: until the first step '
            'of all was done.'
        ),
    ]
    compute: sections.ComputeSection
    memory: sections.MemorySection
    transfer: sections.TransferSection
    input: sections.InputSection
    energy: sections.EnergySection
    evaluations: Sequence[sections.EvaluationRow]
    machine: Annotated[sections.MachineSection, about('Of the chief.')]
    environment: Annotated[
        Mapping[str, str], about('Variables that change how TensorFlow and its libraries compute.')
    ]
    noise: Annotated[
        sections.NoiseSection, about('What else the machine did during the timed steps.')
    ]
    warnings: Sequence[sections.WarningRow]

    unit: ClassVar[str] = 'rates in images/sec'

    def __post_init__(self) -> None:
        check_time(self.started_at)
        check_time(self.ended_at)
        if self.phases is not None and (
            missing := [name for name in START_PHASES if name not in self.phases]
        ):
            raise ValueError(f'`phases` lacks {", ".join(missing)}')

    @property
    def steps(self) -> sections.StepsSection:
        """The steps of the chief, or of the worker that returned this result."""
        return self.workers[0].steps

    def to_dict(self) -> dict[str, Any]:
        """Returns the document as JSON values."""
        document: dict[str, Any] = as_json(self)
        return document

    def __repr__(self) -> str:
        """Returns five lines: what ran, and how fast."""
        run, seconds = self.run, self.statistics.step_seconds.median
        images = 'synthetic' if run.is_synthetic else 'real'
        rate = (
            f'{self.images_per_second:.2f} images/sec' if self.images > 0 else 'no step was timed'
        )
        each = '' if seconds is None else f', {1e3 * seconds:.1f} ms each (median)'
        return (
            f'Result\n  Model:   {self.model.name} on {run.data_set} ({images}), {run.precision}, '
            f'{run.data_format}\n'
            f'  Devices: {len(run.devices)} on each of {self.cluster.num_workers}: '
            f'{", ".join(run.devices)}\n'
            f'  Total:   {rate}{"" if self.is_complete else "; the run is incomplete"}\n'
            f'  Steps:   {self.statistics.num_steps} timed, of {run.global_batch_size} images{each}'
        )

    def original_statistics(self) -> dict[str, float]:
        """Returns what the original's run() does, without values that are unknown.

        The keys are num_workers, num_steps (timed steps of all workers), average_wall_time (seconds
        of a step), images_per_sec (of an evaluation if no step was timed), last_average_loss,
        top_1_accuracy and top_5_accuracy (of the last evaluation).
        """
        num_workers, throughput = self.cluster.num_workers, self.throughput
        images_of_step = self.run.batch_size * self.cluster.devices_per_worker
        num_steps = round(throughput.images / images_of_step)
        values: dict[str, float | None] = {
            'num_workers': num_workers,
            'num_steps': num_steps,
            'average_wall_time': num_workers * throughput.wall_seconds / num_steps
            if num_steps
            else None,
            'images_per_sec': throughput.images_per_second,
            'last_average_loss': [None, *(self.steps.loss if self.workers else ())][-1],
        }
        for evaluation in self.evaluations[-1:]:
            if not num_steps:
                values['images_per_sec'] = evaluation.images_per_second
            values |= {'top_1_accuracy': evaluation.top_1, 'top_5_accuracy': evaluation.top_5}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def reason(self) -> str | None:
        return self.exit_status.reason

    @property
    def shape(self) -> str:
        return self.cluster.shape

    @property
    def flags(self) -> Mapping[str, Any]:
        return self.command.flags

    @property
    def given_flags(self) -> Mapping[str, str]:
        return self.command.given_flags

    @property
    def batch_size(self) -> int:
        """The batch size of a device."""
        return self.run.batch_size

    @property
    def workload(self) -> Mapping[str, Any]:
        """The values that runs must share to be compared: model, data set, image size, role."""
        names = ('data_set', 'is_synthetic', 'image_size', 'role')
        return {'model': self.model.name, **{name: getattr(self.run, name) for name in names}}

    @functools.cached_property
    def limits(self) -> dict[str, Any]:
        """What the process could use on its machine: cores, quotas, memory, governor, kernel, the
        limits of GPUs.

        These are all known values of the machine section except _NOT_LIMITS. GPU properties other
        than the UUID become lists.
        """
        # Older results lack values that later ones may not know either.
        limits = {
            name: value
            for name, value in self.machine.items()
            if name not in _NOT_LIMITS and value is not None
        }
        gpus = self.machine.get('gpus') or ()
        names = dict.fromkeys(name for gpu in gpus for name in gpu if name != 'uuid')
        limits |= {f'gpus.{name}': [gpu.get(name) for gpu in gpus] for name in names}
        for worker in self.workers[1:]:
            for name in _QUOTAS:
                if value := dict[str, Any](worker.machine or {}).get(name):
                    limits[f'{worker.task}.{name}'] = value
        return limits

    @property
    def noises(self) -> list[sections.NoiseSection]:
        """Returns the noise of each worker, or the noise of the chief in older results."""
        return [worker.noise for worker in self.workers if worker.machine] or [self.noise]

    @property
    def steps_alone(self) -> dict[str, sections.AloneSection]:
        """What each worker took alone, by its name; empty if none did."""
        return {name: alone for worker in self.workers for name, alone in worker.alone.items()}

    @property
    def images_per_second(self) -> float:
        """Images of all timed steps over wall seconds minus evaluations; nan without a step."""
        return as_float(self.throughput.images_per_second)

    @property
    def images(self) -> float:
        """The images of all timed steps; nan if unknown."""
        return as_float(self.throughput.images)

    @property
    def gradient_bytes(self) -> int | None:
        """The bytes of one device's gradients in the dtype that is sent; None if unknown."""
        compact, parameters = (
            self.command.flags.get('compact_gradient_transfer'),
            self.model.parameters,
        )
        is_short = compact if self.run.precision == 'fp32' else compact is not False
        return None if parameters is None else parameters * (2 if is_short else 4)

    def step_seconds(self) -> NDArray[np.float64]:
        """Returns the seconds of each timed step of the chief, [num_steps] float64; empty if
        unknown.
        """
        return self._step_seconds

    @functools.cached_property
    def _step_seconds(self) -> NDArray[np.float64]:
        return (
            _timed_values(self.workers[0].steps, self.workers[0].steps.seconds)
            if self.workers
            else np.empty(0)
        )

    def is_next_to_pause(self) -> NDArray[np.bool_]:
        """Returns which timed steps of the chief precede or follow a pause such as a checkpoint,
        [num_steps] bool.
        """
        beside = np.zeros(self.step_seconds().size, dtype=bool)
        for cause, seconds in self.workers[0].steps.between.items() if self.workers else ():
            if cause not in ('printing', 'other'):
                beside |= _timed_values(self.workers[0].steps, seconds) > 0
        beside[1:] |= beside[:-1]
        return beside

    def mean_seconds_per_call(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the mean seconds of the timed steps in each session call, [num_calls] float64.

        With --steps_per_run, a call takes several steps, and only the call is measured.

        Args:
          seconds: a value for each timed step.
        """
        size = self.run.steps_per_run or 1
        if size == 1 or not seconds.size:
            return seconds
        starts = np.arange(0, seconds.size, size)
        return np.add.reduceat(seconds, starts) / np.diff(starts, append=seconds.size)


class CommandResult(_Document, tag=COMMAND_RESULT, kw_only=True, omit_defaults=True):
    """A run of any program, by --command."""

    id: str
    flags: Annotated[
        Mapping[str, str],
        about('--command with its patterns, and the setting: placeholders, variables, pair.'),
    ]
    started_at: Time
    seconds: Annotated[_Positive, about('Wall seconds of the process.')]
    rates: Annotated[
        Mapping[str, _Positive], about('The last match of each --rate, by the name of its group.')
    ] = {}
    times: Annotated[Mapping[str, _Positive], about('Seconds: the last match of each --secs.')] = {}
    matches: Annotated[
        Mapping[str, Integer], about('How many numbers matched, if more than one.')
    ] = {}
    rate: Annotated[NotNegative | None, about('In older documents, the rate.')] = None
    machine: sections.MachineSection
    environment: Mapping[str, str]
    noise: sections.NoiseSection
    warnings: Sequence[sections.WarningRow] = ()

    # Attributes of a Result that `compare` uses.
    is_complete: ClassVar = True
    exit_code: ClassVar = 0
    shape: ClassVar = 'command'
    images: ClassVar = math.nan
    reason: ClassVar[str | None] = None
    batch_size: ClassVar[int | None] = None
    program: ClassVar = None
    workers: ClassVar[Sequence[sections.WorkerSection]] = ()
    limits: ClassVar[Any] = Result.limits
    # What another program did is unknown.
    workload: ClassVar[Mapping[str, None]] = dict.fromkeys(
        ('model', 'data_set', 'is_synthetic', 'image_size', 'role')
    )

    def __post_init__(self) -> None:
        check_time(self.started_at)
        if self.rate:
            self.rates, self.rate = {'rate': self.rate}, None

    @property
    def noises(self) -> list[sections.NoiseSection]:
        return [self.noise]

    @property
    def given_flags(self) -> Mapping[str, str]:
        return self.flags

    @property
    def unit(self) -> str:
        return COMMAND_RATE if self.rates else COMMAND_TIME if self.times else WALL_TIME

    @property
    def images_per_second(self) -> float:
        """The first rate in the unit of the program, or runs per second of the first time."""
        return next(iter(self.rates.values()), 1 / next(iter(self.times.values()), self.seconds))

    def step_seconds(self) -> NDArray[np.float64]:
        """Returns the seconds of the run, which its timed steps do not exceed; [] for a wall
        time.
        """
        return np.array([self.seconds] if self.rates or self.times else [])


AnyResult = Result | CommandResult


class FailedCommand(Struct):
    given_flags: Mapping[str, str]
    argv: Sequence[str] = ()


class FailedCluster(Struct):
    shape: str


class Failure(_Document, tag=FAILURE, kw_only=True, omit_defaults=True):
    """The document that a sweep writes for a run without a result."""

    id: str = ''
    command: FailedCommand
    cluster: FailedCluster
    reason: Annotated[str, about('Why the run failed, in one line.')]
    exit_code: Integer | None = None
    started_at: Time | None = None
    cause: Annotated[str | None, about('timeout, memory or error.')] = None
    seconds: NotNegative | None = None

    def __post_init__(self) -> None:
        check_time(self.started_at)

    @property
    def given_flags(self) -> Mapping[str, str]:
        return self.command.given_flags

    @property
    def shape(self) -> str:
        return self.cluster.shape


def as_float(value: float | None, otherwise: float = math.nan) -> float:
    """Returns a number of a document, or `otherwise` if it is unknown."""
    return float(value) if value is not None and math.isfinite(value) else otherwise


def _timed_values(steps: sections.StepsSection, column: Sequence[float]) -> NDArray[np.float64]:
    """Returns the values of the timed steps."""
    return np.asarray(column, dtype=np.float64)[
        [phase is sections.Phase.TIMED for phase in steps.phase]
    ]


# ---- files ---------------------------------------------------------------------------------------


def read_document(text: str, source: str) -> AnyResult | Failure:
    """Reads the text of a JSON document.

    Raises:
      UsageError: it is not a result, is incomplete, or has a newer schema; the message names the
        source.
    """
    try:
        document = decode_json(text, AnyResult | Failure)
    except DocumentError as error:
        raise UsageError(f'{source}: {_explain_invalid(text, error)}') from None
    document.source = source
    return document


def _explain_invalid(text: str, error: Exception) -> str:
    """Returns why a text is not a document, given the decoder's error."""
    try:
        document = decode_json(text, object)
    except DocumentError as malformed:
        hint = (
            'was its run, or a copy, cut off? Give a file that --result_file wrote (only compare '
            'reads logs, too)'
        )
        return f'it is not a complete JSON document ({malformed}); {hint}'
    if not isinstance(document, dict) or document.get('schema') not in _SCHEMAS:
        return 'it is not a result of this program; use a file that --result_file wrote'
    version = document.get('schema_version')
    if type(version) is int and version > SCHEMA_VERSION:
        return (
            f'its schema_version is {version}, above {SCHEMA_VERSION}; install a newer version of '
            'this program'
        )
    reason = str(error)
    excerpt = reason if len(reason) < 400 else f'{reason[:200]} ... {reason[-100:]}'
    return f'the document is damaged ({excerpt}); measure again'


def is_document(path: Path) -> bool | None:
    """Whether a file holds a document of this program, of any version, damaged or not; None if it
    is not complete JSON.
    """
    try:
        document = decode_json(read_text(path, MAX_BYTES), object)
    except (OSError, ValueError):
        return None
    return isinstance(document, dict) and document.get('schema') in _SCHEMAS


def read_result(path: Path) -> AnyResult | Failure:
    """Reads a result file. Raises UsageError if read_document does, or if the file cannot be
    read.
    """
    try:
        text = read_text(path, MAX_BYTES)
    except UnicodeDecodeError:
        raise UsageError(
            f'{path}: it is not UTF-8 text; give a file that --result_file wrote'
        ) from None
    except OSError as error:
        raise UsageError(
            f'{path}: it cannot be read ({error.strerror}); give a file that --result_file wrote'
        ) from None
    return read_document(text, str(path))

"""The sections of a result document: a class each, and a field for each value. Does not import TensorFlow.

The method `of` of a section finds its values in a Result, run/recording.py finds all others; results.facts makes the
document and its schema. Two sections are found before the run: "run" consists of the facts of the plan
(planning/plan.py), "machine" of those of machine/surroundings.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from inputs.buffers import Buffer
from inputs.stages import STAGES
from results.document import FAILURE, RESULT, SCHEMA_VERSION
from results.facts import ADDED
from results.result import Accuracy, Cause, Ending, Phase, Result, Transfer
from results.statistics import Distribution, throughput

# The phases of a run before the first timed step.
START_PHASES = ('import', 'join', 'build', 'initialise', 'warm_up')

Count = Annotated[int, ('minimum', 0)]
OneOrMore = Annotated[int, ('minimum', 1)]
NotNegative = Annotated[float, ('minimum', 0)]
Time = Annotated[str, ('format', 'date-time')]
Version = Annotated[int, ('const', SCHEMA_VERSION)]


@dataclass(frozen=True, kw_only=True)
class ProgramSection:
    version: str
    git_commit: str | None


@dataclass(frozen=True, kw_only=True)
class CommandSection:
    argv: Sequence[str]
    flags: Annotated[Mapping[str, Any], 'The value of every flag; what the run decided itself instead of null or 0.']
    given: Annotated[Mapping[str, str], 'The flags that were written, as they were written.']


@dataclass(frozen=True, kw_only=True)
class ClusterSection:
    shape: Annotated[
        str,
        ('pattern', r'^[1-9]\d{0,5}\*[1-9]\d{0,5}(\+[1-9]\d{0,5})?$'),
        'Workers * devices of each + parameter servers: 2*1+1, 1*8.',
    ]
    num_workers: OneOrMore
    devices_per_worker: OneOrMore
    num_ps: Count
    tasks: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    name: str
    parameters: Annotated[Count | None, 'Trainable ones.']
    gflops_per_image: Annotated[NotNegative | None, 'Multiply-adds of a forward pass / 1e9.']


@dataclass(frozen=True, kw_only=True)
class MemorySection:
    host_peak_bytes: Annotated[int | None, 'Of one process; outside the list of workers, of the chief.']
    device_peak_bytes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class StepsSection:
    """Steps as lists of equal length, with a value for each step."""

    phase: Annotated[Sequence[Phase], 'The columns of this object have equal lengths: one value for each step.']
    index: Annotated[Sequence[Count], 'From 1 within the phase.']
    global_step: Annotated[
        Sequence[Count], 'Updates of the model after the step, warm-up and the steps of other workers included.'
    ]
    start: Annotated[Sequence[NotNegative], 'Unix time in seconds.']
    seconds: Annotated[Sequence[NotNegative], 'Wall seconds of the step alone.']
    loss: Annotated[
        Sequence[float | None], 'null: not finite, or not computed because of --input_only or --exchange_only.'
    ]
    top_1: Sequence[float | None] | None
    top_5: Sequence[float | None] | None
    learning_rate: Sequence[float | None] | None
    input_wait: Annotated[
        Sequence[NotNegative | None] | None,
        'Seconds at the end of the step in which only the input pipeline was still working.',
    ]
    between: Annotated[Mapping[Cause, Sequence[float]], 'Seconds between this step and the next one, by cause.']

    @classmethod
    def of(cls, result: Result, unix_at_zero: float = 0.0) -> 'StepsSection':
        """The steps of a result; unix_at_zero is the Unix time at which their clock was at 0."""
        steps, between = result.steps, result.between

        def values(name: str) -> list[float | None] | None:
            found = [getattr(step.values, name) for step in steps]
            return None if all(value is None for value in found) else found

        return cls(
            phase=[step.phase for step in steps],
            index=[step.index for step in steps],
            global_step=[step.values.steps_after for step in steps],
            start=[unix_at_zero + step.start for step in steps],
            seconds=[step.seconds for step in steps],
            loss=[step.values.loss for step in steps],
            top_1=values('top_1'),
            top_5=values('top_5'),
            learning_rate=values('learning_rate'),
            input_wait=values('input_wait'),
            between={
                cause: [gap.get(cause, 0.0) for gap in between]
                for cause in Cause
                if any(gap.get(cause) for gap in between)
            },
        )


@dataclass(frozen=True, kw_only=True)
class WorkerSection:
    task: str | None
    host: str
    memory: MemorySection
    steps: StepsSection


@dataclass(frozen=True, kw_only=True)
class ThroughputSection:
    images_per_second: Annotated[NotNegative | None, 'Images over wall_seconds: the total.']
    images_per_second_of_steps: Annotated[
        NotNegative | None, "The same images over the own seconds of the chief's timed steps."
    ]
    images: Count
    wall_seconds: Annotated[float, 'From the start of the first timed step to the end of the last, less evaluations.']
    step_seconds: Annotated[NotNegative, 'The sum of the seconds of the timed steps.']
    between_seconds: Annotated[Mapping[Cause, float], 'Between the first and the last timed step, by cause.']
    standard_error: Annotated[NotNegative | None, 'Of the rates of single steps, in images/sec.']
    jitter: Annotated[NotNegative | None, '1.4826 * MAD of these rates, in images/sec.']
    images_per_second_per_device: NotNegative | None

    @classmethod
    def of(cls, result: Result) -> 'ThroughputSection':
        rate = result.rate if result.timed_steps else None
        return cls(
            images_per_second=result.images_per_second,
            images_per_second_of_steps=throughput(result.images, result.step_seconds),
            images=result.images,
            wall_seconds=result.wall_seconds,
            step_seconds=result.step_seconds,
            between_seconds=result.between_seconds,
            standard_error=rate.standard_error if rate else None,
            jitter=rate.jitter if rate else None,
            images_per_second_per_device=result.images_per_second / (len(result.devices) * result.num_workers),
        )


@dataclass(frozen=True, kw_only=True)
class ComputeSection:
    flops_per_image: Annotated[
        float | None, 'Of a step: 2 for each multiply-add, and 3 times the forward pass in training.'
    ]
    flops_per_second: float | None
    peak_flops_per_second: Annotated[float | None, 'Of large matrix products: --measure_peak.']
    share_of_peak: float | None


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """A stage of an input pipeline."""

    stage: Annotated[str, ('enum', tuple(STAGES))]
    images_per_second: Annotated[float, 'Of the pipeline up to this stage.']
    added_wall_seconds_per_image: Annotated[
        float, 'The time per image up to this stage less that up to the one before; below 0 if stages overlap.'
    ]
    added_processor_seconds_per_image: Annotated[
        float, 'The same for the seconds of all processors that this process used.'
    ]
    share: Annotated[float, 'added_wall_seconds_per_image over the time per image up to the last stage.']


@dataclass(frozen=True, kw_only=True)
class BuffersSection:
    most_bytes: int
    buffers: Sequence[Buffer]


@dataclass(frozen=True, kw_only=True)
class InputSection:
    wait_seconds: Annotated[float | None, 'The sum of input_wait over the timed steps of the chief.']
    wait_share: Annotated[float | None, 'Of the seconds of these steps.']
    stages: Annotated[
        Sequence[StageRow] | None,
        ADDED,
        'With --input_only: the pipeline up to each of its stages, in their order. The steps of the result are those '
        'of the last one.',
    ]
    memory: Annotated[
        BuffersSection | None,
        ADDED,
        'What the buffers of the pipeline take in host memory when they are full; null: nothing, or not known.',
    ]


@dataclass(frozen=True, kw_only=True)
class EnergySection:
    source: str | None
    joules: Annotated[
        float | None,
        'Of the machine of the chief (NVML: of the GPUs of the chief), from the start of the first timed step to the '
        'end of the last.',
    ]
    joules_per_image: Annotated[float | None, 'Null if other machines, or GPUs of other processes, took part.']


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    step: Annotated[int, 'Global step.']
    num_images: int
    top_1: float | None
    top_5: float | None
    seconds: float
    end: Annotated[float | None, ADDED, 'Unix time at which its result was known.']
    images_per_second: float | None

    @classmethod
    def of(cls, found: Accuracy, unix_at_zero: float) -> 'EvaluationRow':
        """An evaluation; unix_at_zero is the Unix time at which the clock of the steps was at 0."""
        return cls(
            step=found.step,
            num_images=found.num_images,
            top_1=found.top_1,
            top_5=found.top_5,
            seconds=found.seconds,
            end=None if found.end is None else unix_at_zero + found.end,
            images_per_second=found.images_per_second,
        )


class WarningRow(TypedDict):
    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ResultDocument:
    """What --result_file writes: docs/results.md."""

    schema: Annotated[str, ('const', RESULT)] = RESULT
    schema_version: Version = SCHEMA_VERSION
    id: Annotated[str, 'Different for each run.']
    complete: Annotated[bool, 'Whether the run took all of its steps.']
    ended: Ending
    started_at: Annotated[Time, 'UTC, ISO 8601.']
    ended_at: Time
    program: ProgramSection
    command: CommandSection
    run: Mapping[str, Any]
    cluster: ClusterSection
    model: ModelSection
    workers: Annotated[Sequence[WorkerSection], 'The chief first. Workers that were lost are missing.']
    throughput: ThroughputSection
    statistics: Distribution
    phases: Annotated[
        Mapping[str, float | None],
        ('required', (*START_PHASES, 'first_step')),
        'Seconds of each phase before the first timed step; first_step: until the first step of all was done.',
    ]
    compute: ComputeSection
    memory: MemorySection
    transfer: Transfer
    input: InputSection
    energy: EnergySection
    evaluations: Sequence[EvaluationRow]
    machine: Annotated[Mapping[str, Any], 'Of the chief.']
    environment: Annotated[Mapping[str, str], 'Variables that change how TensorFlow and its libraries compute.']
    disturbance: Annotated[Mapping[str, Any], 'What else the machine did during the timed steps.']
    warnings: Sequence[Annotated[WarningRow, ('additionalProperties', False)]] = ()


class FailedCommand(TypedDict):
    argv: Annotated[Sequence[str], ADDED]
    given: Mapping[str, str]


class FailedCluster(TypedDict):
    shape: str


class FailedRun(TypedDict):
    """What a failure says about its run."""

    command: FailedCommand
    cluster: FailedCluster


class _Reason(FailedRun):
    reason: str


class FailureDocument(_Reason, total=False):
    """What a sweep writes for a run that left no result."""

    schema: Annotated[str, ('const', FAILURE)]
    schema_version: Version
    id: str
    exit_code: int | None
    started_at: Time
    cause: Annotated[str | None, 'timeout, memory or error.']
    seconds: NotNegative

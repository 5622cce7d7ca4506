"""The sections of a result document: one class each, with one field for each value. Does not import
TensorFlow.

msgspec writes and checks the JSON, and derives its schema, from these classes. A field with a
default was added later, and older results lack it. tf_cnn/results/steps.py makes the sections that
follow from the steps, and run/result_builder.py makes the others.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, NotRequired, TypedDict

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import ArrayLike

from tf_cnn.inputs.pipeline_stages import STAGES, Buffer
from tf_cnn.results.statistics import drift, mad, outliers

# The phases of a run before the first timed step, and the time until the very first step was done.
START_PHASES = ('import', 'join', 'build', 'initialise', 'warm_up', 'first_step')

# Bounds within which 64-bit arithmetic works.
_LARGEST, _LARGEST_INTEGER = 1e100, 2**63 - 1
_PERCENTILES = (50, 90, 95, 99)
_SHAPE = r'^[1-9]\d{0,5}\*[1-9]\d{0,5}(\+[1-9]\d{0,5})?$(?!\n)'

Integer = Annotated[int, Meta(ge=-_LARGEST_INTEGER, le=_LARGEST_INTEGER)]
Count = Annotated[int, Meta(ge=0, le=_LARGEST_INTEGER)]
OneOrMore = Annotated[int, Meta(ge=1, le=_LARGEST_INTEGER)]
Number = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
NotNegative = Annotated[float, Meta(ge=0, le=_LARGEST)]
Scalar = bool | Integer | Number | str | None
# check_time has the rules of its text.
Time = Annotated[str, Meta(extra_json_schema={'format': 'date-time'})]


def about(text: str) -> Meta:
    return Meta(description=text)


def one_of(*values: str) -> Meta:
    return Meta(pattern=rf'^({"|".join(values)})$(?!\n)')


class Phase(Enum):
    """The phase of a step: WARMUP steps are kept, but do not count in any rate."""

    WARMUP = 'warmup'
    TIMED = 'timed'


class Section(Struct):
    """An object of a document. JSON has no nan and no infinity: such values are unknown, None."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                setattr(self, name, None)


class ExitSection(Section):
    """How a run ended: its exit code and, unless that is 0, the reason in one line."""

    exit_code: Integer
    reason: str | None

    @property
    def is_complete(self) -> bool:
        """Whether the run did everything asked of it."""
        return self.exit_code == 0


class ProgramSection(Section):
    version: str
    git_commit: str | None


class CommandSection(Section):
    argv: Sequence[str]
    flags: Annotated[
        Mapping[str, Scalar | Sequence[Scalar]], about('The value of every flag that the run used.')
    ]
    given_flags: Annotated[
        Mapping[str, str], about('The flags that were given, as they were written.')
    ]


class RunSection(Section, kw_only=True):
    """The settings that the run resolved from its flags and its machine."""

    role: Annotated[
        str, one_of('training', 'forward-only', 'evaluation', 'input-only', 'exchange-only')
    ]
    has_synchronous_workers: Annotated[
        bool, about('Whether the workers wait for each other in each step.')
    ]
    image_size: Annotated[Count, about('Height and width in pixels.')]
    data_set: str
    is_synthetic: bool
    num_missing_shards: Annotated[
        Count, about('Missing shards, according to the file names (-of-01024).')
    ]
    device: Annotated[str, one_of('cpu', 'gpu')]
    devices: Annotated[Sequence[str], about('The devices of one worker, one for each tower.')]
    data_format: Annotated[str, one_of('NHWC', 'NCHW')]
    tf32: Annotated[
        bool | None,
        about(
            'Whether fp32 was computed in TF32, whatever --tf32 allowed; comparisons treat it as '
            'a flag. Null: unknown.'
        ),
    ] = False
    onednn: Annotated[
        bool | None, about('Whether TensorFlow computed by oneDNN on CPUs. Null: unknown.')
    ] = None
    images_per_step: Annotated[Count, about('Images for each increment of the global step.')]
    num_warmup: Count
    display_every: Count
    num_timed: Annotated[Count | None, about('As requested; null with --target_seconds.')]
    num_epochs: Annotated[NotNegative | None, about('As requested; null with --target_seconds.')]
    variable_update: str
    sync: bool
    all_reduce_spec: str | None
    optimizer: str
    batch_size: Annotated[Count, about('Images per step on each device.')]
    global_batch_size: Count
    input_pipeline: Annotated[
        str | None, about('How images become batches; null in an evaluation.')
    ] = None
    steps_per_run: Annotated[
        Count, about("Steps per session call; each counts an equal part of the call's time.")
    ] = 1
    precision: Annotated[str, about('The type in which the network computes.')]
    num_skipped_steps: Annotated[
        Count, about('Steps that changed no variable, since their gradients overflowed.')
    ]
    model_file_sha256: Annotated[
        str | None, about('Of the --model_file that defines the model.')
    ] = None
    variable_mgr_file_sha256: Annotated[
        str | None, about('Of the --variable_mgr_file that defines the mode.')
    ] = None
    data_sha256: Annotated[
        str | None, about('Of the names and sizes of the shards that the run reads.')
    ] = None


class ClusterSection(Section):
    shape: Annotated[
        str,
        Meta(pattern=_SHAPE, description='Workers * devices of each + parameter servers: 2*1+1.'),
    ]
    num_workers: OneOrMore
    devices_per_worker: OneOrMore
    num_ps: Count
    tasks: Sequence[str]

    @property
    def num_devices(self) -> int:
        return self.num_workers * self.devices_per_worker


class ModelSection(Section):
    name: str
    parameters: Annotated[Count | None, about('Trainable parameters.')]
    gmacs_per_image: Annotated[NotNegative | None, about('Multiply-adds of a forward pass / 1e9.')]


class MemorySection(Section):
    host_peak_bytes: Annotated[
        Integer | None, about("Peak of the worker's process; outside workers, of the chief's.")
    ]
    device_peak_bytes: Mapping[str, Integer]


class StepsSection(Section):
    """Steps as lists of equal length, with a value for each step."""

    phase: Sequence[Phase]
    index: Annotated[Sequence[Count], about('From 1 within the phase.')]
    global_step: Annotated[
        Sequence[Count], about('Updates of the model after the step, by all workers.')
    ]
    start: Annotated[Sequence[NotNegative], about('Unix time in seconds.')]
    seconds: Annotated[Sequence[NotNegative], about('Wall seconds of the step alone.')]
    loss: Annotated[Sequence[Number | None], about('Null if it is not finite or there is none.')]
    top_1: Sequence[Number | None] | None
    top_5: Sequence[Number | None] | None
    learning_rate: Sequence[Number | None] | None
    input_wait: Annotated[
        Sequence[NotNegative | None] | None,
        about(
            'Seconds at the end of each step, after the update, when only the input pipeline was '
            'still working; with feed_dict, the seconds before the step that Python took to draw '
            'the batch. Null with --deterministic. Cores that the input takes from the model '
            'during the step are not counted.'
        ),
    ]
    between: Annotated[
        Mapping[str, Sequence[Number]], about('Seconds up to the next step, by cause.')
    ]

    def __post_init__(self) -> None:
        columns = {
            name: getattr(self, name) for name in self.__struct_fields__ if name != 'between'
        }
        sizes = {
            name: len(column)
            for name, column in {**columns, **self.between}.items()
            if column is not None
        }
        if len({*sizes.values()}) > 1:
            raise ValueError(
                'lists of unequal length: '
                f'{", ".join(f"{n} of {name}" for name, n in sizes.items())}'
            )


class ThroughputSection(Section):
    images_per_second: Annotated[NotNegative | None, about('Images over wall_seconds: the total.')]
    images_per_second_of_steps: Annotated[
        NotNegative | None, about('The same images over step_seconds.')
    ]
    images: Count
    wall_seconds: Annotated[
        Number,
        about('From the start of the first timed step to the end of the last, minus evaluations.'),
    ]
    step_seconds: Annotated[NotNegative, about('The sum of the seconds of the timed steps.')]
    between_seconds: Annotated[
        Mapping[str, Number], about('Between the first and the last timed step, by cause.')
    ]
    standard_error: Annotated[
        NotNegative | None, about('Standard error of the rates of single steps, in images/sec.')
    ]
    jitter: Annotated[NotNegative | None, about('1.4826 * MAD of these rates, in images/sec.')]
    images_per_second_per_device: NotNegative | None


class StepSeconds(Section):
    """The distribution of seconds; null without steps."""

    mean: Number | None
    median: Number | None
    mad: Number | None
    min: Number | None
    max: Number | None
    p50: Number | None
    p90: Number | None
    p95: Number | None
    p99: Number | None


class StatisticsSection(Section):
    num_steps: Integer
    step_seconds: Annotated[StepSeconds, about('Of the timed steps of the chief.')]
    drift: Annotated[
        Number | None, about('Throughput of the second half over the first half, minus 1.')
    ]
    num_outliers: Integer

    @classmethod
    def of(cls, seconds: ArrayLike) -> 'StatisticsSection':
        """Describes the distribution of the seconds of [num_steps] steps; percentiles are
        interpolated linearly.
        """
        values = np.asarray(seconds, dtype=np.float64)
        summary = StepSeconds(*[None] * len(StepSeconds.__struct_fields__))
        if values.size:
            middle, percentiles = (
                float(np.median(values)),
                map(float, np.percentile(values, _PERCENTILES)),
            )
            ends = float(values.min()), float(values.max())
            summary = StepSeconds(float(values.mean()), middle, mad(values), *ends, *percentiles)
        return cls(values.size, summary, drift(values), int(outliers(values).sum()))


class ComputeSection(Section):
    flops_per_image: Annotated[
        Number | None,
        about(
            '2 for each multiply-add. Training counts as three forward passes: for each product '
            'of the forward pass the backward pass has two of the same size.'
        ),
    ]
    flops_per_second: Number | None
    peak_flops_per_second: Annotated[
        Number | None,
        about(
            '--measure_peak: the best rate of large matrix products in the precision of the run, '
            'on the same devices with the same threads.'
        ),
    ]
    share_of_peak: Annotated[
        Number | None, about('Layers without such products are not counted, and lower it.')
    ]


class TransferSection(Section):
    """The data that a step moves between the processes of a cluster."""

    bytes_per_ps: Annotated[
        Sequence[Integer], about('Bytes of the variables on each parameter server.')
    ]
    bytes_per_step: Annotated[
        Integer | None, about('Bytes that a step sends; null if no graph was built.')
    ]


NO_TRANSFER = TransferSection((), None)


class StageRow(Section):
    """A stage of an input pipeline."""

    stage: Annotated[str, one_of(*STAGES)]
    images_per_second: Annotated[Number, about('Rate of the pipeline up to this stage.')]
    added_wall_seconds_per_image: Annotated[
        Number,
        about(
            'Wall seconds per image up to this stage, minus those up to the previous '
            'stage; may be negative.'
        ),
    ]
    added_processor_seconds_per_image: Annotated[
        Number, about('The same difference in processor seconds.')
    ]
    share: Annotated[
        Number, about('added_wall_seconds_per_image over the time per image up to the last stage.')
    ]


class BuffersSection(Section):
    max_bytes: Integer
    buffers: Sequence[Buffer]


class InputSection(Section):
    wait_seconds: Annotated[
        Number | None, about('The sum of input_wait over the timed steps of the chief.')
    ]
    wait_share: Annotated[Number | None, about('wait_seconds over the seconds of these steps.')]
    stages: Annotated[
        Sequence[StageRow] | None, about('With --input_only: the pipeline up to each stage.')
    ] = None
    memory: Annotated[
        BuffersSection | None, about('Host memory of full buffers; null: none, or not known.')
    ] = None


class EnergySection(Section):
    source: str | None
    joules: Annotated[
        Number | None,
        about(
            "Energy of the chief's machine, other programs included, from the start of "
            'the first timed step to the end of the last, evaluations included: of the '
            'processor packages (RAPL, which Linux lets only root read), or of the GPUs '
            'that the chief sees (NVML).'
        ),
    ]
    joules_per_image: Annotated[Number | None, about('Null if other machines or GPUs took part.')]


class EvaluationRow(Section, kw_only=True):
    step: Annotated[Integer, about('Global step.')]
    num_images: Integer
    top_1: Number | None
    top_5: Number | None
    seconds: Number
    prepare_seconds: Annotated[
        Number | None,
        about(
            'Other seconds of the evaluation: checkpoint, first batches, and waiting for '
            'the other workers.'
        ),
    ] = None
    end: Annotated[Number | None, about('Unix time at which its result was known.')] = None
    images_per_second: Number | None


class ThreadsSection(TypedDict):
    """The threads of a session within an operation and between operations, and the reason for their
    numbers.
    """

    intra_op: Integer | None
    inter_op: Integer | None
    reason: NotRequired[str | None]


class MachineSection(TypedDict):
    """The values of machine.run_environment.describe_machine; unknown values are null."""

    hostname: str | None
    os: str | None
    kernel: str | None
    cpu_model: str | None
    num_cores: Annotated[Integer | None, about('Logical cores.')]
    num_physical_cores: Integer | None
    num_sockets: Integer | None
    cpu_features: Sequence[str]
    is_virtual: bool | None
    governor: Annotated[str | None, about('The frequency governor of the CPU; several, if mixed.')]
    frequency_driver: NotRequired[
        Annotated[str | None, about("Linux's driver below the governor, such as intel_pstate.")]
    ]
    energy_preference: NotRequired[
        Annotated[
            str | None,
            about('What a CPU that chooses its clock itself prefers: balance_power, ...'),
        ]
    ]
    memory_bytes: Integer | None
    affinity: Annotated[Sequence[Integer] | None, about('The cores that the process may use.')]
    cgroup_cpus: Annotated[Number | None, about('The quota of the control group, in cores.')]
    cgroup_memory_bytes: Integer | None
    load_average: Sequence[Number] | None
    gpus: Sequence[Mapping[str, Scalar]]
    versions: Mapping[str, str | None]
    threads: ThreadsSection
    fingerprint: Annotated[
        str,
        about(
            'Hash of the host name, the processor, the numbers of cores and GiB of memory, and '
            'the names of the GPUs. Only runs with the same fingerprint are repeats. In '
            'containers with a generated host name, the UUIDs of the GPUs replace the names; '
            'without GPUs, docker run --hostname=NAME tells the containers apart.'
        ),
    ]


class NoiseSection(TypedDict, total=False):
    """The values of machine.meters.NoiseMeter and, in a run on GPUs, of
    machine.gpu_meter.GpuMeter.
    """

    seconds: Number
    load_average_start: Sequence[Number] | None
    load_average_end: Sequence[Number] | None
    cgroup_throttled_seconds: Number | None
    thermal_throttles: Integer | None
    steal_share: Number | None
    other_cpu_share: Number | None
    other_cpu_share_of_cgroup: Number | None
    gpu_clock_share: Annotated[
        Number | None,
        about('Median SM clock over its maximum, of the slowest GPU; a sample every second.'),
    ]
    gpu_lowest_clock_share: Annotated[Number | None, about('The lowest of these samples.')]
    gpu_heat_share: Annotated[
        Number | None, about('Share of the samples in which heat slowed a GPU down.')
    ]
    gpu_power_cap_share: Annotated[
        Number | None, about('Share in which its power limit held the clock of a GPU down.')
    ]
    gpu_hardware_slowdown_share: Annotated[
        Number | None,
        about('Share in which a GPU slowed itself down for another reason, such as a power brake.'),
    ]
    gpu_max_celsius: Annotated[Number | None, about('The highest temperature of a GPU.')]
    gpu_other_processes: Annotated[
        Integer | None,
        about(
            'The most processes of other programs that computed on a GPU of this run. Null in most '
            'containers, where the driver does not say which processes are those of the run.'
        ),
    ]
    gpus_lost: Annotated[Integer | None, about('GPUs that the driver lost.')]


class AloneSection(Section):
    """Steps that a worker took without exchange and update, after the timed steps, in parts of
    about 0.2 s.
    """

    steps: Annotated[Sequence[OneOrMore], about('How many steps each part has.')]
    seconds: Annotated[Sequence[NotNegative], about('Wall seconds of each part.')]

    @property
    def step_seconds(self) -> list[float]:
        """The mean seconds of a step in each part."""
        return [part / steps for part, steps in zip(self.seconds, self.steps, strict=True)]


class WorkerSection(Section, omit_defaults=True):
    task: str | None
    host: str
    memory: MemorySection
    steps: StepsSection
    machine: Annotated[MachineSection | None, about('In clusters.')] = None
    noise: Annotated[NoiseSection, about('In clusters; what else its machine did meanwhile.')] = {}
    alone: Annotated[
        Mapping[str, AloneSection],
        about('In clusters with synchronous steps: of each worker that this process drives.'),
    ] = {}

    @property
    def name(self) -> str:
        return f'{self.task} ({self.host})'


class WarningRow(Section):
    code: str
    text: str


def check_time(text: str | None) -> None:
    """Raises ValueError unless this is a valid time in ISO 8601."""
    try:
        if text is not None:
            datetime.fromisoformat(text.replace('Z', '+00:00')).timestamp()
    except (OverflowError, ValueError):
        raise ValueError('its times are not all in ISO 8601') from None

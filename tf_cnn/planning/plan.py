"""The plan of a run: all its settings, resolved once. Does not import TensorFlow.

planning.make_plan makes it. After that no code reads flags, folders or the environment again; each
component of a run gets the settings that it needs.
"""

import enum
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from models.model_spec import ModelSpec
from tf_cnn.cluster.shape import Shape
from tf_cnn.cluster.topology import Cluster, Timeout
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.inputs.catalog import InputRow, Source, pipeline_row_for
from tf_cnn.inputs.config import PipelineConfig
from tf_cnn.inputs.data_folder import DataFolder
from tf_cnn.inputs.data_sets import DataSet, Shards
from tf_cnn.inputs.preprocessors import Preprocessor
from tf_cnn.machine.visible_gpus import SINGLE_PROCESS, RankAndSize
from tf_cnn.managers.all_reduce_spec import SizeRange
from tf_cnn.managers.modes import Mode
from tf_cnn.run.params import Params
from tf_cnn.system.errors import plural

if TYPE_CHECKING:
    from tf_cnn.planning.session import SessionConfig
    from tf_cnn.planning.step import StepConfig


# The maximum length of a list of class names in a message.
_LONGEST_NAMES = 200


class Role(enum.Enum):
    """What a run does; the values are printed in the banner."""

    TRAINING = 'training'
    FORWARD_ONLY = 'forward-only'
    EVALUATION = 'evaluation'
    INPUT_ONLY = 'input-only'
    EXCHANGE_ONLY = 'exchange-only'

    @property
    def has_manager(self) -> bool:
        """Whether the run has a variable manager."""
        return self not in (Role.EVALUATION, Role.INPUT_ONLY)


@dataclass(frozen=True)
class ClusterRole:
    """The processes of a run, and the role of this process."""

    cluster: Cluster | None  # None for a run of one process
    horovod: Any  # the module horovod.tensorflow if Horovod started the processes, else None
    # Whether the workers take each step together; in a server: whether the loss of a training task
    # stops the others.
    is_synchronous: bool
    shared_settings: Mapping[
        str, Any
    ]  # the flags that all processes of the cluster need with the same values
    connect: Timeout
    step_limit: Timeout
    place_on_host: RankAndSize = SINGLE_PROCESS
    devices_per_worker: int = 1

    @property
    def is_single_process(self) -> bool:
        """Whether this is the only process, without a launcher."""
        return self.cluster is None and self.horovod is None

    @property
    def is_chief(self) -> bool:
        """Whether this process initializes variables, saves checkpoints and writes summaries."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def is_server(self) -> bool:
        """Whether this process only serves other tasks and takes no steps."""
        return self.cluster is not None and self.cluster.is_server

    @property
    def job(self) -> str:
        return self.cluster.job if self.cluster else 'worker'

    @property
    def is_parameter_server(self) -> bool:
        return self.job == 'ps'

    @property
    def has_local_towers(self) -> bool:
        """Whether this process has towers; parameter servers and controllers have none."""
        return not self.remote_tower_prefixes and not self.is_parameter_server

    @property
    def remote_tower_prefixes(self) -> tuple[str, ...]:
        """The device prefixes of the workers that a controller drives; empty in other processes."""
        has_controller = (
            self.cluster is not None and self.cluster.controller_hosts and not self.is_server
        )
        return (
            tuple(task.device for task in self.cluster.servers)
            if self.cluster and has_controller
            else ()
        )

    @property
    def num_hosts(self) -> int:
        """The number of processes with the towers that this process drives."""
        return len(self.remote_tower_prefixes) or 1

    @property
    def shape(self) -> Shape:
        num_ps = self.cluster.num_ps if self.cluster else 0
        return Shape(self.num_hosts * self.num_training_tasks, self.devices_per_worker, num_ps)

    @property
    def num_training_tasks(self) -> int:
        """The number of training tasks."""
        return len(self.cluster.training_tasks) if self.cluster else 1

    @property
    def index(self) -> int:
        """The index of this process among the training tasks."""
        return self.cluster.index if self.cluster else 0


@dataclass(frozen=True)
class Workload:
    """What a run trains or evaluates: its role, model and data folder."""

    role: Role
    model: ModelSpec
    folder: DataFolder | None  # None: synthetic images, or this process reads none
    exchange_bytes: int | None = (
        None  # size of the tensor that replaces the gradients with --exchange_only, if any
    )
    # The SHA-256 of the --model_file and --variable_mgr_file that the run uses, by flag.
    file_hashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        """The name of the model, or the size of the tensor in its place."""
        return self.model.name if self.exchange_bytes is None else f'{self.exchange_bytes} bytes'


@dataclass(frozen=True)
class Data:
    """The images that a run reads, and how they are preprocessed; see also
    preprocessing.ImageOptions.
    """

    data_set: DataSet
    folder: str | None  # --data_dir
    images: Source  # for steps; None: unused or synthetic
    validation: Source  # for evaluations; None: unused or synthetic
    image_size: int  # height and width in pixels of the images given to the model
    augmentation: str
    validation_augmentation: str  # does not depend on the input pipeline
    distortions: bool
    in_yiq: bool
    resize_method: str
    scaled_decode: bool
    seed: int
    distinct_workers: bool  # whether each worker draws different images
    deterministic: bool  # whether the seed alone decides the order of the images
    preprocessor: Preprocessor
    pipeline: str  # the name of the input pipeline, for images that it reads
    tf_data: PipelineConfig
    input_stages: tuple[str, ...] = ()  # the stages that --input_only measures; empty without it

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The height, width and channels of the images given to the model."""
        return self.image_size, self.image_size, self.data_set.channels

    @property
    def input_row(self) -> InputRow:
        """The row of the input pipeline of the steps."""
        return pipeline_row_for(self.images, self.pipeline)

    @property
    def shards(self) -> Shards | None:
        """The shards that steps read; None if they read none."""
        return self.images if isinstance(self.images, Shards) else None

    @property
    def validation_shards(self) -> Shards | None:
        return self.validation if isinstance(self.validation, Shards) else None


@dataclass(frozen=True)
class Machine:
    """Settings that depend on the devices of the machine."""

    kind: str  # 'cpu' or 'gpu': the devices of the towers
    towers: tuple[str, ...]  # the device of each
    # 'gpu': the towers' devices, maybe virtual CPUs, hold shared variables; 'cpu': the host does.
    parameter_device_kind: str
    # The devices that hold shared variables; in a worker of parameter servers, the devices that
    # receive variables and sum gradients.
    parameter_devices: tuple[str, ...]
    data_format: str  # 'NCHW' or 'NHWC'
    hosts: tuple[str, ...] = (HOST_DEVICE,)  # the CPU of each process that has towers, in order
    all_reduce_spec: str | None = None  # how towers sum gradients; None: the default of one process
    data_format_reason: str = ''  # for the banner; empty if the run had no choice
    tf32: bool | None = False  # whether fp32 is computed in TF32; None if that is unknown

    @property
    def is_local(self) -> bool:
        """Whether the towers are in this process, rather than in workers that it controls."""
        return self.hosts == (HOST_DEVICE,)


@dataclass(frozen=True)
class Counts:
    """Batch sizes and numbers of steps."""

    batch_size: int  # images per step on each device
    global_batch_size: int  # on all devices of all workers
    images_per_global_step: int  # images of all workers in synchronous modes, else of one worker
    num_warmup: int  # steps of each worker, as num_timed
    num_timed: int
    num_epochs: float  # the timed steps of all workers, in epochs
    display_every: int  # number of steps between printed lines
    ewma_weight: float | None = (
        None  # weight of the last step in printed rates, see results.statistics.summarize
    )
    target_secs: float | None = (
        None  # duration of the timed steps; num_timed is then an upper bound
    )
    steps_per_run: int = 1  # steps of one session call


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule: its name, and the arguments of its class."""

    name: str
    arguments: tuple[float | bool, ...]


@dataclass(frozen=True)
class VariableConfig:
    """Settings of variables and gradients; see also managers.buckets.Packing."""

    mode: Mode
    is_staged: bool  # --staged_vars: variables are one step old
    is_relaxed: bool  # --variable_consistency=relaxed: gradients are one step old
    is_synchronous: bool  # whether all towers take one step of one model together
    size_ranges: (
        tuple[SizeRange, ...] | None
    )  # the algorithm for each range of gradient sizes; None: --hierarchical_copy
    leaders: tuple[
        tuple[int, int], ...
    ]  # its pairs of linked towers, see managers.all_reduce.halves_algorithm
    banner_spec: str | None  # the --all_reduce_spec that the banner shows
    num_packets: int
    small_max_bytes: int
    small_max_group: int
    transfer: str | None  # dtype of gradients on the way; None: unchanged
    slices_variables: bool  # whether large variables are cut into slices for parameter servers
    horovod_device: str | None  # the kind of device that sums for Horovod
    uses_nccl: bool  # whether NCCL sums gradients of at least some sizes
    optimizer: OptimizerConfig

    @property
    def variable_update(self) -> str:
        return self.mode.name


@dataclass(frozen=True)
class EvalSchedule:
    """The global steps after which training waits for an evaluation."""

    every: Fraction | None = (
        None  # the interval in steps; the first step that reaches a multiple counts
    )
    at: frozenset[int] = frozenset()  # single steps

    def is_due(self, step: int, last_step: int) -> bool:
        """Whether an evaluation became due after step `since`, the last one asked about, and up to
        `step`.
        """
        if self.every is not None:
            return step // self.every > last_step // self.every
        return any(last_step < at <= step for at in self.at)

    def warning(self, start: int, end: int) -> str | None:
        """Returns a warning if training from step `start` to `end` misses evaluations."""
        if late := [str(at) for at in sorted(self.at) if at > end]:
            return (
                f'training ends after {plural(end, "step")}: there is no evaluation after '
                f'{", ".join(late)}'
            )
        if self.every is not None and not self.is_due(end, start):
            return (
                f'training goes from step {start} to {end}: there is no evaluation, the next one '
                f'is due after {math.ceil((end // self.every + 1) * self.every)}'
            )
        return None


@dataclass(frozen=True)
class Evaluations:
    """The images and the schedule of evaluations."""

    batch_size: int  # images per batch on each device
    num_batches: int | None  # global batches; None: until the last example
    num_examples: int | None  # examples that all processes evaluate together
    num_passes: (
        float | None
    )  # over the whole set; if num_examples is None too, each example is evaluated once
    banner_batches: int | None  # shown in the banner, with num_epochs; None: all batches
    num_epochs: float
    schedule: EvalSchedule
    goal: float | None  # the top-1 accuracy that ends training
    interval_secs: float  # between two looks for new checkpoints; 0: evaluate the newest once
    summary_folder: str | None  # where this process writes summaries


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints that a run saves and starts from."""

    folder: str | None  # --train_dir
    saves: bool  # whether this process saves checkpoints there
    every_secs: float  # in addition to the first and last step, as every_steps
    every_steps: int | None
    max_to_keep: int
    resume_from: str | None  # prefix of the checkpoint that training continues from
    warm_start: str | None  # prefix of another checkpoint that training starts from
    warm_start_flag: str  # the flag that named it
    export_folder: str | None  # where this process writes a SavedModel at the end
    data_dir: str | None  # the folder of the images; None if they are synthetic
    class_names: (
        tuple[str, ...] | None
    )  # of labels 0, 1, ...; checkpoints store them; None if data_dir has no names


@dataclass(frozen=True)
class Summaries:
    """The folder, interval and content of summaries, see run.instruments.SummaryWriter."""

    folder: str
    every: int
    verbosity: int


@dataclass(frozen=True)
class Instruments:
    """The diagnostic files of a run, see run.instruments. profile_steps: the first and the last
    step to profile.
    """

    trace_file: str | None
    chrome_format: bool
    tfprof_file: str | None
    partitioned_graph_prefix: str | None
    graph_file: str | None
    profile_folder: str
    profile_steps: tuple[int, int] | None
    summaries: Summaries | None


@dataclass(frozen=True)
class Losses:
    """The name of printed losses, and the reaction to a loss that is not finite."""

    name: str
    continue_on_nan: bool
    advice: tuple[str, ...]  # settings that may prevent such losses, for the error message


@dataclass(frozen=True)
class RunEnvironment:
    """The machine, environment variables and version of a run, see machine.run_environment."""

    machine: Mapping[str, Any]
    environment: Mapping[str, str]
    git_commit: str | None


@dataclass(frozen=True)
class Reports:
    """Where the result goes, and what else is measured for it."""

    result_file: (
        str | None
    )  # the JSON document, '-' for standard output; None if this process writes none
    numbered_result_file: (
        str | None
    )  # with {run} in it, for names if that one is not free; None if the user wrote it
    log_folder: str | None  # of results.benchmark_log; None if this process writes none
    test_id: str | None  # stands in that log
    measures_peak: bool  # whether the peak of the devices is measured after the steps
    idle_secs: (
        float | None
    )  # how long the run may wait for idle cores before it starts; None: it does not wait
    losses: Losses


@dataclass(frozen=True)
class Plan:
    """All settings of one run of one process. The plan is made from `params`, which results "
    "keep."""

    params: Params
    warnings: tuple[str, ...]
    cluster_role: ClusterRole
    workload: Workload
    data: Data
    machine: Machine
    counts: Counts
    step: 'StepConfig'
    variables: VariableConfig
    session: 'SessionConfig'
    evaluations: Evaluations | None
    checkpoints: Checkpoints
    reports: Reports
    instruments: Instruments
    run_environment: RunEnvironment

    @property
    def shared_data(self) -> dict[str, str | int]:
        """Properties of the images that all workers must share, by description; empty for synthetic
        images.

        With other classes, one label would be a cat to one worker and a dog to another.
        """
        if not self.checkpoints.class_names:
            return self._shared_images
        names = ', '.join(self.checkpoints.class_names)
        if len(names) > _LONGEST_NAMES:
            digest = hashlib.sha256(names.encode()).hexdigest()[:16]
            names = f'{names[:_LONGEST_NAMES]} ... (SHA-256 {digest})'
        return {'as class names': names, **self._shared_images}

    @property
    def _shared_images(self) -> dict[str, str | int]:
        """Numbers of images that all workers must share; empty if nothing depends on them.

        With different numbers, workers would count different steps in an epoch: their learning
        rates would differ, or they would wait for each other forever.
        """
        if self.data.folder is None or not self.cluster_role.is_synchronous:
            return {}
        params, rate = self.params, self.step.learning_rate
        has_epochs = (
            params.run.num_epochs is not None
            or params.evaluation.eval_during_training_every_n_epochs is not None
            or params.evaluation.eval_during_training_at_specified_epochs is not None
            or (params.trains and bool(rate.boundaries or rate.decay_steps or rate.warmup_steps))
        )
        numbers: dict[str, str | int] = {}
        if has_epochs:
            numbers['training images'] = self.data.data_set.num_train_examples
        if has_epochs or self.data.validation is not None:
            numbers['validation images'] = self.data.data_set.num_validation_examples
        return numbers


@dataclass(frozen=True)
class ServerPlan:
    """The plan of a server: a parameter server, or a worker that a controller drives."""

    cluster_role: ClusterRole
    session: 'SessionConfig'
    linger_secs: float  # time that the server stays after all training tasks have finished
    warnings: tuple[str, ...]

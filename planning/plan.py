"""The plan of a run: every fact about it, resolved once. Does not import TensorFlow.

planning.planner makes it. After that no code reads flags, folders or the environment again: each part of a run gets the
facts that it needs.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.shape import Shape
from cluster.topology import Cluster, Timeout
from inputs.catalog import InputRow, Source, input_for
from inputs.data_sets import DataSet, Shards
from inputs.preprocessors import Preprocessor
from inputs.tf_data_settings import TfDataSettings
from models.model_facts import ModelFacts
from params import Params
from params.all_reduce_spec import Range
from run.schedule import EvalSchedule

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    from planning.machine import Machine
    from run.step_graph import StepSettings


class Role(enum.Enum):
    """What a run does; the values are printed in the banner."""

    TRAINING = 'training'
    FORWARD_ONLY = 'forward-only'
    EVALUATION = 'evaluation'
    INPUT_ONLY = 'input-only'


@dataclass(frozen=True)
class Processes:
    """The processes of a run.

    Attributes:
      cluster: all processes, and which of them is this one; None for a run of one process.
      horovod: the module horovod.tensorflow if Horovod started the processes, else None.
      together: whether the workers take their steps together (synchronously); True for a run of one process.
      settings: the flags that all processes of the cluster need with the same values, by name.
      keeps_state: whether checkpoints keep the variables if the process that holds them is lost.
      connect, peer: how long to wait for other tasks at the start, and for a lost task.
    """

    cluster: Cluster | None
    horovod: Any
    together: bool
    settings: Mapping[str, Any]
    keeps_state: bool
    connect: Timeout
    peer: Timeout

    @property
    def is_chief(self) -> bool:
        """Whether this process does the work of the chief: initialise variables, save checkpoints, write summaries."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def num_trainers(self) -> int:
        """How many processes take steps."""
        return self.cluster.num_trainers if self.cluster else 1

    @property
    def index(self) -> int:
        """The number of this process among those that take steps."""
        return self.cluster.index if self.cluster else 0


@dataclass(frozen=True)
class Data:
    """The images that a run reads, and how they are preprocessed.

    Attributes:
      data_set: its facts. folder: --data_dir, None for synthetic images.
      images: what steps read. validation: what evaluations read. Each is None if unused or synthetic.
      image_size: height and width in pixels of the images given to the model.
      validation_augmentation: as augmentation, for the images of evaluations, which do not depend on the pipeline.
      augmentation, distortions, in_yiq, resize_method, scaled_decode: see preprocessing.ImageOptions.
      seed: of all random draws. distinct_workers: whether each worker draws different images.
      deterministic: whether the seed alone decides the order of the images.
      preprocessor: how pixels become numbers. pipeline: the name of the input pipeline, for images that it reads.
        tf_data: its settings, if it is made of tf.data.
    """

    data_set: DataSet
    folder: str | None
    images: Source
    validation: Source
    image_size: int
    augmentation: str
    validation_augmentation: str
    distortions: bool
    in_yiq: bool
    resize_method: str
    scaled_decode: bool
    seed: int
    distinct_workers: bool
    deterministic: bool
    preprocessor: Preprocessor
    pipeline: str
    tf_data: TfDataSettings

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The height, width and channels of the images given to the model."""
        return self.image_size, self.image_size, self.data_set.channels

    @property
    def input_row(self) -> InputRow:
        """The row of the input pipeline of the steps."""
        return input_for(self.images, self.pipeline)

    @property
    def shards(self) -> Shards | None:
        """The shards that steps read; None if they read none."""
        return self.images if isinstance(self.images, Shards) else None

    @property
    def validation_shards(self) -> Shards | None:
        """The shards that evaluations read; None if they read none."""
        return self.validation if isinstance(self.validation, Shards) else None


@dataclass(frozen=True)
class Counts:
    """Batch sizes and numbers of steps.

    Attributes:
      batch_size: images per step on each device. global_batch_size: on all devices of all workers.
      images_of_step: images per increment of the global step: those of all workers in synchronous modes, else of one.
      num_warmup, num_timed: steps of each worker. num_epochs: the timed steps of all workers, in epochs.
      display_every: number of steps between printed lines.
      newest_weight: of the last step in the printed rates, see results.statistics.summarize.
      target_secs: how long timed steps are taken, in seconds; num_timed is then more than there will be.
      steps_per_run: how many steps one run of the session takes.
    """

    batch_size: int
    global_batch_size: int
    images_of_step: int
    num_warmup: int
    num_timed: int
    num_epochs: float
    display_every: int
    newest_weight: float | None = None
    target_secs: float | None = None
    steps_per_run: int = 1


@dataclass(frozen=True)
class OptimizerFacts:
    """The update rule: its name, its class as 'module:name', and the arguments of the class."""

    name: str
    rule: str
    arguments: tuple[float | bool, ...]


@dataclass(frozen=True)
class VariableFacts:
    """Where variables live and how gradients are summed.

    Attributes:
      variable_update: the name of the mode. manager: the class of its variable manager as 'module:name'; None if
        the run only evaluates.
      shown_sync: what the banner shows as Sync.
      sums: the all-reduce algorithm for each range of gradient sizes in bytes; None: --hierarchical_copy.
      leaders: for --hierarchical_copy, the pairs of linked towers, see managers.all_reduce.by_halves.
      shown_spec: the --all_reduce_spec that the banner shows; None: the banner shows none.
      num_packets, small_max_bytes, small_max_group: see managers.buckets.Packing.
      transfer: the dtype in which gradients are sent; None: their own dtype.
      shares_memory: whether workers on one host sum gradients in memory that they share.
      horovod_device: the device on which Horovod sums. by_nccl: whether NCCL sums, at least gradients of some sizes.
    """

    variable_update: str
    manager: str | None
    shown_sync: bool
    sums: tuple[Range, ...] | None
    leaders: tuple[tuple[int, int], ...]
    shown_spec: str | None
    num_packets: int
    small_max_bytes: int
    small_max_group: int
    transfer: str | None
    shares_memory: bool
    horovod_device: str | None
    by_nccl: bool


@dataclass(frozen=True)
class Evaluations:
    """Which images are evaluated, and when.

    Attributes:
      batch_size: images per batch on each device.
      num_batches: how many times all devices take one batch each; None: until the last example.
      num_examples: how many examples all processes evaluate together. num_passes: how many times they evaluate the
        whole set. If both are None, each example is evaluated once.
      shown_batches, num_epochs: the amount that the banner shows; shown_batches None: all batches.
      schedule: after which steps training waits for an evaluation. goal: the top-1 accuracy that ends training.
      interval_secs: how often --eval looks for new checkpoints; 0: it evaluates the last one only.
      summary_folder: where this process writes summaries; None: it writes none.
    """

    batch_size: int
    num_batches: int | None
    num_examples: int | None
    num_passes: float | None
    shown_batches: int | None
    num_epochs: float
    schedule: EvalSchedule
    goal: float | None
    interval_secs: float
    summary_folder: str | None


@dataclass(frozen=True)
class Checkpoints:
    """What is saved, and what training starts from.

    Attributes:
      folder: --train_dir. saves: whether this process saves checkpoints there.
      every_secs, every_steps: how often, besides the first and the last step. max_to_keep: how many are kept.
      resume_from: the prefix of the checkpoint from which training continues.
      warm_start: the prefix of another checkpoint from which training starts. warm_start_flag: the flag that named it.
      export_folder: where this process writes a SavedModel at the end; None: it writes none.
    """

    folder: str | None
    saves: bool
    every_secs: float
    every_steps: int | None
    max_to_keep: int
    resume_from: str | None
    warm_start: str | None
    warm_start_flag: str
    export_folder: str | None


@dataclass(frozen=True)
class Summaries:
    """Where and how often summaries are written, and how much: see run.instruments.SummaryWriter."""

    folder: str
    every: int
    verbosity: int


@dataclass(frozen=True)
class Instruments:
    """The diagnostic files of a run, see run.instruments. profile_steps: the first and the last step to profile."""

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
    """How losses are shown, and what happens if one is not finite.

    Attributes:
      name: the name under which losses are printed.
      continue_on_nan: whether the run continues with a loss that is not finite.
      advice: settings that may prevent such losses, for the error message.
    """

    name: str
    continue_on_nan: bool
    advice: tuple[str, ...]


@dataclass(frozen=True)
class Surroundings:
    """What a run runs on: see hardware.surroundings, whose functions have these names (machine: machine_facts, ...)."""

    machine: Mapping[str, Any]
    environment: Mapping[str, str]
    git_commit: str | None


@dataclass(frozen=True)
class Reports:
    """Where the result goes, and what else is measured for it.

    Attributes:
      result_file: the path of the JSON document, '-' for standard output; None if this process writes none.
      history: the path of the SQLite file; None if this process adds nothing to one.
      log_folder: the folder of results.benchmark_log; None if this process writes none. test_id: what stands in it.
      measures_peak: whether the peak of the devices is measured after the steps.
      idle_secs: how long the run may wait for idle cores before it starts; None: it does not wait.
    """

    result_file: str | None
    history: str | None
    log_folder: str | None
    test_id: str | None
    measures_peak: bool
    idle_secs: float | None


@dataclass(frozen=True)
class Plan:
    """Every fact of one run of one process.

    Attributes:
      params: the settings from which the plan was made; the result contains them.
      role: what the run does. warnings: lines about flags without effect, data and instruments.
      model: the facts of the model.
      machine: the devices. config: the settings of sessions. numa_bind: what is bound to NUMA nodes, for the banner.
      step: what a step computes. optimizer: the update rule.
      freezes: whether the network computes with constants instead of variables.
      shape: the numbers of workers, their devices, and parameter servers.
      input_stages: for Role.INPUT_ONLY, the stages of the input pipeline that are measured, in their order.
    """

    params: Params
    role: Role
    warnings: tuple[str, ...]
    processes: Processes
    model: ModelFacts
    data: Data
    machine: 'Machine'
    config: 'tf.ConfigProto'
    numa_bind: str
    counts: Counts
    step: 'StepSettings'
    freezes: bool
    optimizer: OptimizerFacts
    variables: VariableFacts
    evaluations: Evaluations | None
    checkpoints: Checkpoints
    instruments: Instruments
    losses: Losses
    reports: Reports
    shape: Shape
    surroundings: Surroundings
    input_stages: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerPlan:
    """The facts of a server process: a parameter server, or a worker whose devices a controller drives.

    Attributes:
      cluster: all processes, and which of them is this one. config: the settings of its server.
      settings: the flags that all processes of the cluster need with the same values, by name.
      together: whether the loss of one trainer stops the others.
      connect, peer: how long to wait for trainers at the start, and for a lost trainer.
      linger_secs: how long the server stays after the trainers are done.
    """

    cluster: Cluster
    config: 'tf.ConfigProto'
    settings: Mapping[str, Any]
    together: bool
    connect: Timeout
    peer: Timeout
    linger_secs: float
    warnings: tuple[str, ...]

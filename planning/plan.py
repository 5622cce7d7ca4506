"""The plan of a run: every fact about it, resolved once. Does not import TensorFlow.

planning.make_plan makes it. After that no code reads flags, folders or the environment again: each part of a run gets
the facts that it needs.
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from cluster.shape import Shape
from cluster.topology import Cluster, Timeout
from errors import plural
from inputs.catalog import InputRow, Source, input_for
from inputs.data_folder import DataFolder
from inputs.data_sets import DataSet, Shards
from inputs.preprocessors import Preprocessor
from inputs.tf_data_settings import TfDataSettings
from machine.visible_gpus import ONLY_ONE, PlaceOnHost
from models.model_facts import ModelFacts
from params import Params
from params.all_reduce_spec import Range
from params.device_flags import HOST_DEVICE

if TYPE_CHECKING:
    from planning.session import SessionFacts
    from planning.step import StepSettings


class Role(enum.Enum):
    """What a run does; the values are printed in the banner."""

    TRAINING = 'training'
    FORWARD_ONLY = 'forward-only'
    EVALUATION = 'evaluation'
    INPUT_ONLY = 'input-only'
    EXCHANGE_ONLY = 'exchange-only'


@dataclass(frozen=True)
class Processes:
    """The processes of a run.

    Attributes:
      cluster: all processes, and which of them is this one; None for a run of one process.
      horovod: the module horovod.tensorflow if Horovod started the processes, else None.
      together: whether the workers take their steps together (synchronously); True for a run of one process. Of a
        server: whether the loss of one trainer stops the others.
      settings: the flags that all processes of the cluster need with the same values, by name.
      connect: how long to wait for other tasks at the start.
      place_on_host: the number of this process among the workers of its host, and how many these are.
      devices_per_worker: how many devices compute in each process that has some.
    """

    cluster: Cluster | None
    horovod: Any
    together: bool
    settings: Mapping[str, Any]
    connect: Timeout
    place_on_host: PlaceOnHost = ONLY_ONE
    devices_per_worker: int = 1

    @property
    def is_alone(self) -> bool:
        """Whether this is the only process, which no launcher has started."""
        return self.cluster is None and self.horovod is None

    @property
    def is_chief(self) -> bool:
        """Whether this process does the work of the chief: initialise variables, save checkpoints, write summaries."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def serves(self) -> bool:
        """Whether this process has a server for the others and takes no steps of its own."""
        return self.cluster is not None and self.cluster.serves

    @property
    def job(self) -> str:
        """The job of this process in its cluster; that of a process alone is worker."""
        return self.cluster.job if self.cluster else 'worker'

    @property
    def holds_variables_only(self) -> bool:
        """Whether this process is a parameter server."""
        return self.job == 'ps'

    @property
    def computes_here(self) -> bool:
        """Whether towers are in this process: not in a parameter server, nor in a controller."""
        return not self.elsewhere and not self.holds_variables_only

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The device prefix of each process that has towers of this one; empty if they are in this process."""
        has_controller = self.cluster is not None and self.cluster.controller_hosts and not self.serves
        return tuple(task.device for task in self.cluster.servers) if self.cluster and has_controller else ()

    @property
    def num_hosts(self) -> int:
        """How many processes have the towers of this one."""
        return len(self.elsewhere) or 1

    @property
    def shape(self) -> Shape:
        """The numbers of workers, their devices, and parameter servers."""
        num_ps = self.cluster.num_ps if self.cluster else 0
        return Shape(self.num_hosts * self.num_trainers, self.devices_per_worker, num_ps)

    @property
    def num_trainers(self) -> int:
        """How many processes take steps."""
        return self.cluster.num_trainers if self.cluster else 1

    @property
    def index(self) -> int:
        """The number of this process among those that take steps."""
        return self.cluster.index if self.cluster else 0


@dataclass(frozen=True)
class Subject:
    """What a run is about.

    Attributes:
      role: what the run does.
      model: the facts of the model, for the data set.
      folder: what --data_dir holds; None if the images are synthetic, or this process reads none.
      exchange_bytes: the bytes of the tensor that stands for the model's gradients with --exchange_only; None: none
        does.
    """

    role: Role
    model: ModelFacts
    folder: DataFolder | None
    exchange_bytes: int | None = None

    @property
    def model_name(self) -> str:
        """The name of the model, or the size of the tensor in its place."""
        return self.model.name if self.exchange_bytes is None else f'{self.exchange_bytes} bytes'


@dataclass(frozen=True)
class Data:
    """The images that a run reads, and how they are preprocessed.

    Attributes:
      data_set: its facts.
      folder: --data_dir, None for synthetic images.
      images: what steps read.
      validation: what evaluations read. Each is None if unused or synthetic.
      image_size: height and width in pixels of the images given to the model.
      validation_augmentation: as augmentation, for the images of evaluations, which do not depend on the pipeline.
      augmentation, distortions, in_yiq, resize_method, scaled_decode: see preprocessing.ImageOptions.
      seed: of all random draws.
      distinct_workers: whether each worker draws different images.
      deterministic: whether the seed alone decides the order of the images.
      preprocessor: how pixels become numbers.
      pipeline: the name of the input pipeline, for images that it reads.
        tf_data: its settings, if it is made of tf.data.
      input_stages: the stages of the input pipeline that --input_only measures, in their order; empty without it.
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
    input_stages: tuple[str, ...] = ()

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
class Machine:
    """The settings that depend on the devices of the machine.

    Attributes:
      kind: of the devices of the towers, 'cpu' or 'gpu'.
      towers: the device of each tower.
      parameter_device_kind: 'gpu' if shared variables live on the towers' devices, also on a CPU; 'cpu' if on the host.
      parameter_devices: where shared variables live; in a worker of parameter servers, the devices that receive
        variables and sum gradients.
      data_format: 'NCHW' or 'NHWC'.
      hosts: the CPU of each process that has towers, in order.
      all_reduce_spec: how towers sum gradients; None: the default of one process.
      data_format_reason: why the run chose the data format, for the banner; empty if it had no choice.
      tf32: whether fp32 is computed in TF32; None if that is unknown.
    """

    kind: str
    towers: tuple[str, ...]
    parameter_device_kind: str
    parameter_devices: tuple[str, ...]
    data_format: str
    hosts: tuple[str, ...] = (HOST_DEVICE,)
    all_reduce_spec: str | None = None
    data_format_reason: str = ''
    tf32: bool | None = False

    @property
    def is_here(self) -> bool:
        """Whether the towers are in this process, rather than in workers that it controls."""
        return self.hosts == (HOST_DEVICE,)


@dataclass(frozen=True)
class Counts:
    """Batch sizes and numbers of steps.

    Attributes:
      batch_size: images per step on each device.
      global_batch_size: on all devices of all workers.
      images_of_step: images per increment of the global step: those of all workers in synchronous modes, else of one.
      num_warmup, num_timed: steps of each worker.
      num_epochs: the timed steps of all workers, in epochs.
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
    """The update rule: its name, and the arguments of its class."""

    name: str
    arguments: tuple[float | bool, ...]


@dataclass(frozen=True)
class VariableFacts:
    """Where variables live, and how gradients are summed and applied.

    Attributes:
      variable_update: the name of the mode.
      staged: whether its variables are one step old, --staged_vars.
      relaxed: whether its gradients are, --variable_consistency=relaxed.
      sync: whether the steps are synchronous.
      sums: the all-reduce algorithm for each range of gradient sizes in bytes; None: --hierarchical_copy.
      leaders: for --hierarchical_copy, the pairs of linked towers, see managers.all_reduce.by_halves.
      shown_spec: the --all_reduce_spec that the banner shows; None: the banner shows none.
      num_packets, small_max_bytes, small_max_group: see managers.buckets.Packing.
      transfer: the dtype in which gradients are sent; None: their own dtype.
      slices_variables: whether large variables are cut into one part for each parameter server.
      horovod_device: the device on which Horovod sums.
      by_nccl: whether NCCL sums, at least gradients of some sizes.
      optimizer: the update rule.
    """

    variable_update: str
    staged: bool
    relaxed: bool
    sync: bool
    sums: tuple[Range, ...] | None
    leaders: tuple[tuple[int, int], ...]
    shown_spec: str | None
    num_packets: int
    small_max_bytes: int
    small_max_group: int
    transfer: str | None
    slices_variables: bool
    horovod_device: str | None
    by_nccl: bool
    optimizer: OptimizerFacts


@dataclass(frozen=True)
class EvalSchedule:
    """After which steps of the model training waits for an evaluation.

    Attributes:
      every: the interval in steps; if it is a fraction, the first step that reaches a multiple counts.
      at: single steps.
    """

    every: Fraction | None = None
    at: frozenset[int] = frozenset()

    def is_due(self, step: int, since: int) -> bool:
        """Whether an evaluation became due after step `since`, the last one asked about, and up to `step`."""
        if self.every is not None:
            return step // self.every > since // self.every
        return any(since < at <= step for at in self.at)

    def warning(self, start: int, end: int) -> str | None:
        """A warning if training from step `start` to `end` reaches no evaluation, or not all single ones; else None."""
        late = [at for at in sorted(self.at) if at > end]
        if late:
            return (
                f'training ends after {plural(end, "step")}: there is no evaluation after {", ".join(map(str, late))}'
            )
        if self.every is not None and not self.is_due(end, start):
            return (
                f'training goes from step {start} to {end}: there is no evaluation, the next one is due after '
                f'{math.ceil((end // self.every + 1) * self.every)}'
            )
        return None


@dataclass(frozen=True)
class Evaluations:
    """Which images are evaluated, and when.

    Attributes:
      batch_size: images per batch on each device.
      num_batches: how many times all devices take one batch each; None: until the last example.
      num_examples: how many examples all processes evaluate together.
      num_passes: how many times they evaluate the
        whole set. If both are None, each example is evaluated once.
      shown_batches, num_epochs: the amount that the banner shows; shown_batches None: all batches.
      schedule: after which steps training waits for an evaluation.
      goal: the top-1 accuracy that ends training.
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
      folder: --train_dir.
      saves: whether this process saves checkpoints there.
      every_secs, every_steps: how often, besides the first and the last step.
      max_to_keep: how many are kept.
      resume_from: the prefix of the checkpoint from which training continues.
      warm_start: the prefix of another checkpoint from which training starts.
      warm_start_flag: the flag that named it.
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
    """What a run runs on: see machine.surroundings, whose functions have these names (machine: machine_facts, ...)."""

    machine: Mapping[str, Any]
    environment: Mapping[str, str]
    git_commit: str | None


@dataclass(frozen=True)
class Reports:
    """Where the result goes, and what else is measured for it.

    Attributes:
      result_file: the path of the JSON document, '-' for standard output; None if this process writes none.
      log_folder: the folder of results.benchmark_log; None if this process writes none.
      test_id: what stands in it.
      measures_peak: whether the peak of the devices is measured after the steps.
      idle_secs: how long the run may wait for idle cores before it starts; None: it does not wait.
      losses: how losses are shown.
    """

    result_file: str | None
    log_folder: str | None
    test_id: str | None
    measures_peak: bool
    idle_secs: float | None
    losses: Losses


@dataclass(frozen=True)
class Plan:
    """Every fact of one run of one process.

    Attributes:
      params: the settings from which the plan was made; the result contains them.
      warnings: lines about flags without effect, data and instruments.
      processes: which there are, and which of them this is.
      subject: what the run is about: its role, the model, the data folder.
      data: the images, and what is done to them.
      machine: the devices.
      counts: batch sizes and numbers of steps.
      step: what a step computes.
      variables: where variables live, and how gradients are summed and applied.
      session: the settings of sessions, and of the process.
      evaluations: which images are evaluated, and when; None if none are.
      checkpoints: what is saved, and what training starts from.
      reports: where the result goes.
      instruments: the diagnostic files.
      surroundings: what the run runs on.
    """

    params: Params
    warnings: tuple[str, ...]
    processes: Processes
    subject: Subject
    data: Data
    machine: Machine
    counts: Counts
    step: 'StepSettings'
    variables: VariableFacts
    session: 'SessionFacts'
    evaluations: Evaluations | None
    checkpoints: Checkpoints
    reports: Reports
    instruments: Instruments
    surroundings: Surroundings

    @property
    def agreed_images(self) -> dict[str, int]:
        """How many images all workers must have, by what they are; empty if nothing that they share depends on it.

        Workers with other numbers would count other steps in an epoch: their learning rates would differ, or they would
        wait for each other for ever.
        """
        if self.data.folder is None or not self.processes.together:
            return {}
        params, rate = self.params, self.step.learning_rate
        has_epochs = (
            params.num_epochs is not None
            or params.eval_during_training_every_n_epochs is not None
            or params.eval_during_training_at_specified_epochs is not None
            or (params.trains and bool(rate.boundaries or rate.decay_steps or rate.warmup_steps))
        )
        numbers = {'training images': self.data.data_set.num_train_examples} if has_epochs else {}
        if has_epochs or self.data.validation is not None:
            numbers['validation images'] = self.data.data_set.num_validation_examples
        return numbers


@dataclass(frozen=True)
class ServerPlan:
    """The facts of a server process: a parameter server, or a worker whose devices a controller drives.

    Attributes:
      processes: which there are, and which of them this is.
      session: the settings of its server, and of the process.
      linger_secs: how long the server stays after the trainers are done.
      warnings: lines about flags without effect.
    """

    processes: Processes
    session: 'SessionFacts'
    linger_secs: float
    warnings: tuple[str, ...]

"""Turns the settings into the parts of a run, and the parts into the graph of a step."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import tensorflow.compat.v1 as tf

import input_pipeline
from all_reduce import by_halves, make_algorithm
from cluster.members import Cluster
from data_folder import Arrays, find_data
from data_sets import Shards
from errors import UsageError
from evaluation import EvalSchedule, Evaluation, SavedVariables
from flag_rules import numbers_of
from input_pipeline import ArrayPipeline, InputPipeline, RecordPipeline, SyntheticInput, WorkersInput
from machine import check_xla, find_machine, session_config
from models.catalog import is_resnet
from packing import Packing
from params import Params
from preprocessing import ImageOptions
from records.check import count_records
from reporting import console as lines
from saved_model import Array, export_saved_model
from step_graph import StepGraph, StepSettings, build_step_graph
from training.optimizers import Adam, GradientDescent, Lars, Momentum, Optimizer, RmsProp
from training.precision import DEFAULT_FP16_SCALE, Precision
from training.schedules import LearningRate, parse_piecewise, resnet_pieces, steps_of
from training.variables import HOST_DEVICE
from validation import Dataset, Share, ValidationInput, array_examples, record_examples
from variable_mgr import Placement, make_variable_mgr

# Timed steps where no flag says how many.
_NUM_BATCHES = 100


class Assembly:
    """What a run is made of: the one place where the settings meet every part.

    Args:
      cluster: the processes of the run, or None for one.
      horovod: the module horovod.tensorflow if that started them, else None.
      warn: where lines about the data go.

    Attributes:
      data_set, machine: what it reads and computes on.
      shards, validation: those to train on, and to evaluate on; None if that is not done, or nothing is read from
        shards.
      image_size: height and width in pixels of the images that the model gets.
      batch_size: images of a step on each device.
      global_batch_size: images of a step on all devices of all workers.
      num_batches: timed steps of each worker.
      learning_rate: by the number of steps taken.
      precision: what is computed in 16 bits.
      config: the settings of the session.

    Raises:
      UsageError: the settings do not fit this machine, or the data folder does not hold what they need.
    """

    def __init__(self, params: Params, cluster: Cluster | None, horovod: Any, warn: Callable[[str], None]) -> None:
        self._params = params
        self._cluster = cluster
        self._horovod = horovod
        self._warn = warn
        self._facts, self.data_set, self._folder = find_data(params)
        self.image_size = (self._facts.any_size and self.data_set.image_size) or self._facts.image_size
        self._images = self._validation_images = None
        if self._folder and not params.eval:
            self._images = self._open(self._folder.subset_of_steps(forward_only=params.forward_only))
        if self._folder and params.evaluates:
            self._validation_images = self._open('validation')
        workers = cluster.servers if cluster and cluster.controller_hosts else ()
        self.machine = find_machine(params, [worker.device for worker in workers])
        self.batch_size = params.batch_size or self._facts.batch_size
        num_trainers = cluster.num_trainers if cluster else 1
        self.global_batch_size = self.batch_size * len(self.machine.towers) * num_trainers
        self.num_batches = self._count_batches()
        self.learning_rate = self._make_learning_rate()
        self.precision = _find_precision(params)
        self._placement = self._place()
        self.config = session_config(params, self.machine, in_cluster=cluster is not None)
        if params.xla and self.machine.is_here:
            check_xla(self.config, self.machine.towers[0])

    @property
    def shards(self) -> Shards | None:
        return self._images if isinstance(self._images, Shards) else None

    @property
    def validation(self) -> Shards | None:
        return self._validation_images if isinstance(self._validation_images, Shards) else None

    def build(self, root: int, restart: int = 0) -> StepGraph:
        """Adds a step to the current graph.

        Args:
          root: the worker whose variables the others start from.
          restart: another number each time that training goes on, see run_state.restart_number.
        """
        params = self._params
        placement = self._placement
        if self._cluster:
            placement = replace(
                placement,
                server_devices=[f'{task.device}/cpu:0' for task in self._cluster.servers],
                worker=self._cluster.index,
                num_workers=self._cluster.num_trainers,
                root=root,
                sync=self.takes_steps_together,
                horovod=self._horovod,
                horovod_device=params.horovod_device,
            )
        manager = make_variable_mgr(
            params.variable_update,
            placement,
            distributed=self._cluster is not None,
            staged=params.staged_vars and not params.forward_only,
        )
        return build_step_graph(
            StepSettings(
                model=self._facts.network,
                num_classes=self.data_set.num_classes,
                data_format=self.machine.data_format,
                forward_only=params.forward_only,
                with_accuracy=params.forward_only or params.print_training_accuracy,
                loss_type_to_report=params.loss_type_to_report,
                weight_decay=params.weight_decay,
                single_l2_loss_op=params.single_l2_loss_op,
                label_smoothing=params.label_smoothing,
                gradient_clip=params.gradient_clip,
                learning_rate=self.learning_rate,
                seed=params.tf_random_seed,
                first_tower=self._first_tower,
                precision=self.precision,
            ),
            _make_optimizer(params),
            manager,
            self._make_pipeline(manager.get_devices(), restart),
        )

    def _count_batches(self) -> int:
        num_epochs, num_batches = self._params.num_epochs, self._params.num_batches
        if num_epochs is None:
            return _NUM_BATCHES if num_batches is None else num_batches
        validates = self._images is not None and self._images.subset == 'validation'
        num_examples = self.data_set.num_validation_examples if validates else self.data_set.num_train_examples
        return math.ceil(steps_of(num_epochs, num_examples, self.global_batch_size))

    def _make_learning_rate(self) -> LearningRate:
        params = self._params
        steps = functools.partial(
            steps_of, num_examples=self.data_set.num_train_examples, images_per_step=self.images_of_step
        )
        epochs: Sequence[float] = ()
        if params.piecewise_learning_rate_schedule is not None:
            rates, epochs = parse_piecewise(params.piecewise_learning_rate_schedule)
        elif params.resnet_base_lr is not None and is_resnet(params.model):
            averaged = self.batch_size if params.variable_update == 'independent' else self.images_of_step
            rates, epochs = resnet_pieces(params.resnet_base_lr, averaged, self.data_set.name)
        else:
            given = params.init_learning_rate
            rates = (self._facts.learning_rate if given is None else given,)
        return LearningRate(
            rates,
            tuple(steps(epoch) for epoch in epochs),
            decay_steps=steps(params.num_epochs_per_decay),
            decay_factor=params.learning_rate_decay_factor,
            minimum=params.minimum_learning_rate,
            warmup_steps=steps(params.num_learning_rate_warmup_epochs),
        )

    @property
    def eval_batch_size(self) -> int:
        """Images that an evaluation looks at at a time on each device."""
        return self._params.eval_batch_size or self.batch_size

    def build_evaluation(
        self, sources: Sequence[SavedVariables], process: int = 0, num_processes: int = 1
    ) -> Evaluation:
        """Adds an evaluation to the current graph.

        Args:
          sources: for each tower the variables that it reads.
          process, num_processes: which share of the images this process looks at.

        Raises:
          RunError: a shard of the validation images is cut short.
        """
        params, devices, batch_size = self._params, self.machine.towers, self.eval_batch_size
        num_batches = None
        pipeline: InputPipeline
        images = self._validation_images
        if images is None:
            num_batches = params.num_eval_batches or self.num_batches
            pipeline = self._make_synthetic(devices, batch_size, params.tf_random_seed + process)
        else:
            num_examples = None
            if params.num_eval_batches is not None:
                num_examples = params.num_eval_batches * batch_size * len(devices) * num_processes
            elif params.num_eval_epochs is not None:
                count = len(images.images) if isinstance(images, Arrays) else count_records(images.paths)
                num_examples = math.ceil(steps_of(params.num_eval_epochs, count, 1))
            options, share = self._image_options(training=False), Share(process, num_processes, num_examples)
            examples: Callable[[], Dataset]
            if isinstance(images, Arrays):
                examples = functools.partial(array_examples, images.images, images.labels, share, options)
            else:
                examples = functools.partial(record_examples, images.paths, self.data_set.num_classes, options, share)
            pipeline = ValidationInput(devices, batch_size, examples)
        return Evaluation(
            self._facts.network,
            self.data_set.num_classes,
            self.machine.data_format,
            sources,
            devices,
            pipeline,
            batch_size,
            num_batches,
            self.precision.compute,
        )

    def export(self, values: Mapping[str, Array], folder: str) -> None:
        """Writes the model with these values of its variables, by name, as a SavedModel.

        Raises:
          RunError: the folder cannot be written.
        """
        size, data_set = self.image_size, self.data_set
        export_saved_model(folder, values, self._facts.network, data_set.num_classes, (size, size, data_set.channels))

    def banner(
        self, mode: str, batch_size: int, num_workers: int, job: str = '', built: StepGraph | None = None
    ) -> lines.Banner:
        """What is told before a run.

        Args:
          mode: what the run does, in a word. batch_size: images of a step on each device.
          job: the start of the names of this process's devices in a cluster.
          built: what trains; None if nothing does.
        """
        params, data_set = self._params, self.data_set
        global_batch_size = batch_size * len(self.machine.towers) * num_workers
        num_batches: int | None = self.num_batches
        # A folder that is only evaluated may have no training images.
        num_epochs = self.num_batches * global_batch_size / (data_set.num_train_examples or math.inf)
        if params.eval and self.validation:
            num_batches, num_epochs = params.num_eval_batches, params.num_eval_epochs or 1.0
            if num_batches:
                num_epochs = num_batches * global_batch_size / data_set.num_validation_examples
        elif params.eval and params.num_eval_batches:
            num_batches = params.num_eval_batches
        is_replicated = params.variable_update == 'replicated' or not self.machine.is_here
        sums_gradients = is_replicated and len(self.machine.towers) > 1 and mode == 'training'
        return lines.Banner(
            tensorflow_version=tf.__version__,
            model=params.model,
            data_set=data_set.name,
            is_synthetic=params.data_dir is None,
            mode=mode,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            num_batches=num_batches,
            num_epochs=num_epochs,
            devices=tuple(f'{job}{tower}' for tower in self.machine.towers),
            data_format=self.machine.data_format,
            optimizer=params.optimizer,
            variable_update=params.variable_update,
            all_reduce_spec=self.machine.all_reduce_spec if sums_gradients else None,
            single_session=not self.machine.is_here,
            sync=params.cross_replica_sync and self.takes_steps_together,
            num_workers=num_workers * len(self.machine.hosts),
            bytes_of_servers=tuple(built.bytes_of_servers.values()) if built else (),
            bytes_of_step=built.bytes_of_step if built else 0,
            precision=str(self.precision),
        )

    def eval_schedule(self) -> EvalSchedule:
        """After which steps training waits for an evaluation."""
        params = self._params
        per_epoch = Fraction(self.data_set.num_train_examples, self.images_of_step)
        if params.eval_during_training_every_n_steps is not None:
            return EvalSchedule(every=Fraction(params.eval_during_training_every_n_steps))
        if params.eval_during_training_every_n_epochs is not None:
            return EvalSchedule(every=Fraction(str(params.eval_during_training_every_n_epochs)) * per_epoch)
        epochs = numbers_of(params.eval_during_training_at_specified_epochs, float)
        steps = numbers_of(params.eval_during_training_at_specified_steps, int)
        return EvalSchedule(at=frozenset([*steps, *(math.ceil(Fraction(str(epoch)) * per_epoch) for epoch in epochs)]))

    @property
    def takes_steps_together(self) -> bool:
        """Whether workers wait for each other in each step. A process alone has nobody to wait for."""
        return self._cluster is None or (self._params.cross_replica_sync and not self._params.forward_only)

    @property
    def images_of_step(self) -> int:
        """The images behind one count of the global step: of all workers if they take their steps together."""
        return self.global_batch_size if self.takes_steps_together else self.batch_size * len(self.machine.towers)

    @property
    def _first_tower(self) -> int:
        """The number of this worker's first tower among those of all workers."""
        return self._cluster.index * len(self.machine.towers) if self._cluster else 0

    def _place(self) -> Placement:
        params, towers = self._params, self.machine.towers
        if params.hierarchical_copy and self.machine.is_here:
            if len(towers) % 2:
                raise UsageError(
                    f'--hierarchical_copy: it sums in two halves, and --num_gpus={params.num_gpus} is odd; '
                    'write an even number or --nohierarchical_copy'
                )
            if params.network_topology != 'dgx1':
                raise UsageError(
                    f'--network_topology={params.network_topology}: this version knows dgx1 only; '
                    'write --nohierarchical_copy, or try it with dgx1'
                )
            algorithm = by_halves(towers)
        else:
            spec = self.machine.all_reduce_spec or f'ps{self.machine.parameter_device_kind}'
            algorithm = make_algorithm(spec, towers, HOST_DEVICE)
        computes_in = self.precision.compute
        # Horovod sums no bfloat16.
        compact_types = (tf.float16,) if params.variable_update == 'horovod' else (tf.float16, tf.bfloat16)
        fits = computes_in in compact_types
        compacts = fits if params.compact_gradient_transfer is None else params.compact_gradient_transfer
        transfer = computes_in if fits else compact_types[-1]
        return Placement(
            devices=towers,
            seed=params.tf_random_seed,
            parameter_devices=self.machine.parameter_devices,
            algorithm=algorithm,
            packing=Packing(
                params.gradient_repacking, params.agg_small_grads_max_bytes, params.agg_small_grads_max_group
            ),
            transfer=transfer if compacts else None,
            variable_dtype=self.precision.variables,
        )

    def _make_pipeline(self, devices: Sequence[str], restart: int) -> InputPipeline:
        cluster, hosts, size = self._cluster, self.machine.hosts, self._params.num_gpus
        first, count = (cluster.index, cluster.num_trainers) if cluster else (0, 1)
        shares = [
            self._make_share(devices[size * number :][:size], host, first + number, count * len(hosts), restart)
            for number, host in enumerate(hosts)
        ]
        return shares[0] if len(shares) == 1 else WorkersInput(shares, size)

    def _make_share(
        self, devices: Sequence[str], host_device: str, number: int, count: int, restart: int
    ) -> InputPipeline:
        """The input of the towers of one worker, of that number among so many."""
        params = self._params
        seed, shift = params.tf_random_seed, 0.0
        if params.distinct_worker_data:
            seed += number * len(devices)
            shift = number / count
        images, on_device = self._images, self.machine.kind == 'gpu'
        if images is None:
            return self._make_synthetic(devices, self.batch_size, seed)
        options = self._image_options(training=not params.forward_only, seed=seed)
        if isinstance(images, Arrays):
            return ArrayPipeline(
                images.images,
                images.labels,
                devices,
                self.batch_size,
                options,
                normalize_on_device=on_device,
                host_device=host_device,
                shift=shift,
            )
        # Records cannot be drawn from the middle of an epoch. Training that goes on draws them in an order of its own,
        # so that it does not see the first ones more often.
        options = replace(options, seed=seed + 1_000_003 * restart)
        return RecordPipeline(
            images,
            devices,
            self.batch_size,
            self.data_set.num_classes,
            options,
            normalize_on_device=on_device,
            host_device=host_device,
            shift=shift,
        )

    def _make_synthetic(self, devices: Sequence[str], batch_size: int, seed: int) -> SyntheticInput:
        size, channels = self.image_size, self.data_set.channels
        return SyntheticInput(devices, batch_size, size, size, channels, self.data_set.num_classes, seed)

    def _image_options(self, *, training: bool, seed: int = 0) -> ImageOptions:
        return ImageOptions(
            height=self.image_size,
            width=self.image_size,
            channels=self.data_set.channels,
            training=training,
            distortions=training and self._params.distortions,
            resize_method=self._params.resize_method,
            seed=seed,
            augmentation=self._params.augmentation or self.data_set.augmentation,
        )

    def _open(self, subset: str) -> Shards | Arrays:
        """The images of a subset. What is wrong with them is better known before the run than in it."""
        assert self._folder
        images = self._folder.open(subset)
        if isinstance(images, Shards):
            # It refuses shards that cannot be read.
            input_pipeline.shard_pattern(images)
        elif self._params.augmentation == 'resized_crop':
            raise UsageError(
                f'--augmentation=resized_crop: it is for records, and {self.data_set.name} is not read from any; '
                'write --augmentation=padded_crop or none'
            )
        # Distortions may not fit.
        self._image_options(training=subset == 'train' and not self._params.forward_only)
        if lacks := self._folder.lacks(images):
            self._warn(lacks)
        return images


def _find_precision(params: Params) -> Precision:
    if params.precision != 'fp16' or params.forward_only or params.eval:
        return Precision(params.precision, params.fp16_vars)
    return Precision(
        'fp16',
        params.fp16_vars,
        params.fp16_loss_scale or DEFAULT_FP16_SCALE,
        params.fp16_inc_loss_scale_every_n if params.fp16_enable_auto_loss_scale else None,
    )


def _make_optimizer(params: Params) -> Optimizer:
    make: dict[str, Callable[[], Optimizer]] = {
        'sgd': GradientDescent,
        'momentum': functools.partial(Momentum, params.momentum),
        'rmsprop': functools.partial(RmsProp, params.rmsprop_decay, params.rmsprop_momentum, params.rmsprop_epsilon),
        'adam': functools.partial(Adam, params.adam_beta1, params.adam_beta2, params.adam_epsilon),
        'lars': functools.partial(Lars, params.momentum, params.lars_eta, params.weight_decay),
    }
    return make[params.optimizer]()

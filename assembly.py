"""Turns the settings into the parts of a run, and the parts into the graph of a step."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

import input_pipeline
from all_reduce import by_halves, make_algorithm
from cluster.members import Cluster
from data_sets import DATA_SETS, Shards, choose_shards
from errors import UsageError
from input_pipeline import InputPipeline, RecordPipeline, SyntheticInput
from machine import check_xla, find_machine, session_config
from models.catalog import find_model, is_resnet
from packing import Packing
from params import Params
from preprocessing import ImageOptions
from step_graph import StepGraph, StepSettings, build_step_graph
from training.optimizers import Adam, GradientDescent, Lars, Momentum, Optimizer, RmsProp
from training.schedules import LearningRate, parse_piecewise, resnet_pieces, steps_of
from training.variables import HOST_DEVICE
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
      data_set, shards, machine: what it reads and computes on; shards are None for synthetic images.
      batch_size: images of a step on each device.
      global_batch_size: images of a step on all devices of all workers.
      num_batches: timed steps of each worker.
      learning_rate: by the number of steps taken.
      config: the settings of the session.

    Raises:
      UsageError: the settings do not fit this machine, or the data folder does not hold what they need.
    """

    def __init__(self, params: Params, cluster: Cluster | None, horovod: Any, warn: Callable[[str], None]) -> None:
        self._params = params
        self._cluster = cluster
        self._horovod = horovod
        self._warn = warn
        self._facts = find_model(params.model, params.data_name)
        self.data_set = DATA_SETS[self._facts.data_set]
        self.shards = self._find_shards()
        self.machine = find_machine(params)
        self.batch_size = params.batch_size or self._facts.batch_size
        num_workers = cluster.num_workers if cluster else 1
        self.global_batch_size = self.batch_size * len(self.machine.towers) * num_workers
        self.num_batches = self._count_batches()
        self.learning_rate = self._make_learning_rate()
        self._placement = self._place()
        self.config = session_config(params, self.machine)
        if params.xla:
            check_xla(self.config, self.machine.towers[0])

    def build(self, root: int) -> StepGraph:
        """Adds a step to the current graph. root is the worker whose variables the others start from."""
        params = self._params
        placement = self._placement
        if self._cluster:
            placement = replace(
                placement,
                server_devices=[f'{task.device}/cpu:0' for task in self._cluster.tasks if task.job == 'ps'],
                worker=self._cluster.index,
                num_workers=self._cluster.num_workers,
                root=root,
                sync=params.cross_replica_sync and not params.forward_only,
                transfer=tf.bfloat16 if params.compact_gradient_transfer else None,
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
                model=params.model,
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
            ),
            _make_optimizer(params),
            manager,
            self._make_pipeline(manager.get_devices()),
        )

    def _count_batches(self) -> int:
        num_epochs, num_batches = self._params.num_epochs, self._params.num_batches
        if num_epochs is None:
            return _NUM_BATCHES if num_batches is None else num_batches
        validates = self.shards is not None and self.shards.subset == 'validation'
        num_examples = self.data_set.num_validation_examples if validates else self.data_set.num_train_examples
        return math.ceil(steps_of(num_epochs, num_examples, self.global_batch_size))

    def _make_learning_rate(self) -> LearningRate:
        params = self._params
        own_batch_size = self.batch_size * len(self.machine.towers)
        # Workers that do not wait for each other count the steps of each.
        alone = self._cluster is not None and self._horovod is None and not params.cross_replica_sync
        images_per_step = own_batch_size if alone else self.global_batch_size
        steps = functools.partial(
            steps_of, num_examples=self.data_set.num_train_examples, images_per_step=images_per_step
        )
        epochs: Sequence[float] = ()
        if params.piecewise_learning_rate_schedule is not None:
            rates, epochs = parse_piecewise(params.piecewise_learning_rate_schedule)
        elif params.resnet_base_lr is not None and is_resnet(params.model):
            averaged = self.batch_size if params.variable_update == 'independent' else images_per_step
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
    def _first_tower(self) -> int:
        """The number of this worker's first tower among those of all workers."""
        return self._cluster.index * len(self.machine.towers) if self._cluster else 0

    def _place(self) -> Placement:
        params, towers = self._params, self.machine.towers
        if params.hierarchical_copy:
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
            spec = params.all_reduce_spec or f'ps{self.machine.parameter_device_kind}'
            algorithm = make_algorithm(spec, towers, HOST_DEVICE)
        return Placement(
            devices=towers,
            seed=params.tf_random_seed,
            parameter_devices=self.machine.parameter_devices,
            algorithm=algorithm,
            packing=Packing(
                params.gradient_repacking, params.agg_small_grads_max_bytes, params.agg_small_grads_max_group
            ),
        )

    def _make_pipeline(self, devices: Sequence[str]) -> InputPipeline:
        params, size, channels = self._params, self._facts.image_size, self.data_set.channels
        seed, shift = params.tf_random_seed, 0.0
        if self._cluster and params.distinct_worker_data:
            seed += self._first_tower
            shift = self._cluster.index / self._cluster.num_workers
        if self.shards is None:
            return SyntheticInput(devices, self.batch_size, size, size, channels, self.data_set.num_classes, seed)
        return RecordPipeline(
            self.shards,
            devices,
            self.batch_size,
            self.data_set.num_classes,
            ImageOptions(
                height=size,
                width=size,
                channels=channels,
                training=not params.forward_only,
                distortions=params.distortions,
                resize_method=params.resize_method,
                seed=seed,
            ),
            normalize_on_device=self.machine.kind == 'gpu',
            shift=shift,
        )

    def _find_shards(self) -> Shards | None:
        data_dir = self._params.data_dir
        if data_dir is None:
            return None
        shards = choose_shards(data_dir, forward_only=self._params.forward_only)
        # It refuses shards that cannot be read, which is better known before the run than in it.
        input_pipeline.shard_pattern(shards)
        if shards.num_missing:
            self._warn(
                f'--data_dir={data_dir}: {shards.num_missing} of the {len(shards.paths) + shards.num_missing} shards '
                'that the file names promise are missing; the run uses the others'
            )
        return shards


def _make_optimizer(params: Params) -> Optimizer:
    make: dict[str, Callable[[], Optimizer]] = {
        'sgd': GradientDescent,
        'momentum': functools.partial(Momentum, params.momentum),
        'rmsprop': functools.partial(RmsProp, params.rmsprop_decay, params.rmsprop_momentum, params.rmsprop_epsilon),
        'adam': functools.partial(Adam, params.adam_beta1, params.adam_beta2, params.adam_epsilon),
        'lars': functools.partial(Lars, params.momentum, params.lars_eta, params.weight_decay),
    }
    return make[params.optimizer]()

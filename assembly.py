"""Turns the settings into the parts of a run, and the parts into the graph of a step."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import input_pipeline
from all_reduce import by_halves, make_algorithm
from array_files import load_arrays
from cluster.members import Cluster
from data_folder import find_data
from data_sets import Shards
from errors import UsageError
from input_pipeline import ArrayPipeline, InputPipeline, RecordPipeline, SyntheticInput
from machine import check_xla, find_machine, session_config
from packing import Packing
from params import Params
from preprocessing import ImageOptions
from step_graph import StepGraph, StepSettings, build_step_graph
from training.optimizers import Adam, GradientDescent, Momentum, Optimizer, RmsProp
from training.variables import HOST_DEVICE
from variable_mgr import Placement, make_variable_mgr


class Assembly:
    """What a run is made of: the one place where the settings meet every part.

    Args:
      cluster: the processes of the run, or None for one.
      horovod: the module horovod.tensorflow if that started them, else None.
      warn: where lines about the data go.

    Attributes:
      data_set, folder, shards, machine: what it reads and computes on; folder is None for synthetic images, and shards
        are None without TFRecords.
      image_size: height and width of the images that the model gets, in pixels.
      batch_size: images of a step on each device.
      learning_rate: as used.
      config: the settings of the session.

    Raises:
      UsageError: the settings do not fit this machine, or the data folder does not hold what they need.
    """

    def __init__(self, params: Params, cluster: Cluster | None, horovod: Any, warn: Callable[[str], None]) -> None:
        self._params = params
        self._cluster = cluster
        self._horovod = horovod
        self._warn = warn
        self._facts, self.data_set, self.folder = find_data(params)
        self.shards = self._find_shards()
        self.image_size = (self._facts.any_size and self.data_set.image_size) or self._facts.image_size
        # Now, since what is wrong with them is better known before the run than in it.
        self._options = self.image_options(training=not params.forward_only) if self.folder else None
        self._arrays = self._load_arrays()
        self.machine = find_machine(params)
        self.batch_size = params.batch_size or self._facts.batch_size
        self.learning_rate = (
            self._facts.learning_rate if params.init_learning_rate is None else params.init_learning_rate
        )
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
                model=self._facts.network,
                num_classes=self.data_set.num_classes,
                data_format=self.machine.data_format,
                forward_only=params.forward_only,
                with_accuracy=params.forward_only or params.print_training_accuracy,
                loss_type_to_report=params.loss_type_to_report,
                weight_decay=params.weight_decay,
                gradient_clip=params.gradient_clip,
                learning_rate=self.learning_rate,
                seed=params.tf_random_seed,
                first_tower=self._first_tower,
            ),
            _make_optimizer(params),
            manager,
            self._make_pipeline(manager.get_devices()),
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
        params, size, num_classes = self._params, self.image_size, self.data_set.num_classes
        seed, shift = params.tf_random_seed, 0.0
        if self._cluster and params.distinct_worker_data:
            seed += self._first_tower
            shift = self._cluster.index / self._cluster.num_workers
        if self._options is None:
            return SyntheticInput(devices, self.batch_size, size, size, self.data_set.channels, num_classes, seed)
        options = replace(self._options, seed=seed)
        on_device = self.machine.kind == 'gpu'
        if self._arrays:
            return ArrayPipeline(
                *self._arrays, devices, self.batch_size, options, normalize_on_device=on_device, shift=shift
            )
        assert self.shards
        return RecordPipeline(
            self.shards, devices, self.batch_size, num_classes, options, normalize_on_device=on_device, shift=shift
        )

    def image_options(self, *, training: bool) -> ImageOptions:
        """How the images of the run become what the model gets."""
        params = self._params
        return ImageOptions(
            height=self.image_size,
            width=self.image_size,
            channels=self.data_set.channels,
            training=training,
            distortions=params.distortions,
            resize_method=params.resize_method,
            augmentation=params.augmentation or self.data_set.augmentation,
        )

    def _load_arrays(self) -> tuple[np.ndarray, np.ndarray] | None:
        if self.folder is None or self.folder.shards is not None:
            return None
        if self._params.augmentation == 'resized_crop':
            raise UsageError(
                f'--augmentation=resized_crop: it is for records, and {self.data_set.name} is not read from any; '
                'write --augmentation=padded_crop or none'
            )
        return load_arrays(self.data_set.name, self.folder.path, self.folder.subset)

    def _find_shards(self) -> Shards | None:
        if self.folder is None:
            return None
        if lacks := self.folder.missing():
            self._warn(lacks)
        if self.folder.shards is not None:
            # It refuses shards that cannot be read, which is better known before the run than in it.
            input_pipeline.shard_pattern(self.folder.shards)
        return self.folder.shards


def _make_optimizer(params: Params) -> Optimizer:
    make: dict[str, Callable[[], Optimizer]] = {
        'sgd': GradientDescent,
        'momentum': functools.partial(Momentum, params.momentum),
        'rmsprop': functools.partial(RmsProp, params.rmsprop_decay, params.rmsprop_momentum, params.rmsprop_epsilon),
        'adam': functools.partial(Adam, params.adam_beta1, params.adam_beta2, params.adam_epsilon),
    }
    return make[params.optimizer]()

"""Inference with constant weights: a network's initial or trained values as constants.

TensorFlow's graph passes compute once whatever depends only on constants, and fold batch norm into
the convolution before it.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from models.layers import Tensor, VariableSource
from models.networks import NetworkValues, build_network, network_in_training
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.variables import Initializer
from tf_cnn.plan.plan import Plan
from tf_cnn.step.evaluation import RestoredVariables
from tf_cnn.system.errors import UsageError
from tf_cnn.training.checkpoints import Checkpointer
from variable_mgr import seed_of

Array = np.ndarray[Any, Any]

# A graph is a protocol buffer of at most 2 GB. The difference leaves room for the ops.
_MAX_GRAPH_BYTES = 2**31 - 2**26


class FrozenNetwork:
    """The constants of a network in its compute dtype; values are float32, by name."""

    def __init__(self, values: Mapping[str, Array], dtype: tf.DType) -> None:
        self._values = values
        self._dtype = dtype
        self._by_device: dict[str, VariableSource] = {}

    def constants_for(self, device: str) -> VariableSource:
        """Returns the constants of a tower, on its device. The virtual devices of a CPU share them,
        as they share memory.
        """
        spec = tf.DeviceSpec.from_string(device)
        constants_device = (
            spec.replace(device_index=0).to_string() if spec.device_type == 'CPU' else device
        )
        if constants_device not in self._by_device:
            self._by_device[constants_device] = NetworkValues(
                functools.partial(self._constant, constants_device)
            )
            bytes_per_device = sum(value.size for value in self._values.values()) * self._dtype.size
            if bytes_per_device * len(self._by_device) > _MAX_GRAPH_BYTES:
                max_devices = _MAX_GRAPH_BYTES // bytes_per_device
                advice = f'use --num_gpus={max_devices} or less' if max_devices else 'remove it'
                raise UsageError(
                    '--freeze_when_forward_only: each device gets constants of '
                    f'{bytes_per_device / 1e9:.2f} '
                    f'GB, and a graph of TensorFlow has at most 2 GB; {advice}'
                )
        return self._by_device[constants_device]

    def _constant(self, device: str, name: str, shape: Sequence[int], *_: object) -> Tensor:
        # Batch norm needs vectors in float32.
        dtype = self._dtype if len(shape) > 1 else tf.float32
        value = self._values[name].astype(dtype.as_numpy_dtype)
        with tf.device(device):
            return tf.constant(value, name=f'constants/{name}')


def freeze(plan: Plan) -> FrozenNetwork:
    """Computes the initial values of a run's network on this process's CPU, or reads them from its
    checkpoint.

    Raises RunError if Checkpointer.restore does.
    """
    cpu_config = tf.ConfigProto()
    cpu_config.CopyFrom(plan.session.config)
    cpu_config.device_count['GPU'] = 0

    def initial_value(
        name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Tensor:
        value = initializer(shape, seed_of(name, plan.params.run.tf_random_seed))
        variable_dtype = plan.precision.variable_dtype
        return tf.cast(tf.cast(value, variable_dtype) if trainable else value, tf.float32)

    values, restored = NetworkValues(initial_value), RestoredVariables('/cpu:0', 'weights')
    if plan.resume_from:
        values = restored
    with tf.Graph().as_default() as graph:
        build_network(
            plan.model.network,
            tf.placeholder(tf.float32, (plan.params.run.batch_size, *plan.data.image_shape)),
            plan.data.data_set.num_classes,
            values,
            'NHWC',
            is_training=False,
        )
        checkpointer = (
            Checkpointer('', restored.slices, HOST_DEVICE, 0) if restored.slices else None
        )
    with tf.Session(graph=graph, config=cpu_config) as session:
        if checkpointer and plan.resume_from:
            checkpointer.restore(
                session,
                plan.resume_from,
                for_training=False,
                names_in_training=functools.partial(names_in_training, plan),
            )
        return FrozenNetwork(session.run(values.values), plan.precision.compute_dtype)


def names_in_training(plan: Plan) -> frozenset[str]:
    """Returns the names of all variables that the model has in training.

    Inference may have fewer.
    """
    variables, _ = network_in_training(
        plan.model.network, plan.data.image_shape, plan.data.data_set.num_classes
    )
    return frozenset(variables.values)

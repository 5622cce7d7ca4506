"""Inference with constant weights: a network's initial values as constants.

TensorFlow's graph passes compute once whatever depends only on constants, and fold batch norm into
the convolution before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from models.layers import Tensor, VariableSource
from models.model_spec import Network
from models.networks import build_network
from tf_cnn.graph.variables import Initializer
from tf_cnn.step.evaluation import InferenceVariables
from tf_cnn.system.errors import UsageError
from tf_cnn.training.precision import Precision
from variable_mgr import seed_of

Array = np.ndarray[Any, Any]

# A graph is a protocol buffer of at most 2 GB. The difference leaves room for the ops.
_MAX_GRAPH_BYTES = 2**31 - 2**26


class _InitialValues(InferenceVariables):
    """Computes the initial values of a run with this seed, in the dtypes of its variables."""

    def __init__(self, seed: int, variable_dtype: tf.DType) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seed = seed
        self._dtype = variable_dtype

    def read(
        self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True
    ) -> Tensor:
        if name not in self.tensors:
            value = initializer(shape, seed_of(name, self._seed))
            variable_value = tf.cast(value, self._dtype) if trainable else value
            self.tensors[name] = tf.cast(variable_value, tf.float32)
        return self.tensors[name]


class _Constants(InferenceVariables):
    """Gives a network constants: kernels in its compute dtype, vectors in float32, which batch norm
    needs.
    """

    def __init__(self, values: Mapping[str, Array], dtype: tf.DType, device: str) -> None:
        self._values = values
        self._dtype = dtype
        self._device = device
        self._tensors: dict[str, Tensor] = {}

    def read(
        self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True
    ) -> Tensor:
        del initializer, trainable
        if name not in self._tensors:
            dtype = self._dtype if len(shape) > 1 else tf.float32
            with tf.device(self._device):
                value = self._values[name].astype(dtype.as_numpy_dtype)
                self._tensors[name] = tf.constant(value, name=f'constants/{name}')
        return self._tensors[name]


def constants_by_device(
    values: Mapping[str, Array], dtype: tf.DType, devices: Sequence[str]
) -> dict[str, VariableSource]:
    """Returns the constants of each tower, on its device; values are float32, by name.

    The virtual devices of a CPU share them, as they share memory.
    """
    constants: dict[str, VariableSource] = {}
    for device in devices:
        spec = tf.DeviceSpec.from_string(device)
        owner = spec.replace(device_index=0).to_string() if spec.device_type == 'CPU' else device
        if owner not in constants:
            constants[owner] = _Constants(values, dtype, owner)
        constants[device] = constants[owner]
    bytes_per_device = sum(value.size for value in values.values()) * dtype.size
    if bytes_per_device * len({*constants.values()}) > _MAX_GRAPH_BYTES:
        max_devices = _MAX_GRAPH_BYTES // bytes_per_device
        advice = f'use --num_gpus={max_devices} or less' if max_devices else 'remove it'
        raise UsageError(
            f'--freeze_when_forward_only: each device gets constants of '
            f'{bytes_per_device / 1e9:.2f} GB, and a graph of TensorFlow has at most 2 GB; {advice}'
        )
    return constants


def freeze(
    network: Network,
    batch_shape: Sequence[int],
    num_classes: int,
    seed: int,
    precision: Precision,
    config: tf.ConfigProto,
    devices: Sequence[str],
) -> dict[str, VariableSource]:
    """Computes a network's initial values on this process's CPU, and makes them constants of each
    device.

    batch_shape is [N, H, W, C].
    """
    cpu_config = tf.ConfigProto()
    cpu_config.CopyFrom(config)
    cpu_config.device_count['GPU'] = 0
    initial_values = _InitialValues(seed, precision.variable_dtype)
    with tf.Graph().as_default() as graph:
        build_network(
            network,
            tf.placeholder(tf.float32, batch_shape),
            num_classes,
            initial_values,
            'NHWC',
            is_training=False,
        )
    with tf.Session(graph=graph, config=cpu_config) as session:
        values = session.run(initial_values.tensors)
    return constants_by_device(values, precision.compute_dtype, devices)

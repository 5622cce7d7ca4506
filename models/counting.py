"""Counts the cost of a network: its parameters, and the multiply-adds of an image."""

import math
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from models.model_spec import ModelSpec, Network
from models.networks import network_in_training
from tf_cnn.graph.variables import ops_before
from tf_cnn.inputs.data_sets import DATA_SETS

# The number of parameters, and the multiply-adds in the convolutions and matrix products of one
# image's forward pass. Biases, normalisation, activations and pooling do not count, as in published
# tables: He et al. 2015, table 1 ("FLOPs (multiply-adds)"), Huang et al. 2017, figure 3, Tan & Le
# 2019, table 2, and torchvision's tables also count multiply-adds, but call them FLOPs. A
# multiply-add is two operations of a processor's peak.
Cost = tuple[int, int]


def model_cost(model: ModelSpec) -> Cost:
    """Returns the cost of a model with its data set, in a new graph. UsageError if a user's network
    cannot be built.
    """
    data_set = DATA_SETS[model.data_set]
    image_shape = (model.image_size, model.image_size, data_set.channels)
    return network_cost(model.network, image_shape, data_set.num_classes)


def network_cost(network: Network, image_shape: tuple[int, int, int], num_classes: int) -> Cost:
    """Returns the cost of a network for images of the shape [H, W, C]. Builds a separate graph.

    The network is built as for training, so the parameters of an auxiliary head count. Its
    multiply-adds do not: only operations that the logits depend on count.
    """
    variables, logits = network_in_training(network, image_shape, num_classes)
    parameters = sum(value.shape.num_elements() for value in variables.trainable.values())
    return parameters, sum(map(_multiply_adds, ops_before([logits])))


def _multiply_adds(operation: tf.Operation) -> int:
    factor = _MULTIPLY_ADDS_PER_OUTPUT.get(operation.type)
    return operation.outputs[0].shape.num_elements() * factor(operation) if factor else 0


def _input_shape(operation: tf.Operation, number: int) -> list[int]:
    return operation.inputs[number].shape.as_list()


# Multiply-adds of one value of an operation's result. Kernels are [H, W, in, out], or with groups
# [H, W, in / groups, out]; depthwise kernels are [H, W, in, multiplier], and each of their results
# depends on one channel.
_MULTIPLY_ADDS_PER_OUTPUT: dict[str, Callable[[tf.Operation], int]] = {
    'Conv2D': lambda operation: math.prod(_input_shape(operation, 1)[:3]),
    'DepthwiseConv2dNative': lambda operation: math.prod(_input_shape(operation, 1)[:2]),
    'MatMul': lambda operation: _input_shape(operation, 0)[
        -2 if operation.get_attr('transpose_a') else -1
    ],
    'BatchMatMulV2': lambda operation: _input_shape(operation, 0)[
        -2 if operation.get_attr('adj_x') else -1
    ],
}

"""What a network costs: the parameters that it trains, and the arithmetic of one image's way through it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from data_sets import DATA_SETS
from models.catalog import ModelFacts
from models.layers import Initializer, Tensor
from models.networks import build_network


@dataclass(frozen=True)
class Cost:
    """What a network for some number of classes and size of images costs.

    parameters: how many numbers its variables that train hold.
    multiply_adds: of one image's forward pass, in convolutions and matrix products. Whatever else a network does
      (biases, normalisation, activations, pooling) counts nothing, as in published tables.
    """

    parameters: int
    multiply_adds: int

    @property
    def gflops(self) -> float:
        """Forward GFLOPs per image, where one multiply-add is one FLOP.

        So count the papers of these networks (He et al. 2015, table 1: "FLOPs (multiply-adds)"; Huang et al. 2017,
        figure 3; Tan & Le 2019, table 2) and torchvision's tables. Against the peak of a processor, of which a
        multiply-add takes two, it is twice as many.
        """
        return self.multiply_adds / 1e9


def cost_of(facts: ModelFacts) -> Cost:
    """What a model of the catalog costs with the images and classes of its data set. Builds a graph of its own."""
    data_set = DATA_SETS[facts.data_set]
    return network_cost(facts.network, (facts.image_size, facts.image_size, data_set.channels), data_set.num_classes)


def network_cost(network: str, image_shape: tuple[int, int, int], num_classes: int) -> Cost:
    """What a network costs for images of the shape [H, W, C] and that many classes.

    It is built as for training, so that parameters of an auxiliary head count; of the arithmetic, what leads to the
    logits counts.
    """
    with tf.Graph().as_default():
        shapes = _Shapes()
        images = tf.placeholder(tf.float32, [1, *image_shape])
        logits = build_network(network, images, num_classes, shapes, 'NHWC', is_training=True).logits
        return Cost(shapes.num_parameters, sum(map(_multiply_adds, _operations_behind(logits))))


class _Shapes:
    """A VariableSource without variables: to count takes no more than their shapes."""

    def __init__(self) -> None:
        self.num_parameters = 0
        self._values: dict[str, Tensor] = {}

    def read(self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True) -> Tensor:
        del initializer
        if name not in self._values:
            self._values[name] = tf.placeholder(tf.float32, shape)
            self.num_parameters += math.prod(shape) if trainable else 0
        return self._values[name]

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        """Nothing: only what is trainable counts."""

    def assign(self, name: str, value: Tensor) -> None:
        """Nothing: there is no step."""


def _operations_behind(tensor: Tensor) -> set[tf.Operation]:
    """All operations whose results a tensor depends on."""
    found: set[tf.Operation] = set()
    waiting = [tensor.op]
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting.extend(source.op for source in operation.inputs)
    return found


def _multiply_adds(operation: tf.Operation) -> int:
    factor = _MULTIPLY_ADDS_OF_A_VALUE.get(operation.type)
    return operation.outputs[0].shape.num_elements() * factor(operation) if factor else 0


def _shape(operation: tf.Operation, number: int) -> list[int]:
    return operation.inputs[number].shape.as_list()


# What one value of an operation's result takes. Kernels are [H, W, in, out], with groups [H, W, in / groups, out];
# depthwise ones are [H, W, in, multiplier], each of whose results sees one channel.
_MULTIPLY_ADDS_OF_A_VALUE: dict[str, Callable[[tf.Operation], int]] = {
    'Conv2D': lambda operation: math.prod(_shape(operation, 1)[:3]),
    'DepthwiseConv2dNative': lambda operation: math.prod(_shape(operation, 1)[:2]),
    'MatMul': lambda operation: _shape(operation, 0)[-2 if operation.get_attr('transpose_a') else -1],
    'BatchMatMulV2': lambda operation: _shape(operation, 0)[-2 if operation.get_attr('adj_x') else -1],
}

"""A step without a model (--exchange_only): combines gradients that are in memory already, and
applies the update.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from models.layers import zeros
from models.model_spec import Network
from models.networks import network_in_training
from tf_cnn.graph.variables import create_variable
from tf_cnn.inputs.pipeline import StepInput
from variable_mgr import VariableMgr

Tensor = Any
# The only variable of --exchange_bytes.
EXCHANGE_VARIABLE_NAME = 'tensor'


class GradientsInMemory(StepInput):
    """Gives each tower gradients from the memory of its device, in place of a batch.

    All values of a tower's gradients are equal: (i + 1) / N for tower i of the N towers that share
    a model. So each value of the sum is (N + 1) / 2, and a sum without one of the towers differs. i
    counts the towers of all processes; first_tower is the first one of this process.
    """

    def __init__(self, shapes: Sequence[tuple[str, Sequence[int]]], first_tower: int) -> None:
        super().__init__()
        self._shapes = shapes
        self._first_tower = first_tower

    def add_tower_gradients(self, manager: VariableMgr, tower: int) -> list[Tensor]:
        """Adds the variables of a tower and its gradients, in the same order.

        A tower's gradients are available only after all variable values have arrived, as in
        training, where the backward pass begins with the loss. So values and gradients never cross
        a link at the same time.
        """
        device, values_on_tower, gradients = manager.get_devices()[tower], [], []
        tower_number = self._first_tower + tower if manager.num_averaged_towers > 1 else 0
        with manager.create_outer_variable_scope(tower) as variables:
            for name, shape in self._shapes:
                value = variables.read(name, shape, zeros)
                gradient = create_variable(
                    name, shape, scope=f'gradients_of_{tower}', device=device
                )
                self.initializers.append(
                    gradient.assign(
                        tf.fill(list(shape), (tower_number + 1) / manager.num_averaged_towers)
                    )
                )
                gradients.append(gradient)
                # Copies the value to the tower without computing. Graph optimisation keeps this op;
                # it would remove Identity, and unread outputs of IdentityN.
                values_on_tower.append(
                    tf.raw_ops.PlaceholderWithDefault(input=value, shape=value.shape)
                )
            with tf.control_dependencies(values_on_tower):
                return [gradient.read_again() for gradient in gradients]


def gradient_shapes(
    exchange_bytes: int | None, network: Network, image_shape: Sequence[int], num_classes: int
) -> list[tuple[str, Sequence[int]]]:
    """Returns (name, shape) of each trainable variable, in order of first use.

    exchange_bytes: the size of the tensor that replaces them, if any. image_shape is [H, W, C].
    """
    if exchange_bytes is not None:
        return [(EXCHANGE_VARIABLE_NAME, (exchange_bytes // tf.float32.size,))]
    variables, _ = network_in_training(network, image_shape, num_classes)
    return [(name, value.shape.as_list()) for name, value in variables.trainable.items()]

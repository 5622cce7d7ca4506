"""A loop in the graph, which takes several steps in one run of the session."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from run.step_graph import Fetches
from training.variables import HOST_DEVICE

Tensor = Any


class StepsInGraph:
    """Adds a loop to the current graph whose body is a copy of a step.

    Whatever one step leaves to the next (variables, staging areas, queues) is a resource with a name, which the copy
    shares with the step. So nothing that builds a step has to know about the loop, and it takes the steps that as many
    runs of the session would take, except for what a kernel keeps within itself, which begins anew in the copy: the
    readers of RecordInput, and the random numbers of dropout that a prologue has drawn before.

    Args:
      fetches: what each step computes.
      device: where the loop counts its steps: that of the towers if they share one, so that no signal crosses devices.

    Attributes:
      num_steps: scalar int32 placeholder: how many steps the loop takes.
      values: what the steps computed, by the names of Fetches without ops: tensors [num_steps].
    """

    def __init__(self, fetches: Fetches, device: str) -> None:
        scalars = {name: value for name, value in fetches.present().items() if name != 'ops'}
        # When the update of a step is done says nothing about the end of the step.
        scalars.pop('updated_at', None)
        ops = [value if isinstance(value, tf.Operation) else value.op for value in fetches.ops]
        step = _with_gates(
            tf.graph_util.extract_sub_graph(
                tf.get_default_graph().as_graph_def(), [*(value.op.name for value in scalars.values()), *_names(ops)]
            )
        )
        returned = [*(value.name for value in scalars.values()), *_names(ops)]

        def take_step(index: Tensor, *lists: tf.TensorArray) -> list[Any]:
            # The copies have the devices of the step.
            with tf.device(None):
                copies = tf.import_graph_def(step, return_elements=returned, name='step')
            values, done = copies[: len(scalars)], copies[len(scalars) :]
            with tf.control_dependencies(done):
                following = index + 1
            with tf.device(HOST_DEVICE):
                return [following, *(each.write(index, value) for each, value in zip(lists, values, strict=True))]

        with tf.device(HOST_DEVICE):
            self.num_steps = tf.placeholder(tf.int32, [], name='num_steps')
            lists = [tf.TensorArray(value.dtype, self.num_steps, element_shape=[]) for value in scalars.values()]
        with tf.device(device), tf.name_scope('steps'):
            _, *filled = tf.while_loop(
                lambda index, *_: index < self.num_steps,
                take_step,
                [tf.constant(0), *lists],
                parallel_iterations=1,
                back_prop=False,
            )
        with tf.device(HOST_DEVICE):
            self.values: Mapping[str, Tensor] = {name: each.stack() for name, each in zip(scalars, filled, strict=True)}


def _names(ops: Sequence[tf.Operation]) -> list[str]:
    return [op.name for op in ops]


def _with_gates(step: tf.GraphDef) -> tf.GraphDef:
    """Makes the nodes without inputs wait for one node per device.

    In a loop such nodes wait for the loop's counter. One signal per device is sent instead of one for each of them.
    """
    gates: dict[str, str] = {}
    for node in step.node:
        if not node.input:
            gate = gates.setdefault(node.device, f'gate_{len(gates)}')
            node.input.append(f'^{gate}')
    for device, gate in gates.items():
        step.node.add(op='NoOp', name=gate, device=device)
    return step

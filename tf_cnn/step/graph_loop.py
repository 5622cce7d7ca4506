"""A loop in the graph that takes several steps in one session call."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.step.step_graph import Fetches

Tensor = Any


class GraphLoop:
    """Adds a loop to the current graph; its body is a copy of a step.

    Variables, staging areas and queues are named resources, which the copy shares with the step. So
    the code that builds a step need not know about the loop. Some kernels keep state under the name
    of their node: the reader of RecordInput, random numbers. Run stateful_ops by make_op_runner,
    which runs their copies; then the loop takes the same steps as separate session calls.

    The loop consists of the frames of TensorFlow 1 (Enter, Merge, Switch, NextIteration), not of
    functions, so that a session call omits what its fetches do not need. The step counter is on the
    device of the loss. Each value stays on the device that computes it until the last step.

    Attributes:
      values: the values of the steps, tensors [num_steps], by the names of Fetches except ops.
    """

    def __init__(self, fetches: Fetches, stateful_ops: Sequence[tf.Operation] = ()) -> None:
        scalars = {name: value for name, value in fetches.as_dict().items() if name != 'ops'}
        # updated_at is meaningless inside a loop.
        scalars.pop('updated_at', None)
        ops = [value if isinstance(value, tf.Operation) else value.op for value in fetches.ops]
        copied_ops = [*(value.op for value in scalars.values()), *ops, *stateful_ops]
        step = _add_gates(
            tf.graph_util.extract_sub_graph(
                tf.get_default_graph().as_graph_def(), _op_names(copied_ops)
            )
        )
        element_names = [
            *(value.name for value in scalars.values()),
            *_op_names(ops),
            *_op_names(stateful_ops),
        ]

        def take_step(
            index: Tensor, arrays: list[tf.TensorArray], counters: list[Tensor]
        ) -> list[Any]:
            # The copies have the devices of the step.
            with tf.device(None):
                copies = tf.import_graph_def(step, return_elements=element_names, name='step')
            values, op_copies = copies[: len(scalars)], copies[len(scalars) :]
            next_arrays = []
            for array, value in zip(arrays, values, strict=True):
                with tf.device(value.device), tf.control_dependencies(op_copies[: len(ops)]):
                    next_arrays.append(array.write(index, tf.cast(value, array.dtype)))
            next_counters = []
            for count, op in zip(counters, op_copies[len(ops) :], strict=True):
                with tf.control_dependencies([op]):
                    next_counters.append(tf.identity(count))
            return [index + 1, next_arrays, next_counters]

        with use_frame_loops():
            with tf.device(fetches.loss.device):
                self.num_steps = tf.placeholder(tf.int32, [], name='num_steps')
            arrays = [_make_array(value, self.num_steps) for value in scalars.values()]
            with tf.device(fetches.loss.device), tf.name_scope('steps'):
                _, filled_arrays, final_counters = tf.while_loop(
                    lambda index, *_: index < self.num_steps,
                    take_step,
                    [tf.constant(0), arrays, [tf.constant(0) for _ in stateful_ops]],
                    parallel_iterations=1,
                    back_prop=False,
                )
            self.values: dict[str, Tensor] = {}
            for (name, value), array in zip(scalars.items(), filled_arrays, strict=True):
                with tf.device(value.device):
                    self.values[name] = tf.cast(array.stack(), value.dtype)
        self._counters: Mapping[str, Tensor] = dict(
            zip(_op_names(stateful_ops), final_counters, strict=True)
        )

    def make_op_runner(self, session: tf.Session) -> Callable[[tf.Operation], None]:
        """Returns a function that runs one of stateful_ops once, by its copy in the loop."""
        return lambda op: session.run(self._counters[op.name].op, {self.num_steps: 1})


@contextlib.contextmanager
def use_frame_loops() -> Iterator[None]:
    """Builds the loops of the block from frames instead of functions."""
    used_functions = tf.control_flow_v2_enabled()
    tf.disable_control_flow_v2()
    try:
        yield
    finally:
        if used_functions:
            tf.enable_control_flow_v2()


def _make_array(value: Tensor, length: Tensor) -> tf.TensorArray:
    """Makes an array of scalars like `value`, on its device."""
    # GPUs have no kernel that writes int64 to an array. float64 holds any step number exactly.
    dtype = tf.float64 if value.dtype == tf.int64 else value.dtype
    with tf.device(value.device):
        return tf.TensorArray(dtype, length, element_shape=[], colocate_with_first_write_call=False)


def _op_names(ops: Sequence[tf.Operation]) -> list[str]:
    return [op.name for op in ops]


def _add_gates(step: tf.GraphDef) -> tf.GraphDef:
    """Makes nodes without inputs wait for one node per device, so that the loop sends one signal to
    each device.
    """
    gates: dict[str, str] = {}
    for node in step.node:
        if not node.input:
            gate = gates.setdefault(node.device, f'gate_{len(gates)}')
            node.input.append(f'^{gate}')
    for device, gate in gates.items():
        step.node.add(op='NoOp', name=gate, device=device)
    return step

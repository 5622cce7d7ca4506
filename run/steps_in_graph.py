"""A loop in the graph, which takes several steps in one run of the session."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from params.device_flags import HOST_DEVICE
from run.step_graph import Fetches

Tensor = Any


class StepsInGraph:
    """Adds a loop to the current graph whose body is a copy of a step.

    Whatever one step leaves to the next (variables, staging areas, queues) is a resource with a name, which the copy
    shares with the step, so nothing that builds a step has to know about the loop. What a kernel keeps within itself
    (the reader of RecordInput, the state of random numbers) it keeps by the name of its node: `runner` has the copy run
    `before`, so that the loop takes the steps that as many runs of the session would take.

    The loop consists of the frames of TensorFlow 1 (Enter, Merge, Switch, NextIteration), not of functions: a run of
    the session then leaves out of the body whatever its fetches do not need, as elsewhere in the graph. It counts its
    steps on `device`, that of the towers if they share one, so that no signal crosses devices.

    `values` are what the steps computed, by the names of Fetches without ops: tensors [num_steps].
    """

    def __init__(self, fetches: Fetches, device: str, before: Sequence[tf.Operation] = ()) -> None:
        scalars = {name: value for name, value in fetches.present().items() if name != 'ops'}
        # When the update of a step is done says nothing about the end of the step.
        scalars.pop('updated_at', None)
        ops = [value if isinstance(value, tf.Operation) else value.op for value in fetches.ops]
        copied = [*(value.op for value in scalars.values()), *ops, *before]
        step = _with_gates(tf.graph_util.extract_sub_graph(tf.get_default_graph().as_graph_def(), _names(copied)))
        returned = [*(value.name for value in scalars.values()), *_names(ops), *_names(before)]

        def take_step(index: Tensor, lists: list[tf.TensorArray], done: list[Tensor]) -> list[Any]:
            # The copies have the devices of the step.
            with tf.device(None):
                copies = tf.import_graph_def(step, return_elements=returned, name='step')
            values, rest = copies[: len(scalars)], copies[len(scalars) :]
            with tf.device(HOST_DEVICE), tf.control_dependencies(rest[: len(ops)]):
                filled = [each.write(index, value) for each, value in zip(lists, values, strict=True)]
            following = []
            for count, op in zip(done, rest[len(ops) :], strict=True):
                with tf.control_dependencies([op]):
                    following.append(tf.identity(count))
            return [index + 1, filled, following]

        with frames():
            with tf.device(HOST_DEVICE):
                self.num_steps = tf.placeholder(tf.int32, [], name='num_steps')
                lists = [tf.TensorArray(value.dtype, self.num_steps, element_shape=[]) for value in scalars.values()]
            with tf.device(device), tf.name_scope('steps'):
                _, filled, done = tf.while_loop(
                    lambda index, *_: index < self.num_steps,
                    take_step,
                    [tf.constant(0), lists, [tf.constant(0) for _ in before]],
                    parallel_iterations=1,
                    back_prop=False,
                )
            with tf.device(HOST_DEVICE):
                self.values: Mapping[str, Tensor] = {
                    name: each.stack() for name, each in zip(scalars, filled, strict=True)
                }
        self._before: Mapping[str, Tensor] = dict(zip(_names(before), done, strict=True))

    def runner(self, session: tf.Session) -> Callable[[tf.Operation], None]:
        """Returns a function that runs an op of `before` once, by its copy in the loop."""
        return lambda op: session.run(self._before[op.name].op, {self.num_steps: 1})


@contextlib.contextmanager
def frames() -> Iterator[None]:
    """Loops that are built within the block consist of frames instead of functions."""
    by_functions = tf.control_flow_v2_enabled()
    tf.disable_control_flow_v2()
    try:
        yield
    finally:
        if by_functions:
            tf.enable_control_flow_v2()


def _names(ops: Sequence[tf.Operation]) -> list[str]:
    return [op.name for op in ops]


def _with_gates(step: tf.GraphDef) -> tf.GraphDef:
    """Makes nodes without inputs wait for one node per device, so that the loop sends one signal to each device."""
    gates: dict[str, str] = {}
    for node in step.node:
        if not node.input:
            gate = gates.setdefault(node.device, f'gate_{len(gates)}')
            node.input.append(f'^{gate}')
    for device, gate in gates.items():
        step.node.add(op='NoOp', name=gate, device=device)
    return step

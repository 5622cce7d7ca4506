"""Copies one tower's part of the graph to other towers, which is faster than building it again.

Towers differ in their device, their variables, their batch and the seeds of their dropout layers, and in nothing else
if they have the same duties (weight decay, moving averages).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from inputs.pipeline import Batch
from models.layers import VariableSource
from training.variables import Initializer

Tensor = Any

# The op with which tf.nn.dropout draws; its seed2 is the seed that the layer has given.
_DRAWS = 'RandomUniform'
# How the attribute that places an op beside another one begins; tf.gradients places sums so.
_WITH = 'loc:@'
# Before the names of what the ops of the tower take from other ops, which may be named as they are without the scope.
_ELSEWHERE = 'elsewhere/'
# Nothing distinguishes the iterations of a loop of control flow v1 from those of its copy.
_LOOPS = ('Enter', 'RefEnter')


@dataclass(frozen=True)
class _Request:
    """A call of VariableSource.read, or of declare, which returns no value."""

    name: str
    shape: Sequence[int]
    initializer: Initializer
    trainable: bool = False
    value: Tensor = None


class TowerTemplate:
    """A tower that is built in the usual way, and then copied. Its variables, of which it notes all that is asked.

    Args:
      variables: those of the tower.
      batch: its batch.
      seeds: those that its dropout layers may have; the seeds of the next tower begin after them.
    """

    def __init__(self, variables: VariableSource, batch: Batch, seeds: range) -> None:
        self._variables = variables
        self._batch = batch
        self._seeds = seeds
        self._requests: dict[str, _Request] = {}
        self._assigned: list[tuple[str, Tensor]] = []
        self._graph = tf.get_default_graph()
        self._first_op = len(self._graph.get_operations())
        self._ops_of_variables: set[str] = set()

    def read(self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True) -> Tensor:
        if name not in self._requests:
            before = len(self._graph.get_operations())
            value = self._variables.read(name, shape, initializer, trainable=trainable)
            self._ops_of_variables |= {op.name for op in self._graph.get_operations()[before:]}
            self._requests[name] = _Request(name, shape, initializer, trainable, value)
        return self._requests[name].value

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        self._requests[name] = _Request(name, shape, initializer)
        self._variables.declare(name, shape, initializer)

    def assign(self, name: str, value: Tensor) -> None:
        self._assigned.append((name, value))
        self._variables.assign(name, value)

    def finish(self, outputs: Sequence[Tensor]) -> 'TowerCopier | None':
        """Ends the notes, within the scope of the tower, once it is built. Returns None if it has ops that only Python
        can build again: with a state of their own, such as random numbers that have no seed.

        Args:
          outputs: the tensors of the tower that others use; the first one is on the device of the tower.
        """
        prefix, device = f'{self._graph.get_name_scope()}/', outputs[0].op.device
        ops = [op for op in self._graph.get_operations()[self._first_op :] if op.name not in self._ops_of_variables]
        # The names of gradients contain the prefix a second time.
        names = {op.name: op.name.replace(prefix, '') for op in ops}
        if len({*names.values()}) < len(names) or not all(self._can_be_copied(op, names) for op in ops):
            return None
        inputs = {tensor.name: tensor for op in ops for tensor in op.inputs if tensor.op.name not in names}
        values = {request.value.name for request in self._requests.values() if request.value is not None}
        if any(tensor.op.name in self._ops_of_variables and name not in values for name, tensor in inputs.items()):
            return None
        nodes = tf.GraphDef(versions=self._graph.graph_def_versions)
        for op in ops:
            node = nodes.node.add()
            node.CopyFrom(op.node_def)
            node.name = names[op.name]
            node.input[:] = [_renamed(name, names) for name in node.input]
            if '_class' in node.attr:
                groups = [f'{_WITH}{names[group]}'.encode() for group in _groups(op)]
                node.attr['_class'].list.s[:] = groups
            if node.device == device:
                node.device = ''
        returned = [*outputs, *(value for _, value in self._assigned)]
        return TowerCopier(
            nodes,
            self._batch,
            [*self._requests.values()],
            [name for name, _ in self._assigned],
            inputs,
            [(tensor, _renamed(tensor.name, names) if tensor.op.name in names else None) for tensor in returned],
            len(self._seeds),
        )

    def _can_be_copied(self, op: tf.Operation, names: Mapping[str, str]) -> bool:
        if op.type in _LOOPS or any(before.name not in names for before in op.control_inputs):
            return False
        if any(group not in names for group in _groups(op)):
            return False
        return not op.op_def.is_stateful or (op.type == _DRAWS and op.get_attr('seed2') in self._seeds)


def _groups(op: tf.Operation) -> list[str]:
    """The names of the ops beside which this one is placed."""
    return [group.decode().removeprefix(_WITH) for group in op.colocation_groups()]


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """An input of a node, or a tensor: as the ops with new names call it if it is one of theirs, else in _ELSEWHERE."""
    if name.startswith('^'):
        # Only ops of the tower are waited for.
        return f'^{names[name[1:]]}'
    op, colon, output = name.partition(':')
    return f'{names[op]}{colon}{output}' if op in names else f'{_ELSEWHERE}{name}'


class TowerCopier:
    """Copies a tower. Made by TowerTemplate.finish.

    Args:
      nodes: the ops of the tower except those of its variables.
      batch: its batch.
      requests: what it asked of its variables.
      assigned: the names of those that it assigns.
      inputs: the tensors from elsewhere that it uses, by name.
      returned: its outputs and the assigned values, each with its name in nodes, or None if it is none of them.
      num_seeds: how far the seeds of two towers are apart.
    """

    def __init__(
        self,
        nodes: tf.GraphDef,
        batch: Batch,
        requests: Sequence[_Request],
        assigned: Sequence[str],
        inputs: Mapping[str, Tensor],
        returned: Sequence[tuple[Tensor, str | None]],
        num_seeds: int,
    ) -> None:
        self._nodes = nodes
        self._batch = batch
        self._requests = requests
        self._assigned = assigned
        self._inputs = inputs
        self._returned = returned
        self._num_seeds = num_seeds
        self._draws = [(node, node.attr['seed2'].i) for node in nodes.node if node.op == _DRAWS]

    def copy(self, variables: VariableSource, batch: Batch, distance: int) -> list[Tensor]:
        """Adds a copy of the tower to the current graph, in the scope of another tower.

        Args:
          variables: those of the copy.
          batch: its batch.
          distance: the number of the copy less that of the original.

        Returns:
          The outputs, in their order.
        """
        exchanged = {self._batch.images.name: batch.images, self._batch.labels.name: batch.labels}
        for of in self._requests:
            if of.value is None:
                variables.declare(of.name, of.shape, of.initializer)
            else:
                value = variables.read(of.name, of.shape, of.initializer, trainable=of.trainable)
                exchanged[of.value.name] = value
        for node, seed in self._draws:
            node.attr['seed2'].i = seed + self._num_seeds * distance
        copies = iter(
            tf.import_graph_def(
                self._nodes,
                input_map={_ELSEWHERE + name: exchanged.get(name, tensor) for name, tensor in self._inputs.items()},
                return_elements=[name for _, name in self._returned if name],
                # With the slash, the scope itself and no new one in it.
                name=f'{tf.get_default_graph().get_name_scope()}/',
            )
        )
        found: list[Tensor] = []
        for tensor, name in self._returned:
            copied: Tensor = next(copies) if name else exchanged.get(tensor.name, tensor)
            copied.set_shape(tensor.shape)
            found.append(copied)
        num_outputs = len(found) - len(self._assigned)
        for name, value in zip(self._assigned, found[num_outputs:], strict=True):
            variables.assign(name, value)
        return found[:num_outputs]

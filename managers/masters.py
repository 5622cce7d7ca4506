"""Variables on parameter servers: where they lie, how they are read, and how all gradients meet there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from packing import Packer, Packing, even_sizes
from training.checkpoints import Slice, joined
from training.variables import HOST_DEVICE, Variable, create_variable, num_bytes

Tensor = Any
Pairs = list[tuple[Tensor, Variable]]

# Larger variables are cut into one part for each parameter server, so that what these hold differs by less than this.
_LARGEST_WHOLE_BYTES = 4 << 20
# No gradient is too old to count: workers push one for each step, and only when the step before it is done.
_NEVER_STALE = tf.int64.max


@dataclass(frozen=True)
class ParameterServers:
    """Where the variables of a cluster live, and which of its workers this is.

    devices: a CPU of each parameter server. packing: which gradients travel together. transfer: the type that gradients
    and variables have on their way, or None to leave them as they are.
    """

    devices: Sequence[str]
    worker: int
    num_workers: int
    packing: Packing
    transfer: tf.DType | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this worker does what is done once: initial values, and the update of each step."""
        return self.worker == 0


@dataclass(frozen=True)
class _Cargo:
    """Gradients that have arrived on a parameter server, packed, and what they are of."""

    device: str
    tensors: list[Tensor]
    packer: Packer
    variables: list[Variable]

    def unpack(self, tensors: Sequence[Tensor]) -> Pairs:
        with tf.device(self.device):
            return list(zip(self.packer.unpack(tensors), self.variables, strict=True))


class Masters:
    """The variables on the parameter servers, by name, each in one or more parts.

    A small variable goes to the server that holds the fewest bytes so far, a large one is cut along its longest axis.
    """

    def __init__(self, servers: ParameterServers) -> None:
        self.parts: dict[str, list[Slice]] = {}
        self.held_bytes = dict.fromkeys(servers.devices, 0)
        self._servers = servers

    def create(
        self, name: str, shape: Sequence[int], trainable: bool, make_value: Callable[[], Tensor]
    ) -> tf.Operation:
        """Adds a variable and returns the op that gives it its initial value."""
        parts = []
        for number, (device, offset, size) in enumerate(self._place(list(shape))):
            self.held_bytes[device] += num_bytes(size)
            part_name = name if size == list(shape) else f'{name}/part_{number}'
            variable = create_variable(part_name, size, scope='v', device=device, trainable=trainable)
            parts.append(Slice(variable, tuple(offset), tuple(shape)))
        self.parts[name] = parts
        if not self._servers.is_chief:
            return tf.no_op()
        with tf.device(parts[0].variable.device):
            value = make_value()
            return tf.group(
                *(part.variable.assign(tf.slice(value, part.offset, part.variable.shape)) for part in parts)
            )

    def _place(self, shape: list[int]) -> list[tuple[str, list[int], list[int]]]:
        """The device, offset and shape of each part."""
        axis = int(np.argmax(shape)) if shape else 0
        devices = list(self.held_bytes)
        if num_bytes(shape) <= _LARGEST_WHOLE_BYTES or len(devices) == 1 or shape[axis] < len(devices):
            device = min(devices, key=lambda held: self.held_bytes[held])
            return [(device, [0] * len(shape), shape)]
        placed, start = [], 0
        for device, length in zip(devices, even_sizes(shape[axis], len(devices)), strict=True):
            offset, size = [0] * len(shape), list(shape)
            offset[axis], size[axis] = start, length
            placed.append((device, offset, size))
            start += length
        return placed

    def fetch(self, name: str) -> Tensor:
        """The value now, float32 on this worker's host, from which all of its towers take it."""
        parts = self.parts[name]
        fetched = []
        for part in parts:
            variable = part.variable
            with tf.device(variable.device):
                value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
                value.set_shape(variable.shape)
                if variable.trainable:
                    # Not moving averages, which come back: 16 bits would not hold how little they change.
                    value = self._compact(value)
            with tf.device(HOST_DEVICE):
                fetched.append(tf.cast(tf.identity(value), tf.float32))
        with tf.device(HOST_DEVICE):
            return joined(parts, fetched)

    def ship(self, gradients: Sequence[tuple[str, Tensor]]) -> list[_Cargo]:
        """Sends gradients by name, on this worker's host, to where their variables are."""
        by_device: dict[str, Pairs] = {}
        with tf.device(HOST_DEVICE):
            for name, gradient in gradients:
                for part in self.parts[name]:
                    own = gradient
                    if part.variable.shape != part.full:
                        own = tf.slice(gradient, part.offset, part.variable.shape)
                    by_device.setdefault(part.variable.device, []).append((own, part.variable))
        cargoes = []
        for device, pairs in by_device.items():
            packer = Packer([variable.shape for _, variable in pairs], self._servers.packing)
            with tf.device(HOST_DEVICE):
                packed = [self._compact(tensor) for tensor in packer.pack([gradient for gradient, _ in pairs])]
            with tf.device(device):
                arrived = [tf.cast(tensor, tf.float32) for tensor in packed]
            cargoes.append(_Cargo(device, arrived, packer, [variable for _, variable in pairs]))
        return cargoes

    def join(self, pairs: Pairs) -> list[Pairs]:
        """The same pairs of a gradient and a part, with all parts of a variable in one list."""
        by_part = {variable.handle.ref(): (gradient, variable) for gradient, variable in pairs}
        joined = [
            [by_part[ref] for part in parts if (ref := part.variable.handle.ref()) in by_part]
            for parts in self.parts.values()
        ]
        return [own for own in joined if own]

    def _compact(self, tensor: Tensor) -> Tensor:
        return tensor if self._servers.transfer is None else tf.cast(tensor, self._servers.transfer)


class Meeting:
    """How the gradients of all workers meet on the parameter servers, once a step.

        worker 0: push g0 --+                     +--> take the sum, apply it, count the step, let the others go
        worker 1: push g1 --+-- accumulators (sum) +
        worker 1: ... wait for the word of worker 0, which ends the step

    Nothing is applied before every gradient of every worker is there: a step is taken as a whole or not at all. `begun`
    is the number of the step that is being applied, or was: it differs from the global step in between.
    """

    def __init__(self, servers: ParameterServers) -> None:
        self.begun = create_variable('begun', [], scope='v', device=servers.devices[0], dtype=tf.int64)
        self._servers = servers
        self._accumulators: list[tf.ConditionalAccumulator] = []
        with tf.device(servers.devices[0]):
            self._words = [
                tf.FIFOQueue(1, [tf.int64], [[]], shared_name=f'step_done_{worker}')
                for worker in range(servers.num_workers)
            ]

    def build(
        self,
        cargoes: Sequence[_Cargo],
        global_step: Variable,
        take_step: Callable[[Pairs], tf.Operation],
        after: Sequence[tf.Operation],
    ) -> tf.Operation:
        """The op that takes a step with all workers.

        Args:
          take_step: builds the update, with its step counted, from the sums of the gradients. Only called on the chief.
          after: ops of this worker that must be done before any worker's update.
        """
        pushed, taken = [], []  # taken: of each cargo its sums
        for cargo in cargoes:
            with tf.device(cargo.device):
                accumulators = [
                    tf.ConditionalAccumulator(
                        tf.float32,
                        tensor.shape,
                        shared_name=f'sum_of_{cargo.variables[0].name}_{number}',
                        reduction_type='SUM',
                    )
                    for number, tensor in enumerate(cargo.tensors)
                ]
                self._accumulators += accumulators
                # A step is over only when all has been pushed: read later, the number of steps might count it already.
                counted_here = [global_step.value.op] if cargo.device == global_step.device else []
                with tf.control_dependencies([*after, *counted_here]):
                    pushed += [
                        accumulator.apply_grad(tensor, _NEVER_STALE)
                        for accumulator, tensor in zip(accumulators, cargo.tensors, strict=True)
                    ]
                if self._servers.is_chief:
                    taken.append([accumulator.take_grad(self._servers.num_workers) for accumulator in accumulators])
        if not self._servers.is_chief:
            with tf.control_dependencies(pushed):
                return self._words[self._servers.worker].dequeue().op
        with tf.control_dependencies([total for totals in taken for total in totals]):
            begun = self.begun.assign(global_step.value + 1)
        with tf.control_dependencies([begun]):
            pairs = [pair for cargo, totals in zip(cargoes, taken, strict=True) for pair in cargo.unpack(totals)]
            step_taken = take_step(pairs)
        with tf.control_dependencies([step_taken]):
            words = [word.enqueue(tf.constant(0, tf.int64)) for word in self._words[1:]]
        # A worker alone has nobody to tell.
        return tf.group(*pushed, step_taken, *words)

    def clear(self, session: tf.Session) -> None:
        """Takes away what a step has left that was never finished. Only called while no worker takes steps."""
        with session.graph.as_default(), tf.control_dependencies(None):
            sizes = [accumulator.num_accumulated() for accumulator in self._accumulators]
            takes = [accumulator.take_grad(1).op for accumulator in self._accumulators]
            words = [(word.size(), word.dequeue().op) for word in self._words]
        session.run([take for take, size in zip(takes, session.run(sizes), strict=True) if size])
        session.run(
            [dequeue for (_, dequeue), size in zip(words, session.run([s for s, _ in words]), strict=True) if size]
        )

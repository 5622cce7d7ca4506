"""Variable managers of several processes: the variables live on parameter servers, which workers read and update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from managers.base import VariableMgr
from models.layers import Initializer
from packing import Packer, Packing, even_sizes
from staging import staged_value
from training.checkpoints import Slice
from training.optimizers import OptimizerStep, Slots
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
                value = self._compact(value)
            with tf.device(HOST_DEVICE):
                fetched.append(tf.cast(tf.identity(value), tf.float32))
        if len(parts) == 1:
            return fetched[0]
        (axis,) = (number for number, length in enumerate(parts[0].full) if parts[0].variable.shape[number] != length)
        with tf.device(HOST_DEVICE):
            return tf.concat(fetched, axis)

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
                with tf.control_dependencies(after):
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
        return tf.group(*pushed, *words)

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


class VariableMgrDistributedFetchFromPS(VariableMgr):
    """--variable_update=parameter_server on several machines: workers read the variables from parameter servers.

    ps: v -> worker 0, worker 1 ...; v <- sum of all gradients (--cross_replica_sync), or each worker's when it comes

    Args:
      servers: the parameter servers.
      sync: whether workers take their steps together.
    """

    def __init__(self, devices: Sequence[str], seed: int, servers: ParameterServers, *, sync: bool) -> None:
        super().__init__(devices, seed)
        self.masters = Masters(servers)
        self._servers = servers
        self.meeting = Meeting(servers) if sync else None
        # What reads the variables for a later step, before this one changes them.
        self._reads: list[tf.Operation] = []
        if self.meeting and servers.is_chief:
            self.initializers.append(self.meeting.begun.assign(tf.constant(0, tf.int64)))

    @property
    def num_averaged_towers(self) -> int:
        return len(self._devices) * (self._servers.num_workers if self.meeting else 1)

    def leads(self, device_num: int) -> bool:
        # Workers that do not wait for each other have a loss each.
        return device_num == 0 and (self._servers.is_chief or not self.meeting)

    def keeps_statistics(self, device_num: int) -> bool:
        return device_num == 0 and self._servers.is_chief

    @property
    def initializes(self) -> bool:
        return self._servers.is_chief

    def create_global_step(self) -> Variable:
        return create_variable('global_step', [], scope='v', device=self._servers.devices[0], dtype=tf.int64)

    def each_tower_has_variables(self) -> bool:
        return False

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        if device_num > 0 and name in self.variables[0]:
            return self.variables[0][name]
        return self._create_master(name, shape, initializer, trainable)

    def _create_master(self, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool) -> Variable:
        self.initializers.append(
            self.masters.create(name, shape, trainable, lambda: self._initial_value(name, shape, initializer))
        )
        first = self.masters.parts[name][0].variable
        return replace(first, name=name, shape=tuple(shape), value=self.masters.fetch(name))

    def preprocess_device_grads(self, device_grads: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        with tf.device(HOST_DEVICE):
            return [[tf.add_n(own) if len(own) > 1 else own[0] for own in zip(*device_grads, strict=True)]]

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        (sums,) = self.preprocess_device_grads(device_grads)
        variables = self.trainable_variables_on_device(0)
        cargoes = self.masters.ship([(variable.name, total) for variable, total in zip(variables, sums, strict=True)])

        def take_step(pairs: Pairs) -> tf.Operation:
            applied = [step.apply(gradient, variable) for gradient, variable in pairs]
            return self._count_step(global_step, [*applied, *self.assign_ops()])

        if self.meeting:
            op = self.meeting.build(cargoes, global_step, take_step, self._reads)
        else:
            with tf.control_dependencies(self._reads):
                op = take_step([pair for cargo in cargoes for pair in cargo.unpack(cargo.tensors)])
        return op, list(zip(sums, variables, strict=True))

    def slices(self) -> dict[str, list[Slice]]:
        return dict(self.masters.parts)


class VariableMgrDistributedFetchFromStagedPS(VariableMgrDistributedFetchFromPS):
    """--staged_vars: as above, but a step computes with the variables that were read during the step before it.

    step k: compute with what was staged; v -> staged, for step k + 1; v <- sum of all gradients

    The reads take place beside the computation, which so uses values that lack one update: v_k+1 = v_k - r g(v_k-1).
    """

    def __init__(self, devices: Sequence[str], seed: int, servers: ParameterServers, *, sync: bool) -> None:
        super().__init__(devices, seed, servers, sync=sync)
        self._fetched: dict[str, Variable] = {}

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        if name not in self._fetched:
            self._fetched[name] = self._create_master(name, shape, initializer, trainable)
        fetched = self._fetched[name]
        if not trainable:
            return fetched
        value, put = staged_value(fetched.value, self._devices[device_num])
        self._reads.append(put)
        return replace(fetched, value=value)

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return list(self._reads)


class VariableMgrDistributedReplicated(VariableMgrDistributedFetchFromPS):
    """--variable_update=distributed_replicated: every tower computes with a copy; the masters are on parameter servers.

    tower: v (its copy) -> g;  ps: v <- sum of all gradients;  then every worker: copies <- v
    """

    def __init__(self, devices: Sequence[str], seed: int, servers: ParameterServers) -> None:
        super().__init__(devices, seed, servers, sync=True)

    def each_tower_has_variables(self) -> bool:
        return True

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        if not trainable:
            return super().create(device_num, name, shape, initializer, trainable)
        if name not in self.masters.parts:
            self.initializers.append(
                self.masters.create(name, shape, trainable, lambda: self._initial_value(name, shape, initializer))
            )
        return create_variable(
            name,
            shape,
            scope=f'worker_{self._servers.worker}_v{device_num}',
            device=self._devices[device_num],
            trainable=trainable,
        )

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return self._copy_masters()

    def _copy_masters(self) -> list[tf.Operation]:
        copies = []
        for variable in self.trainable_variables_on_device(0):
            value = self.masters.fetch(variable.name)
            copies += [own[variable.name].assign(value) for own in self.variables]
        return copies

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        updated, pairs = super().build_update(step, global_step, device_grads)
        with tf.control_dependencies([updated]):
            return tf.group(*self._copy_masters()), pairs

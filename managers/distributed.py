"""Variable managers of several processes: the variables live on parameter servers, which workers read and update."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

from managers.base import VariableMgr
from managers.masters import Masters, Meeting, Pairs, ParameterServers
from models.layers import Initializer
from staging import staged_value
from training.checkpoints import Slice
from training.optimizers import OptimizerStep, Slots
from training.variables import HOST_DEVICE, Variable, create_variable, num_bytes

Tensor = Any


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

    @property
    def _shared_device(self) -> str:
        return self._servers.devices[0]

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

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        # The chief's first tower keeps it. Every worker must know of it: where the next variables are depends on where
        # this one is, and evaluations read it.
        if name not in self.masters.parts:
            self.initializers.append(
                self.masters.create(name, shape, False, lambda: self._initial_value(name, shape, initializer))
            )

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
            groups = self.masters.join(pairs)
            return self.count_step(global_step, step.take(groups, [gradient for gradient, _ in pairs], self.assign_ops))

        if self.meeting:
            op = self.meeting.build(cargoes, global_step, take_step, self._reads)
        else:
            with tf.control_dependencies(self._reads):
                op = take_step([pair for cargo in cargoes for pair in cargo.unpack(cargo.tensors)])
        return op, list(zip(sums, variables, strict=True))

    def slices(self) -> dict[str, list[Slice]]:
        return dict(self.masters.parts)

    def bytes_of_servers(self) -> dict[str, int]:
        return dict(self.masters.held_bytes)

    def bytes_of_step(self) -> int:
        # Variables come, gradients go.
        trainable = sum(num_bytes(variable.shape) for variable in self.trainable_variables_on_device(0))
        return 2 * trainable * self._servers.num_workers // (1 if self._servers.transfer is None else 2)

    def bytes_of_reads(self) -> int:
        read = 0
        for variable in self.variables[0].values():
            if not variable.trainable:
                read += num_bytes(variable.shape)
            elif not self.each_tower_has_variables():
                read += num_bytes(variable.shape) // (1 if self._servers.transfer is None else 2)
        return read * self._servers.num_workers


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

    def savable_variables(self) -> dict[str, Variable]:
        # Not those of a tower, whose values are what was staged.
        return dict(self._fetched)

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

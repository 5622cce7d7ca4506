"""Variable managers of several processes: workers read and update variables on parameter
servers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.staging_area import StagingArea
from tf_cnn.graph.variables import Initializer, Variable, create_variable, num_bytes
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.parameter_servers import (
    NUM_SEGMENTS,
    Bucket,
    Pairs,
    ParameterServerVariables,
    TransferQueue,
)
from tf_cnn.managers.staged_variables import ComputesWithStagedValues
from tf_cnn.managers.synchronous_step import SynchronousStep, Updated
from tf_cnn.training.checkpoints import Slice
from tf_cnn.training.optimizers import OptimizerStep, Slots
from variable_mgr import VariableMgr, sums_over_towers

Tensor = Any
# With --staged_vars: the segments of the gradients, and how many of them the servers stage. More of
# them arrive late where computing takes about as long as the exchange; fewer are applied before the
# next gradients have arrived.
_NUM_STAGED_SEGMENTS, _NUM_SEGMENTS_ON_SERVERS = 8, 2


class VariableMgrDistributedFetchFromPS(VariableMgr):
    """--variable_update=parameter_server on several machines: workers read the variables from
    parameter servers.

    ps: v -> worker 0, worker 1 ...; v <- sum of all gradients (--cross_replica_sync), else of each
      worker on arrival

    A worker receives each variable on one device: the device in parameter_devices with the fewest
    bytes so far. This device also sums the gradients of the worker's towers, and sends the sum.
    get_gradients_to_apply returns the (gradient, variable) pairs that a worker sends;
    append_apply_gradients_ops takes the (gradient, slice) pairs that the servers received. In
    synchronous steps only the chief appends ops.
    """

    # The scope of the variables on the parameter servers.
    _server_scope = 'v'

    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        # The device that receives each variable and sums its gradients, and the bytes that each
        # device receives.
        self._receiving_devices: dict[str, str] = {}
        self._received_bytes = dict.fromkeys(config.parameter_devices, 0)
        # An asynchronous worker would cast after each of its updates, as often as workers read.
        self.server_variables = ParameterServerVariables(
            config,
            self._server_scope,
            keeps_compact=config.is_synchronous,
            num_segments=self._num_segments,
        )
        self.bytes_of_servers = self.server_variables.server_bytes
        if config.is_synchronous:
            self.synchronous_step = SynchronousStep(
                config, self.server_variables.refresh, releases_readers=self._reads_updates
            )
            self.begun = list(self.synchronous_step.begun.values())
        # A synchronous step reads the variables in the order of the layers, and layers use them as
        # they arrive. An asynchronous worker often has the link alone, and a link with an order
        # stands idle between a segment's arrival and the start of the next.
        self._read_queues = (
            {device: TransferQueue() for device in config.server_devices}
            if config.is_synchronous
            else None
        )
        # The op after which a synchronous step may change the moving averages.
        self._begun: list[tf.Operation] = []
        # Ops that must run before the gradients of this worker update variables.
        self._before_push: list[tf.Operation] = []

    @property
    def num_averaged_towers(self) -> int:
        return len(self._devices) * (self._config.num_workers if self.synchronous_step else 1)

    def leads(self, device_num: int) -> bool:
        # Each asynchronous worker has a separate loss.
        return device_num == 0 and (self._config.is_chief or not self.synchronous_step)

    def keeps_statistics(self, device_num: int) -> bool:
        return device_num == 0 and self._config.is_chief

    @property
    def initializes(self) -> bool:
        return self._config.is_chief

    @property
    def _shared_device(self) -> str:
        return self._config.server_devices[0]

    def each_tower_has_variables(self) -> bool:
        return False

    def create(
        self,
        device_num: int,
        name: str,
        shape: Sequence[int],
        initializer: Initializer,
        trainable: bool,
    ) -> Variable:
        if device_num > 0 and name in self.variables[0]:
            return self.variables[0][name]
        self._create_on_servers(name, shape, initializer, trainable)
        first = self.server_variables.slices[name][0].variable
        # Not every step reads moving averages, so nothing may wait for their reads.
        value = self.server_variables.fetch(
            name, self._receiving_device(name), queues=self._read_queues if trainable else None
        )
        return replace(first, name=name, shape=tuple(shape), value=value)

    def _create_on_servers(
        self, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> None:
        if name not in self.server_variables.slices:
            self.initializers.append(
                self.server_variables.create(
                    name, shape, trainable, lambda: self._initial_value(name, shape, initializer)
                )
            )

    def _receiving_device(self, name: str) -> str:
        first_slice = self.server_variables.slices[name][0]
        if not first_slice.variable.trainable:
            # Only the first tower uses moving averages.
            return self._devices[0]
        if name not in self._receiving_devices:
            device = min(self._received_bytes, key=self._received_bytes.__getitem__)
            self._received_bytes[device] += num_bytes(first_slice.full_shape)
            self._receiving_devices[name] = device
        return self._receiving_devices[name]

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        # Only the first tower of the chief updates the variable. Every worker creates it, because
        # it affects the placement of later variables, and because evaluations read it.
        self._create_on_servers(name, shape, initializer, trainable=False)

    def preprocess_device_grads(
        self, device_grads: Sequence[Sequence[Tensor]]
    ) -> list[list[Tensor]]:
        devices = [
            self._receiving_device(variable.name)
            for variable in self.trainable_variables_on_device(0)
        ]
        return [sums_over_towers(device_grads, devices)]

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        outgoing_pairs = self.get_gradients_to_apply(0, self.preprocess_device_grads(device_grads))

        def take_step(
            received: Pairs, begun: tf.Operation | None = None
        ) -> tuple[tf.Operation, Updated]:
            update_ops: list[tf.Operation] = []
            self._begun = [begun] if begun else []
            self.append_apply_gradients_ops(step, [received], update_ops)
            updated = self.server_variables.refresh(step.updates)
            return self.count_step(global_step, [*update_ops, *updated.values()]), updated

        buckets = self._make_buckets(outgoing_pairs)
        if self.synchronous_step:
            op, updated = self.synchronous_step.build(
                buckets,
                self._make_queues(),
                global_step,
                take_step,
                needs_all_gradients=step.needs_all_gradients,
                buckets_are_independent=step.has_independent_updates,
                after=self._before_push,
            )
        else:
            op, updated = take_step(
                [pair for bucket in buckets for pair in bucket.unpack(bucket.send())]
            )
        if self._reads_updates:
            op = tf.group(op, *self._read_variables(updated))
        return op, outgoing_pairs

    def _make_buckets(self, pairs: Sequence[tuple[Tensor, Variable]]) -> list[Bucket]:
        """Returns the gradients of the (gradient, variable) pairs in sending order: the backward
        pass ends with the gradients of the first layers.
        """
        return self.server_variables.pack(
            [(variable.name, total) for total, variable in reversed(pairs)]
        )

    def _make_queues(self) -> dict[str, TransferQueue]:
        return self.server_variables.make_queues()

    @property
    def _num_segments(self) -> int | None:
        """See ParameterServerVariables."""
        return NUM_SEGMENTS if self.each_tower_has_variables() else None

    @property
    def _reads_updates(self) -> bool:
        """Whether a worker reads the variables in the step that updates them."""
        return self._num_segments is not None

    def _read_variables(self, updated: Updated | None = None) -> list[tf.Operation]:
        """Returns the ops that read the trainable variables for the next step, after the given
        updates.
        """
        ops = []
        for variable in self.trainable_variables_on_device(0):
            value = self.server_variables.fetch(
                variable.name, self._receiving_device(variable.name), updated=updated
            )
            ops += self._store_for_next_step(variable.name, value)
        return ops

    def _store_for_next_step(self, name: str, value: Tensor) -> list[tf.Operation]:
        """Returns the ops that store a value for the next step on all towers."""
        return [tower[name].assign(value) for tower in self.variables]

    def append_apply_gradients_ops(
        self,
        step: OptimizerStep,
        device_pairs: Sequence[Sequence[tuple[Tensor, Variable]]],
        training_ops: list[tf.Operation],
    ) -> None:
        (received,) = device_pairs
        groups = self.server_variables.group_by_variable(list(received))
        training_ops += step.apply_all(
            groups, [gradient for gradient, _ in received], self._updates_of_step
        )

    def assign_ops(self) -> list[tf.Operation]:
        with tf.control_dependencies(self._begun):
            return super().assign_ops()

    def slices(self) -> dict[str, list[Slice]]:
        return dict(self.server_variables.slices)

    def bytes_of_step(self, *, forward_only: bool) -> int:
        trainable = sum(
            num_bytes(variable.shape) for variable in self.trainable_variables_on_device(0)
        )
        transfer_bytes = trainable // (1 if self._config.transfer is None else 2)
        if not forward_only:
            # Workers read the variables and send the gradients.
            return 2 * transfer_bytes * self._config.num_workers
        average_bytes = (
            sum(num_bytes(variable.shape) for variable in self.variables[0].values()) - trainable
        )
        return (
            average_bytes + (0 if self.each_tower_has_variables() else transfer_bytes)
        ) * self._config.num_workers


class VariableMgrDistributedFetchFromStagedPS(
    ComputesWithStagedValues, VariableMgrDistributedFetchFromPS
):
    """--staged_vars: as above, but reads and updates overlap with the computation of the same step.

    step k: compute gradients with the staged values -> staged, for step k + 1
            ps: v <- v - r (sum of the staged gradients of step k - 1);  v -> staged, for step k + 1

    The gradients belong to values that are one update old: v_k+1 = v_k - r g(v_k-1).

    Most gradients are staged on the towers, and a step sends them from its beginning. The first
    ones of the backward pass are staged on the servers: the step that computes them sends them
    after all others, while the last values return, and the next step begins with them, so that its
    first values return at once. So gradients and values cross a link in both directions from the
    beginning of a step to its end. Nothing orders them: a signal from a server would arrive after
    the values that are already on their way.
    """

    _creator = VariableMgrDistributedFetchFromPS

    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        self._new_gradients: Sequence[Sequence[Tensor]] = []
        self._puts_on_servers: list[tf.Operation] = []

    @property
    def _num_segments(self) -> int:
        return _NUM_STAGED_SEGMENTS

    def _make_queues(self) -> dict[str, TransferQueue]:
        return {}

    @property
    def _applies(self) -> bool:
        return self._config.is_chief or not self.synchronous_step

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        if step.needs_all_gradients:
            # The chief may change the loss scale as soon as it has all gradients. They belong to
            # the step before, so this step must have read the scale by then.
            self._before_push.append(step.loss_scale.value.op)
        self._new_gradients = device_grads
        op, pairs = super().build_update(step, global_step, device_grads)
        return tf.group(op, *self._puts_on_servers), pairs

    def _make_buckets(self, pairs: Sequence[tuple[Tensor, Variable]]) -> list[Bucket]:
        buckets = super()._make_buckets(pairs)
        new_pairs = self.get_gradients_to_apply(
            0, self.preprocess_device_grads(self._new_gradients)
        )
        bytes_to_stage = {
            device: _NUM_SEGMENTS_ON_SERVERS * size // _NUM_STAGED_SEGMENTS
            for device, size in self.bytes_of_servers.items()
        }
        for number, bucket in enumerate(super()._make_buckets(new_pairs)):
            if bytes_to_stage[bucket.device] > 0:
                bytes_to_stage[bucket.device] -= bucket.num_bytes
                received = bucket.send()
                area = StagingArea(
                    bucket.device, received, f'staged_{bucket.name}_{self._config.worker}'
                )
                self._puts_on_servers.append(area.put(received))
                # A worker that was lost has left its gradients there.
                with tf.control_dependencies([area.clear()]):
                    self.prologue.append(area.put(received))
                buckets[number] = replace(bucket, tensors=area.get(), is_received=True)
        return buckets

    def _store_for_next_step(self, name: str, value: Tensor) -> list[tf.Operation]:
        return self._puts(name, value)


class VariableMgrDistributedReplicated(VariableMgrDistributedFetchFromPS):
    """--variable_update=distributed_replicated: every tower has a copy of the variables on the
    parameter servers.

    tower n: v_n (its copy) -> g_n;  ps: ps_var <- sum of all gradients;  then every worker: v_n <-
      ps_var

    Each tower has variables, but only the parameter servers apply gradients; see
    VariableMgrDistributedFetchFromPS.
    """

    _server_scope = 'ps_var'

    def each_tower_has_variables(self) -> bool:
        return True

    def create(
        self,
        device_num: int,
        name: str,
        shape: Sequence[int],
        initializer: Initializer,
        trainable: bool,
    ) -> Variable:
        if not trainable:
            return super().create(device_num, name, shape, initializer, trainable)
        self._create_on_servers(name, shape, initializer, trainable)
        device = self._devices[device_num]
        return create_variable(
            name, shape, scope=f'v{device_num}', device=device, trainable=trainable
        )

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return self._read_variables()

"""Variable managers of one process: towers share the variables, replicate them, or train
independent models.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.variables import Initializer, Variable, num_bytes
from tf_cnn.managers.all_reduce import all_reduce
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.staged_variables import AppliesStagedGradients, ComputesWithStagedValues
from tf_cnn.training.optimizers import OptimizerStep, Slots
from variable_mgr import VariableMgr, sums_over_towers

Tensor = Any


class _VariablesPerTower(VariableMgr):
    """Base of managers that give every tower a copy of all variables, initialized from tower 0."""

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
        # Other towers copy the values of tower 0: separate initializers would be most of the
        # graph's nodes.
        value = self._initial_value(name, shape, initializer) if device_num == 0 else None
        return self._create(
            f'v{device_num}', self._devices[device_num], name, shape, trainable, value
        )

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return [copy.assign(source.value) for copy, source in self._copies(slots)]

    def _first_tower_state(self, slots: Slots) -> list[Variable]:
        """Returns the variables of tower 0, the scalars, and their slots."""
        first = [*self.variables[0].values(), *self.scalars]
        return first + [
            slot for variable in first for slot in slots.get(variable.handle.ref(), {}).values()
        ]

    def _moving_averages(self) -> list[Variable]:
        """Returns the moving averages of tower 0."""
        return [variable for variable in self.variables[0].values() if not variable.trainable]

    def _copies(self, slots: Slots) -> list[tuple[Variable, Variable]]:
        """Returns (copy, source) pairs for all variables and slots: copies are on other towers,
        sources on tower 0.
        """
        pairs = []
        for tower in self.variables[1:]:
            for name, copy in tower.items():
                source = self.variables[0][name]
                pairs.append((copy, source))
                source_slots = slots.get(source.handle.ref(), {})
                pairs += [
                    (slot, source_slots[key])
                    for key, slot in slots.get(copy.handle.ref(), {}).items()
                ]
        return pairs


class VariableMgrIndependent(_VariablesPerTower):
    """--variable_update=independent: every tower trains a separate model, without communication.

    tower 0: v0 <- g0        tower 1: v1 <- g1

    A checkpoint holds the model of tower 0; restoring it gives all towers that model.
    """

    @property
    def num_averaged_towers(self) -> int:
        return 1

    def preprocess_device_grads(
        self, device_grads: Sequence[Sequence[Tensor]]
    ) -> list[list[Tensor]]:
        return [list(gradients) for gradients in device_grads]


class VariableMgrLocalFetchFromPS(VariableMgr):
    """--variable_update=parameter_server: one copy of the variables, which every tower reads at
    each step.

    ps: v -> tower 0, tower 1 ...; v <- g0 + g1 + ...

    A new variable is placed on the device in parameter_devices with the fewest bytes so far.
    """

    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        self._device_bytes = dict.fromkeys(config.parameter_devices, 0)

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
        device = min(self._device_bytes, key=self._device_bytes.__getitem__)
        self._device_bytes[device] += num_bytes(shape)
        with tf.device(device):
            value = self._initial_value(name, shape, initializer)
        return self._create('v', device, name, shape, trainable, value)

    def preprocess_device_grads(
        self, device_grads: Sequence[Sequence[Tensor]]
    ) -> list[list[Tensor]]:
        devices = [variable.device for variable in self.trainable_variables_on_device(0)]
        return [sums_over_towers(device_grads, devices)]


class VariableMgrLocalFetchFromStagedPS(ComputesWithStagedValues, VariableMgrLocalFetchFromPS):
    """--variable_update=parameter_server --staged_vars: as above, but reads and updates overlap
    with the computation.

    step k: compute gradients with the staged values -> staged, for step k + 1
            v <- v - r (staged gradients of step k - 1);  v -> staged, for step k + 1

    The gradients belong to values that are one update old: v_k+1 = v_k - r g(v_k-1). Variables do
    not wait for each other: the update of a variable waits only for its gradients, and its read
    only for its update.
    """

    _creator = VariableMgrLocalFetchFromPS

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        updated, pairs = super().build_update(step, global_step, device_grads)
        puts = []
        for variable in self.trainable_variables_on_device(0):
            with tf.control_dependencies([step.updates[variable.handle.ref()]]):
                value = variable.read_again()
            puts += self._puts(variable.name, value)
        return tf.group(updated, *puts), pairs


class VariableMgrLocalReplicated(_VariablesPerTower):
    """--variable_update=replicated: every tower has all variables, and applies the sum of all
    gradients to its copy.

    tower 0: v0 <- g0 + g1 + ...        tower 1: v1 <- g0 + g1 + ...
    """

    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        self._algorithm = config.algorithm

    def preprocess_device_grads(
        self, device_grads: Sequence[Sequence[Tensor]]
    ) -> list[list[Tensor]]:
        if self.num_averaged_towers == 1:
            return [list(device_grads[0])]
        return all_reduce(device_grads, self._devices, self._algorithm, self._config.flags)


class VariableMgrLocalRelaxedReplicated(AppliesStagedGradients, VariableMgrLocalReplicated):
    """--variable_update=replicated --variable_consistency=relaxed: applies the gradients of the
    step before.

    step k: compute gradients with the values v_k -> staged, for step k + 1
            each tower: v_k+1 = v_k - r (sum of the staged gradients of step k - 1)

    A step sums and applies the staged gradients from its beginning, while its towers compute.
    """

    def _before_update(self) -> Sequence[Any]:
        # The towers of this step compute with the values from before the update.
        return [variable.value for tower in self.variables for variable in tower.values()]

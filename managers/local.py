"""Variable managers of one process: variables that towers share, replicate, or have for themselves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

from all_reduce import Algorithm, all_reduce
from managers.base import VariableMgr
from models.layers import Initializer
from packing import Packing
from staging import staged_value
from training.optimizers import Slots
from training.variables import Variable, num_bytes

Tensor = Any


class _OwnVariables(VariableMgr):
    """Every tower has all variables. At the start they are those of tower 0."""

    def each_tower_has_variables(self) -> bool:
        return True

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        # Other towers copy tower 0's values: initialisers of their own would be most of the graph's nodes.
        value = self._initial_value(name, shape, initializer) if device_num == 0 else None
        return self._create(f'v{device_num}', self._devices[device_num], name, shape, trainable, value)

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return [own.assign(model.value) for own, model in self._copies(slots)]

    def _copies(self, slots: Slots) -> list[tuple[Variable, Variable]]:
        """Each variable and slot of the towers after the first, and the one of the first that it is a copy of."""
        pairs = []
        for tower in self.variables[1:]:
            for name, own in tower.items():
                model = self.variables[0][name]
                pairs.append((own, model))
                of_model = slots.get(model.handle.ref(), {})
                pairs += [(slot, of_model[key]) for key, slot in slots.get(own.handle.ref(), {}).items()]
        return pairs


class VariableMgrIndependent(_OwnVariables):
    """--variable_update=independent: every tower is a model of its own, and they never talk.

    tower 0: v0 <- g0        tower 1: v1 <- g1

    A checkpoint has the model of tower 0, from which all go on.
    """

    @property
    def num_averaged_towers(self) -> int:
        return 1

    def preprocess_device_grads(self, device_grads: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return [list(gradients) for gradients in device_grads]


class VariableMgrLocalFetchFromPS(VariableMgr):
    """--variable_update=parameter_server: the variables live once, every tower reads them at each step.

    ps: v -> tower 0, tower 1 ...; v <- g0 + g1 + ...

    Args:
      parameter_devices: where the variables live. A new one goes to the device that holds the fewest bytes so far.
    """

    def __init__(self, devices: Sequence[str], seed: int, parameter_devices: Sequence[str]) -> None:
        super().__init__(devices, seed)
        self._held_bytes = dict.fromkeys(parameter_devices, 0)

    def each_tower_has_variables(self) -> bool:
        return False

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        if device_num > 0 and name in self.variables[0]:
            return self.variables[0][name]
        device = min(self._held_bytes, key=lambda held: self._held_bytes[held])
        self._held_bytes[device] += num_bytes(shape)
        with tf.device(device):
            value = self._initial_value(name, shape, initializer)
        return self._create('v', device, name, shape, trainable, value)

    def preprocess_device_grads(self, device_grads: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        met = []
        for variable, gradients in zip(
            self.trainable_variables_on_device(0), zip(*device_grads, strict=True), strict=True
        ):
            with tf.device(variable.device):
                met.append(tf.add_n(gradients) if len(gradients) > 1 else gradients[0])
        return [met]


class VariableMgrLocalFetchFromStagedPS(VariableMgrLocalFetchFromPS):
    """--variable_update=parameter_server --staged_vars: as above, with what was read during the step before.

    step k: compute with what was staged; v -> staged, for step k + 1; v <- g0 + g1 + ...

    The reads take place beside the computation, which so uses values that lack one update: v_k+1 = v_k - r g(v_k-1).
    """

    def __init__(self, devices: Sequence[str], seed: int, parameter_devices: Sequence[str]) -> None:
        super().__init__(devices, seed, parameter_devices)
        self._masters: dict[str, Variable] = {}
        self._puts: list[tf.Operation] = []

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        if name not in self._masters:
            self._masters[name] = super().create(0, name, shape, initializer, trainable)
        master = self._masters[name]
        if not trainable:
            return master
        value, put = staged_value(master.value, self._devices[device_num])
        self._puts.append(put)
        return replace(master, value=value)

    def _before_update(self, met_grads: Sequence[Sequence[Tensor]]) -> Sequence[Any]:
        # What is staged must be read before it changes.
        return self._puts

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return list(self._puts)

    def savable_variables(self) -> dict[str, Variable]:
        # Not those of a tower, whose values are what was staged.
        return dict(self._masters)


class VariableMgrLocalReplicated(_OwnVariables):
    """--variable_update=replicated: every tower has all variables, and applies the sum of all gradients to its own.

    tower 0: v0 <- g0 + g1 + ...        tower 1: v1 <- g0 + g1 + ...

    Args:
      algorithm, packing: how the gradients are summed.
    """

    def __init__(self, devices: Sequence[str], seed: int, algorithm: Algorithm, packing: Packing) -> None:
        super().__init__(devices, seed)
        self._algorithm = algorithm
        self._packing = packing

    def preprocess_device_grads(self, device_grads: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        if self.num_averaged_towers == 1:
            return [list(device_grads[0])]
        return all_reduce(device_grads, self._devices, self._algorithm, self._packing)

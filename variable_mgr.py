"""Where variables live and how gradients meet: one class for each --variable_update.

Every class changes the speed, never the mathematics: T towers of batch b take the step of one tower with batch T*b.
Only "independent" says that it is something else. A list "T x V" holds for each of T towers a list of V things.
"""

import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from all_reduce import Algorithm, Packing, all_reduce
from errors import UsageError
from models.layers import Initializer
from training.variables import Variable, create_variable, num_bytes

Tensor = Any


class TowerVariables:
    """The variables of one tower, which the layer builder reads and assigns by their model names."""

    def __init__(self, manager: 'VariableMgr', device_num: int) -> None:
        self._manager = manager
        self._device_num = device_num

    def read(self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True) -> Tensor:
        """The variable's value, float32 of that shape. The first use creates the variable."""
        own = self._manager.variables[self._device_num]
        if name not in own:
            own[name] = self._manager.create(self._device_num, name, shape, initializer, trainable)
        return own[name].value

    def assign(self, name: str, value: Tensor) -> None:
        """Has every step end with this value in a variable that is not trainable."""
        variable = self._manager.variables[self._device_num][name]
        self._manager.update_ops.append(variable.assign(value))


class VariableMgr(ABC):
    """Creates the variables of T towers, and turns the towers' gradients into those to apply.

    Args:
      devices: the T devices on which the towers compute.
      seed: initial values depend on it and on a variable's name alone, so that they are the same in every mode.

    Attributes:
      variables: for each tower its variables by model name. This is the one record of which variable is whose.
      initializers: ops that give every variable its initial value, but those that get_post_init_ops() fills.
      update_ops: ops that a training step runs for variables that are not trainable.
    """

    def __init__(self, devices: Sequence[str], seed: int) -> None:
        self._devices = list(devices)
        self._seed = seed
        self.variables: list[dict[str, Variable]] = [{} for _ in devices]
        self.initializers: list[tf.Operation] = []
        self.update_ops: list[tf.Operation] = []

    @property
    def num_averaged_towers(self) -> int:
        """How many towers share one model, and so take one step with the average of their gradients."""
        return len(self._devices)

    def leads(self, device_num: int) -> bool:
        """Whether a tower does what is done once for each model: weight decay and batch norm's moving averages."""
        return device_num % self.num_averaged_towers == 0

    @abstractmethod
    def each_tower_has_variables(self) -> bool:
        """Whether every tower computes with variables of its own."""

    def get_devices(self) -> list[str]:
        """The devices on which the towers compute."""
        return list(self._devices)

    @contextlib.contextmanager
    def create_outer_variable_scope(self, device_num: int) -> Iterator[TowerVariables]:
        """Where a tower's network is built: ops go to the tower's device, variables come from what is yielded."""
        with tf.device(self._devices[device_num]), tf.name_scope(f'tower_{device_num}'):
            yield TowerVariables(self, device_num)

    @abstractmethod
    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        """The variable that a tower uses under a name it has not used before."""

    def trainable_variables_on_device(self, device_num: int) -> list[Variable]:
        """The variables of a tower that gradients change, in the order of their first use."""
        return [variable for variable in self.variables[device_num].values() if variable.trainable]

    @abstractmethod
    def preprocess_device_grads(self, device_grads: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Lets the gradients of all towers meet: T x V -> A x V, for the A towers that apply gradients.

        Each tower's gradients are of its part of the loss, whose sum over the towers is the whole, so they are summed.
        """

    def get_gradients_to_apply(
        self, device_num: int, met_grads: Sequence[Sequence[Tensor]]
    ) -> list[tuple[Tensor, Variable]]:
        """The (gradient, variable) pairs that a tower applies, given what preprocess_device_grads returned."""
        variables = self.trainable_variables_on_device(device_num)
        return list(zip(met_grads[device_num], variables, strict=True))

    def get_post_init_ops(self) -> list[tf.Operation]:
        """Ops that run once after the initializers (or a restored checkpoint): they make the towers alike."""
        return []

    def savable_variables(self) -> dict[str, Variable]:
        """Each variable of the model once, by its model name."""
        return dict(self.variables[0])

    def _create(
        self, scope: str, device: str, name: str, shape: Sequence[int], trainable: bool, value: Tensor | None = None
    ) -> Variable:
        variable = create_variable(name, shape, scope=scope, device=device, trainable=trainable)
        if value is not None:
            self.initializers.append(variable.assign(value))
        return variable

    def _initial_value(self, name: str, shape: Sequence[int], initializer: Initializer) -> Tensor:
        return initializer(shape, (zlib.crc32(name.encode()) + self._seed) & 0x7FFFFFFF)


class VariableMgrIndependent(VariableMgr):
    """--variable_update=independent: every tower is a model of its own, and they never talk.

    tower 0: v0 <- g0        tower 1: v1 <- g1
    """

    @property
    def num_averaged_towers(self) -> int:
        return 1

    def each_tower_has_variables(self) -> bool:
        return True

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        value = self._initial_value(name, shape, initializer)
        return self._create(f'v{device_num}', self._devices[device_num], name, shape, trainable, value)

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


class VariableMgrLocalReplicated(VariableMgr):
    """--variable_update=replicated: every tower has all variables, and applies the sum of all gradients to its own.

    tower 0: v0 <- g0 + g1 + ...        tower 1: v1 <- g0 + g1 + ...

    Args:
      algorithm, packing: how the gradients are summed.
    """

    def __init__(self, devices: Sequence[str], seed: int, algorithm: Algorithm, packing: Packing) -> None:
        super().__init__(devices, seed)
        self._algorithm = algorithm
        self._packing = packing

    def each_tower_has_variables(self) -> bool:
        return True

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        # Other towers copy tower 0's values: initialisers of their own would be most of the graph's nodes.
        value = self._initial_value(name, shape, initializer) if device_num == 0 else None
        return self._create(f'v{device_num}', self._devices[device_num], name, shape, trainable, value)

    def preprocess_device_grads(self, device_grads: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return all_reduce(device_grads, self._devices, self._algorithm, self._packing)

    def get_post_init_ops(self) -> list[tf.Operation]:
        first = self.variables[0]
        return [variable.assign(first[name].value) for tower in self.variables[1:] for name, variable in tower.items()]


@dataclass(frozen=True)
class Placement:
    """What the classes need to know: the towers' devices, the seed of initial values, and where parameters live.

    parameter_devices is for parameter_server; algorithm and packing are for replicated.
    """

    devices: Sequence[str]
    seed: int
    parameter_devices: Sequence[str]
    algorithm: Algorithm
    packing: Packing


# From (--variable_update, whether there are other machines) to the class.
_CLASSES: dict[tuple[str, bool], Callable[[Placement], VariableMgr]] = {
    ('parameter_server', False): lambda at: VariableMgrLocalFetchFromPS(at.devices, at.seed, at.parameter_devices),
    ('replicated', False): lambda at: VariableMgrLocalReplicated(at.devices, at.seed, at.algorithm, at.packing),
    ('independent', False): lambda at: VariableMgrIndependent(at.devices, at.seed),
}


def make_variable_mgr(variable_update: str, placement: Placement, *, distributed: bool = False) -> VariableMgr:
    """The variable manager of a mode.

    Raises:
      UsageError: there is none for this combination.
    """
    make = _CLASSES.get((variable_update, distributed))
    if make is None:
        where = 'several machines' if distributed else 'one machine'
        known = ', '.join(mode for mode, on_several in _CLASSES if on_several == distributed)
        raise UsageError(f'--variable_update={variable_update}: not on {where}; write one of {known}')
    return make(placement)

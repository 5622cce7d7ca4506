"""What every variable manager is: where variables live and how gradients meet.

Every class changes the speed, never the mathematics: T towers of batch b take the step of one tower with batch T*b.
Only "independent" says that it is something else. A list "T x V" holds for each of T towers a list of V things.
"""

import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from managers.masters import Meeting
from models.layers import Initializer
from training.checkpoints import Slice, whole
from training.optimizers import OptimizerStep, Slots
from training.variables import HOST_DEVICE, Variable, create_variable

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

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        """Says where in its order the model has a variable that is not trainable and that this tower does not use."""
        self._manager.declare(name, shape, initializer)

    def assign(self, name: str, value: Tensor) -> None:
        """Has every step end with this value in a variable that is not trainable."""
        self._manager.assignments.append((self._manager.variables[self._device_num][name], value))


class VariableMgr(ABC):
    """Creates the variables of T towers, and turns the towers' gradients into those to apply.

    Args:
      devices: the T devices on which the towers compute.
      seed: initial values depend on it and on a variable's name alone, so that they are the same in every mode.

    Attributes:
      variables: for each tower its variables by model name. This is the one record of which variable is whose.
      initializers: ops that give every variable its initial value, but those that get_post_init_ops() fills.
      assignments: what a training step assigns to variables that are not trainable.
      meeting: where the gradients of several workers meet, if they do on parameter servers.
      scalars: what create_scalar has made.
      variable_dtype: the type in which the variables are kept that gradients change. Set before there are any.
    """

    variable_dtype: tf.DType = tf.float32

    def __init__(self, devices: Sequence[str], seed: int) -> None:
        self._devices = list(devices)
        self._seed = seed
        self.variables: list[dict[str, Variable]] = [{} for _ in devices]
        self.initializers: list[tf.Operation] = []
        self.assignments: list[tuple[Variable, Tensor]] = []
        self.meeting: Meeting | None = None
        self.scalars: list[Variable] = []

    @property
    def num_averaged_towers(self) -> int:
        """How many towers share one model, and so take one step with the average of their gradients."""
        return len(self._devices)

    def leads(self, device_num: int) -> bool:
        """Whether a tower adds what is once in the loss of a model, weight decay."""
        return device_num % self.num_averaged_towers == 0

    def keeps_statistics(self, device_num: int) -> bool:
        """Whether a tower updates batch norm's moving averages, which is done once for each model."""
        return self.leads(device_num)

    @property
    def initializes(self) -> bool:
        """Whether this process gives the optimizer's variables their initial values."""
        return True

    def create_global_step(self) -> Variable:
        """The number of steps taken, a scalar int64."""
        return create_variable('global_step', [], scope='v', device=self._shared_device, dtype=tf.int64)

    def create_scalar(self, name: str, dtype: tf.DType) -> Variable:
        """A scalar beside the global step, which all workers that take their steps together see alike."""
        scalar = create_variable(name, [], scope='v', device=self._shared_device, dtype=dtype)
        self.scalars.append(scalar)
        return scalar

    @property
    def _shared_device(self) -> str:
        """Where that lives which belongs to no tower."""
        return HOST_DEVICE

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

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        """Takes note of a variable that another tower keeps. A tower of this process has created it by itself."""
        del name, shape, initializer

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

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        """The op that takes a step, given gradients T x V, and the (gradient, variable) pairs of the first model."""
        met_grads = self.preprocess_device_grads(device_grads)
        pairs = [self.get_gradients_to_apply(number, met_grads) for number in range(len(met_grads))]
        # Towers that share a model have the same gradients.
        distinct = [gradient for own in pairs[:: self.num_averaged_towers] for gradient, _ in own]
        with tf.control_dependencies(self._before_update(met_grads)):
            done = step.take([[pair] for own in pairs for pair in own], distinct, self.assign_ops)
            return self.count_step(global_step, done), pairs[0]

    def _before_update(self, met_grads: Sequence[Sequence[Tensor]]) -> Sequence[Any]:
        """What must be done before the first variable changes."""
        del met_grads
        return []

    def assign_ops(self) -> list[tf.Operation]:
        """Ops that carry out the assignments."""
        return [variable.assign(value) for variable, value in self.assignments]

    def count_step(self, global_step: Variable, done: Sequence[tf.Operation]) -> tf.Operation:
        """Counts a step when all of it is done, and the number of those before it was read."""
        with tf.device(global_step.device), tf.control_dependencies([*done, global_step.value.op]):
            return tf.raw_ops.AssignAddVariableOp(
                resource=global_step.handle, value=tf.constant(1, tf.int64), name='train_step'
            )

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        """Ops that run once after the initializers (or a restored checkpoint): they make the towers alike.

        Args:
          slots: the optimizer's variables, as OptimizerStep has them.
        """
        del slots
        return []

    def get_before_evaluation_ops(self) -> list[tf.Operation]:
        """Ops that all workers run at once before they evaluate together: all then have what a checkpoint would."""
        return []

    def savable_variables(self) -> dict[str, Variable]:
        """Each variable of the model once, by its model name."""
        return dict(self.variables[0])

    def bytes_of_servers(self) -> dict[str, int]:
        """The bytes of variables on each parameter server of a cluster, by its device."""
        return {}

    def bytes_of_step(self) -> int:
        """The bytes that all workers of a cluster send and receive for a training step."""
        return 0

    def bytes_of_reads(self) -> int:
        """The bytes that all workers of a cluster receive for a step in which nobody trains."""
        return 0

    def slices(self) -> dict[str, list[Slice]]:
        """Where the parts of each variable of the model are, by its model name; what a checkpoint holds."""
        return {name: [whole(variable)] for name, variable in self.savable_variables().items()}

    def _create(
        self, scope: str, device: str, name: str, shape: Sequence[int], trainable: bool, value: Tensor | None = None
    ) -> Variable:
        # Moving averages change too little at a time for 16 bits.
        dtype = self.variable_dtype if trainable else tf.float32
        variable = create_variable(name, shape, scope=scope, device=device, trainable=trainable, dtype=dtype)
        if value is not None:
            self.initializers.append(variable.assign(tf.cast(value, dtype)))
        return variable

    def _initial_value(self, name: str, shape: Sequence[int], initializer: Initializer) -> Tensor:
        return initializer(shape, (zlib.crc32(name.encode()) + self._seed) & 0x7FFFFFFF)

"""The base class of variable managers. A manager places variables and combines gradients.

A manager changes the speed, never the mathematics: T towers with batch size b take the same step as
one tower with batch size T*b. Independent, staged and asynchronous updates are documented
exceptions. The classes of the modes are in tf_cnn/managers; this module exports them too.

A "T x V" list holds a list of V items for each of T towers.
"""

import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.variables import Initializer, Variable, create_variable
from tf_cnn.training.checkpoints import Slice, full_slice
from tf_cnn.training.optimizers import OptimizerStep, Slots

if TYPE_CHECKING:
    # tf_cnn.managers imports this module.
    from tf_cnn.managers.collective import (
        VariableMgrCollectiveAllReduce,
        VariableMgrDistributedAllReduce,
    )
    from tf_cnn.managers.distributed import (
        VariableMgrDistributedFetchFromPS,
        VariableMgrDistributedFetchFromStagedPS,
        VariableMgrDistributedReplicated,
    )
    from tf_cnn.managers.horovod import VariableMgrHorovod
    from tf_cnn.managers.local import (
        VariableMgrIndependent,
        VariableMgrLocalFetchFromPS,
        VariableMgrLocalFetchFromStagedPS,
        VariableMgrLocalRelaxedReplicated,
        VariableMgrLocalReplicated,
    )
    from tf_cnn.managers.manager_config import ManagerConfig
    from tf_cnn.managers.synchronous_step import SynchronousStep

__all__ = [
    'TowerVariables',
    'VariableMgr',
    'VariableMgrCollectiveAllReduce',
    'VariableMgrDistributedAllReduce',
    'VariableMgrDistributedFetchFromPS',
    'VariableMgrDistributedFetchFromStagedPS',
    'VariableMgrDistributedReplicated',
    'VariableMgrHorovod',
    'VariableMgrIndependent',
    'VariableMgrLocalFetchFromPS',
    'VariableMgrLocalFetchFromStagedPS',
    'VariableMgrLocalRelaxedReplicated',
    'VariableMgrLocalReplicated',
]
Tensor = Any


class TowerVariables:
    """The variables of one tower. The layer builder reads and assigns them by their names in the
    model.
    """

    def __init__(self, manager: 'VariableMgr', device_num: int) -> None:
        self._manager = manager
        self._device_num = device_num

    def read(
        self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True
    ) -> Tensor:
        """Returns the variable's value, float32 of that shape. The first call for a name creates
        the variable.
        """
        variables = self._manager.variables[self._device_num]
        if name not in variables:
            variables[name] = self._manager.create(
                self._device_num, name, shape, initializer, trainable
            )
        return variables[name].value

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        """Reserves the creation order of a non-trainable variable that this tower does not use."""
        self._manager.declare(name, shape, initializer)

    def assign(self, name: str, value: Tensor) -> None:
        """Makes each training step assign this value to a non-trainable variable."""
        self._manager.assignments.append((self._manager.variables[self._device_num][name], value))


class VariableMgr(ABC):
    """Creates the variables of T towers, and combines the towers' gradients for the update.

    The initial value of a variable depends only on the seed and its name, so all modes start with
    the same values.

    Attributes:
      variables: the variables of each tower, by their names in the model.
      initializers: ops that initialize the variables, except those that get_post_init_ops()
        initializes.
      assignments: the (variable, value) pairs of non-trainable variables that each training step
        assigns.
      begun: scalars int64, each the number of the last step that began to update some of the
        variables; for modes in which a lost worker may interrupt an update. While a number is above
        the global step, some variables are updated and others not.
      prologue: ops that stage, from one batch, what the first step needs from a previous step;
        empty in most modes.
      bytes_of_servers: the bytes of variables on each parameter server of a cluster, by device.
    """

    def __init__(self, config: 'ManagerConfig') -> None:
        self._config = config
        self._devices = list(config.devices)
        self.variables: list[dict[str, Variable]] = [{} for _ in config.devices]
        self.initializers: list[tf.Operation] = []
        self.assignments: list[tuple[Variable, Tensor]] = []
        self.synchronous_step: SynchronousStep | None = None
        self.scalars: list[Variable] = []
        self.begun: list[Variable] = []
        self.prologue: list[tf.Operation] = []
        self.bytes_of_servers: dict[str, int] = {}

    @property
    def num_averaged_towers(self) -> int:
        """The number of towers that train one model together: each step applies the average of
        their gradients.
        """
        return len(self._devices)

    def leads(self, device_num: int) -> bool:
        """Whether this tower adds the weight decay, which each model's loss contains once."""
        return device_num % self.num_averaged_towers == 0

    def keeps_statistics(self, device_num: int) -> bool:
        """Whether this tower updates batch norm's moving averages. By default one tower of each
        model does.
        """
        return self.leads(device_num)

    @property
    def initializes(self) -> bool:
        """Whether this process initializes the optimizer's variables."""
        return True

    def create_global_step(self) -> Variable:
        """Creates the scalar int64 variable that counts the steps taken."""
        return create_variable(
            'global_step', [], scope='v', device=self._shared_device, dtype=tf.int64
        )

    def create_scalar(self, name: str, dtype: tf.DType) -> Variable:
        """Creates a scalar on the device of the global step. It has the same value on all
        synchronous workers.
        """
        scalar = create_variable(name, [], scope='v', device=self._shared_device, dtype=dtype)
        self.scalars.append(scalar)
        return scalar

    @property
    def _shared_device(self) -> str:
        """The device of the variables that belong to no tower."""
        return self.scalar_device

    @property
    def scalar_device(self) -> str:
        """The device that computes the scalars of a step, such as its loss and learning rate."""
        return self._config.scalar_device

    @abstractmethod
    def each_tower_has_variables(self) -> bool:
        """Whether every tower computes with a separate copy of the variables."""

    def get_devices(self) -> list[str]:
        return list(self._devices)

    @contextlib.contextmanager
    def create_outer_variable_scope(self, device_num: int) -> Iterator[TowerVariables]:
        """The scope for building a tower's network: places its ops on the tower's device and yields
        its variables.
        """
        with tf.device(self._devices[device_num]), tf.name_scope(f'tower_{device_num}'):
            yield TowerVariables(self, device_num)

    @abstractmethod
    def create(
        self,
        device_num: int,
        name: str,
        shape: Sequence[int],
        initializer: Initializer,
        trainable: bool,
    ) -> Variable:
        """Returns the variable for a name that the tower has not used before."""

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        """Registers a variable that another tower updates. In a single process that tower creates
        it itself.
        """
        del name, shape, initializer

    def trainable_variables_on_device(self, device_num: int) -> list[Variable]:
        """Returns the trainable variables of a tower, in the order of their first use."""
        return [variable for variable in self.variables[device_num].values() if variable.trainable]

    @abstractmethod
    def preprocess_device_grads(
        self, device_grads: Sequence[Sequence[Tensor]]
    ) -> list[list[Tensor]]:
        """Combines the gradients of all towers: T x V -> A x V, for the A towers that apply
        gradients.

        The losses of the towers add up to the loss of the model, so their gradients are summed.
        """

    def get_gradients_to_apply(
        self, device_num: int, combined_grads: Sequence[Sequence[Tensor]]
    ) -> list[tuple[Tensor, Variable]]:
        """Returns the (gradient, variable) pairs that a tower applies, given the result of
        preprocess_device_grads.
        """
        variables = self.trainable_variables_on_device(device_num)
        return list(zip(combined_grads[device_num], variables, strict=True))

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        """Returns the op that takes a step with T x V gradients, and the first tower's (gradient,
        variable) pairs.
        """
        combined_grads = self._begin_update(
            step, global_step, self.preprocess_device_grads(device_grads)
        )
        num_applying = len(self._devices) if self.each_tower_has_variables() else 1
        pairs = [
            self.get_gradients_to_apply(number, combined_grads) for number in range(num_applying)
        ]
        ops_before_update = self._before_update()
        update_ops: list[tf.Operation] = []
        with tf.control_dependencies([tf.group(*ops_before_update)] if ops_before_update else []):
            self.append_apply_gradients_ops(step, pairs, update_ops)
            return self.count_step(global_step, update_ops), pairs[0]

    def append_apply_gradients_ops(
        self,
        step: OptimizerStep,
        device_pairs: Sequence[Sequence[tuple[Tensor, Variable]]],
        training_ops: list[tf.Operation],
    ) -> None:
        """Appends the ops of an update to training_ops: they apply each tower's pairs, and assign
        non-trainable variables.
        """
        # Towers that share a model have the same gradients.
        distinct = [
            gradient for tower in device_pairs[:: self.num_averaged_towers] for gradient, _ in tower
        ]
        variables = [[pair] for tower in device_pairs for pair in tower]
        training_ops += step.apply_all(variables, distinct, self._updates_of_step)

    def _begin_update(
        self, step: OptimizerStep, global_step: Variable, combined_grads: list[list[Tensor]]
    ) -> list[list[Tensor]]:
        """Returns the combined gradients, A x V, each available only after `begun` has the number
        of this step.
        """
        del step, global_step
        return combined_grads

    def _before_update(self) -> Sequence[Any]:
        """Returns the ops and tensors that must be computed before the first variable changes."""
        return []

    def _updates_of_step(self) -> list[tf.Operation]:
        """Returns the ops of an update that apply no gradients."""
        return self.assign_ops()

    def assign_ops(self) -> list[tf.Operation]:
        return [variable.assign(value) for variable, value in self.assignments]

    def count_step(self, global_step: Variable, update_ops: Sequence[tf.Operation]) -> tf.Operation:
        """Increments the global step after update_ops, and after this step has read its value."""
        # tf.group joins the ops of each device on that device, so each device sends one signal
        # instead of one per variable.
        with (
            tf.device(global_step.device),
            tf.control_dependencies([tf.group(*update_ops), global_step.value.op]),
        ):
            return tf.raw_ops.AssignAddVariableOp(
                resource=global_step.handle, value=tf.constant(1, tf.int64), name='train_step'
            )

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        """Returns the ops that give all towers the same values; run once, after the initializers or
        after restoring a checkpoint.
        """
        return []

    def get_before_evaluation_ops(self) -> list[tf.Operation]:
        """Returns the ops that all workers run together before an evaluation, to evaluate with the
        values that a checkpoint holds.
        """
        return []

    def savable_variables(self) -> dict[str, Variable]:
        """Returns each variable of the model once, by its name in the model."""
        return dict(self.variables[0])

    def bytes_of_step(self, *, forward_only: bool) -> int:
        """Returns the bytes that all workers of a cluster send and receive in a step."""
        return 0

    def slices(self) -> dict[str, list[Slice]]:
        """Returns the slices of each variable that a checkpoint holds, by its name in the model."""
        return {name: [full_slice(variable)] for name, variable in self.savable_variables().items()}

    def _create(
        self,
        scope: str,
        device: str,
        name: str,
        shape: Sequence[int],
        trainable: bool,
        value: Tensor | None = None,
    ) -> Variable:
        # The updates of moving averages are too small for 16 bits.
        dtype = self._config.variable_dtype if trainable else tf.float32
        variable = create_variable(
            name, shape, scope=scope, device=device, trainable=trainable, dtype=dtype
        )
        if value is not None:
            self.initializers.append(variable.assign(tf.cast(value, dtype)))
        return variable

    def _initial_value(self, name: str, shape: Sequence[int], initializer: Initializer) -> Tensor:
        return initializer(shape, seed_of(name, self._config.seed))


def sums_over_towers(
    device_grads: Sequence[Sequence[Tensor]], devices: Sequence[str]
) -> list[Tensor]:
    """Sums the gradients of T towers, each variable on the given device: T x V -> V."""
    sums = []
    for device, gradients in zip(devices, zip(*device_grads, strict=True), strict=True):
        with tf.device(device):
            sums.append(tf.add_n(gradients) if len(gradients) > 1 else gradients[0])
    return sums


def seed_of(name: str, seed: int) -> int:
    """Returns the seed of a variable's initial value in a run with this --tf_random_seed."""
    return (zlib.crc32(name.encode()) + seed) & 0x7FFFFFFF


def __getattr__(name: str) -> Any:
    # The managers of the modes derive from VariableMgr, so they are imported on first use.
    if path := resolve_name('tf_cnn.managers.modes:MANAGERS').get(name):
        return resolve_name(path)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

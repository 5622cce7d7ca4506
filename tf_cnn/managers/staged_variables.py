"""Values of variables and gradients that one step stages for the next."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import tensorflow.compat.v1 as tf

from tf_cnn.graph.staging_area import StagingArea
from tf_cnn.graph.variables import Initializer, Variable
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.training.optimizers import OptimizerStep, Slots
from variable_mgr import VariableMgr

Tensor = Any


class AppliesStagedGradients(VariableMgr):
    """Base of managers that stage gradients on the towers, and apply them one step later.

    A step can thus send, sum and apply gradients and read the new values while its towers compute.
    This costs no time if it takes no longer than the computation.
    """

    @property
    def _applies(self) -> bool:
        """Whether this process applies gradients, and so needs the loss scale of the previous step
        to unscale them.
        """
        return True

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        staged_grads = []
        puts = step.stage_loss_scale(self.scalar_device) if self._applies else []
        for device, gradients in zip(self._devices, device_grads, strict=True):
            area = StagingArea(device, gradients)
            staged_grads.append(area.get())
            puts.append(area.put(gradients))
        # The prologue stages gradients once before the first step, which applies them.
        self.prologue += puts
        updated, pairs = super().build_update(step, global_step, staged_grads)
        # The moving averages belong to this step, and the update does not wait for its towers.
        averages = step.loss_scale.update_if_finite(
            [gradient for tower in device_grads for gradient in tower], self.assign_ops
        )
        return tf.group(updated, *puts, *averages), pairs

    def _updates_of_step(self) -> list[tf.Operation]:
        return []


class ComputesWithStagedValues(AppliesStagedGradients):
    """Base of managers that also stage the values of variables, for the towers of the next step."""

    # The base that creates the variables, which all towers share.
    _creator: ClassVar[type[VariableMgr]]

    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        self._sources: dict[str, Variable] = {}
        self._areas: dict[str, list[StagingArea]] = {}
        # Stage the initial values twice: for the prologue and for the first step.
        self._first_puts: list[tf.Operation] = []

    def create(
        self,
        device_num: int,
        name: str,
        shape: Sequence[int],
        initializer: Initializer,
        trainable: bool,
    ) -> Variable:
        if name not in self._sources:
            self._sources[name] = self._creator.create(self, 0, name, shape, initializer, trainable)
        source = self._sources[name]
        if not trainable:
            return source
        area = StagingArea(self._devices[device_num], [source.value])
        self._areas.setdefault(name, []).append(area)
        self._first_puts += [area.put([source.value]) for _ in range(2)]
        return replace(source, value=area.get()[0])

    def _puts(self, name: str, value: Tensor) -> list[tf.Operation]:
        """Returns the ops that stage a value for the next step on all towers."""
        return [area.put([value]) for area in self._areas[name]]

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return self._first_puts

    def savable_variables(self) -> dict[str, Variable]:
        # The variables of a tower hold staged values; these hold the current values.
        return self._sources

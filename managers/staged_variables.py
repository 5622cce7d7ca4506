"""Values of variables and gradients that one step stages for the next."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

from managers.base import VariableMgr
from params.device_flags import HOST_DEVICE
from training.optimizers import OptimizerStep, Slots
from training.staging import StagingArea
from training.variables import Initializer, Variable

Tensor = Any


class StagedValues:
    """Keeps the values of variables on the towers until the next step computes with them.

    first_puts stage the initial values twice: for the prologue and for the first step.
    """

    def __init__(self) -> None:
        self.sources: dict[str, Variable] = {}
        self.first_puts: list[tf.Operation] = []
        self._areas: dict[str, list[StagingArea]] = {}

    def for_tower(self, source: Variable, device: str) -> Variable:
        """Returns the variable with the value that the step before staged on the device of a tower."""
        area = StagingArea(device, [source.value])
        self._areas.setdefault(source.name, []).append(area)
        self.first_puts += [area.put([source.value]) for _ in range(2)]
        return replace(source, value=area.get()[0])

    def puts(self, name: str, value: Tensor) -> list[tf.Operation]:
        """Returns the ops that stage a value for the next step on all towers that use the variable."""
        return [area.put([value]) for area in self._areas.get(name, ())]


class AppliesGradientsOfStepBefore(VariableMgr):
    """A manager whose steps apply the gradients of the step before, which are kept on the towers.

    So a step can send, sum and apply gradients and read the new values while its towers compute. This costs no time if
    it takes no longer than the computation.
    """

    @property
    def _applies(self) -> bool:
        """Whether this process applies gradients; it then unscales them by the loss scale of the step before."""
        return True

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        of_step_before = []
        puts = step.stage_loss_scale(HOST_DEVICE) if self._applies else []
        for device, gradients in zip(self._devices, device_grads, strict=True):
            area = StagingArea(device, gradients)
            of_step_before.append(area.get())
            puts.append(area.put(gradients))
        # They also run once before the first step, which then applies these gradients.
        self.prologue += puts
        updated, pairs = super().build_update(step, global_step, of_step_before)
        # The moving averages are those of this step, whose computation the update does not wait for.
        averages = step.when_finite([gradient for tower in device_grads for gradient in tower], self.assign_ops)
        return tf.group(updated, *puts, *averages), pairs

    def _updates_of_step(self) -> list[tf.Operation]:
        return []


class ComputesWithStagedValues(AppliesGradientsOfStepBefore):
    """A manager whose towers also compute with the values of the step before.

    The base class that follows this one among the bases of a manager creates the variables, which all towers share.
    """

    @functools.cached_property
    def _staged(self) -> StagedValues:
        return StagedValues()

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        sources = self._staged.sources
        if name not in sources:
            # The class beside this one has it, which mypy cannot see.
            sources[name] = super().create(0, name, shape, initializer, trainable)  # type: ignore[safe-super]
        return self._staged.for_tower(sources[name], self._devices[device_num]) if trainable else sources[name]

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return list(self._staged.first_puts)

    def savable_variables(self) -> dict[str, Variable]:
        # The variables of a tower have staged values.
        return dict(self._staged.sources)

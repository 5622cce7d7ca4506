"""What a step of staged variables takes from the step before: the values of variables, and gradients to apply."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

from managers.base import VariableMgr
from params.device_flags import HOST_DEVICE
from training.optimizers import OptimizerStep
from training.staging import StagingArea
from training.variables import Variable

Tensor = Any


class StagedValues:
    """Keeps the values of variables on the towers until the next step computes with them.

    Attributes:
      sources: the variables themselves, by name; towers have them with staged values.
      first_puts: ops that stage the initial values, for the prologue and for the first step.
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


class StagedGradients:
    """Keeps the gradients of a step on the towers until the next step applies them.

    So a step can send, sum and apply gradients and read the new values from its beginning, while its towers compute:
    none of this takes time if it takes no longer than they do.

    Args:
      devices: the devices of the T towers.
      device_grads: the gradients of this step, T x V.
      step: if this process applies gradients: it then unscales them by the loss scale of the step before.

    Attributes:
      of_step_before: the gradients of the step before, T x V.
      puts: ops that each step runs. They also run once before the first step, which then applies these gradients.
    """

    def __init__(
        self, devices: Sequence[str], device_grads: Sequence[Sequence[Tensor]], step: OptimizerStep | None
    ) -> None:
        self.of_step_before: list[list[Tensor]] = []
        self.puts = step.stage_loss_scale(HOST_DEVICE) if step else []
        for device, gradients in zip(devices, device_grads, strict=True):
            area = StagingArea(device, gradients)
            self.of_step_before.append(area.get())
            self.puts.append(area.put(gradients))


class AppliesGradientsOfStepBefore(VariableMgr):
    """A manager whose steps apply the gradients of the step before."""

    def _stage(
        self, step: OptimizerStep, device_grads: Sequence[Sequence[Tensor]], *, applies: bool = True
    ) -> StagedGradients:
        """Stages the gradients of this step. Its puts assign the moving averages as well.

        These need the computation of this step, for which the update does not wait, and belong to its gradients.

        Args:
          applies: whether this process applies gradients.
        """
        averages = step.when_finite([gradient for tower in device_grads for gradient in tower], self.assign_ops)
        gradients = StagedGradients(self._devices, device_grads, step if applies else None)
        self.prologue += gradients.puts
        gradients.puts = [*gradients.puts, *averages]
        return gradients

    def _updates_of_step(self) -> list[tf.Operation]:
        return []

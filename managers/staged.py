"""What a step of staged variables takes from the step before: the gradients of the towers."""

from collections.abc import Sequence
from typing import Any

from training.optimizers import OptimizerStep
from training.staging import StagingArea

Tensor = Any


class StagedGradients:
    """Keeps the gradients of a step on the towers until the next step applies them.

    So a step can send, sum and apply gradients and read the new values from its beginning, while its towers compute:
    none of this takes time if it takes no longer than they do.

    Args:
      devices: the devices of the T towers.
      device_grads: the gradients of this step, T x V.
      step: from now on it unscales gradients by the loss scale of the step before.

    Attributes:
      of_step_before: the gradients of the step before, T x V.
      puts: ops that each step runs. They also run once before the first step, which then applies these gradients.
    """

    def __init__(self, devices: Sequence[str], device_grads: Sequence[Sequence[Tensor]], step: OptimizerStep) -> None:
        self.of_step_before: list[list[Tensor]] = []
        self.puts = step.stage_loss_scale()
        for device, gradients in zip(devices, device_grads, strict=True):
            area = StagingArea(device, gradients)
            self.of_step_before.append(area.get())
            self.puts.append(area.put(gradients))

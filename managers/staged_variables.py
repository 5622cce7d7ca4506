"""Values of variables that one step stages for the next."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

from managers.base import VariableMgr
from training.optimizers import OptimizerStep, Slots
from training.staging import StagingArea
from training.variables import Initializer, Variable

Tensor = Any


class ComputesWithStagedValues(VariableMgr):
    """A manager whose towers compute with the values of the step before: v_k+1 = v_k - r g(v_k-1), with v_-1 = v_0.

    A step reads each variable before it updates it, and stages what it read for the next step.
    The base class that follows this one among the bases of a manager creates the variables, which all towers share.
    """

    @functools.cached_property
    def _sources(self) -> dict[str, Variable]:
        """The variables themselves, by name; towers read their staged values."""
        return {}

    @functools.cached_property
    def _puts(self) -> list[tf.Operation]:
        """The ops that stage the current values. They also run once before the first step."""
        return []

    def create(
        self, device_num: int, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Variable:
        if name not in self._sources:
            # The class beside this one has it, which mypy cannot see.
            self._sources[name] = super().create(0, name, shape, initializer, trainable)  # type: ignore[safe-super]
        source = self._sources[name]
        if not trainable:
            return source
        area = StagingArea(self._devices[device_num], [source.value])
        self._puts.append(area.put([source.value]))
        return replace(source, value=area.get()[0])

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        updated, pairs = super().build_update(step, global_step, device_grads)
        return tf.group(updated, *self._puts), pairs

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return list(self._puts)

    def savable_variables(self) -> dict[str, Variable]:
        # The variables of a tower have staged values.
        return dict(self._sources)

"""Params, the frozen settings of a run; the table of all flags, and the rules between them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_cnn.flags.spec import FlagSpec, Output, specs_of
from tf_cnn.params import (
    cluster_flags,
    data_flags,
    device_flags,
    evaluation_flags,
    file_flags,
    input_flags,
    optimizer_flags,
    precision_flags,
    result_flags,
    run_flags,
    tensorflow_flags,
    variable_flags,
)
from tf_cnn.params.rules import RunContext
from tf_cnn.system.errors import UsageError, format_flag

# The modules of the flags. Each has find_conflicts, which yields a line for each violated rule.
_GROUPS = (
    run_flags,
    device_flags,
    data_flags,
    input_flags,
    variable_flags,
    optimizer_flags,
    precision_flags,
    cluster_flags,
    evaluation_flags,
    file_flags,
    result_flags,
    tensorflow_flags,
)


@dataclass(frozen=True)
# A dataclass takes the fields of its last base first, so the bases are in reverse order of --help.
# Only this class has instances; generating methods for the bases would take a tenth of the time of
# --help.
class Params(
    tensorflow_flags.TensorFlowFlags,
    result_flags.ResultFlags,
    file_flags.FileFlags,
    evaluation_flags.EvaluationFlags,
    cluster_flags.ClusterFlags,
    precision_flags.PrecisionFlags,
    optimizer_flags.OptimizerFlags,
    variable_flags.VariableFlags,
    input_flags.InputFlags,
    data_flags.DataFlags,
    device_flags.DeviceFlags,
    run_flags.RunFlags,
):
    """The settings of one run, made and checked by parse_argv and make_params. None lets the run
    choose.

    Attributes:
      given_flags: the text of each given flag, by name, as the user wrote it, maybe under an older
        name ('--learning_rate=0.1' for init_learning_rate). Not a flag; comparisons of settings
        ignore it.
    """

    given_flags: Mapping[str, str] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def flag_text(self, name: str) -> str:
        """Returns '--name=value', as the user wrote it if the flag is given."""
        return self.given_flags.get(name) or format_flag(name, getattr(self, name))

    def conflict(self, name: str, other_name: str, reason: str) -> str:
        """Returns the error message for two flags that exclude each other."""
        return f'{self.flag_text(name)} conflicts with {self.flag_text(other_name)}: {reason}'

    @property
    def trains(self) -> bool:
        return not self.forward_only and not self.eval

    @property
    def evaluates_in_training(self) -> bool:
        return not self.forward_only and any(
            getattr(self, name) is not None for name in evaluation_flags.EVAL_DURING_TRAINING
        )

    @property
    def evaluates(self) -> bool:
        return self.eval or self.evaluates_in_training


SPECS: Mapping[str, FlagSpec] = specs_of(Params)


def shared_flags(params: Params, *, serves: bool) -> dict[str, Any]:
    """Returns the flags that need the same value in all processes of a cluster.

    serves: whether to return only the flags that servers need.
    """
    names = [
        name
        for name, spec in SPECS.items()
        if (spec.shared_by_servers if serves else spec.shared_by_workers)
    ]
    return {name: getattr(params, name) for name in names}


def output_flags(*kinds: Output) -> tuple[str, ...]:
    """Returns the flags that name outputs of these kinds; without kinds, of all kinds."""
    return tuple(name for name, spec in SPECS.items() if spec.output in (kinds or [*Output]))


def check(params: Params, run: RunContext | None = None) -> None:
    """Raises UsageError with a line for each violated rule between flags.

    Without `run`, rules that depend on it are skipped.
    """
    lines = [line for group in _GROUPS for line in group.find_conflicts(params, run)]
    if run and not run.is_single_process:
        lines += (
            f'{params.flag_text(name)}: {spec.not_in_cluster}; remove it'
            for name, spec in SPECS.items()
            if spec.not_in_cluster and getattr(params, name) != spec.default
        )
    if lines:
        raise UsageError(*lines)


def ignored_flag_warnings(params: Params, run: RunContext) -> list[str]:
    """Returns a warning for each given flag (see Params.given_flags) that this run ignores.

    Flags with their default value, and switches that turn off what is off by default, are skipped.
    """
    lines = []
    for name, flag_text in params.given_flags.items():
        value, spec = getattr(params, name), SPECS[name]
        if value == spec.default or not (value or spec.default):
            continue
        if idle := next((idle for idle in spec.ignored if idle.when(params, run)), None):
            lines.append(f'{flag_text} has no effect: {idle.reason}')
    return lines

"""Params, the frozen settings of a run, made of the groups of flags; and the table of all flags."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from errors import format_flag
from params.cluster_flags import ClusterFlags
from params.data_flags import DataFlags
from params.device_flags import DeviceFlags
from params.evaluation_flags import EVAL_DURING_TRAINING, EvaluationFlags
from params.file_flags import FileFlags
from params.input_flags import InputFlags
from params.optimizer_flags import OptimizerFlags
from params.precision_flags import PrecisionFlags
from params.result_flags import ResultFlags
from params.run_flags import RunFlags
from params.spec import FlagSpec, Output, specs_of
from params.tensorflow_flags import TensorFlowFlags
from params.variable_flags import VariableFlags


@dataclass(frozen=True, eq=False)
class Given(Mapping[str, str]):
    """The given flags by name, each as it was written. Like Params, it is immutable and can be pickled."""

    pairs: tuple[tuple[str, str], ...] = ()

    def __getitem__(self, name: str) -> str:
        return dict(self.pairs)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True)
# A dataclass takes the fields of its last base first, so the bases, read upwards, are in the order of --help. Only this
# class has instances; generating methods for the others would take a tenth of the time of --help.
class Params(
    TensorFlowFlags,
    ResultFlags,
    FileFlags,
    EvaluationFlags,
    ClusterFlags,
    PrecisionFlags,
    OptimizerFlags,
    VariableFlags,
    InputFlags,
    DataFlags,
    DeviceFlags,
    RunFlags,
):
    """The settings of one run, made and checked by parse_argv and make_params. None leaves a choice to the run.

    Attributes:
      given: the given flags by name, each as it was written, also by an older name ('--learning_rate=0.1' for
        init_learning_rate). This is not a flag, and comparing settings ignores it.
    """

    given: Mapping[str, str] = dataclasses.field(default_factory=Given, compare=False, repr=False)

    def written(self, name: str) -> str:
        """Returns a flag as it was written; if it was not given, as it would be written."""
        return self.given.get(name) or format_flag(name, getattr(self, name))

    @property
    def trains(self) -> bool:
        return not self.forward_only and not self.eval

    @property
    def evaluates_in_training(self) -> bool:
        return not self.forward_only and any(getattr(self, name) is not None for name in EVAL_DURING_TRAINING)

    @property
    def evaluates(self) -> bool:
        return self.eval or self.evaluates_in_training


SPECS: Mapping[str, FlagSpec] = specs_of(Params)


def flags_to_agree_on(params: Params, *, serves: bool) -> dict[str, Any]:
    """Returns the flags that need one value in all processes of a cluster; serves: those that servers need."""
    names = [name for name, spec in SPECS.items() if (spec.agreed_by_servers if serves else spec.agreed)]
    return {name: getattr(params, name) for name in names}


def outputs_that_are(*kinds: Output) -> tuple[str, ...]:
    """Returns the flags that name outputs of these kinds; without kinds, all of them."""
    return tuple(name for name, spec in SPECS.items() if spec.output in (kinds or [*Output]))

"""Params, the settings of a run: the groups of flags of all components. Does not import
TensorFlow.
"""

import dataclasses
import enum
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tf_cnn.cluster.config import ClusterConfig
from tf_cnn.flags.spec import (
    IN_EVAL,
    IN_FORWARD_ONLY,
    NO_COMPUTING,
    NO_FOLDER,
    NO_MODEL,
    ON_CPU,
    SINGLE_PROCESS,
    SYNTHETIC,
    FlagSpec,
    Note,
    Output,
    specs_of,
)
from tf_cnn.inputs.config import DataConfig, PipelineConfig
from tf_cnn.machine.config import DeviceConfig, TensorFlowConfig
from tf_cnn.managers.config import VariableConfig
from tf_cnn.plan.config import EvaluationConfig, InstrumentConfig, ResultConfig, RunConfig
from tf_cnn.system.errors import UsageError, format_flag
from tf_cnn.training.config import CheckpointConfig, OptimizerConfig, PrecisionConfig

if TYPE_CHECKING:
    from tf_cnn.plan.workload import Context


class Role(enum.Enum):
    """What a run does; the values are printed in the banner."""

    TRAINING = 'training'
    FORWARD_ONLY = 'forward-only'
    EVALUATION = 'evaluation'
    INPUT_ONLY = 'input-only'
    EXCHANGE_ONLY = 'exchange-only'

    @property
    def has_manager(self) -> bool:
        """Whether the run has a variable manager."""
        return self not in (Role.EVALUATION, Role.INPUT_ONLY)


@dataclass(frozen=True)
class RuleContext:
    """What the rules between flags need to know about a run besides its flags.

    Attributes:
      is_residual: whether the model is a residual network.
      num_ps: the number of parameter servers.
      is_single_process: whether no other process takes part. It is False under a mode's launcher,
        such as horovodrun, even if the launcher starts only one process.
      has_records: whether --data_dir, if given, contains records rather than arrays.
      has_checkpoint: whether --train_dir, if given, may hold a checkpoint.
    """

    is_single_process: bool
    is_residual: bool
    has_records: bool = True
    num_ps: int = 0
    has_checkpoint: bool = False


# With it, rules that depend on the run find no problem.
UNKNOWN_RUN = RuleContext(is_single_process=True, is_residual=False, has_records=False)


@dataclass(frozen=True)
class Params:
    """The settings of one run, in the order of --help; parse_argv and make_params make and check
    them. None lets the run choose.

    Attributes:
      given_flags: the text of each given flag, by name, as the user wrote it, maybe under an older
        name ('--learning_rate=0.1' for init_learning_rate). Comparisons of Params ignore it.
      arguments: each given flag under the name and with the value that the user wrote.
      is_set_up: whether setup() has checked them, so that the run prints as the command does.
    """

    run: RunConfig = field(default_factory=RunConfig)
    devices: DeviceConfig = field(default_factory=DeviceConfig)
    data: DataConfig = field(default_factory=DataConfig)
    inputs: PipelineConfig = field(default_factory=PipelineConfig)
    variables: VariableConfig = field(default_factory=VariableConfig)
    training: OptimizerConfig = field(default_factory=OptimizerConfig)
    numerics: PrecisionConfig = field(default_factory=PrecisionConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    instruments: InstrumentConfig = field(default_factory=InstrumentConfig)
    results: ResultConfig = field(default_factory=ResultConfig)
    tensorflow: TensorFlowConfig = field(default_factory=TensorFlowConfig)
    given_flags: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    arguments: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    is_set_up: bool = field(default=False, compare=False, repr=False)
    # The names of all flags. In the original, Params is a named tuple.
    _fields: ClassVar[tuple[str, ...]]

    if not TYPE_CHECKING:
        # The program itself names the group too, which mypy checks.
        def __getattr__(self, name: str) -> Any:
            """Returns the value of a flag, also by an older name."""
            if name in _GROUP_OF:
                return self.value(name)
            from tf_cnn.plan.original_flags import older_value

            return older_value(self, name)

    def _asdict(self) -> dict[str, Any]:
        return self.values()

    def _replace(self, **changes: Any) -> 'Params':
        """Returns a copy with these flags changed, checked like all arguments of make_params."""
        from tf_cnn.plan.parsing import make_params

        return dataclasses.replace(
            make_params(**{**self.arguments, **changes}), is_set_up=self.is_set_up
        )

    def value(self, name: str) -> Any:
        """Returns the value of a flag."""
        return getattr(getattr(self, _GROUP_OF[name]), name)

    def values(self) -> dict[str, Any]:
        """Returns the values of all flags by name."""
        return {name: self.value(name) for name in SPECS}

    def with_values(self, **values: Any) -> 'Params':
        """Returns a copy with other values of some flags, without a check."""
        changed: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            changed.setdefault(_GROUP_OF[name], {})[name] = value
        return dataclasses.replace(
            self,
            **{
                group: dataclasses.replace(getattr(self, group), **of_group)
                for group, of_group in changed.items()
            },
        )

    def flag_text(self, name: str) -> str:
        """Returns '--name=value', as the user wrote it if the flag is given."""
        return self.given_flags.get(name) or format_flag(name, self.value(name))

    def conflict(self, name: str, other_name: str, reason: str) -> str:
        """Returns the error message for two flags that exclude each other."""
        return f'{self.flag_text(name)} conflicts with {self.flag_text(other_name)}: {reason}'

    @property
    def role(self) -> Role:
        if self.evaluation.eval:
            return Role.EVALUATION
        if self.inputs.input_only:
            return Role.INPUT_ONLY
        if self.run.exchange_only:
            return Role.EXCHANGE_ONLY
        return Role.TRAINING if self.trains else Role.FORWARD_ONLY

    @property
    def exchanges_one_tensor(self) -> bool:
        """Whether one tensor replaces the gradients of the model."""
        return self.run.exchange_only and self.run.exchange_bytes is not None

    @property
    def trains(self) -> bool:
        return not self.run.forward_only and not self.evaluation.eval

    def writes_to(self, name: str) -> bool:
        """Whether the run may write to the path of this output flag; some only read --train_dir."""
        writes_summaries = self.run.forward_only and self.instruments.writes_summaries
        return name != 'train_dir' or self.trains or writes_summaries

    @property
    def evaluates_in_training(self) -> bool:
        return not self.run.forward_only and any(
            getattr(self.evaluation, name) is not None for name in self.evaluation.SCHEDULE_FLAGS
        )

    @property
    def evaluates(self) -> bool:
        return self.evaluation.eval or self.evaluates_in_training

    def notes(self, rules: RuleContext) -> Iterator[Note]:
        """Yields the problems of these flags, and the flags that have no effect in this run."""
        for reason, holds in (
            (NO_MODEL, self.inputs.input_only),
            (NO_COMPUTING, self.run.exchange_only),
            (IN_EVAL, self.evaluation.eval),
            (IN_FORWARD_ONLY, self.run.forward_only),
            (SINGLE_PROCESS, rules.is_single_process),
            (SYNTHETIC, self.data.data_dir is None),
            (NO_FOLDER, self.checkpoints.train_dir is None),
            (ON_CPU, self.devices.device == 'cpu'),
        ):
            if holds:
                yield tuple(name for name, spec in SPECS.items() if reason in spec.ignored), reason
        for group in GROUPS:
            yield from getattr(self, group).notes(self, rules)

    def check(self, rules: RuleContext = UNKNOWN_RUN) -> None:
        """Raises UsageError with a line for each violated rule between flags."""
        lines = [note for note in self.notes(rules) if isinstance(note, str)]
        if lines:
            raise UsageError(*lines)

    def reasons_to_ignore(self, rules: RuleContext) -> dict[str, str]:
        """Returns the flags that have no effect in this run, with the first reason for each."""
        reasons: dict[str, str] = {}
        for note in self.notes(rules):
            if isinstance(note, tuple):
                names, reason = note
                reasons = dict.fromkeys(names, reason) | reasons
        return reasons

    def ignored_flag_warnings(self, rules: RuleContext) -> list[str]:
        """Returns a warning for each given flag that this run ignores.

        Flags with their default value are skipped, and switches that are off anyway.
        """
        reasons, lines = self.reasons_to_ignore(rules), []
        for name, flag_text in self.given_flags.items():
            value, default = self.value(name), SPECS[name].default
            if name in reasons and value != default and (value or default):
                lines.append(f'{flag_text} has no effect: {reasons[name]}')
        return lines

    def without_ignored(self, rules: RuleContext) -> 'Params':
        """Returns a copy with the default of each flag that has no effect in this run."""
        return self.with_values(
            **{name: SPECS[name].default for name in self.reasons_to_ignore(rules)}
        )

    def resolve(self, context: 'Context', groups: Sequence[str]) -> 'Params':
        """Decides what these groups left to the run. A group sees the resolved flags of the groups
        before it.
        """
        params = self
        for name in groups:
            group = getattr(params, name).resolve(params, context)
            params = dataclasses.replace(params, **{name: group})
        return params

    def shared_flags(self, *, serves: bool) -> dict[str, Any]:
        """Returns the flags that need the same value in all processes of a cluster.

        serves: whether to return only the flags that servers need.
        """
        return {
            name: self.value(name)
            for name, spec in SPECS.items()
            if (spec.shared_by_servers if serves else spec.shared_by_workers)
        }


# The groups that make_plan resolves in each of its three steps, in this order: by default an
# evaluation has the batch size of training, and threads depend on the devices that sum gradients.
WITHOUT_TENSORFLOW = (
    'run',
    'data',
    'inputs',
    'evaluation',
    'instruments',
    'results',
)
WITH_DEVICES = ('devices', 'variables')
WITH_THREADS = ('devices', 'training')
GROUPS: Mapping[str, type] = {
    name: kind
    for name, kind in typing.get_type_hints(Params).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
_SPECS_OF_GROUPS = {name: specs_of(kind) for name, kind in GROUPS.items()}
_GROUP_OF = {name: group for group, specs in _SPECS_OF_GROUPS.items() for name in specs}
SPECS: Mapping[str, FlagSpec] = {
    name: spec for specs in _SPECS_OF_GROUPS.values() for name, spec in specs.items()
}
Params._fields = tuple(SPECS)


def make_groups(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the groups of Params by name, with these values of flags and defaults."""
    return {
        group: kind(**{name: values[name] for name in _SPECS_OF_GROUPS[group] if name in values})
        for group, kind in GROUPS.items()
    }


def output_flags(*kinds: Output) -> tuple[str, ...]:
    """Returns the flags that name outputs of these kinds; without kinds, of all kinds."""
    return tuple(name for name, spec in SPECS.items() if spec.output in (kinds or [*Output]))

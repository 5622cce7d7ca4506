"""Applies the rules of all groups of flags: which settings clash, and which flags have no effect."""

from collections.abc import Iterable

from errors import UsageError
from params import (
    cluster,
    data,
    devices,
    evaluation,
    files,
    input_only,
    input_pipeline,
    model_and_run,
    optimization,
    precision,
    results,
    tensorflow_settings,
    variables,
)
from params.rules import Idle, Rule, RunFacts, RunRule
from params.table import Params

_GROUPS = (
    model_and_run,
    devices,
    data,
    input_pipeline,
    variables,
    optimization,
    precision,
    cluster,
    evaluation,
    files,
    results,
    tensorflow_settings,
)
_RULES: list[Rule] = [rule for group in _GROUPS for rule in group.RULES]
_RUN_RULES: tuple[RunRule, ...] = (
    *model_and_run.RUN_RULES,
    *data.RUN_RULES,
    *input_pipeline.RUN_RULES,
    *variables.RUN_RULES,
    *optimization.RUN_RULES,
    *cluster.RUN_RULES,
    *evaluation.RUN_RULES,
    *results.RUN_RULES,
)
_IDLE: list[Idle] = [*input_only.IDLE, *(row for group in _GROUPS for row in group.IDLE)]


def check(params: Params) -> None:
    """Raises UsageError with a line for each rule between flags that the settings break."""
    _raise_broken(rule(params) for rule in _RULES)


def check_run(params: Params, facts: RunFacts) -> None:
    """Raises UsageError with a line for each rule that the settings break in a run of which these facts are known."""
    _raise_broken(rule(params, facts) for rule in _RUN_RULES)


def _raise_broken(messages: Iterable[str | None]) -> None:
    if lines := list(filter(None, messages)):
        raise UsageError(*lines)


def find_idle(params: Params, facts: RunFacts) -> list[str]:
    """Returns one line for each given flag (see Params.given) that has no effect in a run with these facts.

    A flag that has its default value, or turns off what is off by default, asks for nothing and is passed over.
    """
    defaults = Params()
    lines = []
    for name, written in params.given.items():
        value, default = getattr(params, name), getattr(defaults, name)
        if value == default or not (value or default):
            continue
        reasons = (row.reason for row in _IDLE if name in row.flags and row.when(params, facts))
        if reason := next(reasons, None):
            lines.append(f'{written} has no effect: {reason}')
    return lines + variables.find_idle_parts(params)


def reasons_of_idleness(name: str) -> list[str]:
    """Why a flag can have no effect: the reasons of all its rows, for the docs."""
    return list(dict.fromkeys(row.reason for row in _IDLE if name in row.flags))

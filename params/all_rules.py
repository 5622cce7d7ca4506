"""Applies the rules of all groups of flags: which settings clash, and which flags have no effect."""

from collections.abc import Iterable

from errors import UsageError
from params import (
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
from params.rules import Rule, RunFacts, RunRule
from params.table import SPECS, Params

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
_RULES: list[Rule] = [rule for group in _GROUPS for rule in group.RULES]
_RUN_RULES: list[RunRule] = [rule for group in _GROUPS for rule in getattr(group, 'RUN_RULES', ())]


def check(params: Params) -> None:
    """Raises UsageError with a line for each rule between flags that the settings break."""
    _raise_broken(rule(params) for rule in _RULES)


def check_run(params: Params, facts: RunFacts) -> None:
    """Raises UsageError with a line for each rule that the settings break in a run with these facts."""
    _raise_broken(rule(params, facts) for rule in _RUN_RULES)


def _raise_broken(messages: Iterable[str | None]) -> None:
    if lines := list(filter(None, messages)):
        raise UsageError(*lines)


def find_idle(params: Params, facts: RunFacts) -> list[str]:
    """Returns one line for each given flag (see Params.given) that has no effect in a run with these facts.

    A flag that has its default value, or turns off what is off by default, asks for nothing and is skipped.
    """
    defaults = Params()
    lines = []
    for name, written in params.given.items():
        value, default = getattr(params, name), getattr(defaults, name)
        if value == default or not (value or default):
            continue
        if idle := next((idle for idle in SPECS[name].idle if idle.when(params, facts)), None):
            lines.append(f'{written} has no effect: {idle.reason}')
    return lines + variable_flags.find_idle_parts(params)

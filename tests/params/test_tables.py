"""The tables of modes and of optimizers name classes that there are, which take what the rows say."""

import inspect

import pytest

import variable_mgr
from managers.base import VariableMgr
from params import make_params
from params.modes import DEFAULT_MODE, MODES, Manager, Place, Refusal
from params.optimizer_table import DEFAULT_OPTIMIZER, OPTIMIZERS
from params.table import SPECS
from training.optimizers import Optimizer

pytestmark = pytest.mark.unit

MANAGERS = {
    found()
    for mode in MODES.values()
    for manager in mode.runs.values()
    if isinstance(manager, Manager)
    for found in (manager.plain, manager.staged, manager.relaxed)
    if found is not None
}


def test_the_flags_have_the_values_of_the_tables() -> None:
    for flag, table, default in (
        ('variable_update', MODES, DEFAULT_MODE),
        ('optimizer', OPTIMIZERS, DEFAULT_OPTIMIZER),
    ):
        assert SPECS[flag].choices == tuple(table)
        assert SPECS[flag].default == default
        assert all(row.name == name and row.summary for name, row in table.items())


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_the_rule_of_an_optimizer_is_made_of_the_values_of_its_flags(name: str) -> None:
    row, params = OPTIMIZERS[name], make_params()
    assert {*row.arguments} <= {*SPECS}
    values = [getattr(params, argument) for argument in row.arguments]
    rule = row.rule()(*values)
    assert isinstance(rule, Optimizer)
    # A dataclass, each of whose fields is one of the flags.
    assert list(vars(rule).values()) == values


@pytest.mark.parametrize('name', MODES)
def test_a_mode_has_a_manager_or_a_refusal_for_every_place(name: str) -> None:
    mode = MODES[name]
    assert {*mode.runs} == {*Place}
    assert any(isinstance(found, Manager) for found in mode.runs.values())
    for found in mode.runs.values():
        if isinstance(found, Refusal):
            written = found.sentence.format(mode='(mode)', members='(members)', ps='(ps)')
            assert written.startswith('(mode) ')


def test_the_managers_of_the_modes_are_those_that_are_exported() -> None:
    exported = {getattr(variable_mgr, name) for name in variable_mgr.__all__ if name.startswith('VariableMgr')}
    assert exported - {VariableMgr} == MANAGERS
    assert not any(map(inspect.isabstract, MANAGERS))

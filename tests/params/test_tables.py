"""Each row of the tables of modes and of optimizers has its classes, which take what the row
says.
"""

import inspect
from collections.abc import Callable

import pytest

import tf_cnn_benchmarks
import variable_mgr
from tf_cnn.managers.classes import MANAGERS, RELAXED, STAGED
from tf_cnn.managers.modes import MODES, Mode, Topology
from tf_cnn.run.params import SPECS
from tf_cnn.run.parsing import make_params
from tf_cnn.training.optimizer_table import OPTIMIZERS
from tf_cnn.training.optimizers import UPDATE_RULES, Optimizer
from variable_mgr import VariableMgr

pytestmark = pytest.mark.unit


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_the_rule_of_an_optimizer_is_made_of_the_values_of_its_flags(name: str) -> None:
    row, params = OPTIMIZERS[name], make_params()
    assert {*row.arguments} <= {*SPECS}
    values = [params.value(argument) for argument in row.arguments]
    rule = UPDATE_RULES[name](*values)
    assert isinstance(rule, Optimizer)
    # A dataclass, each of whose fields is one of the flags.
    assert list(vars(rule).values()) == values


def places_where(fits: Callable[[Mode], bool]) -> set[tuple[str, Topology]]:
    return {
        (mode.name, place)
        for mode in MODES.values()
        if fits(mode)
        for place in Topology
        if mode.runs_in(place)
    }


def test_each_row_has_its_classes_and_each_class_a_row() -> None:
    assert {*UPDATE_RULES} == {*OPTIMIZERS}
    assert {*MANAGERS} == places_where(lambda mode: True)
    assert {*STAGED} == places_where(lambda mode: mode.can_stage)
    assert {*RELAXED} == places_where(lambda mode: mode.can_relax)
    assert {name for name, _ in MANAGERS} == {*MODES}


def test_the_managers_of_the_modes_are_those_that_are_exported() -> None:
    exported = {
        getattr(variable_mgr, name)
        for name in variable_mgr.__all__
        if name.startswith('VariableMgr')
    }
    managers = {*MANAGERS.values(), *STAGED.values(), *RELAXED.values()}
    assert exported - {VariableMgr} == managers
    assert {each.__name__ for each in exported} == {
        name for name in tf_cnn_benchmarks.__all__ if name.startswith('VariableMgr')
    }
    assert len(managers) == len({*MANAGERS.values()}) + len(STAGED) + len(RELAXED)
    assert not any(map(inspect.isabstract, managers))

"""Each row of the tables of modes, optimizers, input pipelines and subcommands loads."""

import inspect

import pytest

import tf_cnn_benchmarks
import variable_mgr
from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.inputs.catalog import INPUTS, InputRow
from tf_cnn.inputs.pipeline import InputPipeline
from tf_cnn.managers.modes import MANAGERS, MODES, Topology
from tf_cnn.system.loading import load
from tf_cnn.training.config import OptimizerConfig
from tf_cnn.training.optimizer_table import OPTIMIZERS
from tf_cnn.training.optimizers import Optimizer, make_optimizer
from variable_mgr import VariableMgr

pytestmark = pytest.mark.unit


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_the_rule_of_an_optimizer_is_made_of_the_values_of_its_flags(name: str) -> None:
    config = OptimizerConfig(optimizer=name)
    rule = make_optimizer(config)
    assert isinstance(rule, Optimizer)
    # A dataclass, each of whose fields is one of the flags.
    values = [getattr(config, argument) for argument in OPTIMIZERS[name].arguments]
    assert list(vars(rule).values()) == values


@pytest.mark.parametrize('path', sorted(MANAGERS.values()))
def test_each_manager_of_a_mode_loads(path: str) -> None:
    manager = load(path)
    assert issubclass(manager, VariableMgr)
    assert not inspect.isabstract(manager)
    assert getattr(variable_mgr, manager.__name__) is manager
    assert getattr(tf_cnn_benchmarks, manager.__name__) is manager


@pytest.mark.parametrize('name', MODES)
def test_a_mode_has_a_manager_where_it_is_not_refused(name: str) -> None:
    mode = MODES[name]
    places = {*mode.managers}
    assert {place for place in Topology if mode.refusal(place) is None} == places
    assert {*mode.staged} in (set(), places)
    assert {*mode.relaxed} in (set(), places)


@pytest.mark.parametrize('row', INPUTS, ids=lambda row: row.name)
def test_each_input_pipeline_loads(row: InputRow) -> None:
    assert issubclass(load(row.pipeline), InputPipeline)


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_each_subcommand_loads(name: str) -> None:
    assert callable(load(SUBCOMMANDS[name].main))


def test_the_prescribed_names_of_managers_are_exported() -> None:
    names = {name for name in variable_mgr.__all__ if name.startswith('VariableMgr')}
    assert names <= {*tf_cnn_benchmarks.__all__}
    assert names - {'VariableMgr'} <= {*MANAGERS}

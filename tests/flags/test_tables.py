"""The tables of modes, optimizers and input pipelines agree with the classes that they name."""

import inspect
from pkgutil import resolve_name

import pytest

import tf_cnn_benchmarks
import variable_mgr
from tf_cnn.inputs.catalog import INPUTS
from tf_cnn.inputs.pipeline import InputPipeline
from tf_cnn.managers.modes import MANAGERS, MODES, Topology
from tf_cnn.training.config import OPTIMIZERS, OptimizerConfig
from tf_cnn.training.optimizers import make_optimizer
from variable_mgr import VariableMgr

pytestmark = pytest.mark.unit


def test_each_manager_of_a_mode_is_a_class_of_both_modules():
    for path in MANAGERS.values():
        manager = resolve_name(path)
        assert issubclass(manager, VariableMgr), path
        assert not inspect.isabstract(manager), path
        assert getattr(variable_mgr, manager.__name__) is manager
        assert getattr(tf_cnn_benchmarks, manager.__name__) is manager


def test_the_prescribed_names_of_managers_are_exported():
    names = {name for name in variable_mgr.__all__ if name.startswith('VariableMgr')}
    assert names <= {*tf_cnn_benchmarks.__all__}
    assert names - {'VariableMgr'} <= {*MANAGERS}


def test_a_mode_has_a_manager_where_it_is_not_refused():
    for name, mode in MODES.items():
        topologies = {*mode.managers}
        allowed = {topology for topology in Topology if mode.refusal(topology) is None}
        assert allowed == topologies, name
        assert {*mode.staged} in (set(), topologies), name
        assert {*mode.relaxed} in (set(), topologies), name


def test_each_input_pipeline_loads():
    for row in INPUTS:
        assert issubclass(resolve_name(row.pipeline), InputPipeline), row.name


def test_the_arguments_of_an_optimizer_are_its_flags_in_order():
    for name, row in OPTIMIZERS.items():
        rule = make_optimizer(OptimizerConfig(optimizer=name))
        assert [flag.removeprefix(f'{name}_') for flag in row.arguments] == [*vars(rule)]

"""What a plan says before the run, and in its result."""

from typing import Any

import pytest

from tf_cnn.machine.process_environment import ProcessEnvironment
from tf_cnn.run.banner import make_banner
from tf_cnn.run.parsing import make_params
from tf_cnn.run.plan import Plan, make_plan
from tf_cnn.run.result_builder import run_section

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('same_environment')]


def plan_of(**flags: Any) -> Plan:
    plan = make_plan(make_params(model='resnet50', device='cpu', **flags), ProcessEnvironment({}))
    assert isinstance(plan, Plan)
    return plan


def banner(**flags: Any) -> list[str]:
    """The lines of the banner before those about the machine and the version of TensorFlow."""
    lines = make_banner(plan_of(**flags)).splitlines()
    return [line for line in lines if not line.startswith(('TensorFlow:', 'Machine:', 'GPUs:'))]


def test_the_banner_of_training() -> None:
    assert banner(batch_size=64, num_gpus=2) == [
        'Model:       resnet50',
        'Dataset:     imagenet (synthetic)',
        'Mode:        training',
        'SingleSess:  False',
        'Batch size:  128 global',
        '             64 per device',
        'Num batches: 100',
        'Num epochs:  0.01',
        "Devices:     ['/cpu:0', '/cpu:1']",
        'NUMA bind:   False',
        'Data format: NHWC',
        'Optimizer:   sgd',
        'Variables:   parameter_server',
        'Sync:        True',
        '==========',
    ]


def test_the_banner_shows_settings_that_are_not_the_defaults() -> None:
    usual = {'batch_size': 64, 'num_gpus': 2}
    flags: dict[str, Any] = {
        'variable_update': 'replicated',
        'all_reduce_spec': 'xring',
        'precision': 'bf16',
    }
    before = banner(**usual)
    assert [line for line in banner(**usual, **flags, steps_per_run=2) if line not in before] == [
        'Steps/run:   2; the steps of one session call share its time equally',
        'Precision:   bf16',
        'Variables:   replicated',
        'AllReduce:   xring',
    ]
    forward = banner(**usual, forward_only=True, freeze_when_forward_only=True, target_seconds=9)
    assert [line for line in forward if line not in before] == [
        'Mode:        forward-only',
        'Num batches: as many as take 9 seconds',
        'Num epochs:  unknown',
        'Weights:     constant, batch norm is folded',
    ]


def test_towers_that_train_models_apart_are_not_synchronous() -> None:
    modes = {'independent': False, 'replicated': True, 'parameter_server': True}
    for mode, sync in modes.items():
        assert f'Sync:        {sync}' in banner(variable_update=mode, num_gpus=2)
        assert run_section(plan_of(variable_update=mode, num_gpus=2)).sync is sync


def test_an_evaluation_has_no_input_pipeline_of_steps() -> None:
    assert run_section(plan_of(eval=True, train_dir='t')).input_pipeline is None
    assert run_section(plan_of()).input_pipeline == 'synthetic'

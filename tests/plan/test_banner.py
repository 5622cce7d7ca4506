"""The plan of a run in its banner and in its result."""

from dataclasses import replace

import pytest

from tests.support.runs import plan_of
from tf_cnn.run.banner import make_banner
from tf_cnn.run.result_builder import run_section

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('same_environment')]

COMMIT = '17d1cb91' * 5


def banner(flags: str) -> list[str]:
    """Returns the lines of the banner, without the versions and the machine."""
    lines = make_banner(plan_of(f'--model=resnet50 {flags}')).splitlines()
    varying = ('TensorFlow:', 'Commit:', 'Machine:', 'GPUs:')
    return [line for line in lines if not line.startswith(varying)]


def test_the_banner_of_training():
    assert banner('--batch_size=64 --num_gpus=2') == [
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


@pytest.mark.parametrize(
    ('commit', 'shown'),
    [
        (COMMIT, f'Commit:      {COMMIT[:12]}'),
        (f'{COMMIT}-dirty', f'Commit:      {COMMIT[:12]}-dirty'),
        (None, None),
    ],
)
def test_the_banner_has_the_commit_if_it_is_known(commit, shown):
    lines = make_banner(replace(plan_of(), git_commit=commit)).splitlines()
    assert [line for line in lines if line.startswith('Commit:')] == ([shown] if shown else [])


def test_the_banner_shows_settings_that_are_not_the_defaults():
    usual = '--batch_size=64 --num_gpus=2'
    flags = '--variable_update=replicated --all_reduce_spec=xring --precision=bf16'
    before = banner(usual)
    changed = banner(f'{usual} {flags} --steps_per_run=2')
    assert [line for line in changed if line not in before] == [
        'Steps/run:   2; the steps of one session call share its time equally',
        'Precision:   bf16',
        'Variables:   replicated',
        'AllReduce:   xring',
    ]
    assert 'AllReduce:   None' in banner(f'{usual} --variable_update=replicated')
    staged = banner(f'{usual} --staged_vars')
    assert [line for line in staged if line not in before] == ['Staged vars: True']
    forward = banner(f'{usual} --forward_only --freeze_when_forward_only --target_seconds=9')
    assert [line for line in forward if line not in before] == [
        'Mode:        forward-only',
        'Num batches: as many as take 9 seconds',
        'Num epochs:  unknown',
        'Weights:     constant, batch norm is folded',
    ]


def test_the_banner_names_the_warm_up_before_the_epochs():
    flags = '--batch_size=1000 --num_epochs=2'
    before_epochs = 'Warm-up:     10 batches (0.01 epochs) before these'
    assert {'Num epochs:  2.00', before_epochs} <= {*banner(flags)}
    for other_flags in (f'{flags} --num_warmup_batches=0', '--batch_size=1000 --num_batches=2563'):
        assert before_epochs.split(':')[0] not in ''.join(banner(other_flags))


def test_independent_towers_are_not_synchronous():
    for mode, sync in ('independent', False), ('replicated', True), ('parameter_server', True):
        flags = f'--variable_update={mode} --num_gpus=2'
        assert f'Sync:        {sync}' in banner(flags)
        assert run_section(plan_of(flags)).sync is sync


def test_an_evaluation_has_no_input_pipeline_of_steps():
    assert (
        run_section(plan_of('--eval --train_dir=t --eval_interval_secs=1')).input_pipeline is None
    )
    assert run_section(plan_of()).input_pipeline == 'synthetic'

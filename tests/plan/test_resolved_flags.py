"""Every flag that the run chooses is resolved in every mode; how a run keeps variables and sums
gradients, and whether a process runs alone.
"""

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.support.machines import TF_JOB, open_mpi, slurm_step, tf_config
from tests.support.outputs import refused
from tests.support.runs import params_of, plan_of
from tf_cnn.flags.spec import specs_of
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.managers.all_reduce_spec import SizeRange, parse_spec
from tf_cnn.managers.config import VariableConfig
from tf_cnn.managers.modes import MODES
from tf_cnn.plan.params import GROUPS, SPECS
from tf_cnn.plan.plan import make_plan

pytestmark = pytest.mark.graph


WORKERS = '--worker_hosts=10.0.0.1:1,10.0.0.2:1 --job_name=worker --task_index=0'
WITH_SERVERS = f'{WORKERS} --ps_hosts=10.0.0.3:1'
CONTROLLER = f'{WORKERS} --controller_host=10.0.0.3:1 --job_name=controller'
# The flags of one process of a cluster, by mode.
CLUSTERS = {
    'parameter_server': WITH_SERVERS,
    'distributed_replicated': WITH_SERVERS,
    'collective_all_reduce': WORKERS,
    'distributed_all_reduce': CONTROLLER,
}


def variables_of(flags: str) -> VariableConfig:
    return plan_of(flags).params.variables


def size_ranges_of(flags: str) -> Sequence[SizeRange] | None:
    plan = plan_of(flags)
    return plan.params.variables.size_ranges(plan.params)


@pytest.mark.parametrize('where', ['', WITH_SERVERS], ids=['alone', 'cluster'])
def test_variables_are_staged_if_there_are_updates(where):
    assert not variables_of(where).staged_vars
    assert variables_of(f'{where} --staged_vars').staged_vars
    assert not variables_of(f'{where} --staged_vars --forward_only').staged_vars


@pytest.mark.parametrize('mode', CLUSTERS)
def test_variables_of_16_bits_are_refused_in_clusters(mode):
    flags = f'{CLUSTERS[mode]} --variable_update={mode} --fp16_vars'
    with refused('--fp16_vars', f'--variable_update={mode}'):
        plan_of(f'{flags} --precision=bf16')
    # Without --precision the flag has no effect.
    assert variables_of(flags).variable_update == mode


def test_forward_steps_are_refused_where_workers_would_exchange_nothing():
    mode = '--variable_update=collective_all_reduce'
    with refused('--forward_only', mode):
        plan_of(f'{WORKERS} {mode} --forward_only')


CONTROLLED = f'--variable_update=distributed_all_reduce {CONTROLLER}'


@pytest.mark.parametrize(
    ('flags', 'spec'),
    [
        ('--variable_update=replicated', 'pscpu'),
        ('--variable_update=replicated --all_reduce_spec=pscpu:32k:xring', 'pscpu:32k:xring'),
        (CONTROLLED, 'xring'),
        (f'{CONTROLLED} --all_reduce_spec=psgpu', 'psgpu'),
    ],
)
def test_towers_sum_as_the_spec_says_or_by_the_default_of_the_mode(flags, spec):
    assert size_ranges_of(f'--num_gpus=2 {flags}') == parse_spec(spec)


HALVES = '--variable_update=replicated --hierarchical_copy'


def test_sums_in_two_halves_need_an_even_number_of_towers_and_the_dgx1():
    assert size_ranges_of(f'--num_gpus=4 {HALVES}') is None
    with refused('--hierarchical_copy', '--num_gpus=3', '--nohierarchical_copy'):
        plan_of(f'--num_gpus=3 {HALVES}')
    with refused('--network_topology=gcp_v100', '--nohierarchical_copy', 'dgx1'):
        plan_of(f'--num_gpus=2 --network_topology=gcp_v100 {HALVES}')


@pytest.mark.parametrize(
    'flags',
    [
        '--num_gpus=1',
        '--num_gpus=3 --variable_update=independent',
        '--num_gpus=3 --forward_only',
        '--num_gpus=2 --network_topology=gcp_v100 --forward_only',
    ],
)
def test_hierarchical_copy_is_ignored_if_nothing_is_summed(flags):
    warnings = plan_of(f'{HALVES} {flags}').warnings
    assert any(line.startswith('--hierarchical_copy') for line in warnings)


@pytest.mark.parametrize(
    ('flags', 'transfer'),
    [
        ('', None),
        ('--precision=fp16', 'float16'),
        ('--precision=bf16', 'bfloat16'),
        ('--precision=bf16 --nocompact_gradient_transfer', None),
        ('--compact_gradient_transfer', 'bfloat16'),
    ],
)
def test_gradients_travel_in_the_16_bits_of_the_precision(flags, transfer):
    plan = plan_of(f'--variable_update=replicated --num_gpus=2 {flags}')
    assert plan.params.variables.transfer_dtype(plan.params, plan.context) == transfer


def test_an_ignored_flag_does_not_change_the_effect_of_another_flag():
    flags = '--num_gpus=2 --hierarchical_copy --local_parameter_device=gpu'
    # Two halves do not use that device; the second mode has no halves.
    assert size_ranges_of(f'{flags} --variable_update=replicated') is None
    collective = size_ranges_of(f'{flags} --variable_update=collective_all_reduce')
    assert collective == parse_spec('psgpu')


ENVIRONMENTS: dict[str, tuple[dict[str, str], bool]] = {
    'no launcher': ({}, True),
    'Slurm with one task': ({'SLURM_STEP_NUM_TASKS': '1', 'PMIX_RANK': '0'}, True),
    'Slurm with several tasks': (slurm_step(1), False),
    # The daemon of mpirun is the one task of a step of Slurm.
    'Open MPI within Slurm': ({**open_mpi(1, 2, 2), 'SLURM_STEP_NUM_TASKS': '1'}, False),
    'TF_CONFIG of one process': ({'TF_CONFIG': '{}'}, True),
    'TF_CONFIG of a worker': (tf_config('worker', 1, **TF_JOB), False),
    # It gets the command line of the workers.
    'TF_CONFIG of an evaluator': (tf_config('evaluator', 0, **TF_JOB), False),
}


@pytest.mark.parametrize('case', ENVIRONMENTS)
def test_flags_of_clusters_are_ignored_in_a_process_that_runs_alone(case, tmp_path):
    environ, is_alone = ENVIRONMENTS[case]
    flags = '--model=lenet --optimizer=momentum --connect_timeout_secs=9 --device=cpu'
    params = params_of(flags, train_dir=tmp_path)
    warnings = make_plan(params, ProcessEnvironment(environ)).warnings
    ignored = [line for line in warnings if line.startswith('--connect_timeout_secs=9.0 ')]
    assert len(ignored) == is_alone
    # An evaluator gets no warning about the workers' flags.
    assert warnings == () or 'evaluator' not in case


# ---- flags ---------------------------------------------------------------------------------------


ROLES = ['', '--forward_only', '--eval --train_dir=t --eval_interval_secs=1', '--exchange_only']
# The towers of this mode exchange nothing.
IMPOSSIBLE = {('independent', '--exchange_only')}


@pytest.mark.parametrize(
    ('mode', 'role'), sorted({*itertools.product({*MODES} - {'horovod'}, ROLES)} - IMPOSSIBLE)
)
def test_each_flag_that_a_run_chooses_has_a_value(mode, role):
    # The flags of the modes that need several processes.
    processes = {
        'distributed_replicated': WITH_SERVERS,
        'distributed_all_reduce': CONTROLLER,
    }
    plan = plan_of(f'--model=trivial --variable_update={mode} {processes.get(mode, "")} {role}')
    resolved = plan.params.values()
    chosen_flags = [name for name, spec in SPECS.items() if spec.chosen]
    assert not [name for name in chosen_flags if resolved[name] is None]
    assert all(resolved[name] for name in chosen_flags if SPECS[name].unit == 'images')


def test_no_flag_is_declared_twice():
    names = Counter(name for group in GROUPS.values() for name in specs_of(group))
    assert not [name for name, count in names.items() if count > 1]

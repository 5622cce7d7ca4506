"""Every flag that the run chooses is resolved in every mode, and every flag has one home."""

import itertools
from collections import Counter

import pytest

from tests.support.runs import plan_of
from tf_cnn.flags.spec import specs_of
from tf_cnn.managers.modes import MODES
from tf_cnn.plan.params import GROUPS, SPECS

WORKERS = '--worker_hosts=10.0.0.1:1,10.0.0.2:1'
ROLES = ['', '--forward_only', '--eval --train_dir=t --eval_interval_secs=1', '--exchange_only']
# The towers of this mode exchange nothing.
IMPOSSIBLE = {('independent', '--exchange_only')}


@pytest.mark.graph
@pytest.mark.parametrize(
    ('mode', 'role'), sorted({*itertools.product({*MODES} - {'horovod'}, ROLES)} - IMPOSSIBLE)
)
def test_each_flag_that_a_run_chooses_has_a_value(mode, role):
    # The flags of the modes that need several processes.
    processes = {
        'distributed_replicated': f'{WORKERS} --job_name=worker --ps_hosts=10.0.0.3:1',
        'distributed_all_reduce': f'{WORKERS} --job_name=controller --controller_host=10.0.0.3:1',
    }
    plan = plan_of(f'--model=trivial --variable_update={mode} {processes.get(mode, "")} {role}')
    resolved = plan.params.values()
    chosen_flags = [name for name, spec in SPECS.items() if spec.chosen]
    assert not [name for name in chosen_flags if resolved[name] is None]
    assert all(resolved[name] for name in chosen_flags if SPECS[name].unit == 'images')


@pytest.mark.unit
def test_no_flag_is_declared_twice():
    names = Counter(name for group in GROUPS.values() for name in specs_of(group))
    assert not [name for name, count in names.items() if count > 1]

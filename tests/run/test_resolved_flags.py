"""Every flag that the run chooses is resolved in every mode, and every flag has one home."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tf_cnn.flags.spec import specs_of
from tf_cnn.machine.process_environment import ProcessEnvironment
from tf_cnn.managers.modes import MODES
from tf_cnn.run.params import GROUPS, SPECS
from tf_cnn.run.parsing import make_params
from tf_cnn.run.plan import Plan, make_plan

WORKERS = {'worker_hosts': '10.0.0.1:1,10.0.0.2:1', 'job_name': 'worker'}
# The processes of the modes that do not run in one.
PROCESSES: dict[str, dict[str, Any]] = {
    'distributed_replicated': {**WORKERS, 'ps_hosts': '10.0.0.3:1'},
    'distributed_all_reduce': {
        **WORKERS,
        'controller_host': '10.0.0.3:1',
        'job_name': 'controller',
    },
}
ROLES: dict[str, dict[str, Any]] = {
    'training': {},
    'forward-only': {'forward_only': True},
    'evaluation': {'eval': True},
    'exchange-only': {'exchange_only': True},
}


# The towers of this mode exchange nothing.
IMPOSSIBLE = {('independent', 'exchange-only')}


@pytest.mark.graph
@pytest.mark.parametrize(
    ('mode', 'role'),
    sorted(
        {*itertools.product(MODES, ROLES)} - IMPOSSIBLE - {*itertools.product(['horovod'], ROLES)}
    ),
)
def test_each_flag_that_a_run_chooses_has_a_value(mode: str, role: str, tmp_path: Path) -> None:
    flags = ROLES[role]
    if role == 'evaluation':
        flags = {**flags, 'train_dir': str(tmp_path)}
    params = make_params(
        model='trivial', device='cpu', variable_update=mode, **PROCESSES.get(mode, {}), **flags
    )
    plan = make_plan(params, ProcessEnvironment({}))
    assert isinstance(plan, Plan)
    resolved = plan.params.values()
    assert not [
        name
        for name, spec in SPECS.items()
        if spec.chosen
        and (resolved[name] is None or (spec.unit == 'images' and not resolved[name]))
    ]


@pytest.mark.unit
def test_no_flag_is_declared_twice() -> None:
    names = Counter(name for group in GROUPS.values() for name in specs_of(group))
    assert not [name for name, count in names.items() if count > 1]

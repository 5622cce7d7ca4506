"""Whether a process is alone, to the warnings about its flags: the cluster that it finds decides."""

from pathlib import Path

import pytest

from params import make_params
from planning.environment import Environment
from planning.make_plan import make_plan
from tests.support.machines import TF_JOB, open_mpi, pmix, slurm_step, tf_config

pytestmark = pytest.mark.graph

ENVIRONMENTS: dict[str, tuple[dict[str, str], bool]] = {
    'no launcher': ({}, True),
    'Slurm with one task': ({'SLURM_STEP_NUM_TASKS': '1', 'PMIX_RANK': '0'}, True),
    'Slurm with several tasks': (slurm_step(1), False),
    # The daemon of mpirun is the one task of a step of Slurm.
    'Open MPI within Slurm': ({**open_mpi(1, 2, 2), 'SLURM_STEP_NUM_TASKS': '1'}, False),
    # PMIx does not say how many processes there are; other ranks than the first fail.
    'PMIx': (pmix(0), True),
    'TF_CONFIG of one process': ({'TF_CONFIG': '{}'}, True),
    'TF_CONFIG of a worker': (tf_config('worker', 1, **TF_JOB), False),
    # It gets the command line of the others.
    'TF_CONFIG of an evaluator': (tf_config('evaluator', 0, **TF_JOB), False),
}


@pytest.mark.parametrize('case', ENVIRONMENTS)
def test_flags_of_clusters_have_no_effect_in_a_process_that_finds_no_others(case: str, tmp_path: Path) -> None:
    environ, is_alone = ENVIRONMENTS[case]
    params = make_params(model='lenet', device='cpu', connect_timeout_secs=9.0, train_dir=str(tmp_path))
    warnings = make_plan(params, Environment(environ)).warnings
    assert [line.startswith('--connect_timeout_secs=9.0 ') for line in warnings].count(True) == is_alone


def test_an_evaluator_of_others_is_not_warned_of_their_flags(tmp_path: Path) -> None:
    params = make_params(model='lenet', device='cpu', optimizer='momentum', train_dir=str(tmp_path))
    assert make_plan(params, Environment(tf_config('evaluator', 0, **TF_JOB))).warnings == ()

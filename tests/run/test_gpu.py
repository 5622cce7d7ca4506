"""What `doctor` checks on GPUs; and training on GPUs has the losses of training on CPUs, in every local mode.

Each check and each run has a process of its own, since TensorFlow keeps the memory of GPUs until a process ends.
"""

import functools

import pytest
import tensorflow.compat.v1 as tf

from doctor.benchmarks import losses_of, run_program
from doctor.check_runner import find_patience, run_checks, why_not
from doctor.check_table import CHECKS, Check, Needs
from doctor.verdicts import Outcome

NUM_GPUS = len(tf.config.list_physical_devices('GPU'))
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS == 0, reason='there is no GPU')]

DEADLINE_SECS = 300


patience_here = functools.cache(find_patience)


@pytest.mark.parametrize('check', [row for row in CHECKS if row.needs is not Needs.CPU], ids=lambda row: row.name)
def test_doctor_finds_nothing_wrong(check: Check) -> None:
    if why := why_not(check.needs, None, NUM_GPUS):
        pytest.skip(why)
    (found,) = run_checks([check], NUM_GPUS, patience=patience_here())
    lines = [found.verdict.found, found.verdict.advice or '', *found.log]
    assert found.verdict.outcome is not Outcome.WRONG, '\n'.join(lines)


@functools.cache
def losses(*flags: str) -> list[float]:
    few_steps = ('--model=lenet', '--batch_size=8', '--num_batches=3', '--num_warmup_batches=1')
    (found,) = losses_of(run_program([*few_steps, *flags], DEADLINE_SECS))
    return found


@pytest.mark.parametrize('data_format', ['NCHW', 'NHWC'])
@pytest.mark.parametrize(
    'mode',
    [
        ('--variable_update=parameter_server', '--local_parameter_device=cpu'),
        ('--variable_update=parameter_server', '--local_parameter_device=gpu'),
        ('--variable_update=replicated',),
    ],
    ids=str,
)
def test_a_gpu_trains_as_a_cpu_does(mode: tuple[str, ...], data_format: str) -> None:
    on_gpu = losses('--device=gpu', '--notf32', f'--data_format={data_format}', *mode)
    assert on_gpu == pytest.approx(losses('--device=cpu'), rel=1e-3)


@pytest.mark.skipif(NUM_GPUS < 2, reason='needs two GPUs')
@pytest.mark.parametrize('spec', ['nccl', 'psgpu', 'pscpu', 'xring', 'pscpu:2k:nccl'])
def test_every_all_reduce_algorithm_on_two_gpus_has_the_losses_of_cpus(spec: str) -> None:
    flags = ('--device=gpu', '--notf32', '--num_gpus=2', '--variable_update=replicated', f'--all_reduce_spec={spec}')
    assert losses(*flags) == pytest.approx(losses('--device=cpu', '--num_gpus=2'), rel=1e-3)

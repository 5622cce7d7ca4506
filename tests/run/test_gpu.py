"""The checks of `doctor` pass on GPUs, and training on GPUs has the losses of training on CPUs.

Each family of checks and each run has its own process, since TensorFlow keeps the memory of GPUs
until a process ends.
"""

import functools
import tempfile
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from tests.support.programs import run
from tests.support.runs import document_in
from tf_cnn.doctor.check_process import FAMILIES
from tf_cnn.doctor.families import run_family
from tf_cnn.machine.findings import WRONG

NUM_GPUS = len(tf.config.list_physical_devices('GPU'))
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS == 0, reason='there is no GPU')]


@pytest.mark.parametrize('family', FAMILIES)
def test_doctor_finds_nothing_wrong(family):
    # On some GPUs the driver first compiles all kernels.
    findings, log = run_family(family, 3600)
    assert [finding for finding in findings if finding.outcome == WRONG] == [], '\n'.join(log)


@functools.cache
def losses(flags: str, cluster: str = '') -> list[float]:
    """Returns the losses of the chief."""
    few_steps = '--model=lenet --batch_size=8 --num_batches=3 --num_warmup_batches=1'
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, 'result.json')
        finished = run(f'{cluster} {few_steps} {flags} --result_file={result}')
        assert finished.code == 0, finished.err
        worker_losses: list[float] = document_in(result)['workers'][0]['steps']['loss']
        return worker_losses


@pytest.mark.parametrize('data_format', ['NCHW', 'NHWC'])
@pytest.mark.parametrize(
    'mode',
    [
        '--variable_update=parameter_server --local_parameter_device=cpu',
        '--variable_update=parameter_server --local_parameter_device=gpu',
        '--variable_update=replicated',
    ],
)
def test_a_gpu_trains_as_a_cpu_does(mode, data_format):
    on_gpu = losses(f'--device=gpu --notf32 --data_format={data_format} {mode}')
    assert on_gpu == pytest.approx(losses('--device=cpu'), rel=1e-3)


@pytest.mark.skipif(NUM_GPUS < 2, reason='needs two GPUs')
@pytest.mark.parametrize('spec', ['nccl', 'psgpu', 'pscpu', 'xring', 'pscpu:2k:nccl'])
def test_every_all_reduce_algorithm_on_two_gpus_has_the_losses_of_cpus(spec):
    flags = f'--notf32 --num_gpus=2 --variable_update=replicated --all_reduce_spec={spec}'
    on_gpus = losses(f'--device=gpu {flags}')
    assert on_gpus == pytest.approx(losses('--device=cpu --num_gpus=2'), rel=1e-3)


@pytest.mark.skipif(NUM_GPUS < 2, reason='needs two GPUs')
def test_two_processes_with_a_gpu_each_have_the_losses_of_one():
    flags = '--device=gpu --notf32'
    of_two = losses(
        f'{flags} --variable_update=collective_all_reduce --nodistinct_worker_data',
        'cluster --workers=2 --',
    )
    assert of_two == pytest.approx(losses(flags), rel=2e-3)

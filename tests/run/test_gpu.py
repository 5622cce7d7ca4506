"""Training on GPUs has the losses of training on CPUs, in every local mode and by every all-reduce algorithm."""

from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from params import make_params

NUM_GPUS = len(tf.config.list_physical_devices('GPU'))
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS == 0, reason='there is no GPU')]


def losses(**overrides: Any) -> list[float]:
    settings = {'model': 'lenet', 'batch_size': 8, 'num_batches': 3, 'num_warmup_batches': 1, **overrides}
    # TensorFlow keeps one number of threads for all runs of a process; by default those of GPUs and CPUs differ.
    settings |= {'num_intra_threads': 1, 'tf32': False}
    return [step.values.loss for step in BenchmarkCNN(make_params(**settings)).run().steps]


@pytest.mark.parametrize('data_format', ['NCHW', 'NHWC'])
@pytest.mark.parametrize(
    'mode',
    [
        {'variable_update': 'parameter_server', 'local_parameter_device': 'cpu'},
        {'variable_update': 'parameter_server', 'local_parameter_device': 'gpu'},
        {'variable_update': 'replicated'},
    ],
    ids=str,
)
def test_a_gpu_trains_as_a_cpu_does(mode: dict[str, Any], data_format: str) -> None:
    on_gpu = losses(device='gpu', data_format=data_format, **mode)
    assert on_gpu == pytest.approx(losses(device='cpu'), rel=1e-3)


@pytest.mark.skipif(NUM_GPUS < 2, reason='needs two GPUs')
@pytest.mark.parametrize('spec', ['nccl', 'psgpu', 'pscpu', 'xring', 'pscpu:2k:nccl'])
def test_every_all_reduce_algorithm_on_two_gpus_has_the_losses_of_cpus(spec: str) -> None:
    replicated = losses(device='gpu', num_gpus=2, variable_update='replicated', all_reduce_spec=spec)
    assert replicated == pytest.approx(losses(device='cpu', num_gpus=2), rel=1e-3)

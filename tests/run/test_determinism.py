"""--deterministic: the same seed gives the same losses bit for bit, in one process and in two fresh
ones.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.layers import LayerBuilder
from models.registry import register_model
from tests.support.images import write_cifar, write_noise
from tests.support.outputs import refused
from tests.support.runs import losses, made
from tf_cnn.run.params import RuleContext
from tf_cnn.run.parsing import make_params

pytestmark = [pytest.mark.graph, pytest.mark.long]

MODES: list[dict[str, Any]] = [
    {'num_gpus': 3},
    {'num_gpus': 2, 'staged_vars': True, 'precision': 'bf16'},
    {'num_gpus': 2, 'variable_update': 'independent', 'optimizer': 'rmsprop'},
    {'num_gpus': 3, 'variable_update': 'replicated', 'all_reduce_spec': 'pscpu#2:1k:xring'},
    {'num_gpus': 2, 'variable_update': 'replicated', 'hierarchical_copy': True},
    {
        'num_gpus': 2,
        'variable_update': 'replicated',
        'variable_consistency': 'relaxed',
        'data_format': 'NCHW',
    },
]
OF_RECORDS: dict[str, Any] = {
    'model': 'network_of_imagenet', 'num_gpus': 2, 'distortions': True,
    'eval_during_training_every_n_steps': 2, 'num_eval_batches': 1,
}  # fmt: skip


def network(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 16, 5, 'first', strides=2, use_bias=False), 'norm'))
    x = cnn.relu(cnn.conv(cnn.drop_path(cnn.dropout(x, 0.3), 0.1), 32, 3, 'second', strides=2))
    x = cnn.dropout(cnn.relu(cnn.dense(cnn.flatten(x), 32, 'hidden')), 0.5)
    return cnn.dense(x, num_classes, 'logits')


def exact_losses(**flags: Any) -> list[str]:
    return [loss.hex() for loss in losses(deterministic=True, **flags)]


def main(folder: str, modes: str) -> None:
    """Runs in every local mode, and prints the losses as JSON, by the settings of the run."""
    for data_set, size in (('cifar10', 32), ('imagenet', 64)):
        name = f'network_of_{data_set}'
        register_model(
            name, network, data_set=data_set, image_size=size, batch_size=4, learning_rate=0.05
        )
    rows: list[dict[str, Any]] = [
        *(
            {'model': 'network_of_cifar10', **mode}
            for mode in (MODES if modes == 'all' else [MODES[0], MODES[3]])
        ),
        *([{'model': 'network_of_cifar10', 'measure_peak': True}] if modes == 'all' else []),
        {'model': 'network_of_cifar10', 'data_dir': f'{folder}/cifar'},
        {**OF_RECORDS, 'data_dir': f'{folder}/records'},
    ]
    found = {str(row).replace(folder, ''): exact_losses(**row) for row in rows}
    found['again'] = exact_losses(**rows[0])
    found['another seed'] = exact_losses(**rows[0], tf_random_seed=5)
    # TensorFlow keeps it until the process ends.
    with refused('--deterministic=False', '--deterministic=True'):
        made(model='network_of_cifar10')
    print(json.dumps(found))


@pytest.mark.parametrize('modes', ['few', pytest.param('all', marks=pytest.mark.all_modes)])
def test_two_processes_compute_the_same_losses_bit_for_bit(tmp_path: Path, modes: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, [64, 32, 32, 3], np.uint8)
    write_cifar(tmp_path / 'cifar', images, np.arange(64) % 10)
    (tmp_path / 'records').mkdir()
    write_noise(tmp_path / 'records', 12)
    command = [
        sys.executable,
        '-c',
        f'from tests.run.test_determinism import main; main({str(tmp_path)!r}, {modes!r})',
    ]
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        for _ in range(2)
    ]
    found = []
    for process in processes:
        out, err = process.communicate(timeout=900)
        assert process.returncode == 0, err.decode()[-3000:]
        found.append(json.loads(out))
    assert found[0] == found[1]
    first = found[0][str({'model': 'network_of_cifar10', 'num_gpus': 3})]
    assert found[0]['again'] == first != found[0]['another seed']
    assert all(len(set(losses)) == len(losses) == 4 for losses in found[0].values())


def test_a_cluster_must_sum_in_one_order() -> None:
    in_a_cluster = RuleContext(is_single_process=False, is_residual=False)
    for mode in ('parameter_server', 'distributed_replicated', 'horovod'):
        with refused(
            '--deterministic',
            f'--variable_update={mode}',
            '--variable_update=collective_all_reduce',
        ):
            make_params(deterministic=True, variable_update=mode).check(in_a_cluster)
    for mode in ('collective_all_reduce', 'distributed_all_reduce'):
        make_params(deterministic=True, variable_update=mode).check(in_a_cluster)
    # Nothing is summed.
    make_params(deterministic=True, forward_only=True).check(in_a_cluster)

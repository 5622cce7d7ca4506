"""--deterministic: the same seed gives the same losses bit for bit, in one process and in two."""

import json
import sys
from typing import Any

import numpy as np
import pytest

from models.layers import LayerBuilder
from models.registry import register_model
from tests.support.images import write_cifar, write_noise
from tests.support.outputs import refused
from tests.support.programs import ROOT, launched
from tests.support.runs import losses, make_benchmark, params_of
from tf_cnn.plan.params import RuleContext

pytestmark = [pytest.mark.graph, pytest.mark.long]

NETWORK = '--model=network_of_cifar10'
MODES = [
    f'{NETWORK} --num_gpus=3 --data_dir=cifar',
    f'{NETWORK} --num_gpus=3 --variable_update=replicated --all_reduce_spec=pscpu#2:1k:xring',
    '--data_dir=records --model=network_of_imagenet --num_gpus=2 --distortions '
    '--eval_during_training_every_n_steps=2 --num_eval_batches=1',
]


def network(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 16, 5, 'first', strides=2, use_bias=False), 'norm'))
    x = cnn.relu(cnn.conv(cnn.drop_path(cnn.dropout(x, 0.3), 0.1), 32, 3, 'second', strides=2))
    x = cnn.dropout(cnn.relu(cnn.dense(cnn.flatten(x), 32, 'hidden')), 0.5)
    return cnn.dense(x, num_classes, 'logits')


def main(*flags_of_runs: str) -> None:
    """Prints the losses of each run as JSON."""
    for data_set, size in (('cifar10', 32), ('imagenet', 64)):
        name = f'network_of_{data_set}'
        register_model(
            name, network, data_set=data_set, image_size=size, batch_size=4, learning_rate=0.05
        )
    runs = [losses(f'--deterministic {flags}') for flags in flags_of_runs]
    # As hexadecimal digits losses are exact.
    print(json.dumps([[loss.hex() for loss in run] for run in runs]))
    # TensorFlow keeps this setting until the process ends.
    with refused('--deterministic=False', '--deterministic=True'):
        make_benchmark(NETWORK)


def test_two_processes_compute_the_same_losses_bit_for_bit(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, [64, 32, 32, 3], np.uint8)
    write_cifar(tmp_path / 'cifar', images, np.arange(64) % 10)
    (tmp_path / 'records').mkdir()
    write_noise(tmp_path / 'records', 12)
    script = tmp_path / 'script.py'
    script.write_text(
        f'import sys; sys.path.insert(0, {str(ROOT)!r})\n'
        'from tf_cnn.graph.tensorflow_import import import_tensorflow\n'
        'import_tensorflow()\nfrom tests.run.test_determinism import main\nmain(*sys.argv[1:])\n'
    )
    logs = [tmp_path / 'forked', tmp_path / 'fresh']
    for folder in logs:
        folder.mkdir()
    repeated = [MODES[0], f'{MODES[0]} --tf_random_seed=5']
    command = [sys.executable, str(script), *MODES]
    # Python's hashes have another seed in each of these processes.
    with (
        launched([*command, *repeated], logs[0], cwd=tmp_path) as forked,
        launched(command, logs[1], fresh=True, cwd=tmp_path) as fresh,
    ):
        for process in (forked, fresh):
            assert process.has_ended()
            assert process.exit_code == 0
    *losses_in_fork, again, with_another_seed = json.loads(forked.out)
    assert losses_in_fork == json.loads(fresh.out)
    assert again == losses_in_fork[0] != with_another_seed
    assert all(len(set(losses)) == len(losses) == 4 for losses in losses_in_fork)


def test_a_cluster_must_sum_in_one_order():
    in_a_cluster = RuleContext(is_single_process=False, is_residual=False)
    deterministic = '--deterministic --variable_update='
    for mode in ('parameter_server', 'distributed_replicated', 'horovod'):
        facts = ('--deterministic', f'--variable_update={mode}', 'collective_all_reduce')
        with refused(*facts):
            params_of(deterministic + mode).check(in_a_cluster)
    for mode in ('collective_all_reduce', 'distributed_all_reduce'):
        params_of(deterministic + mode).check(in_a_cluster)
    # A forward pass sums nothing.
    params_of('--deterministic --forward_only').check(in_a_cluster)

"""Runs with --deterministic in every local mode, and prints the exact losses as JSON, by the settings of the run.

Its arguments: a folder that contains records/ and cifar/; and `all`, or `few` of the modes.
"""

import json
import sys
from typing import Any

from benchmark_cnn import BenchmarkCNN
from errors import UsageError
from models.layers import LayerBuilder
from models.registry import register_model
from params import make_params

MODES: list[dict[str, Any]] = [
    {'num_gpus': 3},
    {'num_gpus': 2, 'staged_vars': True, 'precision': 'bf16'},
    {'num_gpus': 2, 'variable_update': 'independent', 'optimizer': 'rmsprop'},
    {'num_gpus': 3, 'variable_update': 'replicated', 'all_reduce_spec': 'pscpu#2:1k:xring'},
    {'num_gpus': 2, 'variable_update': 'replicated', 'hierarchical_copy': True},
    {'num_gpus': 2, 'variable_update': 'replicated', 'variable_consistency': 'relaxed', 'data_format': 'NCHW'},
]


EVALUATES = {'eval_during_training_every_n_steps': 2, 'num_eval_batches': 1}


def network(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 16, 5, 'first', strides=2, use_bias=False), 'norm'))
    x = cnn.relu(cnn.conv(cnn.drop_path(cnn.dropout(x, 0.3), 0.1), 32, 3, 'second', strides=2))
    x = cnn.dropout(cnn.relu(cnn.dense(cnn.flatten(x), 32, 'hidden')), 0.5)
    return cnn.dense(x, num_classes, 'logits')


def losses(**flags: Any) -> list[str]:
    params = make_params(device='cpu', deterministic=True, num_batches=3, num_warmup_batches=1, **flags)
    return [step.values.loss.hex() for step in BenchmarkCNN(params).run().steps]


def main(folder: str, modes: str) -> None:
    for data_set, size in (('cifar10', 32), ('imagenet', 64)):
        name = f'network_of_{data_set}'
        register_model(name, network, data_set=data_set, image_size=size, batch_size=4, learning_rate=0.05)
    rows: list[dict[str, Any]] = [
        *({'model': 'network_of_cifar10', **mode} for mode in (MODES if modes == 'all' else [MODES[0], MODES[3]])),
        *([{'model': 'network_of_cifar10', 'measure_peak': True}] if modes == 'all' else []),
        {'model': 'network_of_cifar10', 'data_dir': f'{folder}/cifar'},
        {
            'model': 'network_of_imagenet',
            'data_dir': f'{folder}/records',
            'num_gpus': 2,
            'distortions': True,
            **EVALUATES,
        },
    ]
    found = {str(row).replace(folder, ''): losses(**row) for row in rows}
    found['again'] = losses(**rows[0])
    found['another seed'] = losses(**rows[0], tf_random_seed=5)
    try:
        BenchmarkCNN(make_params(model='network_of_cifar10', device='cpu'))
    except UsageError as error:
        found['without'] = [str(error)]
    print(json.dumps(found))


if __name__ == '__main__':
    main(*sys.argv[1:])

"""`tf_cnn_benchmarks.py predict`: predicts the throughput of larger clusters and other models.

Does not import TensorFlow.
"""

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.compare.config import PredictOptions
from tf_cnn.compare.predict import read_network
from tf_cnn.compare.prediction_rows import (
    NO_RULE,
    PREDICTION_COLUMNS,
    predict_rows,
    prediction_document,
    read_measurements,
    select_workloads,
)
from tf_cnn.flags.spec import parse_numbers
from tf_cnn.results.tables import Table, abbreviate, print_table
from tf_cnn.system.errors import UsageError, format_flag, warn

DECLARATION = Declaration(
    'predict',
    PredictOptions,
    examples=(
        'results/ --num_gpus=8',
        'resnet50_on_8.json vgg16_on_1.json --model=vgg16 --num_gpus=8',
        'result.json --network=10Gbit --workers=2,4,8',
        'result.json sweep-exchange-20261122-080000/ --workers=2,4',
    ),
    details='predict starts no run. Results on several devices give a throughput with a 95 % '
    'interval. One device and a link give a lower and an upper bound of the throughput. The rate '
    'of the link is --network, or comes from runs with --exchange_only, such as the runs of '
    '`sweep exchange`. docs/compare.md explains the rules.',
    positional='A result, or a folder with results.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[PredictOptions]) -> int:
    options = arguments.options
    network = None if options.network is None else read_network(options.network)
    workers = _read_numbers('workers', options.workers)
    gpus = _read_numbers('num_gpus', options.num_gpus)
    measurements = read_measurements(arguments.positional)
    warn(*measurements.problems)
    if not measurements.workloads:
        raise UsageError(
            f'{abbreviate(arguments.positional)}: no training run that predict can use; add the '
            'result of training on one device'
        )
    workloads = select_workloads(measurements.workloads, options.model)
    rows = predict_rows(measurements, workloads, workers, gpus, network)
    if all(row.rule == NO_RULE for row in rows):
        raise UsageError(
            'predict: the results say nothing about these devices; use --network=10Gbit for '
            'several workers, or add results on two numbers of devices, of another model on these '
            'devices, or with --exchange_only'
        )
    print_table(
        Table(PREDICTION_COLUMNS, rows),
        options.format,
        prediction_document(rows),
        measurements.notes,
    )
    return 0


def _read_numbers(name: str, text: str | None) -> list[int]:
    try:
        return list(dict.fromkeys(parse_numbers(text, int)))
    except ValueError:
        problem = 'use integers above 0, separated by commas, such as 2,4,8'
        raise UsageError(f'{format_flag(name, text)}: {problem}') from None

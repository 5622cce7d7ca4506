"""`tf_cnn_benchmarks.py records`: makes or checks TFRecord shards. Does not import TensorFlow."""

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.convert.check import check_folder
from tf_cnn.convert.config import RecordsOptions
from tf_cnn.convert.write_folder import write_folder
from tf_cnn.inputs.data_sets import SUBSETS
from tf_cnn.system.errors import UsageError

_CHECK_FLAGS = {'check', 'subset', 'num_processes'}


DECLARATION = Declaration(
    'records',
    RecordsOptions,
    usage='[--flag=value ...]',
    examples=(
        '--input=photos --output=shards --validation=0.1',
        '--input=photos/train --output=shards --shards=128',
        '--input=photos/val --output=shards --shards=16 --subset=validation',
        '--check=shards',
    ),
    details='Classes are numbered in the order of their folder names: line i of labels.txt, '
    'counted from 0, names label i. A class folder without an image has a label too. A model '
    'trained on the folder has as many classes as labels.txt has lines. Writing shards needs '
    'Pillow, which the extra [records] installs; --check does not.',
)


@DECLARATION.main
def main(arguments: Arguments[RecordsOptions]) -> int:
    options, given_flags = arguments.options, arguments.given_flags
    if options.check is None:
        return write_folder(options)
    if write_flags := sorted(given_flags - _CHECK_FLAGS):
        raise UsageError(
            f'--check={options.check}: --{write_flags[0]} is only for writing shards; '
            'remove one of them'
        )
    return check_folder(
        options.check,
        [options.subset] if 'subset' in given_flags else list(SUBSETS),
        options.num_processes,
    )

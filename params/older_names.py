"""Translates flags of the original and of older versions that have another name here."""

from collections.abc import Mapping

from errors import Refusals, format_flag
from inputs.catalog import RECORD_INPUT, TF_DATA
from params.spec import OTHER, FlagSpec, Value

OLDER_NAMES: Mapping[str, FlagSpec] = {
    spec.name: spec
    for spec in (
        FlagSpec(
            'learning_rate',
            float,
            optional=True,
            lower_bound=0,
            help='The learning rate: --learning_rate is --init_learning_rate.',
            original=OTHER,
        ),
        FlagSpec(
            'use_nccl',
            bool,
            optional=True,
            help='Sum gradients by NCCL: --use_nccl is --all_reduce_spec=nccl.',
            original=OTHER,
        ),
        FlagSpec('use_datasets', bool, optional=True, help='Read images by tf.data instead of RecordInput.'),
        FlagSpec('use_fp16', bool, optional=True, help='Compute in 16 bits: --use_fp16 is --precision=fp16.'),
        FlagSpec('xla_compile', bool, optional=True, help='Compile the model by XLA: --xla_compile is --xla.'),
    )
}

# What other programs call these flags.
ELSEWHERE = {'lr': 'init_learning_rate', 'gpus': 'num_gpus', 'epochs': 'num_epochs', 'steps': 'num_batches'}
# Flags that earlier versions of this program had, and what to do instead.
LEFT: Mapping[str, str] = {
    'until_interval': 'write the number of runs: sweep --repeats=N, compare --run --rounds=N',
    'all': 'leave it out: compare prints every row',
    'run_spread': 'a verdict needs three runs of both settings: --repeat=3, or compare --run=FLAGS --run=FLAGS',
    'history': 'write --result_file=FOLDER/{date}-{time}.json, and judge a run by compare RESULT --against=FOLDER',
    'shared_memory': 'leave it out: workers on one host send gradients as workers on two hosts do',
}


def replace_older_names(older: Mapping[str, Value], values: dict[str, Value]) -> dict[str, str]:
    """Adds the values that flags of OLDER_NAMES set to `values`, which are those of our flags.

    Returns the text in which each added flag was written, by our name. Raises UsageError if flags contradict others.
    """
    as_written, refusals = {}, Refusals()
    rate = older.get('learning_rate')
    if rate is not None:
        if values.get('init_learning_rate') not in (None, rate):
            refusals.add(_clash('learning_rate', rate, 'init_learning_rate', values))
        values['init_learning_rate'] = rate
        as_written['init_learning_rate'] = format_flag('learning_rate', rate)
    use_nccl = older.get('use_nccl')
    if use_nccl is not None:
        spec = values.get('all_reduce_spec')
        if spec is not None and ('nccl' in str(spec)) != use_nccl:
            refusals.add(_clash('use_nccl', use_nccl, 'all_reduce_spec', values))
        if use_nccl and spec is None:
            values['all_reduce_spec'] = 'nccl'
            as_written['all_reduce_spec'] = format_flag('use_nccl', use_nccl)
    use_fp16 = older.get('use_fp16')
    if use_fp16 is not None:
        precision = values.get('precision')
        if precision is not None and (precision == 'fp16') != use_fp16:
            refusals.add(_clash('use_fp16', use_fp16, 'precision', values))
        if use_fp16:
            values['precision'] = 'fp16'
            as_written['precision'] = format_flag('use_fp16', use_fp16)
    use_datasets = older.get('use_datasets')
    if use_datasets is not None:
        pipeline = TF_DATA if use_datasets else RECORD_INPUT
        if values.get('input_pipeline') not in (None, pipeline):
            refusals.add(_clash('use_datasets', use_datasets, 'input_pipeline', values))
        values['input_pipeline'] = pipeline
        as_written['input_pipeline'] = format_flag('use_datasets', use_datasets)
    xla_compile = older.get('xla_compile')
    # The original has both flags, as two ways to compile, so one of them may be off.
    if xla_compile and not values.get('xla'):
        values['xla'] = True
        as_written['xla'] = format_flag('xla_compile', xla_compile)
    refusals.raise_all()
    return as_written


def _clash(older: str, value: Value, name: str, values: Mapping[str, Value]) -> str:
    written = format_flag(name, values[name])
    return f'{format_flag(older, value)} contradicts {written}; it is the older name of --{name}: leave it out'

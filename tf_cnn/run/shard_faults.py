"""Faults of a run, mostly in its shards, that TensorFlow reports badly or not at all."""

import shlex
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from tf_cnn.graph.op_errors import error_cause
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.framing import RUN_SCAN_SECS, file_states, scan_shards
from tf_cnn.inputs.layout import DATASET_INFO_FILE
from tf_cnn.machine.tensorflow_build import explain_kernel_fault
from tf_cnn.plan.plan import Plan
from tf_cnn.system.errors import RunError, plural

# The errors that TensorFlow raises for bad records.
_RECORD_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)


def explain_fault(
    error: tf.errors.OpError,
    plan: Plan,
    *,
    is_evaluating: bool,
) -> str:
    """Returns TensorFlow's message in one line, with the flag or GPU that explains it."""
    shards, batch_size = plan.data.shards, f'--batch_size={plan.params.run.batch_size}'
    if is_evaluating:
        shards = plan.data.validation_shards or shards
        batch_size = f'--eval_batch_size={plan.params.evaluation.eval_batch_size}'
    cause = error_cause(error)
    line = f'{type(error).__name__}: {cause}'
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return f'{batch_size}: out of memory; use a smaller one ({cause})'
    if kernel_fault := explain_kernel_fault(error.message):
        return f'{kernel_fault} ({cause})'
    if shards is None or not isinstance(error, _RECORD_ERRORS):
        return line
    check = shlex.join(['records', f'--check={plan.params.data.data_dir}'])
    return (
        f'--data_dir={plan.params.data.data_dir}: {line}; if a record is the cause, '
        f'tf_cnn_benchmarks {check} names it'
    )


def to_tensorflow_error(error: UnicodeDecodeError) -> tf.errors.OpError:
    """Returns the error that session.run failed to raise because its message is not UTF-8.

    The message quotes bytes of a damaged record.
    """
    return tf.errors.InvalidArgumentError(
        None, None, bytes(error.object).decode(errors='backslashreplace')
    )


def check_record_lengths(shards: Shards | None, warn: Callable[[str], None]) -> None:
    """Checks for faults in shards that TensorFlow does not report.

    TensorFlow crashes with signal 11 when it reads a wrong record length. It silently ignores the
    rest of a shard that was cut, and waits for ever if no other record is left.

    Raises:
      RunError: a record length is wrong, or records are missing.
    """
    if shards is None:
        return
    scan = shards.scan
    if scan is None or scan.file_states != file_states(shards.paths):
        scan = scan_shards(shards.paths, RUN_SCAN_SECS)
    if scan.fault:
        raise RunError(scan.fault)
    if scan.num_unfinished:
        warn(
            f'the record lengths of {scan.num_unfinished} of the {shards.subset} shards could not '
            f'be checked within {RUN_SCAN_SECS:.0f} s; tf_cnn_benchmarks records --check '
            'checks all'
        )
    elif shards.num_expected_images not in (None, scan.num_records):
        raise RunError(
            f'{shards.folder / DATASET_INFO_FILE}: it says that there are '
            f'{shards.num_expected_images:,} {shards.subset} images, and the shards hold '
            f'{scan.num_records:,}; remove it, then the shards are counted'
        )
    if scan.empty_paths:
        other_shards = (
            f', as do {plural(len(scan.empty_paths) - 1, "other")}'
            if len(scan.empty_paths) > 1
            else ''
        )
        warn(
            f'{scan.empty_paths[0]}: the shard holds no record{other_shards}; copy it again if it '
            'should have some'
        )


def states_of_shards(plan: Plan) -> dict[str, tuple[int, int] | None]:
    """Returns file_states() by path of the shards that are read during the steps: pipelines in
    memory have read theirs before.
    """
    data = plan.data
    subsets = [data.validation_shards, None if data.input_row.in_memory else data.shards]
    paths = [path for shards in subsets if shards for path in shards.paths]
    return dict(zip(paths, file_states(paths), strict=True))


def check_shard_sizes(before: Mapping[str, tuple[int, int] | None]) -> None:
    """Compares shards after the steps with states_of_shards() before them.

    TensorFlow silently passes over a shard that has gone or that ends between two records.

    Raises:
      RunError: a shard was removed, or has another size.
    """
    for (path, earlier), now in zip(before.items(), file_states([*before]), strict=True):
        if earlier and (now is None or now[0] != earlier[0]):
            change = 'changed its size' if now else 'was removed'
            raise RunError(
                f'{path}: the shard {change} during the run, so some of its images may be missing '
                'from the result; restore it, and run again'
            )

"""Explains in one line why a run failed, and finds what is wrong with shards where TensorFlow does not notice."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import tensorflow.compat.v1 as tf

from errors import RunError, counted
from inputs.data_sets import Shards
from planning.plan import Plan, Role
from records.framing import FRAME_BYTES, walk_shards
from records.layout import FACTS_FILE
from records.shard_check import cause_of, first_fault

# The errors that TensorFlow raises for bad records.
_DATA_FAULTS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
# How long to look for the record that made a step fail.
_SEARCH_SECS = 120.0
# How long to check the lengths of records before a run and after it; a million take some seconds if they are in memory.
_WALK_SECS = 30.0
# How often to look whether records are left.
_WATCH_SECS = 5.0


def explain(error: tf.errors.OpError, plan: Plan, progress: Callable[[str], None]) -> str:
    """The fault in the data if there is one that explains the error, else TensorFlow's own message.

    Args:
      progress: prints a progress line, since searching the shards takes time.
    """
    shards, batch_size = plan.data.shards, f'--batch_size={plan.counts.batch_size}'
    if plan.subject.role is Role.EVALUATION and plan.evaluations:
        shards, batch_size = plan.data.validation_shards, f'--eval_batch_size={plan.evaluations.batch_size}'
    cause = cause_of(error)
    line = f'{type(error).__name__}: {cause}'
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return f'{batch_size}: out of memory; write a smaller one ({cause})'
    if shards is None or not isinstance(error, _DATA_FAULTS):
        return line
    progress('A step failed; looking for the record that made it fail')
    fault = first_fault(shards.paths, plan.data.data_set.num_classes, _SEARCH_SECS)
    return fault or f'{line} (--data_dir={plan.data.folder}; tf_cnn_benchmarks records --check may find more)'


def quoting_bytes(error: UnicodeDecodeError) -> tf.errors.OpError:
    """The error of TensorFlow that session.run could not raise, as its message quotes bytes of a damaged record."""
    return tf.errors.InvalidArgumentError(None, None, bytes(error.object).decode(errors='backslashreplace'))


def check_lengths(shards: Shards | None, sizes: dict[str, int], warn: Callable[[str], None]) -> None:
    """Raises RunError if a shard has a wrong record length, or is cut where TensorFlow does not notice.

    The first ends the process with signal 11 where TensorFlow reads it; the second silently drops records, and a run
    waits for ever if no other is left.

    Args:
      sizes: the bytes of each shard when this was called first, which fills it; none may have fewer later.
    """
    if shards is None:
        return
    walked = walk_shards(shards.paths, _WALK_SECS)
    if walked.fault:
        raise RunError(walked.fault)
    if walked.num_unknown:
        warn(
            f'the record lengths of {walked.num_unknown} of the {shards.subset} shards could not be checked within '
            f'{_WALK_SECS:.0f} s; tf_cnn_benchmarks records --check does that'
        )
    elif shards.num_recorded not in (None, walked.num_records):
        raise RunError(
            f'{shards.folder / FACTS_FILE}: it says that there are {shards.num_recorded:,} {shards.subset} images, and '
            f'the shards hold {walked.num_records:,}; remove it, then the shards are counted'
        )
    if walked.empty and not sizes:
        others = f', as do {counted(len(walked.empty) - 1, "other")}' if len(walked.empty) > 1 else ''
        warn(f'{walked.empty[0]}: the shard holds no record{others}; copy it again if it should have some')
    for path in shards.paths:
        size = os.path.getsize(path)
        if size < sizes.setdefault(path, size):
            raise RunError(
                f'{path}: the shard lost records during the run: it has {size:,} of {sizes[path]:,} bytes; '
                'leave shards alone while a run reads them'
            )


def await_loss(shards: Shards, has_ended: threading.Event) -> str | None:
    """Waits until no shard has room for a record, and returns one line about it; None if has_ended is set before.

    TensorFlow would then look for records for ever, in a step that neither ends nor can be cancelled. A shard that ends
    within the header of its first record is empty to it.
    """
    while not has_ended.wait(_WATCH_SECS):
        try:
            if all(Path(path).stat().st_size < FRAME_BYTES for path in shards.paths):
                return f'--data_dir={shards.folder}: all shards became empty during the run; no record is left'
        except OSError:
            # TensorFlow reports a shard that is missing.
            continue
    return None

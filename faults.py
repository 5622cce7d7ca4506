"""Why a run failed, or should have, in one line."""

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from data_sets import Shards
from errors import RunError
from records.check import first_cut_shard, first_fault

# What TensorFlow raises for bad records.
_DATA_FAULTS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
# How long to look for the record that made a step fail.
_SEARCH_SECS = 120.0
# How long to look for the ends of shards after a run; a million records take some seconds if they are in memory.
_END_SEARCH_SECS = 30.0


def explain(
    error: tf.errors.OpError,
    batch_size: str,
    shards: Shards | None,
    num_classes: int,
    data_dir: str | None,
    progress: Callable[[str], None],
) -> str:
    """The fault of the data if that explains it, else as TensorFlow says it.

    Args:
      batch_size: the flag with its value that decides on the memory of a step.
      shards, data_dir: what was read, if anything was, and from where.
      progress: told what is being done, as looking through shards takes its time.
    """
    cause = _cause(error)
    line = f'{type(error).__name__}: {cause}'
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return f'{batch_size}: out of memory; write a smaller one ({cause})'
    if shards is None or not isinstance(error, _DATA_FAULTS):
        return line
    progress('A step failed; looking for the record that made it fail')
    fault = first_fault(shards.paths, num_classes, _SEARCH_SECS)
    return fault or f'{line} (--data_dir={data_dir}; tf_cnn_benchmarks records --check may tell more)'


def check_ends(shards: Shards | None, warn: Callable[[str], None]) -> None:
    """Raises RunError if a shard is cut where TensorFlow does not notice it, so that its last record was lost."""
    if shards is None:
        return
    fault, num_unknown = first_cut_shard(shards.paths, _END_SEARCH_SECS)
    if fault:
        raise RunError(fault)
    if num_unknown:
        warn(
            f'whether {num_unknown} of the {shards.subset} shards are cut short was not found out in '
            f'{_END_SEARCH_SECS:.0f} s; tf_cnn_benchmarks records --check tells'
        )


def _cause(error: tf.errors.OpError) -> str:
    """The line of an error of TensorFlow that tells what went wrong: the first, or the one below the node's name."""
    told = [line.strip() for line in error.message.splitlines() if line.strip() not in ('', 'Graph execution error:')]
    nodes = [number for number, line in enumerate(told[:-1]) if line.startswith('Node: ')]
    return told[nodes[-1] + 1] if nodes else told[0] if told else 'no reason given'

"""Faults of a run, mostly in its shards, that TensorFlow reports badly or not at all."""

import contextlib
import re
import shlex
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.framing import RUN_SCAN_SECS, file_states, scan_shards
from tf_cnn.inputs.layout import DATASET_INFO_FILE
from tf_cnn.inputs.shard_check import error_cause
from tf_cnn.machine.tensorflow_build import explain_kernel_fault
from tf_cnn.plan.plan import Plan
from tf_cnn.system.errors import RunError, plural
from tf_cnn.system.user_file import find_line

# The errors that TensorFlow raises for bad records.
_RECORD_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
# Where each of several root errors begins in a message.
_ROOT_ERROR = re.compile(r'^ *\(\d+\) ', re.MULTILINE)
# An operation in a message, perhaps of a function; with --steps_per_run it is a copy of GraphLoop.
_OPERATION = re.compile(
    r'^\t \[\[(?:\{\{function_node (?P<function>\S+)\}\})?(?:\{\{node )?'
    r'(?:steps/while/step/)?(?P<name>[^\[\]{}]+)',
    re.MULTILINE,
)


def explain_fault(
    error: tf.errors.OpError,
    plan: Plan,
    graph: tf.Graph | None,
    *,
    is_evaluating: bool,
) -> str:
    """Returns TensorFlow's message in one line, with the flag, GPU or user's file that explains
    it.
    """
    shards, batch_size = plan.data.shards, f'--batch_size={plan.params.run.batch_size}'
    if is_evaluating:
        batch_size = f'--eval_batch_size={plan.params.evaluation.eval_batch_size}'
    cause = error_cause(error)
    line = f'{type(error).__name__}: {cause}'
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return f'{batch_size}: out of memory; use a smaller one ({cause})'
    if kernel_fault := explain_kernel_fault(error.message):
        return f'{kernel_fault} ({cause})'
    if graph and (user_line := _find_user_line(error, graph)):
        return f'{user_line}: {line}'
    if shards is None or not isinstance(error, _RECORD_ERRORS):
        return line
    check = shlex.join(['records', f'--check={plan.params.data.data_dir}'])
    return (
        f'--data_dir={plan.params.data.data_dir}: {line}; if a record is the cause, '
        f'tf_cnn_benchmarks {check} names it'
    )


def _find_user_line(error: tf.errors.OpError, graph: tf.Graph) -> str | None:
    """Returns the line of a user's file that made an operation which failed; None without.

    Each root error of a message names first the operation that failed, then its consumers.
    """
    # Session.run adds to a message, and omits functions.
    original = error.__context__ if isinstance(error.__context__, tf.errors.OpError) else error
    for match in filter(None, map(_OPERATION.search, _ROOT_ERROR.split(original.message))):
        name = match['name']
        if match['function']:
            name = _find_caller(graph.as_graph_def(), match['function'])
        with contextlib.suppress(KeyError):
            operation, line = graph.get_operation_by_name(name), None
            # An operation of a gradient refers to the operation of the network.
            while operation is not None and line is None:
                _, line = find_line(operation.traceback)
                operation = operation._original_op
            if line:
                return line
    return None


def _find_caller(graph: tf.GraphDef, function: str) -> str:
    """Returns the operation of the graph that runs a function, perhaps inside another function."""
    callers = [('', node) for node in graph.node]
    callers += [
        (outer.signature.name, node) for outer in graph.library.function for node in outer.node_def
    ]
    for outer, node in callers:
        if any(function == attribute.func.name for attribute in node.attr.values()):
            return _find_caller(graph, outer) if outer else node.name
    return ''


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

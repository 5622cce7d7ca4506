"""What only callers of the original's Python modules use; benchmark_cnn.py has its other names.

docs/from_the_original.md lists all of them. Does not import TensorFlow before it is needed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_cnn.results.document import Result


def log_fn(log: object) -> None:
    """Prints a line of the log."""
    print(log, flush=True)


def tensorflow_version_tuple() -> tuple[int, int, str]:
    """Returns the version of TensorFlow, such as (2, 21, '0')."""
    import tensorflow as tf

    major, minor, patch = tf.__version__.split('.', 2)
    return int(major), int(minor), patch


def statistics_of(result: 'Result') -> dict[str, float]:
    """Returns the dictionary that the original's run() returns, without values that are unknown.

    The keys are num_workers, num_steps (timed steps of all workers), average_wall_time (seconds of
    a step), images_per_sec, last_average_loss, top_1_accuracy and top_5_accuracy (of the last
    evaluation).
    """
    num_workers, throughput = result.cluster.num_workers, result.throughput
    images_of_step = result.run.batch_size * result.cluster.devices_per_worker
    num_steps = round(throughput.images / images_of_step)
    values: dict[str, float | None] = {
        'num_workers': num_workers,
        'num_steps': num_steps,
        'average_wall_time': num_workers * throughput.wall_seconds / max(num_steps, 1),
        'images_per_sec': throughput.images_per_second,
        'last_average_loss': [None, *(result.steps.loss if result.workers else ())][-1],
    }
    for evaluation in result.evaluations[-1:]:
        values |= {'top_1_accuracy': evaluation.top_1, 'top_5_accuracy': evaluation.top_5}
    return {name: value for name, value in values.items() if value is not None}

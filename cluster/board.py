"""A board that all tasks of a cluster read and write: small facts by name, kept in the server of one task."""

import hashlib
import json
from typing import Any

import tensorflow.compat.v1 as tf

from cluster.members import Task

# What TensorFlow raises when a task is gone, slow, or not the one that the session knew.
_UNREACHABLE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


class BoardError(Exception):
    """The task that keeps the board does not answer, or is another process than before."""


class Board:
    """Facts by name; values are what JSON can hold. Lost with the task that keeps them.

    Args:
      target: the server of this process, through which the keeper is reached.
      own, keeper: this task, and the one that keeps the board.

    Raises (all methods):
      BoardError: the keeper could not be reached in time. Make another board.
    """

    def __init__(self, target: str, own: Task, keeper: Task, timeout_secs: float = 10.0) -> None:
        with tf.Graph().as_default() as graph, tf.device(f'{keeper.device}/cpu:0'):
            # TensorFlow has no tables from strings to strings: the key is a digest of the name.
            table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.string, shared_name='board')
            self._key, self._fact = tf.placeholder(tf.int64, []), tf.placeholder(tf.string, [])
            self._post = tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=self._key, values=self._fact)
            self._all = tf.raw_ops.LookupTableExportV2(table_handle=table, Tkeys=tf.int64, Tvalues=tf.string).values
        # Any other task may be gone.
        config = tf.ConfigProto(
            device_filters=sorted({own.device, keeper.device}), operation_timeout_in_ms=int(1000 * timeout_secs)
        )
        self._session = tf.Session(target, graph=graph, config=config)

    def post(self, name: str, value: Any) -> None:
        """Writes a fact; it takes the place of one of that name."""
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), 'little', signed=True)
        self._run(self._post, {self._key: key, self._fact: json.dumps([name, value])})

    def read(self) -> dict[str, Any]:
        """All facts."""
        return dict(map(json.loads, self._run(self._all, {})))

    def _run(self, fetches: Any, feeds: dict[Any, Any]) -> Any:
        try:
            return self._session.run(fetches, feeds)
        except _UNREACHABLE as error:
            raise BoardError(str(error)) from error

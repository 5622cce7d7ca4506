"""A small key-value store that all tasks of a cluster share, in the memory of the server of one task."""

import hashlib
import json
from typing import Any

import tensorflow.compat.v1 as tf

from cluster.topology import Task

_NO_TASK = '/job:none'
# The errors of TensorFlow when a task is gone, slow, or not the process that the session knew.
_UNREACHABLE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


class StoreError(Exception):
    """The task with the store does not answer, or was replaced by a new process."""


class OpenSession(tf.Session):
    """A session that nothing closes: if a task is gone, closing can hang, even when Python collects the session."""

    def __del__(self) -> None:
        """Leaves it open; the process frees it when it ends."""


class KeyValueStore:
    """JSON values by key, in the memory of one task; they are lost with that task.

    Its sessions run in the server of that task, under a job name of no task: if two processes called themselves
    'worker 0' there, TensorFlow would end the sessions of the first.

    Args:
      host: the task with the store.
      timeout_secs: the time limit of each call in seconds.

    Raises (all methods):
      StoreError: the host could not be reached in time. This object cannot be used again; make a new one.
    """

    def __init__(self, host: Task, timeout_secs: float = 10.0) -> None:
        with tf.Graph().as_default() as graph:
            # TensorFlow has no hash table from strings to strings, so digests of the keys are the table's keys.
            table = tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.int64, value_dtype=tf.string, shared_name='key_value_store'
            )
            # A table of its own, so that get_all does not read large values.
            large = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.string, shared_name='large_values')
            self._digest, self._entry = tf.placeholder(tf.int64, []), tf.placeholder(tf.string, [])
            self._put = tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=self._digest, values=self._entry)
            self._get_all = tf.raw_ops.LookupTableExportV2(table_handle=table, Tkeys=tf.int64, Tvalues=tf.string).values
            self._put_large = tf.raw_ops.LookupTableInsertV2(table_handle=large, keys=self._digest, values=self._entry)
            self._get_large = tf.raw_ops.LookupTableFindV2(table_handle=large, keys=self._digest, default_value='')
        # Only the server's own devices, since any other task may be gone.
        config = tf.ConfigProto(device_filters=[_NO_TASK], operation_timeout_in_ms=int(1000 * timeout_secs))
        self._session = OpenSession(f'grpc://{host.host}', graph=graph, config=config)

    def put(self, key: str, value: Any) -> None:
        """Stores a value that JSON can represent; it replaces the earlier value of the key."""
        self._run(self._put, {self._digest: _digest(key), self._entry: json.dumps([key, value])})

    def put_large(self, key: str, value: Any) -> None:
        """Stores a value that get_all does not return."""
        self._run(self._put_large, {self._digest: _digest(key), self._entry: json.dumps(value)})

    def get_large(self, key: str) -> Any:
        """Returns the value that put_large stored; None if there is none."""
        text = self._run(self._get_large, {self._digest: _digest(key)})
        return json.loads(text) if text else None

    def get_all(self) -> dict[str, Any]:
        """Returns all entries, except those of put_large."""
        return dict(map(json.loads, self._run(self._get_all, {})))

    def _run(self, fetches: Any, feeds: dict[Any, Any]) -> Any:
        try:
            return self._session.run(fetches, feeds)
        except _UNREACHABLE as error:
            raise StoreError(str(error)) from error


def _digest(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), 'little', signed=True)

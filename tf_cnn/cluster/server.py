"""TensorFlow servers of a cluster: starting one, probing others, and a key-value store in one."""

import errno
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

import grpc
import tensorflow.compat.v1 as tf
from tensorflow.core.framework.device_attributes_pb2 import DeviceAttributes

from tf_cnn.cluster.topology import HOSTS_FLAGS, Cluster, Task, split_host_port
from tf_cnn.system.errors import RunError

_NO_PROXY = 'no_grpc_proxy'
_servers: list[tf.train.Server] = []
# From tensorflow/core/protobuf/worker_service.proto. The request is empty.
_METHOD = '/tensorflow.WorkerService/GetStatus'
# A method that no server has. gRPC refuses it on its own threads, while GetStatus waits for one of
# the inter-op threads, which a long step may keep busy for minutes.
_UNKNOWN_METHOD = '/tensorflow.WorkerService/Ping'
# How long a task may take to answer.
_ANSWER_SECS = 1.0
# With more processes than cores, even gRPC may answer late, most of all while they build their
# graphs and compile the first step. The host of a killed process refuses connections at once.
START_SECS, BUSY_SECS = 60.0, 5.0
_CHANNEL_OPTIONS = (
    # A task may restart at any moment, so try twice a second instead of at growing intervals.
    ('grpc.initial_reconnect_backoff_ms', 100),
    ('grpc.max_reconnect_backoff_ms', 500),
    # Despite its name, the time limit of an attempt to connect. Distant or busy hosts need it.
    ('grpc.min_reconnect_backoff_ms', 5000),
    # Connect directly, as TensorFlow does.
    ('grpc.enable_http_proxy', 0),
    ('grpc.use_local_subchannel_pool', 1),
)
_NO_TASK = '/job:none'


def start_server(cluster: Cluster, config: tf.ConfigProto) -> tf.train.Server:
    """Starts the server of this task, which listens until the process exits.

    Raises RunError if its port is in use.
    """
    # Tasks connect to each other directly, even if a proxy is set.
    no_proxy_hosts = [
        os.environ.get(_NO_PROXY, ''),
        *(split_host_port(task.host)[0] for task in cluster.tasks),
    ]
    os.environ[_NO_PROXY] = ','.join(dict.fromkeys(filter(None, no_proxy_hosts)))
    port = split_host_port(cluster.own_task.host)[1]
    # Check the port, since TensorFlow would silently share it with another process.
    is_dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    try:
        socket.create_server(('', port), family=family, dualstack_ipv6=is_dual).close()
        server = tf.train.Server(
            tf.train.ClusterSpec(cluster.spec),
            job_name=cluster.job,
            task_index=cluster.index,
            config=config,
        )
    except (OSError, tf.errors.UnknownError) as error:
        # TensorFlow's error does not name the cause: a process took the port after the check.
        number = error.errno if isinstance(error, OSError) else errno.EADDRINUSE
        raise RunError(
            f'--{HOSTS_FLAGS[cluster.job]}: port {port} of {cluster.own_task} cannot be used '
            f'({os.strerror(number or 0)}); end the process that uses it, or use another port'
        ) from error
    _servers.append(server)
    return server


def leave(exit_code: int) -> None:
    """Exits at once if this process has a server: its threads would crash while Python exits."""
    if _servers:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


class LivenessProbe:
    """Asks which tasks are up. Their servers answer with the incarnation of their process.

    patience_secs: how long a task counts as up that does not answer on an open connection.
    """

    def __init__(self) -> None:
        self.patience_secs = START_SECS
        self._ended_tasks: set[Task] = set()
        self._last_answers: dict[Task, tuple[int, float]] = {}
        # GetStatus and the unknown method.
        self._requests: dict[Task, tuple[Any, Any]] = {}

    def incarnations(
        self, tasks: Iterable[Task], *, patient: bool = True
    ) -> dict[Task, int | None]:
        """Returns the incarnation of each task; None if its server does not answer.

        If patient, a task that is busy with a long step counts as up, and for patience_secs also a
        task that does not answer on an open connection.
        """
        statuses = {}
        for task in tasks:
            if task not in self._requests:
                channel = grpc.insecure_channel(task.host, options=_CHANNEL_OPTIONS)
                self._requests[task] = (
                    channel.unary_unary(_METHOD, response_deserializer=_read_incarnation),
                    channel.unary_unary(_UNKNOWN_METHOD),
                )
            get_status, _ = self._requests[task]
            statuses[task] = get_status.future(b'', timeout=_ANSWER_SECS)
        # Each task asks all others, so a second question to each would cost a large cluster time.
        pings = {
            task: self._requests[task][1].future(b'', timeout=_ANSWER_SECS)
            for task, status in statuses.items()
            if status.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        }
        return {
            task: self._read_answer(task, status, pings.get(task), patient=patient)
            for task, status in statuses.items()
        }

    def last_answer(self, task: Task) -> float:
        """Returns when a task last answered (time.monotonic); now if it never did."""
        return self._last_answers.get(task, (0, time.monotonic()))[1]

    def has_ended(self, task: Task) -> bool:
        """Whether no process listened at the address of the task when it was asked last."""
        return task in self._ended_tasks

    def _read_answer(self, task: Task, status: Any, ping: Any, *, patient: bool) -> int | None:
        self._ended_tasks.discard(task)
        if ping:
            last_incarnation, answered_at = self._last_answers.get(task, (None, 0.0))
            if last_incarnation is not None and ping.code() is grpc.StatusCode.UNIMPLEMENTED:
                # A new process would not be busy yet, so this is the one that answered last.
                answered_at = time.monotonic()
                self._last_answers[task] = last_incarnation, answered_at
            is_up = patient and time.monotonic() - answered_at < self.patience_secs
            return last_incarnation if is_up else None
        if status.code() is not grpc.StatusCode.OK:
            # Other reasons, such as 'No route to host', do not show whether the process runs.
            if 'Connection refused' in status.details():
                self._ended_tasks.add(task)
            return None
        incarnation = int(status.result())
        self._last_answers[task] = incarnation, time.monotonic()
        return incarnation


def _read_incarnation(response: bytes) -> int:
    """Reads the incarnation from a GetStatusResponse.

    TensorFlow has no Python class for it, but its list of messages is stored like a BytesList.
    """
    devices = map(DeviceAttributes.FromString, tf.train.BytesList.FromString(response).value)
    # Servers list their devices in any order, so use the first CPU's.
    return next(device.incarnation for device in devices if device.name.endswith('CPU:0'))


class UnclosedSession(tf.Session):
    """A session that is never closed, even by garbage collection, since closing can hang after a
    task is lost.
    """

    def __del__(self) -> None:
        """Leaves the session open until the process exits."""


class KeyValueStore:
    """JSON values by key that all tasks share, in the memory of one task.

    The sessions run in the server of that task, but under a job name that no task has: if two
    processes connected as 'worker 0', TensorFlow would end the sessions of the first. All methods
    raise tf.errors.OpError if the task is lost, slow or restarted; then create a new store.
    """

    def __init__(self, host: Task, timeout_secs: float = 10.0) -> None:
        with tf.Graph().as_default() as graph:
            # TensorFlow has no hash table from strings to strings, so the tables use digests of the
            # keys. Large values have a separate table, which get_all does not read.
            table, large = (
                tf.raw_ops.MutableHashTableV2(
                    key_dtype=tf.int64, value_dtype=tf.string, shared_name=name
                )
                for name in ('key_value_store', 'large_values')
            )
            self._digest, self._entry = tf.placeholder(tf.int64, []), tf.placeholder(tf.string, [])
            self._put = tf.raw_ops.LookupTableInsertV2(
                table_handle=table, keys=self._digest, values=self._entry
            )
            self._get_all = tf.raw_ops.LookupTableExportV2(
                table_handle=table, Tkeys=tf.int64, Tvalues=tf.string
            ).values
            self._put_large = tf.raw_ops.LookupTableInsertV2(
                table_handle=large, keys=self._digest, values=self._entry
            )
            self._get_large = tf.raw_ops.LookupTableFindV2(
                table_handle=large, keys=self._digest, default_value=''
            )
        # Use only this server's devices, since any other task may be lost.
        config = tf.ConfigProto(
            device_filters=[_NO_TASK], operation_timeout_in_ms=int(1000 * timeout_secs)
        )
        self._session = UnclosedSession(f'grpc://{host.host}', graph=graph, config=config)

    def put(self, key: str, value: Any) -> None:
        self._session.run(
            self._put, {self._digest: _digest(key), self._entry: json.dumps([key, value])}
        )

    def get_all(self) -> dict[str, Any]:
        """Returns all entries except the large ones."""
        return dict(map(json.loads, self._session.run(self._get_all, {})))

    def put_large(self, key: str, value: Any) -> None:
        self._session.run(
            self._put_large, {self._digest: _digest(key), self._entry: json.dumps(value)}
        )

    def get_large(self, key: str) -> Any:
        text = self._session.run(self._get_large, {self._digest: _digest(key)})
        return json.loads(text) if text else None


def _digest(key: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(key.encode(), digest_size=8).digest(), 'little', signed=True
    )

"""Finds out which tasks of a cluster are up: a TensorFlow server answers with its incarnation, new in each process."""

import functools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import grpc

# protobuf ships no types.
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

from cluster.topology import Task

# tensorflow/core/protobuf/worker_service.proto. The request is empty.
_METHOD = '/tensorflow.WorkerService/GetStatus'
# On a machine with more processes than cores, a process may answer late. A killed one refuses connections at once.
_BUSY_SECS = 30.0
_CHANNEL_OPTIONS = (
    # A task may come back at any moment: try to connect twice a second instead of at growing intervals.
    ('grpc.initial_reconnect_backoff_ms', 100),
    ('grpc.max_reconnect_backoff_ms', 500),
    # Despite its name, how long an attempt to connect may take. Distant or busy hosts need that long.
    ('grpc.min_reconnect_backoff_ms', 5000),
    # Connect directly, as TensorFlow does.
    ('grpc.enable_http_proxy', 0),
    ('grpc.use_local_subchannel_pool', 1),
)


class Health:
    """Asks tasks for their incarnation, a random number that each server process draws when it starts."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = tuple(tasks)
        self._last_answers: dict[Task, tuple[int, float]] = {}
        self._channels = {task: grpc.insecure_channel(task.host, options=_CHANNEL_OPTIONS) for task in self.tasks}
        self._requests = {
            task: channel.unary_unary(_METHOD, response_deserializer=_incarnation)
            for task, channel in self._channels.items()
        }

    def incarnations(self, timeout_secs: float) -> Mapping[Task, int | None]:
        """Returns the incarnation of each task; None for a task whose server does not answer.

        A task that answers too late on an open connection is only busy: it still counts as up for 30 seconds.
        """
        calls = {task: request.future(b'', timeout=timeout_secs) for task, request in self._requests.items()}
        return {task: self._answer(task, call) for task, call in calls.items()}

    def _answer(self, task: Task, call: Any) -> int | None:
        try:
            incarnation = call.result()
        except grpc.RpcError as error:
            incarnation, answered = self._last_answers.get(task, (None, 0.0))
            is_busy = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() - answered < _BUSY_SECS
            return incarnation if is_busy else None
        self._last_answers[task] = incarnation, time.monotonic()
        return incarnation

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()


def _incarnation(response: bytes) -> int:
    devices = _status_message().FromString(response).device_attributes
    # Take that of the first CPU, since servers list all their devices in any order.
    return next(device.incarnation for device in devices if device.name.endswith('CPU:0'))


@functools.cache
def _status_message() -> Any:
    """Returns the class of GetStatusResponse in TensorFlow's worker.proto, which its Python package lacks."""
    from tensorflow.core.framework import device_attributes_pb2

    attributes = device_attributes_pb2.DeviceAttributes.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(
        name='cluster/health.proto', package='cluster', syntax='proto3', dependency=[attributes.file.name]
    )
    field = file.message_type.add(name='GetStatusResponse').field.add(name='device_attributes', number=1)
    field.label, field.type = field.LABEL_REPEATED, field.TYPE_MESSAGE
    field.type_name = f'.{attributes.full_name}'
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName('cluster.GetStatusResponse'))

"""Builds the graphs of runs on GPUs without a GPU, and inspects what GPUs would do."""

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels

from tests.support.graphs import needed_by
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.parsing import make_params
from tf_cnn.plan.plan import Plan, make_plan
from tf_cnn.step.build import build_evaluation, build_step
from tf_cnn.step.evaluation import sliced_variables
from tf_cnn.step.step_graph import StepGraph

Flags = Mapping[str, Any]

_WORKERS: Flags = {'worker_hosts': '10.0.0.1:1,10.0.0.2:1', 'job_name': 'worker'}
_SERVERS: Flags = {**_WORKERS, 'ps_hosts': '10.0.0.3:1,10.0.0.4:1'}
# The flags of one process in each mode, and in each variant of a mode.
MODE_FLAGS: Mapping[str, Flags] = {
    'parameter_server': {},
    'parameter_server on the CPU': {'local_parameter_device': 'cpu'},
    'parameter_server, staged': {'local_parameter_device': 'cpu', 'staged_vars': True},
    'replicated': {'variable_update': 'replicated'},
    'replicated by NCCL': {'variable_update': 'replicated', 'all_reduce_spec': 'nccl'},
    'replicated by rings': {'variable_update': 'replicated', 'all_reduce_spec': 'pscpu:2k:xring'},
    'replicated, relaxed': {'variable_update': 'replicated', 'variable_consistency': 'relaxed'},
    'independent': {'variable_update': 'independent'},
    'collective_all_reduce': {'variable_update': 'collective_all_reduce', **_WORKERS},
    'distributed_all_reduce': {
        'variable_update': 'distributed_all_reduce',
        **_WORKERS,
        'job_name': 'controller',
        'controller_host': '10.0.0.3:1',
    },
    'servers': _SERVERS,
    'servers, staged': {**_SERVERS, 'staged_vars': True},
    'servers, asynchronous': {**_SERVERS, 'cross_replica_sync': False},
    'servers, staged, asynchronous': {**_SERVERS, 'staged_vars': True, 'cross_replica_sync': False},
    'distributed_replicated': {'variable_update': 'distributed_replicated', **_SERVERS},
}


@dataclass(frozen=True)
class GpuGraph:
    """The graph of a run, with initial values, copies and evaluation; `step` has one step's ops."""

    plan: Plan
    graph: tf.Graph
    step_graph: StepGraph
    step: frozenset[tf.Operation]

    @property
    def num_devices(self) -> int:
        """The number of devices in the step, including devices of other processes."""
        return len({op.device for op in self.step})

    def of_type(self, *types: str) -> list[tf.Operation]:
        return [op for op in self.graph.get_operations() if op in self.step and op.type in types]


def build_on_gpus(num_gpus: int = 1, *, task_index: int = 0, **flags: Any) -> GpuGraph:
    """Builds the graph of a run with these flags on GPUs; the default model is lenet."""
    defaults = {
        'model': 'lenet',
        'batch_size': 2,
        'device': 'gpu',
        'num_gpus': num_gpus,
        'data_format': 'NCHW',
    }
    if 'worker_hosts' in flags:
        flags = {'task_index': task_index, **flags}
    with (
        mock.patch.object(tf.config, 'list_physical_devices', return_value=[object()] * num_gpus),
        # The plan sets the variables that TensorFlow reads.
        mock.patch.dict(os.environ),
    ):
        plan = make_plan(make_params(**{**defaults, **flags}), ProcessEnvironment({}))
    assert isinstance(plan, Plan)
    device = plan.cluster_role.cluster.own_task.device if plan.cluster_role.cluster else ''
    with tf.Graph().as_default() as graph, tf.device(device):
        step_graph = build_step(plan, 0)
        if plan.evaluations:
            build_evaluation(
                plan, [sliced_variables(step_graph.slices) for _ in plan.devices.towers], 0, 1
            )
    fetched = tf.nest.flatten(step_graph.fetches.as_dict())
    step = needed_by([value if isinstance(value, tf.Operation) else value.op for value in fetched])
    return GpuGraph(plan, graph, step_graph, frozenset(step))


@functools.cache
def _gpu_kernels(op_type: str) -> list[tuple[dict[str, set[int]], set[str]]]:
    """Returns the GPU kernels of an op: (allowed types by attribute, arguments in host memory).

    Kernels for all devices are last, since TensorFlow prefers kernels for GPUs.
    """
    registered = kernels.get_registered_kernels_for_op(op_type).kernel
    return [
        (
            {limit.name: set(limit.allowed_values.list.type) for limit in kernel.constraint},
            set(kernel.host_memory_arg),
        )
        for device_type in ('GPU', 'DEFAULT')
        for kernel in registered
        if kernel.device_type == device_type
    ]


def _types(attribute: Any) -> set[int]:
    return {attribute.type} if attribute.WhichOneof('value') == 'type' else set(attribute.list.type)


def _host_memory_args(op: tf.Operation) -> set[str] | None:
    """Returns the arguments that an op on a GPU has in host memory.

    None if no GPU kernel fits: TensorFlow would move the op, with all colocated ops, to the CPU.
    """
    # Each access to op.node_def parses it.
    attributes = op.node_def.attr
    for types, host_memory_args in _gpu_kernels(op.type):
        if all(_types(attributes[name]) <= allowed for name, allowed in types.items()):
            return host_memory_args
    return None


def is_on_gpu(op: tf.Operation) -> bool:
    return bool(re.search(r'gpu:\d+$', op.device, re.IGNORECASE))


def ops_without_kernel(gpu_graph: GpuGraph) -> dict[str, int]:
    """Counts the ops, by type and dtype, that are placed on a GPU without a kernel for them."""
    return Counter(
        f'{op.type} {[value.dtype.name for value in (*op.inputs, *op.outputs)]}'
        for op in gpu_graph.graph.get_operations()
        if is_on_gpu(op) and _host_memory_args(op) is None
    )


def crossings(ops: Iterable[tf.Operation]) -> list[str]:
    """Returns the names of tensors that cross between devices, or between host and GPU memory.

    A GPU kernel may have some arguments in host memory, such as 32-bit integers. They cross if the
    other op has them in the memory of the GPU.
    """
    ops = set(ops)
    return sorted(
        {
            value.name
            for op in ops
            for index, value in enumerate(op.inputs)
            if value.op in ops
            and value.dtype != tf.resource
            and (op.device, _is_in_host_memory(op, op.op_def.input_arg, index))
            != (
                value.device,
                _is_in_host_memory(value.op, value.op.op_def.output_arg, value.value_index),
            )
        }
    )


def _is_in_host_memory(op: tf.Operation, args: Iterable[Any], index: int) -> bool:
    """Whether the op has its input or output with this index in host memory."""
    host_memory_args = _host_memory_args(op) if is_on_gpu(op) else None
    names = [arg.name for arg in args for _ in range(_length(op, arg))]
    return host_memory_args is None or names[index] in host_memory_args


def _length(op: tf.Operation, arg: Any) -> int:
    if arg.type_list_attr:
        return len(op.get_attr(arg.type_list_attr))
    return op.get_attr(arg.number_attr) if arg.number_attr else 1

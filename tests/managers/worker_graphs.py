"""The graphs of one worker in every mode of several workers, and their networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder
from models.model_spec import Build
from tests.support.graphs import (
    FixedInput,
    cpus,
    make_manager,
    plain,
    training_step,
)
from tests.support.oracles import OPTIMIZERS
from tf_cnn.managers.modes import MODES, Topology
from tf_cnn.step.exchange import GradientsInMemory
from tf_cnn.step.step_graph import StepGraph, build_step_graph
from tf_cnn.training.precision import FP32, Precision
from variable_mgr import VariableMgr

NUM_WORKERS, NUM_TOWERS, NUM_SERVERS = 2, 2, 2
PS, STAGED, REPLICATED, COLLECTIVE, CONTROLLED = (
    'parameter_server',
    'parameter_server --staged_vars',
    'distributed_replicated',
    'collective_all_reduce',
    'distributed_all_reduce',
)


def task(job: str, index: int) -> str:
    return f'/job:{job}/task:{index}'


def servers(count: int) -> list[str]:
    return [f'{task("ps", index)}/cpu:0' for index in range(count)]


def wide(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """A network with a weight of 1.2 MB, which is too large for one server."""
    return cnn.dense(cnn.relu(cnn.dense(cnn.flatten(x), 4_000, 'hidden')), num_classes, 'logits')


@dataclass(frozen=True)
class Replica:
    """One worker's graph."""

    graph: tf.Graph
    manager: VariableMgr
    step: StepGraph

    def ops(self, *types: str) -> list[tf.Operation]:
        return [op for op in self.graph.get_operations() if op.type in types]


def manager_of(mode: str, devices: Sequence[str], **parts: Any) -> VariableMgr:
    """Makes the variable manager of a cluster mode. parts are arguments of make_manager."""
    row = MODES[mode.split()[0]]
    place = Topology.PEERS
    if row.needs_servers:
        place = Topology.PARAMETER_SERVERS
    elif row.has_controller:
        place = Topology.CONTROLLER
    return make_manager(row.name, devices, place=place, staged=mode == STAGED, **parts)


def build(
    mode: str,
    worker: int = 0,
    *,
    network: Build = plain,
    optimizer: str = 'sgd',
    precision: Precision = FP32,
    forward_only: bool = False,
    job: str = 'worker',
    devices: Sequence[str] = tuple(cpus(NUM_TOWERS)),
    exchanged: Sequence[tuple[str, Sequence[int]]] = (),
    **parts: Any,
) -> Replica:
    """Builds the graph of a worker, or of the controller, in a mode. `parts` are arguments of
    make_manager.

    `exchanged`: with it, the step exchanges gradients in memory for these variables instead of the
    network's.
    """
    parts = {'server_devices': servers(NUM_SERVERS), 'num_workers': NUM_WORKERS, **parts}
    images = [[worker * len(devices) + tower] for tower in range(len(devices))]
    with tf.Graph().as_default() as graph, tf.device(task(job, worker)):
        manager = manager_of(mode, devices, worker=worker, **parts)
        computed = training_step(network, precision, forward_only=forward_only)
        pipeline = (
            GradientsInMemory(exchanged, worker * len(devices)) if exchanged else FixedInput(images)
        )
        step = build_step_graph(computed, OPTIMIZERS[optimizer].ours, manager, pipeline)
    return Replica(graph, manager, step)

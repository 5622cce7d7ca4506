"""The steps that each worker of a cluster takes alone, after the timed steps."""

import itertools
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.topology import split_host_port
from tf_cnn.plan.params import Role
from tf_cnn.plan.plan import Plan
from tf_cnn.results.sections import AloneSection
from tf_cnn.step.step_graph import StepGraph
from tf_cnn.system.signals import SIGNALS

# Steps are measured in parts of this time, since a worker that is stopped now and then is not slow
# in each short step. Such a worker and long steps may take twice as long.
_SECONDS, _NUM_PARTS = 1.0, 5
# For steps that are longer still; fewer parts have no spread.
LEAST_PARTS = 3
# Limits a session call in which a worker of a controller was lost.
_CALL_SECS = 600


def workers_alone(plan: Plan) -> dict[str, str]:
    """Returns the host device, by its name, of each worker that has towers in the graph of this
    process; none unless workers wait for each other in steps that compute.
    """
    role, hosts = plan.cluster_role, plan.devices.hosts
    is_waiting = plan.role is Role.TRAINING and role.is_synchronous and role.shape.workers > 1
    if not role.cluster or not is_waiting:
        return {}
    if not role.remote_tower_prefixes:
        return {f'{role.job} {role.index} ({socket.gethostname()})': hosts[0]}
    names = [
        f'{task.job} {task.index} ({split_host_port(task.host)[0]})'
        for task in role.cluster.servers
    ]
    return dict(zip(names, hosts, strict=True))


class StepsAlone:
    """Adds an op to the current graph for each worker with towers in it: their forward and backward
    passes, from the worker's input and the values that it holds, without exchange and update.

    A synchronous step is equally long everywhere; a step alone shows which worker is slow.

    Args:
      workers: see workers_alone.

    Attributes:
      ops: what a step alone of each worker runs.
      values: the tensors to feed, which a worker has no variables for: it reads them from a server
        or from its staging areas.
    """

    def __init__(self, step_graph: StepGraph, workers: Mapping[str, str]) -> None:
        self._input = step_graph.step_input
        loss_scale, *variables = step_graph.tower_values
        fetched = [value for value in variables if value.op.type != 'ReadVariableOp']
        self.values = [*{value.ref(): value for value in (loss_scale, *fetched)}.values()]
        num_towers = len(step_graph.tower_gradients) // len(workers)
        self.ops: dict[str, Sequence[tf.Operation]] = {}
        for number, (name, host) in enumerate(workers.items()):
            towers = step_graph.tower_gradients[number * num_towers :][:num_towers]
            with tf.device(host):
                computed = tf.group(*(gradient for tower in towers for gradient in tower))
            task = f'{computed.device.partition("/device:")[0]}/'
            self.ops[name] = [
                computed,
                *(op for op in self._input.per_step_ops if f'{op.device}/'.startswith(task)),
            ]

    def measure(
        self, session: tf.Session, step_seconds: Sequence[float]
    ) -> tuple[Mapping[str, AloneSection], float]:
        """Returns the steps of each worker, and how long after this call the slowest worker may
        still take its steps, in seconds.

        They take a second, or as long as the timed steps if these took less; twice that if steps
        are long. Raises OpError if a worker was lost.

        step_seconds: of the timed steps, which take as long as the slowest worker needs.
        """
        start, seconds = time.perf_counter(), min(sum(step_seconds), _SECONDS)
        options = tf.RunOptions(timeout_in_ms=1000 * _CALL_SECS)
        values = session.run(self.values, options=options)
        fed_tensors = [*self._input.feed_placeholders, *self.values]

        def step_of(ops: Sequence[tf.Operation]) -> Callable[[], None]:
            def take_step() -> None:
                SIGNALS.check()
                fed_values = [*self._input.next_feed_values(), *values]
                session.run(ops, dict(zip(fed_tensors, fed_values, strict=True)), options)

            return take_step

        parts = {name: time_parts(step_of(ops), seconds) for name, ops in self.ops.items()}
        shortest = min(statistics.median(alone.step_seconds) for alone in parts.values())
        slowdown = max(1.0, statistics.median(step_seconds) / shortest)
        return parts, slowdown * (time.perf_counter() - start)


def time_parts(
    take_step: Callable[[], None],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> AloneSection:
    """Takes steps for these seconds, in five parts; of long steps one in each of three to five."""
    # The first call prepares the graph.
    take_step()
    steps: list[int] = []
    ends = [clock()]
    while len(steps) < LEAST_PARTS or (
        len(steps) < _NUM_PARTS and ends[-1] - ends[0] < 2 * seconds
    ):
        steps.append(0)
        while not steps[-1] or clock() - ends[-1] < seconds / _NUM_PARTS:
            take_step()
            steps[-1] += 1
        ends.append(clock())
    return AloneSection(steps, [end - start for start, end in itertools.pairwise(ends)])

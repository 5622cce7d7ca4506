"""Runs the workers of a cluster in one process, each with its own graph and a session on its server."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from cluster.hosts import reserved_addresses
from managers.synchronous_step import SynchronousStep
from tests.support.networks import DEADLINE_SECS, NUM_TOWERS, NUM_WORKERS, Built, build
from tests.support.oracles import Weights
from training.checkpoints import joined


@dataclass(frozen=True)
class Member:
    """A worker: its graph and a session on its server."""

    built: Built
    session: Any

    @property
    def synchronous_step(self) -> SynchronousStep:
        assert self.built.step.synchronous_step
        return self.built.step.synchronous_step

    def take_step(self) -> None:
        self.session.run(self.built.step.fetches.present())

    def open_gate(self) -> None:
        """Lets one step of the network `waiting` continue."""
        with self.built.graph.as_default():
            for gate in self.built.ops('FIFOQueueV2'):
                with tf.device(gate.device):
                    opened = tf.raw_ops.QueueEnqueueV2(handle=gate.outputs[0], components=[tf.constant(0.0)])
                self.session.run(opened)

    def read(self) -> Weights:
        """Returns the checkpoint values, each variable whole."""
        slices = self.built.step.slices
        with self.built.graph.as_default():
            whole = {name: joined(parts, [part.variable.value for part in parts]) for name, parts in slices.items()}
        return self.session.run(whole)

    def num_summed(self) -> int:
        """Returns how many gradients of all workers lie in the accumulators."""
        with self.built.graph.as_default():
            sizes = []
            for op in self.built.ops('ResourceConditionalAccumulator'):
                with tf.device(op.device):
                    sizes.append(tf.raw_ops.ResourceAccumulatorNumAccumulated(handle=op.outputs[0]))
        return sum(self.session.run(sizes))


class WorkerSessions:
    """The workers of a cluster, the chief first. close() ends all of their steps."""

    def __init__(self, targets: list[str], mode: str, **options: Any) -> None:
        self.targets = targets
        self.members = []
        for worker, target in enumerate(targets):
            built = build(mode, worker, **options)
            self.members.append(Member(built, tf.Session(target, graph=built.graph)))
        self._threads = ThreadPoolExecutor()
        for member in self.members:
            member.session.run(member.built.step.initializers)
        chief = self.members[0]
        if chief.built.step.synchronous_step:
            chief.synchronous_step.restart(chief.session, 0)
        # At the same time: some copies need all workers.
        for copied in [self._threads.submit(member.built.step.start, member.session) for member in self.members]:
            copied.result(DEADLINE_SECS)

    def begin(self, *workers: int) -> list[Future[None]]:
        """Starts a step of each of these workers."""
        return [self._threads.submit(self.members[worker].take_step) for worker in workers]

    def take_steps(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            for step in self.begin(*range(NUM_WORKERS)):
                step.result(DEADLINE_SECS)

    def close(self) -> None:
        for member in self.members:
            member.session.close()
        self._threads.shutdown()
        # Otherwise the servers keep variables, queues and accumulators, which the next test would find by name.
        for target in self.targets:
            tf.Session.reset(target)


@contextlib.contextmanager
def serving(num_servers: int) -> Iterator[list[str]]:
    """Starts the servers of all tasks in this process, and returns the targets of the workers."""
    config = tf.ConfigProto(device_count={'CPU': NUM_TOWERS})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
    with reserved_addresses(num_servers + NUM_WORKERS) as addresses:
        hosts = {'ps': addresses[:num_servers], 'worker': addresses[num_servers:]}
        running = {
            job: [tf.train.Server(tf.train.ClusterSpec(hosts), job, index, config=config) for index in range(len(own))]
            for job, own in hosts.items()
        }
        yield [server.target for server in running['worker']]


@contextlib.contextmanager
def starting(targets: list[str]) -> Iterator[Callable[..., WorkerSessions]]:
    """Starts workers, one cluster at a time; closes them after the block."""
    started: list[WorkerSessions] = []

    def start(mode: str, **options: Any) -> WorkerSessions:
        started.append(WorkerSessions(targets, mode, **options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.close()

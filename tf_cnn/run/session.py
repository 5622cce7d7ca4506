"""Opens the session of a run, and runs single steps in it."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.inputs.pipeline import StepInput
from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import StepValues
from tf_cnn.run.instruments import StepTracer, SummaryWriter
from tf_cnn.step.graph_loop import GraphLoop
from tf_cnn.step.step_graph import Fetches


@contextlib.contextmanager
def open_session(target: str, graph: tf.Graph, config: tf.ConfigProto) -> Iterator[tf.Session]:
    """Opens a session for the block, and closes it afterwards. After an error in a cluster it stays
    open, since closing could wait for a lost task.
    """
    session = tf.Session(target, graph=graph, config=config)
    try:
        yield session
    except BaseException:
        if not target:
            session.close()
        raise
    session.close()


@dataclass
class _FetchedValues:
    loss: float
    global_step: int
    ops: Any = None
    steps_after: int | None = None
    updated_at: float | None = None
    learning_rate: float | None = None
    top_1: float | None = None
    top_5: float | None = None
    num_skipped: int | None = None


class Stepper:
    """Takes steps in a session: the last warm-up step with tracing if requested, some steps with a
    gradient summary.

    Attributes:
      gradient_summary: the summary of the last step that computed one.
    """

    def __init__(
        self,
        session: tf.Session,
        fetches: Fetches,
        tracer: StepTracer,
        num_warmup: int,
        summaries: SummaryWriter | None,
        graph_loop: GraphLoop | None = None,
        step_input: StepInput | None = None,
    ) -> None:
        self.gradient_summary: bytes | None = None
        self._session = session
        self._fetches = fetches.as_dict()
        self._graph_loop = graph_loop
        self._step_input = step_input
        self._fed_tensors = step_input.feed_placeholders if step_input else []
        if graph_loop:
            self._run_loop = session.make_callable(
                dict(graph_loop.values), feed_list=[graph_loop.num_steps]
            )
        else:
            # An empty list would make TensorFlow prepare the fetches again in each step.
            self._plain_step = session.make_callable(
                self._fetches, feed_list=self._fed_tensors or None
            )
        self._traced_index = num_warmup if tracer.is_enabled else None
        self._tracer = tracer
        self._summaries = summaries
        self._step_with_summary = None
        if summaries and summaries.gradient_summary is not None:
            self._step_with_summary = session.make_callable(
                [self._fetches, summaries.gradient_summary], feed_list=self._fed_tensors or None
            )

    def run(self, phase: Phase, indices: range) -> list[StepValues]:
        """Takes the steps with these indices in one session call, and returns the values of
        each.
        """
        if self._graph_loop is None:
            return [self._run_step(phase, index) for index in indices]
        if phase is Phase.WARMUP and self._traced_index in indices:
            values = self._tracer.run(
                self._session, self._graph_loop.values, {self._graph_loop.num_steps: len(indices)}
            )
        else:
            values = self._run_loop(len(indices))
        return [
            self._to_step_values(
                {name: of_steps[number] for name, of_steps in values.items()}, None
            )
            for number in range(len(indices))
        ]

    def _run_step(self, phase: Phase, index: int) -> StepValues:
        feeds, seconds_of_feeds = self._next_feeds()
        if phase is Phase.WARMUP and index == self._traced_index:
            values = self._tracer.run(
                self._session, self._fetches, dict(zip(self._fed_tensors, feeds, strict=True))
            )
        elif self._step_with_summary and self._needs_summary(phase, index):
            values, self.gradient_summary = self._step_with_summary(*feeds)
        else:
            values = self._plain_step(*feeds)
        # By the clock of the graph's Timestamp op.
        ended_at = time.time()
        step_values = self._to_step_values(values, ended_at)
        return (
            replace(step_values, input_wait=seconds_of_feeds) if self._fed_tensors else step_values
        )

    def _next_feeds(self) -> tuple[list[Any], float]:
        """Returns the feeds of the next step, and the seconds that it took to draw them."""
        if self._step_input is None or not self._fed_tensors:
            return [], 0.0
        start = time.perf_counter()
        return self._step_input.next_feed_values(), time.perf_counter() - start

    def _to_step_values(self, values: Mapping[str, Any], ended_at: float | None) -> StepValues:
        """Converts fetched values to the values of a step; ended_at is its end in Unix seconds, if
        known.
        """
        fetched = _FetchedValues(**values)
        before = int(fetched.global_step)
        return StepValues(
            float(fetched.loss),
            top_1=_as_float(fetched.top_1),
            top_5=_as_float(fetched.top_5),
            learning_rate=_as_float(fetched.learning_rate),
            input_wait=_input_wait(fetched.updated_at, ended_at),
            steps_before=before,
            steps_after=before + 1 if fetched.steps_after is None else int(fetched.steps_after),
            num_skipped=None if fetched.num_skipped is None else int(fetched.num_skipped),
        )

    def _needs_summary(self, phase: Phase, index: int) -> bool:
        # Also in the first warm-up step, so that TensorFlow prepares this graph outside the timed
        # steps.
        return (
            index == 1
            if phase is Phase.WARMUP
            else self._summaries is not None and self._summaries.is_due(index)
        )


def _input_wait(updated_at: float | None, ended_at: float | None) -> float | None:
    return (
        None if updated_at is None or ended_at is None else max(0.0, ended_at - float(updated_at))
    )


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)

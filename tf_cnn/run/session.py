"""Takes single steps in the session of a run."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import StepValues
from tf_cnn.run.instruments import StepTracer, SummaryWriter
from tf_cnn.step.graph_loop import GraphLoop
from tf_cnn.step.step_graph import StepGraph


class Stepper:
    """Takes steps in a session: some of them with tracing, some with gradient histograms.

    Attributes:
      gradient_histograms: the values of SummaryWriter.gradient_histograms in the last step that
        computed them.
    """

    def __init__(
        self,
        session: tf.Session,
        step_graph: StepGraph,
        tracer: StepTracer | None,
        summaries: SummaryWriter | None,
        graph_loop: GraphLoop | None,
    ) -> None:
        self.gradient_histograms: Mapping[str, tuple[bool, bytes]] = {}
        self._fetches = step_graph.fetches.as_dict()
        self._graph_loop = graph_loop
        self._step_input = step_graph.step_input
        self._fed_tensors = self._step_input.feed_placeholders
        if graph_loop:
            self._run_loop = session.make_callable(
                dict(graph_loop.values), feed_list=[graph_loop.num_steps]
            )
        else:
            # An empty list would make TensorFlow prepare the fetches again in each step.
            self._plain_step = session.make_callable(
                self._fetches, feed_list=self._fed_tensors or None
            )
        self._tracer = tracer
        self._summaries = summaries
        self._step_with_summary = None
        if summaries and summaries.gradient_histograms:
            self._step_with_summary = session.make_callable(
                [self._fetches, summaries.gradient_histograms], feed_list=self._fed_tensors or None
            )

    def run(self, phase: Phase, indices: range) -> list[StepValues]:
        """Takes the steps with these indices in one session call, and returns the values of
        each.
        """
        if self._graph_loop is None:
            return [self._run_step(phase, index) for index in indices]
        if self._tracer and self._tracer.is_due(phase, indices):
            values = self._tracer.run(
                self._graph_loop.values, {self._graph_loop.num_steps: len(indices)}
            )
        else:
            values = self._run_loop(len(indices))
        return [
            _to_step_values({name: of_steps[number] for name, of_steps in values.items()}, None)
            for number in range(len(indices))
        ]

    def _run_step(self, phase: Phase, index: int) -> StepValues:
        start = time.perf_counter()
        feeds = self._step_input.next_feed_values()
        seconds_of_feeds = time.perf_counter() - start
        if self._tracer and self._tracer.is_due(phase, range(index, index + 1)):
            values = self._tracer.run(
                self._fetches, dict(zip(self._fed_tensors, feeds, strict=True))
            )
        elif (
            self._step_with_summary
            and self._summaries
            # Also in the first warm-up step, so that TensorFlow prepares this graph outside the
            # timed steps.
            and (index == 1 if phase is Phase.WARMUP else self._summaries.is_due(index))
        ):
            values, self.gradient_histograms = self._step_with_summary(*feeds)
        else:
            values = self._plain_step(*feeds)
        # By the clock of the graph's Timestamp op.
        step_values = _to_step_values(values, ended_at=time.time())
        return (
            replace(step_values, input_wait=seconds_of_feeds) if self._fed_tensors else step_values
        )


def _to_step_values(values: Mapping[str, Any], ended_at: float | None) -> StepValues:
    """Converts the values of Fetches to the values of a step; ended_at is its end in Unix seconds,
    if known.
    """
    # NumPy's numbers become Python's.
    numbers = {name: value.item() for name, value in values.items() if name != 'ops'}
    before, input_wait = numbers['global_step'], None
    if ended_at is not None and 'updated_at' in numbers:
        input_wait = max(0.0, ended_at - numbers['updated_at'])
    return StepValues(
        numbers['loss'],
        top_1=numbers.get('top_1'),
        top_5=numbers.get('top_5'),
        learning_rate=numbers.get('learning_rate'),
        input_wait=input_wait,
        steps_before=before,
        steps_after=numbers.get('steps_after', before + 1),
        num_skipped=numbers.get('num_skipped'),
    )

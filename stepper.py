"""Runs single steps in a session."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf

from reporting.result import StepValues
from training.instruments import StepTracer, SummaryWriter
from training.step_loop import Phase


@contextlib.contextmanager
def open_session(target: str, graph: tf.Graph, config: tf.ConfigProto) -> Iterator[tf.Session]:
    """A session that ends with the block. After a fault of a cluster it is left behind: closing it would wait for a
    task that is gone."""
    session = tf.Session(target, graph=graph, config=config)
    try:
        yield session
    except Exception:
        if not target:
            session.close()
        raise
    session.close()


class Stepper:
    """Runs the steps of a session, the special ones too: the last warm-up step is traced, some get a summary.

    Attributes:
      gradient_summary: of the last step that got one.
      steps_before, steps_after: how many steps were taken when the last one began and when it ended, by all workers.
      num_skipped: how many steps since the first one the loss scale had skipped, as far as was noted.
    """

    def __init__(
        self,
        session: tf.Session,
        fetches: dict[str, Any],
        tracer: StepTracer,
        num_warmup: int,
        summaries: SummaryWriter | None,
    ) -> None:
        self.gradient_summary: bytes | None = None
        self.steps_before = self.steps_after = 0
        self.num_skipped = 0
        self._skipped_at_start: int | None = None
        self._session = session
        self._fetches = fetches
        self._plain_step = session.make_callable(fetches)
        self._traced_index = num_warmup if tracer.is_wanted else None
        self._tracer = tracer
        self._summaries = summaries
        self._summarized_step = None
        if summaries and summaries.gradient_summary is not None:
            self._summarized_step = session.make_callable([fetches, summaries.gradient_summary])

    def run(self, phase: Phase, index: int) -> StepValues:
        """Runs one step and returns what it computed."""
        if phase is Phase.WARMUP and index == self._traced_index:
            fetched = self._tracer.run(self._session, self._fetches)
        elif self._summarized_step and self._is_summarized(phase, index):
            fetched, self.gradient_summary = self._summarized_step()
        else:
            fetched = self._plain_step()
        self.steps_before = int(fetched['global_step'])
        self.steps_after = int(fetched.get('steps_after', self.steps_before + 1))
        if 'num_skipped' in fetched:
            self.note_skipped(int(fetched['num_skipped']))
        return _step_values(fetched)

    def note_skipped(self, total: int) -> None:
        """Takes note of how many steps were skipped since training began."""
        if self._skipped_at_start is None:
            self._skipped_at_start = total
        self.num_skipped = total - self._skipped_at_start

    def _is_summarized(self, phase: Phase, index: int) -> bool:
        # The first warm-up step too: it takes the time that TensorFlow needs to prepare for the others.
        return index == 1 if phase is Phase.WARMUP else self._summaries is not None and self._summaries.is_due(index)


def _step_values(fetched: dict[str, Any]) -> StepValues:
    values = (float(fetched[name]) if name in fetched else None for name in ('top_1', 'top_5', 'learning_rate'))
    return StepValues(float(fetched['loss']), *values)

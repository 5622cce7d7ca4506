"""Diagnostic files of a run: its graph, a trace of one step, a profile of several steps,
summaries.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tensorflow.compat.v1 as tf
from tensorflow.python.client import timeline

from tf_cnn.flags.spec import parse_numbers
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.event_files import open_event_file, report_write_errors
from tf_cnn.graph.variables import Variable
from tf_cnn.plan.config import InstrumentConfig
from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Step, StepValues
from tf_cnn.run.step_loop import Hook
from tf_cnn.system.atomic import move_atomically, write_atomically
from tf_cnn.system.errors import plural

Tensor = Any
Values = TypeVar('Values')


def write_graph(graph: tf.Graph, path: str) -> None:
    """Writes the graph as built, before optimisation; as text if the file's name ends with txt."""
    graph_def = graph.as_graph_def(add_shapes=True)
    with report_write_errors('graph_file', path):
        write_atomically(
            str(graph_def) if path.endswith('txt') else graph_def.SerializeToString(), path
        )


class StepTracer:
    """Takes steps with TensorFlow's tracing, and writes their traces.

    Tracing slows a step, so it traces the last warm-up step, which is not timed. Without warm-up it
    traces the first timed step, or the first ten for --tfprof_file, as the original does.

    Args:
      num_warmup: how many warm-up steps this process takes; None if the run has no warm-up.
    """

    def __init__(
        self, instruments: InstrumentConfig, session: tf.Session, num_warmup: int | None
    ) -> None:
        self._instruments = instruments
        self._session = session
        self._phase, self._indices = Phase.WARMUP, range(num_warmup or 0, (num_warmup or 0) + 1)
        if num_warmup is None:
            self._phase, self._indices = Phase.TIMED, range(1, 11 if instruments.tfprof_file else 2)
        self._num_traced = 0
        self._profiler = None
        if instruments.tfprof_file:
            self._profiler = tf.profiler.Profiler(session.graph)

    def is_due(self, phase: Phase, indices: range) -> bool:
        return phase is self._phase and any(index in self._indices for index in indices)

    def run(self, fetches: Any, feeds: Mapping[Tensor, Any]) -> Any:
        """Runs a session call, writes its trace, and returns the fetched values."""
        config, is_first = self._instruments, not self._num_traced
        trace_file = config.trace_file if is_first else None
        prefix = config.partitioned_graph_file_prefix if is_first else None
        needs_trace = trace_file or self._profiler
        options = tf.RunOptions(
            trace_level=tf.RunOptions.FULL_TRACE if needs_trace else tf.RunOptions.NO_TRACE,
            output_partition_graphs=prefix is not None,
        )
        metadata = tf.RunMetadata()
        values = self._session.run(fetches, feeds, options=options, run_metadata=metadata)
        if trace_file:
            trace = str(metadata.step_stats)
            if config.use_chrome_trace_format:
                chrome_timeline = timeline.Timeline(metadata.step_stats)
                trace = chrome_timeline.generate_chrome_trace_format(show_memory=True)
            with report_write_errors('trace_file', trace_file):
                write_atomically(trace, trace_file)
        if self._profiler and config.tfprof_file:
            self._profiler.add_step(self._num_traced, metadata)
            with report_write_errors('tfprof_file', config.tfprof_file):
                write_atomically(self._profiler.serialize_to_string(), config.tfprof_file)
        for number, graph_def in enumerate(metadata.partition_graphs if prefix else ()):
            with report_write_errors('partitioned_graph_file_prefix', str(prefix)):
                write_atomically(str(graph_def), f'{prefix}{number}.pbtxt')
        self._num_traced += 1
        return values


class StepProfiler(Hook[StepValues]):
    """Profiles the timed steps of --profile_steps, for TensorBoard.

    Profiling slows these steps.
    """

    def __init__(self, instruments: InstrumentConfig) -> None:
        self._folder = instruments.profile_dir or ''
        self._first, self._last = parse_numbers(instruments.profile_steps, int)
        self._is_running = False
        self._num_timed = 0

    def begin(self, phase: Phase) -> bool:
        if phase is Phase.TIMED and self._first == 1:
            self._start()
        return False

    def after(self, steps: Sequence[Step[StepValues]]) -> bool:
        if steps[-1].phase is Phase.TIMED:
            self._num_timed = steps[-1].index
            if self._num_timed == self._last:
                self.close()
            elif self._num_timed == self._first - 1:
                self._start()
        return False

    @property
    def warning(self) -> str | None:
        """Returns a warning if the steps have ended before the last one of --profile_steps."""
        if self._num_timed >= self._last:
            return None
        reason = f'training ended after {plural(self._num_timed, "timed step")}'
        return f'{reason}, before the last one of --profile_steps'

    def annotate_steps(self, take_steps: Callable[..., Values]) -> Callable[..., Values]:
        """Wraps take_steps(phase, indices), so that profiles show the phase and the first index."""

        def run(phase: Phase, indices: range) -> Values:
            if not self._is_running:
                return take_steps(phase, indices)
            with tf.compat.v2.profiler.experimental.Trace('step', step_num=indices[0], _r=1):
                return take_steps(phase, indices)

        return run

    def _start(self) -> None:
        with report_write_errors('profile_dir', self._folder):
            # A separate folder until the profile is complete.
            self._temporary_folder = tempfile.TemporaryDirectory(
                prefix='.tf_cnn_benchmarks-', dir=self._folder
            )
            tf.compat.v2.profiler.experimental.start(self._temporary_folder.name)
        self._is_running = True

    def close(self) -> None:
        if self._is_running:
            self._is_running = False
            with self._temporary_folder, report_write_errors('profile_dir', self._folder):
                tf.compat.v2.profiler.experimental.stop()
                profiles = Path(self._folder, 'plugins', 'profile')
                profiles.mkdir(parents=True, exist_ok=True)
                for profile in Path(self._temporary_folder.name).glob('plugins/profile/*'):
                    move_atomically(profile, profiles / profile.name)


def _add_histogram(tag: str, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Returns whether all values of the tensor are finite, bool, and their histogram, a summary.

    TensorFlow makes no histogram of a nan or an infinity: the step would fail. They count as 0.
    """
    with tf.device(HOST_DEVICE):
        is_finite = tf.math.is_finite(tensor)
        values = tf.where(is_finite, tensor, tf.zeros_like(tensor))
        return tf.reduce_all(is_finite), tf.summary.histogram(tag, values, [])


class SummaryWriter:
    """Writes TensorBoard summaries every few timed steps.

    Level 1: loss, accuracy, images/sec and learning rate.
    Level 2: also a histogram of every trainable variable, after the session call.
    Level 3: also a histogram of every gradient, which the step computes. Only this level adds to
      the timed seconds.

    A tensor with a value that is not finite has no histogram.

    Attributes:
      gradient_histograms: for each gradient, whether it is finite, and its histogram; by tag.
    """

    def __init__(
        self,
        train_dir: str,
        instruments: InstrumentConfig,
        variables: Iterable[Variable],
        gradients: Sequence[tuple[Variable, Tensor]],
    ) -> None:
        verbosity = instruments.summary_verbosity
        self._step_interval = instruments.save_summaries_steps
        self._variable_histograms: dict[str, tuple[Tensor, Tensor]] = {}
        self.gradient_histograms: dict[str, tuple[Tensor, Tensor]] = {}
        if verbosity >= 2:
            for variable in variables:
                tag = f'variables/{variable.name}'
                self._variable_histograms[tag] = _add_histogram(tag, variable.value)
        if verbosity >= 3:
            for variable, gradient in gradients:
                tag = f'gradients/{variable.name}'
                self.gradient_histograms[tag] = _add_histogram(tag, gradient)
        self._num_omitted = 0
        self._first_omitted = ''
        self._train_dir = train_dir
        with report_write_errors('train_dir', train_dir):
            self._writer = open_event_file(train_dir, tf.get_default_graph())

    def is_due(self, index: int) -> bool:
        return index % self._step_interval == 0

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the scalars of one step.

        step is the global step, so that curves continue when training continues.
        """
        values = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        with report_write_errors('train_dir', self._train_dir):
            self._writer.add_summary(tf.Summary(value=values), step)
            self._writer.flush()

    def write_histograms(
        self, step: int, session: tf.Session, gradients: Mapping[str, tuple[bool, bytes]]
    ) -> None:
        """Writes histograms of the variables as they are, and of the gradients, after a step.

        gradients: the values of gradient_histograms, from the step.
        """
        histograms = dict(gradients)
        if self._variable_histograms:
            histograms |= session.run(self._variable_histograms)
        with report_write_errors('train_dir', self._train_dir):
            for tag, (is_finite, summary) in histograms.items():
                if is_finite:
                    self._writer.add_summary(summary, step)
                else:
                    self._num_omitted += 1
                    self._first_omitted = self._first_omitted or f'{tag} after step {step}'
            self._writer.flush()

    @property
    def warning(self) -> str | None:
        """Returns a warning if a tensor had no histogram."""
        if not self._num_omitted:
            return None
        return (
            f'--train_dir={self._train_dir}: {plural(self._num_omitted, "histogram")} omitted, '
            f'first {self._first_omitted}: it had a value that is nan or infinite'
        )

    def close(self) -> None:
        with report_write_errors('train_dir', self._train_dir):
            self._writer.close()


def step_scalars(step: Step[StepValues], loss_name: str, num_images: int) -> dict[str, float]:
    """Returns the scalars of the summary of a step with num_images images, by tag."""
    values = {
        loss_name: step.values.loss,
        'images_per_second': num_images / step.seconds,
        'learning_rate': step.values.learning_rate,
        'top_1_accuracy': step.values.top_1,
        'top_5_accuracy': step.values.top_5,
    }
    return {name: value for name, value in values.items() if value is not None}

"""Collects and prints the measurements of a run."""

import contextlib
import itertools
import json
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tf_cnn.cluster.worker import Worker
from tf_cnn.inputs.buffers import format_memory
from tf_cnn.results import console as lines
from tf_cnn.results.benchmark_log import BenchmarkLog
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result
from tf_cnn.results.file_names import STDOUT
from tf_cnn.results.result_file import ResultFile, reserve
from tf_cnn.results.sections import ExitSection, Phase
from tf_cnn.results.statistics import RunningRate
from tf_cnn.results.steps import Accuracy, PauseCause, PauseSeconds, Step, StepLog, StepValues
from tf_cnn.results.summary import format_summary
from tf_cnn.run.invocation import Invocation
from tf_cnn.run.params import Role
from tf_cnn.run.plan import Plan
from tf_cnn.run.result_builder import ResultBuilder, run_section
from tf_cnn.run.stage_times import format_stage_table
from tf_cnn.system.errors import RunError, format_flag

# How often the live line gets new numbers.
_LIVE_SECS = 0.2


class StepRecorder:
    """Collects steps, the time between them, and evaluations; prints them as they come."""

    def __init__(
        self,
        plan: Plan,
        console: Console,
        invocation: Invocation,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.num_skipped = 0
        self.result_builder = ResultBuilder(plan, invocation)
        self._plan = plan
        self._console = console
        self._clock = clock
        self._worker: Worker | None = None
        self._has_images = plan.role is not Role.EXCHANGE_ONLY
        self._has_losses = plan.role not in (Role.INPUT_ONLY, Role.EXCHANGE_ONLY)
        self._log = (
            BenchmarkLog(plan.params.results.benchmark_log_dir)
            if plan.params.results.benchmark_log_dir
            else None
        )
        self._steps: list[Step[StepValues]] = []
        # The seconds after each step that have a known cause, by the number of the step.
        self._gap_seconds: dict[int, dict[PauseCause, float]] = {}
        self._rate = RunningRate()
        self._last_printed_step = 0
        self._timed_start: float | None = None
        self._next_live_update = -math.inf
        self._agreed_num_timed: int | None = None
        self._cluster_total: tuple[int, float] | None = None
        self._evaluations: list[Accuracy] = []
        # What --target_seconds does not count, since the first timed step.
        self._evaluation_secs = 0.0
        self._gap_start = clock()
        self._file = ResultFile(path) if (path := plan.params.results.result_file) else None
        self._finish_lock = threading.Lock()
        self.is_finished = False
        self._result: Result | None = None

    @contextlib.contextmanager
    def reserve_result_file(self) -> Iterator[None]:
        """Reserves the file of the result for the block; raises UsageError if another process has
        it.
        """
        path = self._plan.params.results.result_file
        if path is None:
            yield
            return
        with reserve(path, self._plan.numbered_result_file) as self._file:
            if self._file.path != path:
                self._console.note(f'{path} is there, so the result goes to {self._file.path}')
            yield

    def join(self, worker: Worker) -> None:
        self._worker = worker
        if self._log:
            self._log.write_run(self.result_builder.log_header())

    # ---- steps -----------------------------------------------------------------------------------

    def add_steps(self, steps: Sequence[Step[StepValues]]) -> None:
        """Stores the steps of one session call, as soon as it is done."""
        for step in steps:
            self._steps.append(step)
            self.result_builder.record_step(step)
        step = steps[-1]
        if step.phase is Phase.TIMED:
            # One value for each session call: its steps were not measured separately.
            self._rate.add(step.seconds, len(steps))
            if self._timed_start is None:
                self._timed_start = steps[0].start
        # Statistics of thousands of steps at each step would take longer than some steps do.
        if self._console.is_live and step.end >= self._next_live_update:
            self._next_live_update = step.end + _LIVE_SECS
            self._show_live(step)

    def _show_live(self, step: Step[StepValues]) -> None:
        flags, target = self._plan.params.run, self._plan.params.results.target_seconds
        if step.phase is Phase.WARMUP:
            self._console.steps('warm-up step', step.index, flags.num_warmup_batches)
            return
        rate = self._rate.rate(self._plan.images_per_global_step, flags.display_perf_ewma)
        text = f'{rate.images_per_second:.1f} images/sec +/- {rate.standard_error:.1f}'
        total = self._agreed_num_timed or flags.num_timed
        if target and self._agreed_num_timed is None and self._timed_start is not None:
            # As many as fit into the time at this speed.
            total = math.ceil(target * step.index / max(step.end - self._timed_start, 1e-9))
        self._console.steps('step', step.index, max(total, step.index), text)

    def begin_timed_steps(self) -> None:
        """Reads the meters. Workers that train together agree on a number of timed steps for
        --target_seconds.
        """
        target, worker = self._plan.params.results.target_seconds, self._worker
        if (
            target
            and self._steps
            and worker
            and worker.is_synchronous
            and worker.num_training_tasks > 1
        ):
            self._agreed_num_timed = self._agree_on_num_timed(target, worker)
        self.result_builder.begin_timed_steps()

    def _agree_on_num_timed(self, target: float, worker: Worker) -> int:
        warmup = [step.seconds for step in self._steps]
        # The first steps allocate memory.
        seconds_per_step = statistics.median(warmup[len(warmup) // 2 :])
        return math.ceil(target / max(worker.gather('pace', seconds_per_step)))

    @property
    def has_reached_target(self) -> bool:
        """Returns whether the timed steps have taken --target_seconds."""
        target = self._plan.params.results.target_seconds
        if target is None or self._timed_start is None:
            return False
        if self._agreed_num_timed is not None:
            return self._steps[-1].index >= self._agreed_num_timed
        return self._clock() - self._timed_start - self._evaluation_secs >= target

    @contextlib.contextmanager
    def record_gap(self, cause: PauseCause) -> Iterator[None]:
        """Counts the seconds of the block as time between two steps, with this cause."""
        self._gap_start = start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            if self._steps:
                gap_seconds = self._gap_seconds.setdefault(len(self._steps) - 1, {})
                gap_seconds[cause] = gap_seconds.get(cause, 0.0) + seconds
            if cause is PauseCause.EVALUATION and self._timed_start is not None:
                self._evaluation_secs += seconds

    def _gaps(self) -> Iterator[PauseSeconds]:
        """Yields the seconds after each step, by cause; PauseCause.OTHER has the remaining time."""
        for number, (step, following) in enumerate(
            itertools.zip_longest(self._steps, self._steps[1:])
        ):
            gap_seconds = self._gap_seconds.get(number, {})
            if following is None:
                yield gap_seconds
            else:
                yield {
                    **gap_seconds,
                    PauseCause.OTHER: max(
                        0.0, following.start - step.end - sum(gap_seconds.values())
                    ),
                }

    def describe_last_step(self, global_step: int) -> str:
        """Describes the last step, as the step lines count it and as checkpoints do."""
        if not self._steps:
            return f'global step {global_step}'
        last = self._steps[-1]
        phase = 'warm-up step' if last.phase is Phase.WARMUP else 'step'
        return f'{phase} {last.index} (global step {global_step})'

    def print_due_steps(self, steps: Sequence[Step[StepValues]]) -> None:
        """Prints the lines that are due among the steps of a session call; rates count the steps up
        to its end.
        """
        for step in steps:
            if step.phase is not Phase.TIMED:
                return
            if step.index == 1 or step.index % self._plan.params.run.display_every == 0:
                with self.record_gap(PauseCause.PRINTING):
                    self._print_step(step)
                    self._log_step(step)

    def _print_step(self, step: Step[StepValues]) -> None:
        if not self._last_printed_step:
            with_accuracy = step.values.top_1 is not None
            loss_name = self._plan.params.run.loss_type_to_report if self._has_losses else None
            self._console.result(
                lines.format_step_header(
                    loss_name, with_accuracy=with_accuracy, with_images=self._has_images
                )
            )
        self._last_printed_step = step.index
        rate = self._rate.rate(
            self._plan.images_per_global_step, self._plan.params.run.display_perf_ewma
        )
        if self._has_images:
            text = lines.format_step(step.index, rate, step.values, with_loss=self._has_losses)
        else:
            text = lines.format_exchange(step.index, rate, self._plan.images_per_global_step)
        self._console.result(text)

    def _log_step(self, step: Step[StepValues]) -> None:
        rate, values = (
            self._rate.rate(
                self._plan.images_per_global_step, self._plan.params.run.display_perf_ewma
            ),
            step.values,
        )
        accuracies = {'top_1_accuracy': values.top_1, 'top_5_accuracy': values.top_5}
        losses = (
            {self._plan.params.run.loss_type_to_report: values.loss} if self._has_losses else {}
        )
        self._add_to_log(
            step.index, {'current_examples_per_sec': rate.images_per_second, **losses, **accuracies}
        )

    def _add_to_log(self, global_step: int, metrics: Mapping[str, float | None]) -> None:
        for name, value in metrics.items():
            if self._log and value is not None:
                self._log.append_metric(name, value, global_step)

    # ---- evaluations -----------------------------------------------------------------------------

    def add_evaluation(self, accuracy: Accuracy) -> None:
        """Stores and prints an evaluation. Call it within record_gap(PauseCause.EVALUATION), for
        the whole evaluation.
        """
        now = self._clock()
        prepare_seconds = max(0.0, now - self._gap_start - accuracy.seconds)
        self._evaluations.append(replace(accuracy, end=now, prepare_seconds=prepare_seconds))
        is_evaluation_run = self._plan.role is Role.EVALUATION
        self._console.result(
            (lines.format_accuracy if is_evaluation_run else lines.format_interim_accuracy)(
                accuracy
            )
        )
        accuracies = {'eval_top_1_accuracy': accuracy.top_1, 'eval_top_5_accuracy': accuracy.top_5}
        self._add_to_log(
            accuracy.step,
            {**accuracies, 'eval_average_examples_per_sec': accuracy.images_per_second},
        )

    # ---- the end ---------------------------------------------------------------------------------

    @property
    def result(self) -> Result:
        """Returns the result of a run that has ended; without steps if training was over before it
        began.
        """
        if self._result is None:
            self._result = self._make_result(self.measurements(), ExitSection(0, None))
        return self._result

    def finish(self, exit_info: ExitSection, prints: bool = True) -> None:
        """Makes, writes and prints the result. Further calls, as by a signal meanwhile, do nothing.

        Raises:
          RunError: the file of a complete result cannot be written.
        """
        with self._finish_lock:
            if not self.is_finished:
                self.is_finished = True
                self._report(self.measurements(), exit_info, prints)

    def _report(self, measurements: StepLog, exit_info: ExitSection, prints: bool) -> None:
        faults, is_chief = [], self._plan.cluster_role.is_chief
        try:
            result = self._result = self._make_result(measurements, exit_info)
            # Write the file first: the reader of standard output may have left.
            faults = self._write_files(result, measurements) if is_chief else []
        finally:
            # The total is printed whatever happens to the document.
            if prints:
                self._print_result(measurements, exit_info)
        if is_chief and prints:
            self._print_advice(result, len(measurements.timed_steps))
        if faults and exit_info.is_complete:
            raise faults[0]
        for fault in faults if prints else ():
            self._console.warning(str(fault))

    def _print_advice(self, result: Result, num_timed: int) -> None:
        if stages := self.result_builder.input_stages:
            self._console.result(
                format_stage_table(stages, num_timed, self._plan.params.results.target_seconds)
            )
            if buffers := self.result_builder.input_buffers:
                self._console.result(format_memory(buffers))
        for line in format_summary(result):
            self._console.note(line)
        for warning in result.warnings:
            # Warnings about settings were printed before the run.
            if warning.code != 'settings':
                self._console.advice(warning.text)

    def _make_result(self, measurements: StepLog, exit_info: ExitSection) -> Result:
        """Returns the result. The chief's has the steps of all workers, others only their own."""
        worker_steps = self.result_builder.worker_section(measurements)
        workers: Sequence[Mapping[str, Any] | None] = []
        if self._worker and measurements.steps:
            workers = self._worker.collect('steps', worker_steps, is_complete=exit_info.is_complete)
        return self.result_builder.build(
            measurements, self._evaluations, exit_info, workers or [worker_steps]
        )

    def _write_files(self, result: Result, measurements: StepLog) -> list[RunError]:
        faults = []
        timed_steps = measurements.timed_steps
        try:
            if self._is_line_due(measurements):
                self._log_step(timed_steps[-1])
            if result.throughput.images:
                self._add_to_log(
                    timed_steps[-1].index, {'average_examples_per_sec': result.images_per_second}
                )
        except RunError as error:
            faults.append(error)
        if self._file:
            flag = format_flag('result_file', self._file.path)
            try:
                text = json.dumps(result.to_dict())
                if self._file.path == STDOUT:
                    self._console.document(text)
                elif not self._file.write(text, result):
                    self._console.warning(
                        f'{flag}: the earlier result stays there, since this run timed no step'
                    )
            except OSError as error:
                faults.append(
                    RunError(
                        f'{flag}: it cannot be written ({error.strerror}); make room or write '
                        'elsewhere'
                    )
                )
            except RunError as error:
                faults.append(error)
        return faults

    def _print_result(self, measurements: StepLog, exit_info: ExitSection) -> None:
        timed_steps, throughput = measurements.timed_steps, measurements.throughput
        rate = throughput.images_per_second or 0.0
        if self._is_line_due(measurements):
            self._print_step(timed_steps[-1])
        # In asynchronous modes a worker may still be warming up when the others have taken all
        # timed steps. The total belongs to whole runs: what an incomplete one measured is in its
        # warning, and in the document.
        if throughput.images and exit_info.is_complete:
            if self._has_images:
                self._console.result(lines.format_total(rate))
            else:
                self._console.result(
                    lines.format_exchange_total(throughput.wall_seconds / len(timed_steps))
                )
        if self.num_skipped:
            self._console.warning(lines.format_skipped(self.num_skipped))
        if not exit_info.is_complete and self._plan.role is not Role.EVALUATION:
            target = self._plan.params.results.target_seconds
            planned_steps = (
                f'of as many as take {target:g} seconds'
                if target
                else f'of {self._plan.params.run.num_timed}'
            )
            global_step = measurements.steps[-1].values.steps_after if measurements.steps else None
            self._console.warning(
                lines.format_incomplete(len(timed_steps), planned_steps, rate, global_step)
            )

    def _is_line_due(self, measurements: StepLog) -> bool:
        """Returns whether the last timed step has no line yet. A process that joined after all
        steps has no line to print.
        """
        return (
            self._timed_start is not None
            and measurements.timed_steps[-1].index != self._last_printed_step
        )

    def adopt_cluster_total(self) -> None:
        """Takes over the chief's images and seconds, so that all workers of a cluster print the
        same rate.
        """
        if self._worker and self._worker.cluster:
            measurements = self.measurements()
            self._cluster_total = self._worker.share_total(
                measurements.process_images, measurements.process_wall_seconds
            )

    def measurements(self) -> StepLog:
        return StepLog(
            run_section(self._plan, self.num_skipped),
            tuple(self._steps),
            tuple(self._gaps()),
            self._plan.cluster_role.num_training_tasks,
            self._cluster_total,
        )

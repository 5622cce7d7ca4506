"""Prints the lines of the timed steps, and the same numbers to the logs of --benchmark_log_dir."""

import math
from collections.abc import Mapping, Sequence

import psutil
import tensorflow.compat.v1 as tf

from tf_cnn.plan.params import Role
from tf_cnn.plan.plan import Plan
from tf_cnn.results import console as lines
from tf_cnn.results.benchmark_log import append_metric, run_info, write_run
from tf_cnn.results.console import Console
from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Accuracy, PauseCause, Step, StepLog, StepValues
from tf_cnn.run.step_loop import Hook, TargetSeconds
from tf_cnn.run.step_recorder import StepRecorder

# How often the live line gets new numbers. Statistics of thousands of steps at each step would take
# longer than some steps do.
_LIVE_SECS = 0.2


class StepPrinter(Hook[StepValues]):
    """Prints the beginning of each phase, a line for each --display_every steps, and a live line
    between them.
    """

    def __init__(self, plan: Plan, console: Console, recorder: StepRecorder) -> None:
        self._plan = plan
        self._console = console
        self._recorder = recorder
        self._has_images = plan.role is not Role.EXCHANGE_ONLY
        self._has_losses = plan.role not in (Role.INPUT_ONLY, Role.EXCHANGE_ONLY)
        self._log_folder = plan.params.results.benchmark_log_dir
        self._last_printed_step = 0
        self._target: TargetSeconds[StepValues] | None = None
        self._next_live_update = -math.inf

    def follow(self, target: TargetSeconds[StepValues]) -> None:
        """Makes the live line show the number of steps that processes agree on."""
        self._target = target

    def begin_log(self) -> None:
        """Writes the beginning of the log, see results.benchmark_log."""
        plan = self._plan
        if self._log_folder:
            write_run(
                self._log_folder,
                run_info(
                    model=plan.model_name,
                    data_set=plan.data.data_set.name,
                    flags=plan.params.values(),
                    machine=plan.machine,
                    environment=plan.environment,
                    tensorflow_version=tf.version.VERSION,
                    tensorflow_git=tf.version.GIT_VERSION,
                    test_id=plan.params.results.benchmark_test_id,
                    available_memory=psutil.virtual_memory().available,
                ),
            )

    def begin(self, phase: Phase) -> bool:
        # Launchers wait for these lines of the original.
        self._console.result('Running warm up' if phase is Phase.WARMUP else 'Done warm up')
        return False

    def after(self, steps: Sequence[Step[StepValues]]) -> bool:
        last = steps[-1]
        if self._console.is_live and last.end >= self._next_live_update:
            self._next_live_update = last.end + _LIVE_SECS
            self._show_live(last)
        if last.phase is Phase.TIMED:
            for step in steps:
                if step.index == 1 or step.index % self._plan.params.run.display_every == 0:
                    with self._recorder.pause(PauseCause.PRINTING):
                        self._print(step)
                        self._write_to_log(step)
        return False

    def _show_live(self, step: Step[StepValues]) -> None:
        flags, target = self._plan.params.run, self._plan.params.results.target_seconds
        if step.phase is Phase.WARMUP:
            self._console.steps(
                'warm-up step',
                step.index,
                flags.num_warmup_batches,
                until=' until the timed steps',
            )
            return
        rate, total = self._recorder.rate(), flags.num_timed
        if self._target and self._target.num_timed is not None:
            total = self._target.num_timed
        elif target:
            # As many as fit into the time at this speed.
            seconds = max(step.end - self._recorder.timed_start, 1e-9)
            total = math.ceil(target * step.index / seconds)
        text = f'{rate.images_per_second:.1f} images/sec +/- {rate.standard_error:.1f}'
        self._console.steps('step', step.index, max(total, step.index), text)

    def _print(self, step: Step[StepValues]) -> None:
        if not self._last_printed_step:
            header = lines.format_step_header(
                self._plan.params.run.loss_type_to_report if self._has_losses else None,
                with_accuracy=step.values.top_1 is not None,
                with_images=self._has_images,
            )
            self._console.result(header)
        self._last_printed_step = step.index
        if self._has_images:
            text = lines.format_step(
                step.index, self._recorder.rate(), step.values, with_loss=self._has_losses
            )
        else:
            images = self._plan.images_per_global_step
            text = lines.format_exchange(step.index, self._recorder.rate(), images)
        self._console.result(text)

    def print_last_step(self, log: StepLog) -> None:
        """Prints the last timed step of a run that has ended, if it has no line yet."""
        if self._is_last_line_due(log):
            self._print(log.timed_steps[-1])

    def _is_last_line_due(self, log: StepLog) -> bool:
        timed = log.timed_steps
        return bool(timed) and timed[-1].index != self._last_printed_step

    # ---- --benchmark_log_dir ---------------------------------------------------------------------

    def log_end(self, log: StepLog, images_per_second: float | None) -> None:
        """Writes the last timed step, and the total if there is one. Call it before
        print_last_step.
        """
        if self._is_last_line_due(log):
            self._write_to_log(log.timed_steps[-1])
        if images_per_second:
            metrics = {'average_examples_per_sec': images_per_second}
            self._write_metrics(len(log.timed_steps), metrics)

    def log_evaluation(self, accuracy: Accuracy) -> None:
        metrics = {
            'eval_top_1_accuracy': accuracy.top_1,
            'eval_top_5_accuracy': accuracy.top_5,
            'eval_average_examples_per_sec': accuracy.images_per_second,
        }
        self._write_metrics(accuracy.step, metrics)

    def _write_to_log(self, step: Step[StepValues]) -> None:
        if self._log_folder is None:
            return
        losses = (
            {self._plan.params.run.loss_type_to_report: step.values.loss}
            if self._has_losses
            else {}
        )
        metrics = {
            'current_examples_per_sec': self._recorder.rate().images_per_second,
            **losses,
            'top_1_accuracy': step.values.top_1,
            'top_5_accuracy': step.values.top_5,
        }
        self._write_metrics(step.index, metrics)

    def _write_metrics(self, global_step: int, metrics: Mapping[str, float | None]) -> None:
        for name, value in metrics.items():
            if self._log_folder and value is not None:
                append_metric(self._log_folder, name, value, global_step)

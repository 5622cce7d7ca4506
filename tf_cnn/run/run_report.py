"""Records a run, and reports it when it ends: its result, the total and advice."""

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.worker import Worker
from tf_cnn.inputs.pipeline_stages import format_memory
from tf_cnn.plan.params import Role
from tf_cnn.plan.plan import Plan
from tf_cnn.results import console as lines
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result
from tf_cnn.results.file_names import may_replace, names_in_order
from tf_cnn.results.result_file import file_version, write_new, write_result
from tf_cnn.results.sections import ExitSection
from tf_cnn.results.steps import Accuracy, StepLog
from tf_cnn.results.summary import format_summary
from tf_cnn.run.banner import make_banner
from tf_cnn.run.result_builder import build_result, worker_section
from tf_cnn.run.run_meters import RunMeters
from tf_cnn.run.stage_times import format_stage_table
from tf_cnn.run.step_printer import StepPrinter
from tf_cnn.run.step_recorder import StepRecorder
from tf_cnn.step.evaluation import Evaluation, combine_accuracy, write_accuracy_summary
from tf_cnn.step.step_graph import StepGraph
from tf_cnn.system.errors import STDIO, RunError, format_flag
from tf_cnn.training.checkpoint_files import checkpoint_step


class RunReport:
    """The report of a run.

    Attributes:
      meters, recorder, printer: hooks of the step loop, which collect what is reported.
      is_finished: whether finish() has been called.
      has_banner: whether the banner was printed before the run.
    """

    def __init__(
        self, plan: Plan, console: Console, argv: Sequence[str], start_time: float
    ) -> None:
        self.meters = RunMeters(plan, start_time)
        self.recorder = StepRecorder(plan)
        self.printer = StepPrinter(plan, console, self.recorder)
        self.is_finished = False
        self.has_banner = False
        self._plan = plan
        self._argv = tuple(argv)
        self._console = console
        template, path = plan.unresolved.results.result_file, plan.params.results.result_file
        # Another run may write the file before this one ends.
        self._replaced = file_version(path) if path and may_replace(template or '') else None
        self._finish_lock = threading.Lock()
        self._result: Result | None = None

    def print_banner(self, device_prefix: str = '', step_graph: StepGraph | None = None) -> None:
        """Prints make_banner() with these arguments, unless the banner was printed before."""
        if not self.has_banner:
            self._console.result(make_banner(self._plan, device_prefix, step_graph))

    def evaluate(
        self, evaluation: Evaluation, session: tf.Session, step: int, worker: Worker, name: str
    ) -> Accuracy:
        """Evaluates with the other workers; records, prints and logs the accuracy. Call it within
        recorder.pause(PauseCause.EVALUATION).

        step: the global step of the variables; name: of the evaluation, the same in all workers.
        """
        accuracy = combine_accuracy(evaluation.run(session, step), worker, f'accuracy/{name}')
        self.recorder.add_evaluation(accuracy)
        is_evaluation_run = self._plan.role is Role.EVALUATION
        format_line = lines.format_accuracy if is_evaluation_run else lines.format_interim_accuracy
        self._console.result(format_line(accuracy))
        self.printer.log_evaluation(accuracy)
        if folder := self._plan.params.evaluation.eval_dir:
            write_accuracy_summary(accuracy, folder)
        return accuracy

    @property
    def result(self) -> Result:
        """Returns the result of a run that has ended; without steps if training was over before it
        began.
        """
        if self._result is None:
            self._result = self._make_result(self.recorder.log(), ExitSection(0, None))
        return self._result

    def finish(self, exit_info: ExitSection, worker: Worker, *, prints: bool = True) -> None:
        """Makes, writes and prints the result. Further calls, as by a signal meanwhile, do nothing.

        Raises:
          RunError: the file of a complete result cannot be written.
        """
        with self._finish_lock:
            if not self.is_finished:
                self.is_finished = True
                self._report(self.recorder.log(), exit_info, worker, prints)

    def _report(self, log: StepLog, exit_info: ExitSection, worker: Worker, prints: bool) -> None:
        faults, is_chief = [], self._plan.cluster_role.is_chief
        if self._plan.params.run.forward_only and self._plan.resume_from:
            self._add_accuracy(self._plan.resume_from, log)
        try:
            result = self._result = self._make_result(log, exit_info, worker)
            # Write the file first: the reader of standard output may have left.
            faults = self._write_files(result, log) if is_chief else []
        finally:
            # The total is printed whatever happens to the document.
            if prints:
                self._print_total(log, exit_info)
        if is_chief and prints:
            self._print_advice(result, len(log.timed_steps))
        if faults and exit_info.is_complete:
            raise faults[0]
        for fault in faults if prints else ():
            self._console.warning(str(fault))

    def _add_accuracy(self, checkpoint: str, log: StepLog) -> None:
        """Records the accuracy of a checkpoint's weights over the timed steps of this process."""
        steps = log.timed_steps
        images_of_step = self._plan.params.run.batch_size * len(self._plan.devices.towers)
        top_1, top_5 = (
            round(images_of_step * sum(getattr(step.values, name) or 0.0 for step in steps))
            for name in ('top_1', 'top_5')
        )
        num_images, seconds = images_of_step * len(steps), log.process_wall_seconds
        accuracy = Accuracy(checkpoint_step(checkpoint), num_images, top_1, top_5, seconds)
        self.recorder.evaluations.append(accuracy)

    def _make_result(
        self, log: StepLog, exit_info: ExitSection, worker: Worker | None = None
    ) -> Result:
        """Returns the result. The chief's has the steps of all workers, others only their own."""
        own_steps = worker_section(self._plan, self.meters, log)
        workers: Sequence[Mapping[str, Any] | None] = []
        if log.steps and worker:
            workers = worker.collect(
                'steps',
                own_steps,
                is_complete=exit_info.is_complete,
                patience=self.meters.alone_wait,
            )
        return build_result(
            self._plan,
            self._argv,
            self.meters,
            log,
            self.recorder.evaluations,
            exit_info,
            workers or [own_steps],
        )

    def _write_files(self, result: Result, log: StepLog) -> list[RunError]:
        faults = []
        try:
            total = result.images_per_second if result.throughput.images else None
            self.printer.log_end(log, total)
        except RunError as error:
            faults.append(error)
        if path := self._plan.params.results.result_file:
            flag = format_flag('result_file', path)
            try:
                text = json.dumps(result.to_dict())
                if path == STDIO:
                    self._console.document(text)
                elif not (target := write_result(text, result, path, self._replaced)):
                    self._console.warning(
                        f'{flag}: the earlier result stays there, since this run timed no step'
                    )
                elif target != (first := next(names_in_order(path))):
                    self._console.note(f'another run wrote {first}, so the result is in {target}')
            except OSError as error:
                if path == STDIO:
                    # Its reader has left; the console reports other faults.
                    raise
                place = _write_elsewhere(text, path)
                faults.append(RunError(f'{flag}: it cannot be written ({error.strerror}); {place}'))
            except RunError as error:
                faults.append(error)
        return faults

    def _print_total(self, log: StepLog, exit_info: ExitSection) -> None:
        throughput, num_timed = log.throughput, len(log.timed_steps)
        rate = throughput.images_per_second or 0.0
        self.printer.print_last_step(log)
        # In asynchronous modes a worker may still be warming up when the others have taken all
        # timed steps. The total belongs to whole runs: what an incomplete one measured is in its
        # warning, and in the document.
        if throughput.images and exit_info.is_complete:
            if self._plan.role is Role.FORWARD_ONLY and self.recorder.evaluations:
                self._console.result(lines.format_accuracies(self.recorder.evaluations[-1]))
            self._console.result(
                lines.format_exchange_total(log.run.images_per_step / rate)
                if self._plan.role is Role.EXCHANGE_ONLY
                else lines.format_total(rate)
            )
        if num_skipped := log.run.num_skipped_steps:
            self._console.warning(lines.format_skipped(num_skipped))
        if not exit_info.is_complete and self._plan.role is not Role.EVALUATION:
            target = self._plan.params.results.target_seconds
            planned_steps = (
                f'in {throughput.wall_seconds:.3g} of {target:g} seconds'
                if target
                else f'of {self._plan.params.run.num_timed}'
            )
            global_step = log.steps[-1].values.steps_after if log.steps else None
            self._console.warning(
                lines.format_incomplete(num_timed, planned_steps, rate, global_step)
            )

    def _print_advice(self, result: Result, num_timed: int) -> None:
        if stages := self.meters.input_stages:
            target = self._plan.params.results.target_seconds
            self._console.result(format_stage_table(stages, num_timed, target))
            if buffers := self.meters.input_buffers:
                self._console.result(format_memory(buffers))
        for line in format_summary(result):
            self._console.note(line)
        for warning in result.warnings:
            # Warnings about settings were printed before the run.
            if warning.code != 'settings':
                self._console.advice(f'{warning.text} [{warning.code}]')


def _write_elsewhere(text: str, path: str) -> str:
    """Writes a document into the working folder, or the folder of temporary files; returns where
    it is.
    """
    for folder in (os.getcwd, tempfile.gettempdir):
        with contextlib.suppress(OSError):
            name = Path(folder(), Path(path).name)
            return f'the result is in {write_new(text, names_in_order(str(name)))}'
    return 'make room or write elsewhere'

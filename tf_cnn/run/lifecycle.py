"""The lifecycle of every run: joining and leaving the cluster, faults and signals."""

import contextlib
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.cluster_worker import ClusterWorker
from tf_cnn.cluster.horovod_worker import HorovodWorker
from tf_cnn.cluster.rendezvous import NO_RESUME_POINT, ForeignTaskError, ResumePoint
from tf_cnn.cluster.worker import Worker
from tf_cnn.plan.plan import Plan
from tf_cnn.results.console import Console
from tf_cnn.results.sections import ExitSection
from tf_cnn.results.steps import Step, StepValues
from tf_cnn.run.run_report import RunReport
from tf_cnn.run.shard_faults import (
    check_record_lengths,
    check_shard_sizes,
    explain_fault,
    states_of_shards,
    to_tensorflow_error,
)
from tf_cnn.run.step_loop import Hook
from tf_cnn.system.atomic import lock_folder
from tf_cnn.system.errors import OutputError, RunError, UsageError, format_error
from tf_cnn.system.signals import GRACE_SECS, SIGNALS, Stopped
from tf_cnn.training.checkpoint_files import latest_checkpoint


class RunLifecycle(Hook[StepValues]):
    """This process, from joining its cluster to leaving it. As a hook, it is where a signal or the
    loss of another task ends the steps.

    Args:
      save_variables: saves the trained variables; called when a signal, Ctrl-C or the caller ends
        the run early.
    """

    def __init__(
        self,
        plan: Plan,
        console: Console,
        report: RunReport,
        save_variables: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._console = console
        self._report = report
        self._save_variables = save_variables
        self._last_step_secs = 0.0
        self.worker = Worker(plan.session.config)
        # Held until the process has saved what it could after a fault.
        self._locks = contextlib.ExitStack()
        self.is_in_step = False
        self._is_evaluating = False
        self._shards_before: Mapping[str, tuple[int, int] | None] = {}

    def join(self, resume_point: ResumePoint = NO_RESUME_POINT) -> Worker:
        """Waits for the other processes of the cluster, then checks the shards and locks the
        checkpoint folder.
        """
        self._report.meters.begin_phase('join')
        self.worker = worker = self._make_worker()
        worker.join(resume_point)
        # Checked after joining, so that the other tasks learn the reason, and before TensorFlow
        # reads a wrong length.
        self._check_record_lengths()
        if folder := self._plan.checkpoint_folder:
            conflict = RunError(
                f'--train_dir={folder}: another run saves its checkpoints there; give each run a '
                'folder of its own, or wait until the other run ends'
            )
            try:
                self._locks.enter_context(lock_folder(Path(folder), conflict))
            except OSError as error:
                raise RunError(
                    f'--train_dir={folder}: it cannot be opened ({error.strerror}); use another '
                    'path'
                ) from error
            newest = latest_checkpoint(folder)
            if newest != self._plan.resume_from:
                # The other tasks of a cluster already know the step that this one continues from.
                raise RunError(
                    f'--train_dir={folder}: another run saved {newest} there while '
                    'this one was starting; start it again'
                )
        self._report.printer.begin_log()
        self._report.meters.begin_phase('build')
        return worker

    def _check_record_lengths(self) -> None:
        self._shards_before = states_of_shards(self._plan)
        for shards in (self._plan.data.shards, self._plan.data.validation_shards):
            check_record_lengths(shards, self._console.warning)

    def _abort(self, reason: str, exit_code: int) -> NoReturn:
        """Exits while the main thread is in a call that nothing can interrupt."""
        self._console.close()
        print(format_error(reason), file=sys.stderr, flush=True)
        os._exit(exit_code)

    def _make_worker(self) -> Worker:
        processes = self._plan.cluster_role
        if processes.cluster is None:
            return self.worker
        settings = {**processes.shared_settings, **self._plan.shared_data}
        if processes.horovod:
            config = self._plan.session.config
            return HorovodWorker(processes.horovod, processes.cluster, config, settings=settings)
        return ClusterWorker(
            processes.cluster,
            self._plan.session.config,
            settings=settings,
            is_synchronous=processes.is_synchronous,
            connect_secs=self._plan.params.cluster.connect_timeout_secs,
            step_secs=self._plan.params.cluster.step_timeout_secs,
            report=self._console.progress,
            abort=self._abort,
            finish=lambda reason: self._report.finish(ExitSection(1, reason), self.worker),
        )

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Runs the block. However it ends, prints the measurements and tells the other tasks."""
        with self._locks, self._handle_signals():
            try:
                yield
                self._report.recorder.check_total()
                check_shard_sizes(self._shards_before)
                self._report.finish(ExitSection(0, None), self.worker)
            except RunError as fault:
                raise self._fail(fault) from fault.__cause__
            except tf.errors.OpError as error:
                raise self._fail(self._explain(error)) from error
            except ForeignTaskError as error:
                # The files that its flags name may belong to the cluster that answered.
                self.worker.leave(error.exit_code, str(error))
                raise
            except UnicodeDecodeError as error:
                raise self._fail(self._explain(to_tensorflow_error(error))) from error
            except (KeyboardInterrupt, GeneratorExit) as interruption:
                # A signal, or the caller closed the generator of steps.
                if not sys.is_finalizing():
                    exit_info = self._exit_info_of(interruption)
                    self._finish(exit_info)
                    if isinstance(interruption, Stopped) and self._plan.cluster_role.cluster:
                        # Print no error line: `cluster` takes the first one as the cause.
                        self._console.warning(str(exit_info.reason))
                        self._console.close()
                        SIGNALS.exit(interruption.exit_code)
                raise
            except Exception as error:
                # The session was closed between two steps because another task was lost.
                if isinstance(error, RuntimeError) and (
                    failure := self.worker.await_peer_failure()
                ):
                    raise self._fail(failure) from error
                self._save_measurements(error)
                raise
            finally:
                self._console.close()
            self.worker.leave(0)

    @contextlib.contextmanager
    def open_session(self, graph: tf.Graph) -> Iterator[tf.Session]:
        """Opens a session for the block, and closes it afterwards. After an error in a cluster it
        stays open, since closing could wait for a lost task.
        """
        target = self.worker.target
        session = tf.Session(target, graph=graph, config=self.worker.config)
        try:
            yield session
        except BaseException:
            if not target:
                session.close()
            raise
        session.close()

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        """Marks the block as a session call, and limits how long it waits for other tasks."""
        self.is_in_step = True
        with self.worker.taking_steps():
            yield
        # Stays set after a fault: the step may have been applied in part.
        self.is_in_step = False

    def after(self, steps: Sequence[Step[StepValues]]) -> bool:
        """Raises Stopped after a signal, and PeerError if another task was lost."""
        self._last_step_secs = steps[-1].end - steps[0].start
        if not self.worker.ends_after_chief:
            SIGNALS.check()
        self.worker.raise_if_lost(self._last_step_secs)
        return False

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Runs an evaluation. Errors then name the validation images and --eval_batch_size."""
        self._is_evaluating = True
        yield
        # Stays set after a fault, since `guard` explains the fault after this block.
        self._is_evaluating = False

    @contextlib.contextmanager
    def save_if_interrupted(self) -> Iterator[None]:
        """Runs the block, which takes steps in an open session; saves the variables if the user
        or a fault of an output, such as a full disk, ends it early.
        """
        try:
            try:
                yield
            except tf.errors.OpError:
                # A step may fail because other workers received the signal too.
                SIGNALS.check()
                # The session stays open until another thread has saved the variables after a loss.
                self.worker.await_peer_failure()
                raise
            except OutputError:
                # A terminal that was closed sends SIGHUP, and writing to it fails.
                SIGNALS.check()
                raise
        except (KeyboardInterrupt, GeneratorExit, BrokenPipeError, OutputError):
            # While Python exits, TensorFlow no longer works.
            if not sys.is_finalizing():
                self._save_variables()
            raise

    def _handle_signals(self) -> contextlib.AbstractContextManager[None]:
        def announce_signal(stop: Stopped, count: int) -> None:
            # Other tasks may end because of the same signal; that must not stop this process from
            # saving.
            self.worker.begin_stop()
            is_long = self.is_in_step and self._last_step_secs > GRACE_SECS
            if count == 1 and is_long and not self._report.is_finished:
                self._console.note(
                    f'{stop.reason}: ending after this step; a second signal does not wait for it'
                )

        may_exit = self._plan.cluster_role.cluster is not None
        return SIGNALS.storing(
            self._finish_for_signal,
            on_signal=announce_signal,
            grace=self._grace_secs,
            may_exit=may_exit,
        )

    def _grace_secs(self, num_signals: int) -> float:
        """Returns how many seconds the main thread has to answer a signal."""
        if self._report.is_finished:
            # The main thread is about to end.
            return math.inf
        if num_signals > 1:
            return 0.0
        return max(GRACE_SECS, 2 * self._last_step_secs) if self.is_in_step else GRACE_SECS

    def _finish(self, exit_info: ExitSection, *, prints: bool = True) -> None:
        try:
            self._report.finish(exit_info, self.worker, prints=prints)
        finally:
            # Leave the cluster even if printing the result fails.
            self.worker.leave(exit_info.exit_code, exit_info.reason or '')

    def _save_measurements(self, error: Exception) -> None:
        """Writes the measurements without printing them.

        For a lost reader of standard output, differing settings of the tasks, and defects of this
        program.
        """
        exit_code, reason = 1, f'{type(error).__name__}: {error}'
        if isinstance(error, UsageError):
            exit_code, reason = error.exit_code, str(error)
        elif isinstance(error, BrokenPipeError):
            reason = 'the reader of its standard output has left'
        self._finish(ExitSection(exit_code, reason), prints=False)

    def _fail(self, fault: RunError) -> RunError:
        # A launcher may stop all tasks after the failure; this task is ending already.
        with contextlib.suppress(Stopped):
            self._finish(ExitSection(fault.exit_code, str(fault)))
        fault.result = self._report.result
        return fault

    def _finish_for_signal(self, stop: Stopped) -> None:
        """Saves variables and measurements while the main thread is in a call that cannot be
        interrupted.
        """
        self._save_variables()
        exit_info = self._exit_info_of(stop)
        self._finish(exit_info)
        if self._plan.cluster_role.cluster:
            self._console.warning(str(exit_info.reason))
        self._console.close()
        if not self._plan.cluster_role.cluster:
            print(format_error(stop.reason), file=sys.stderr)

    def _exit_info_of(self, interruption: BaseException) -> ExitSection:
        if isinstance(interruption, KeyboardInterrupt) or SIGNALS.received:
            stop = (
                interruption
                if isinstance(interruption, Stopped)
                else SIGNALS.received or Stopped(signal.SIGINT)
            )
            return ExitSection(stop.exit_code, self.worker.explain_stop(stop.reason))
        return ExitSection(1, 'the caller closed the generator of steps')

    def _explain(self, error: tf.errors.OpError) -> RunError:
        """Returns the error in one line: the failure of another task, a fault in the data, or
        TensorFlow's message.
        """
        if failure := self.worker.await_peer_failure():
            return failure
        line = explain_fault(
            error,
            self._plan,
            is_evaluating=self._is_evaluating,
        )
        return RunError(self.worker.explain_step_error(error, line))

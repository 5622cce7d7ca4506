"""The part that training and evaluating runs share: joining and leaving the cluster, faults and signals."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf

from cluster.cluster_worker import ClusterWorker
from cluster.failure_detector import PeerFailure, fault_of
from cluster.horovod_worker import HorovodWorker
from cluster.rendezvous import TrainingOverError
from cluster.signals import Interrupts, Stop, Terminated
from cluster.worker import LostError, OneProcess, Worker
from errors import RunError, UsageError, format_error
from inputs.data_sets import Shards
from planning.plan import Plan
from results.console import Console
from results.result import Ending, Result
from run.faults import await_loss, check_lengths, explain, quoting_bytes


class Process:
    """This process, from joining its cluster to leaving it.

    Args:
      plan: the plan of the run.
      conclude: keeps and prints the measurements and returns the result, only at its first call; its arguments say how
        the run ended, and whether to print.
      keep: saves the trained variables; called when a signal, Ctrl-C or the caller ends the run early.
      hand_on: returns the progress in words, and the state that the process replacing this one inherits; None if this
        process cannot be replaced.

    Attributes:
      worker: the worker that this process is in the run.
    """

    def __init__(
        self,
        plan: Plan,
        console: Console,
        *,
        conclude: Callable[[Ending, bool], Result],
        keep: Callable[[], None] = lambda: None,
        hand_on: Callable[[], tuple[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        self._plan = plan
        self._console = console
        self._conclude = conclude
        self._keep = keep
        self._hand_on = hand_on
        self._stop = Stop(self._finish_for_signal, self._stop_watching)
        self._interrupts = Interrupts()
        self._worker: Worker | None = None
        self._shard_sizes: dict[str, int] = {}
        self._has_ended = threading.Event()

    @property
    def worker(self) -> Worker:
        assert self._worker, 'call join first'
        return self._worker

    def join(self, offer_step: Callable[[Worker], int | None]) -> Worker:
        """Waits for the other processes of the cluster, if there are any.

        Args:
          offer_step: returns the global step of the variables that this process has from before; None if it has none.

        Raises:
          RunError: a process did not join in time, or a shard is cut or has a wrong record length.
        """
        self._worker = worker = self._make_worker()
        worker.join(offer_step(worker))
        # Now, when the other tasks learn why this one fails, and before TensorFlow reads a length that is wrong.
        self._check_lengths()
        # Shards that are read before the first step alone are not missed later.
        if (shards := self._plan.data.shards) and not self._plan.data.input_row.in_memory:
            threading.Thread(target=self._watch_shards, args=[shards], name='shards', daemon=True).start()
        return worker

    def _check_lengths(self, *, after_steps: bool = False) -> None:
        data = self._plan.data
        of_steps = None if after_steps and data.input_row.in_memory else data.shards
        for shards in (of_steps, data.validation_shards):
            check_lengths(shards, self._shard_sizes, self._console.warning)

    def _watch_shards(self, shards: Shards) -> None:
        """Ends this process if no record is left: the step that waits for one holds the main thread for ever.

        Python code that uses BenchmarkCNN ends with it, since nothing can cancel that step.
        """
        line = await_loss(shards, self._has_ended)
        if line is None:
            return
        try:
            self._fail(RunError(line))
        finally:
            self._console.close()
            print(format_error(line), file=sys.stderr, flush=True)
            os._exit(RunError.exit_code)

    def _make_worker(self) -> Worker:
        processes = self._plan.processes
        if processes.cluster is None:
            return OneProcess(self._plan.session.config)
        if processes.horovod:
            return HorovodWorker(processes.horovod, processes.cluster, self._plan.session.config)
        return ClusterWorker(
            processes.cluster,
            self._plan.session.config,
            settings=processes.settings,
            together=processes.together,
            keeps_state=processes.keeps_state,
            connect=processes.connect,
            peer=processes.peer,
            warn=self._console.warning,
            show=self._console.progress,
            hand_over=self._console.hand_over,
        )

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Runs the block. However it ends, prints the measurements and reports the outcome to the other tasks.

        Raises:
          RunError: a fault while running; its attribute `result` holds what was measured before it.
        """
        with self._stop.listening() if self._plan.processes.cluster else self._interrupts.listening():
            try:
                yield
                # A shard that was cut during the run may have lost records silently.
                self._check_lengths(after_steps=True)
                self._end(Ending())
            except TrainingOverError:
                self._console.note('Training was over when this process started: nothing is left for it to do')
            except LostError as lost:
                raise self._fail(self._handle_peer_failure(lost.failure)) from lost
            except RunError as fault:
                raise self._fail(fault) from fault.__cause__
            except tf.errors.OpError as error:
                raise self._fail(self._explain(error)) from error
            except UsageError as error:
                # The processes of the cluster differ.
                self._keep_measurements(str(error), error.exit_code)
                raise
            except UnicodeDecodeError as error:
                raise self._fail(self._explain(quoting_bytes(error))) from error
            except RuntimeError as error:
                # The session was closed between two steps because another task was lost.
                failure = self._worker.peer_failure() if self._worker else None
                if failure is None:
                    self._keep_measurements(f'{type(error).__name__}: {error}')
                    raise
                raise self._fail(self._handle_peer_failure(failure)) from error
            except BrokenPipeError:
                self._keep_measurements('the reader of its standard output has left')
                raise
            except (KeyboardInterrupt, GeneratorExit) as end:
                # The user pressed Ctrl-C, or the caller closed the generator of steps.
                if not sys.is_finalizing():
                    self._end(_ending_of(end))
                    self._leave(1, 'interrupted')
                raise
            except Exception as error:
                self._keep_measurements(f'{type(error).__name__}: {error}')
                raise
            finally:
                self._has_ended.set()
                self._console.close()
            self._leave(0)

    def begin_step(self) -> None:
        """From now on a signal waits until the step is counted. To be called before each step."""
        self._interrupts.hold()

    def end_step(self) -> None:
        """Ends the run if a signal came during the step. To be called when the step has been counted."""
        self._interrupts.release()

    def end_if_stopped(self, step_secs: float = 0.0) -> None:
        """Ends this process if a signal has requested it. To be called between two steps.

        Args:
          step_secs: the seconds of the last step.
        """
        if self._worker and not self._worker.ends_after_chief and self._stop.is_requested(step_secs):
            self._stop.await_end()

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Runs the block, which takes steps in an open session. Saves the variables if the user ends it early."""
        try:
            yield
        except tf.errors.OpError:
            # A step may fail because other workers received the signal too.
            if self._stop.is_requested():
                self._stop.await_end()
            raise
        except KeyboardInterrupt:
            self._keep()
            raise
        except GeneratorExit:
            # While Python exits, TensorFlow no longer works.
            if not sys.is_finalizing():
                self._keep()
            raise

    def _end(self, ending: Ending, *, prints: bool = True) -> Result:
        """Concludes the measurements; signals wait until that is done."""
        self._interrupts.hold()
        try:
            return self._conclude(ending, prints)
        finally:
            self._interrupts.release()

    def _keep_measurements(self, reason: str, exit_code: int = 1) -> None:
        """Keeps what was measured when nothing can be printed, or a defect of this program ends the run."""
        try:
            self._end(Ending(exit_code, reason), prints=False)
        finally:
            self._leave(exit_code, reason)

    def _leave(self, exit_code: int, reason: str = '') -> None:
        if self._worker:
            self._worker.end(exit_code, reason)

    def _fail(self, fault: RunError) -> RunError:
        try:
            fault.result = self._end(Ending(fault.exit_code, str(fault)))
        finally:
            # Leave the cluster even if printing the result fails.
            self._leave(fault.exit_code, str(fault))
        return fault

    def _stop_watching(self) -> None:
        # Other tasks may end because of the same signal; that must not stop this process from saving.
        if self._worker:
            self._worker.stop_watching()

    def _finish_for_signal(self, exit_code: int, signal_name: str) -> None:
        """Called when a signal ends a process of a cluster."""
        self._keep()
        try:
            self._end(Ending(exit_code, f'stopped by {signal_name}'))
        finally:
            self._leave(exit_code, f'stopped by {signal_name}')
        self._console.warning(f'stopped by {signal_name}')
        self._console.close()

    def _handle_peer_failure(self, failure: PeerFailure) -> RunError:
        """Handles the failure of another task: joins again if that task was replaced, else returns the error."""
        if failure.is_replaced and self._hand_on:
            self._start_anew(failure, *self._hand_on())
        return fault_of(failure)

    def _start_anew(self, failure: PeerFailure, progress: str, inherited: Mapping[str, Any]) -> NoReturn:
        """Restarts this process, which then joins again, as all workers do when one of them is replaced."""
        self._console.warning(f'{failure.line}; all workers join again ({progress})')
        self.worker.start_anew(inherited)

    def _explain(self, error: tf.errors.OpError) -> RunError:
        """The error in one line: the failure of another task, a fault in the data, or TensorFlow's own message."""
        if self._worker and (failure := self._worker.peer_failure()):
            return self._handle_peer_failure(failure)
        line = explain(error, self._plan, self._console.progress)
        return RunError(self._worker.explain(error, line) if self._worker else line)


def _ending_of(end: BaseException) -> Ending:
    if isinstance(end, Terminated):
        return Ending(end.exit_code, end.reason)
    if isinstance(end, KeyboardInterrupt):
        return Ending(130, 'interrupted')
    return Ending(1, 'the caller closed the generator of steps')

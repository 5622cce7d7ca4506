"""What training and evaluating share: joining the other processes, faults, signals, and leaving."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf

from cluster.cluster_worker import ClusterWorker
from cluster.failure_detector import PeerFailure
from cluster.horovod import HorovodWorker
from cluster.signals import Stop, terminable
from cluster.worker import LostError, OneProcess, Worker
from errors import RunError
from reporting.console import Console
from reporting.result import Result
from run.faults import check_ends, explain
from run.plan import Plan


class Process:
    """This process, from joining the others to leaving them.

    Args:
      plan: the plan of the run.
      conclude: prints what was measured, given whether that is all, and returns it.
      keep: saves what was trained; called when the run ends early on purpose.
      hand_on: says how far the run got, and what a process that takes the place of this one inherits; None if no
        process can.

    Attributes:
      worker: its part in the run.
    """

    def __init__(
        self,
        plan: Plan,
        console: Console,
        *,
        conclude: Callable[[bool], Result],
        keep: Callable[[], None] = lambda: None,
        hand_on: Callable[[], tuple[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        self._plan = plan
        self._console = console
        self._conclude = conclude
        self._keep = keep
        self._hand_on = hand_on
        self._stop = Stop(self._finish_for_signal, self._stop_watching)
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        assert self._worker, 'join comes first'
        return self._worker

    def join(self, offer_step: Callable[[Worker], int | None]) -> Worker:
        """Waits for the other processes of the cluster, if there are any.

        Args:
          offer_step: the step of the variables that this process brings along, if it has some.

        Raises:
          RunError: some did not come in time.
        """
        self._worker = worker = self._make_worker()
        if worker.cluster:
            self._console.progress(f'Waiting for the other tasks ({len(worker.cluster.tasks) - 1})')
        worker.join(offer_step(worker))
        return worker

    def _make_worker(self) -> Worker:
        processes = self._plan.processes
        if processes.cluster is None:
            return OneProcess(self._plan.config)
        if processes.horovod:
            return HorovodWorker(processes.horovod, processes.cluster, self._plan.config)
        return ClusterWorker(
            processes.cluster,
            self._plan.config,
            together=processes.together,
            keeps_state=processes.keeps_state,
            connect=processes.connect,
            peer=processes.peer,
            warn=self._console.warning,
            hand_over=self._console.hand_over,
        )

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """The run itself. Whatever ends it: what was measured is printed, and the others learn how it ended.

        Raises:
          RunError: a fault while running; its attribute `result` holds what was measured before it.
        """
        with self._stop.listening() if self._plan.processes.cluster else terminable():
            try:
                yield
                for shards in (self._plan.data.shards, self._plan.data.validation_shards):
                    check_ends(shards, self._console.warning)
                self._conclude(True)
            except LostError as lost:
                raise self._fail(self._fault_of(lost.failure)) from lost
            except RunError as fault:
                raise self._fail(fault) from fault.__cause__
            except tf.errors.OpError as error:
                raise self._fail(self._explain(error)) from error
            except RuntimeError as error:
                # A session that was closed between two steps, because another task was lost.
                failure = self._worker.peer_failure() if self._worker else None
                if failure is None:
                    raise
                raise self._fail(self._fault_of(failure)) from error
            except BrokenPipeError:
                self._leave(1, 'the reader of its standard output has left')
                raise
            except (KeyboardInterrupt, GeneratorExit):
                # The user, or the consumer of the steps, has had enough.
                if not sys.is_finalizing():
                    self._conclude(False)
                    self._leave(1, 'interrupted')
                raise
            self._leave(0)

    def end_if_stopped(self, step_secs: float = 0.0) -> None:
        """Between two steps: ends this process if a signal asked for it.

        Args:
          step_secs: what the last step took.
        """
        if self._worker and not self._worker.ends_after_chief and self._stop.is_requested(step_secs):
            self._stop.await_end()

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """The steps of a session, within it: what was trained is kept when they end early on purpose."""
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
            # While Python exits nothing works any more.
            if not sys.is_finalizing():
                self._keep()
            raise

    def _leave(self, exit_code: int, reason: str = '') -> None:
        if self._worker:
            self._worker.end(exit_code, reason)

    def _fail(self, fault: RunError) -> RunError:
        try:
            fault.result = self._conclude(False)
        finally:
            # Even if printing the result fails.
            self._leave(fault.exit_code, str(fault))
        return fault

    def _stop_watching(self) -> None:
        # Others may have got the signal, too; their end must not keep this process from saving.
        if self._worker:
            self._worker.stop_watching()

    def _finish_for_signal(self, exit_code: int, signal_name: str) -> None:
        """Called when a signal ends a process of a cluster."""
        self._keep()
        try:
            self._conclude(False)
        finally:
            self._leave(exit_code, f'stopped by {signal_name}')
        self._console.warning(f'stopped by {signal_name}')

    def _fault_of(self, failure: PeerFailure) -> RunError:
        """What follows from the failure of another task."""
        if failure.is_replaced and self._hand_on:
            self._start_anew(failure, *self._hand_on())
        return RunError(failure.line)

    def _start_anew(self, failure: PeerFailure, progress: str, inherited: Mapping[str, Any]) -> NoReturn:
        """Becomes a new process that joins the others again, as all workers do when one of them was replaced."""
        self._console.warning(f'{failure.line}; all workers join again ({progress})')
        self.worker.start_anew(inherited)

    def _explain(self, error: tf.errors.OpError) -> RunError:
        """The fault in one line: of another task or of the data if that explains it, else as TensorFlow words it."""
        if self._worker and (failure := self._worker.peer_failure()):
            return self._fault_of(failure)
        line = explain(error, self._plan, self._console.progress)
        return RunError(self._worker.explain(error, line) if self._worker else line)

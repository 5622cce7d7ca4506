"""The variables of a run between steps: first values and checkpoints."""

import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from cluster.worker import Offer, Worker
from errors import RunError
from params.device_flags import HOST_DEVICE
from planning.plan import Checkpoints, Counts, Processes
from run.schedule import Schedule, make_schedule
from run.step_graph import StepGraph
from training.checkpoint_files import forget_begun, mark_begun, mark_ended, read_end, step_of
from training.checkpoints import Checkpointer, WarmStart


class RunState:
    """Adds ops that initialise and save the variables of a run. steps_taken counts the steps of all workers."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        built: StepGraph,
        worker: Worker,
        warn: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self.steps_taken = 0
        self._checkpoints = checkpoints
        self._built = built
        self._worker = worker
        self._warn, self._note = warn, note
        self._last_save = time.monotonic()
        self._new_step = tf.placeholder(tf.int64, [])
        self._set_step = built.global_step.assign(self._new_step)
        self._saver = self._make_saver(checkpoints.folder) if checkpoints.saves and checkpoints.folder else None
        self._warm_start = None
        if checkpoints.warm_start:
            self._warm_start = WarmStart(
                checkpoints.warm_start, checkpoints.warm_start_flag, built.model_slices, HOST_DEVICE
            )

    def _make_saver(self, folder: str) -> Checkpointer:
        return Checkpointer(folder, self._built.slices, HOST_DEVICE, self._checkpoints.max_to_keep)

    def prepare(self, session: tf.Session, counts: Counts) -> Schedule:
        """Gives the variables their first values, and returns the steps that follow."""
        worker, servers = self._worker, self._worker.server_state
        end = worker.agreed['end']
        if servers is None:
            start = self._prepare_local(session)
        elif worker.is_chief:
            start, end = self._prepare_servers(session)
        else:
            start, end = servers.await_announcement()
        num_counting = 1 if worker.together else worker.num_trainers
        schedule = make_schedule(start, end, counts.num_warmup, counts.num_timed, num_counting)
        if servers and worker.is_chief:
            servers.announce(schedule.start, schedule.end)
        self.steps_taken = schedule.start
        if self._checkpoints.saves and self._checkpoints.folder:
            length = _length(counts, num_counting) if worker.cluster else None
            mark_begun(self._checkpoints.folder, length, schedule.end)
            if schedule.is_fresh:
                # If the variables are lost later, training can restart from this checkpoint.
                self.save(session)
        return schedule

    def _prepare_local(self, session: tf.Session) -> int:
        """For workers with variables of their own: the chief sets the values, and the others copy them."""
        worker = self._worker
        session.run(self._built.initializers)
        if worker.is_chief:
            self._start_from_saved(session)
        if worker.cluster is None:
            return self._read_step(session)
        step = max(0, worker.agreed['step'])
        session.run(self._set_step, {self._new_step: step})
        return step

    def _prepare_servers(self, session: tf.Session) -> tuple[int, int | None]:
        """Sets the variables on the servers unless they hold usable ones. Returns the step, and the end if known."""
        worker = self._worker
        assert worker.cluster
        assert worker.server_state
        if (kept_end := worker.server_state.kept_end()) is not None:
            # An asynchronous chief that came back.
            return self._read_step(session), kept_end
        session.run(self._built.initializers)
        self._start_from_saved(session)
        step = self._read_step(session)
        if self._built.synchronous_step:
            self._built.synchronous_step.restart(session, step)
        return step, worker.agreed['end']

    def _start_from_saved(self, session: tf.Session) -> None:
        """Replaces the initial values of the variables by those of the newest checkpoint, or of a warm start."""
        if self._checkpoints.resume_from:
            assert self._saver
            self._saver.restore(session, self._checkpoints.resume_from)
            self._note(f'Continuing from {self._checkpoints.resume_from}')
        elif self._warm_start:
            self._warm_start.restore(session)
            self._note(self._warm_start.summary)
            for line in self._warm_start.warnings:
                self._warn(line)

    def _read_step(self, session: tf.Session) -> int:
        return int(session.run(self._built.global_step.value))

    def _completed_step(self, session: tf.Session) -> int | None:
        """The global step if the variables contain whole steps only; None while an update is being applied."""
        step, together = self._read_step(session), self._built.synchronous_step
        begun = session.run([begun.value for begun in together.begun.values()]) if together else []
        return step if all(number <= step for number in begun) else None

    def prepare_evaluation(self, session: tf.Session) -> None:
        """Gives this worker the values that a checkpoint would hold now. All workers that evaluate together call it."""
        if self._built.before_evaluation is not None:
            session.run(self._built.before_evaluation)

    def is_save_due(self, taken_before: int) -> bool:
        """Whether to save now; taken_before is the global step at the last call, which other workers increase too."""
        every, every_secs = self._checkpoints.every_steps, self._checkpoints.every_secs
        by_step = every is not None and self.steps_taken // every > taken_before // every
        return self._saver is not None and (by_step or 0 < every_secs <= time.monotonic() - self._last_save)

    def save(self, session: tf.Session) -> None:
        if self._saver:
            self._saver.save(session, self._read_step(session))
            self._last_save = time.monotonic()

    def keep(self, session: tf.Session, *, within_step: bool) -> None:
        """Saves a checkpoint while a step may be running, which may itself be waiting for other workers.

        In asynchronous modes updates are always being applied, and the checkpoint is saved all the same. A controller
        applies the update of a variable as soon as its gradients are there, and nothing says whether it has begun.

        Raises:
          RunError: in synchronous modes, the update of a step is being applied.
        """
        if not self._worker.together:
            self.save(session)
        elif self._saver:
            step = self._completed_step(session)
            if step is None or (within_step and self._worker.cluster and self._worker.cluster.controller_hosts):
                raise RunError('a step is being applied')
            self._saver.save(session, step, lambda: self._completed_step(session) == step)

    def end(self, session: tf.Session) -> None:
        """Saves the last checkpoint, and marks the training in its folder as ended."""
        self.save(session)
        if self._checkpoints.saves and self._checkpoints.folder:
            mark_ended(self._checkpoints.folder, True)

    def forget(self) -> None:
        """Lets the next run train anew. Called when nothing is left to do that may fail."""
        if self._checkpoints.saves and self._checkpoints.folder:
            forget_begun(self._checkpoints.folder)


def offer_of(checkpoints: Checkpoints, counts: Counts, processes: Processes) -> Offer:
    """Returns what this process brings from an earlier training: its newest checkpoint, and its end if not reached."""
    if not checkpoints.resume_from or not checkpoints.folder:
        return {'step': None, 'end': None}
    step = step_of(checkpoints.resume_from)
    num_counting = 1 if processes.together else processes.num_trainers
    end = read_end(checkpoints.folder, _length(counts, num_counting)) if processes.cluster else None
    # Asynchronous workers may have taken a few steps more.
    return {'step': step, 'end': None if end is None else max(end, step)}


def _length(counts: Counts, num_counting: int) -> list[int] | None:
    """What makes two runs equally long; None if the clock decides. num_counting: see make_schedule."""
    return None if counts.target_secs else [counts.num_warmup, counts.num_timed, num_counting]


def restart_number(worker: Worker) -> int:
    """0 when training starts; a different number each time it continues, or a worker joins it later."""
    return int(max(0, worker.agreed['step'])) + worker.restart

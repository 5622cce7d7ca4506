"""The variables of a run between steps: first values and checkpoints."""

import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.rendezvous import NOTHING, Offer
from tf_cnn.cluster.worker import Worker
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.planning.plan import Checkpoints, Counts, Processes
from tf_cnn.run.schedule import Schedule, make_schedule
from tf_cnn.run.step_graph import StepGraph
from tf_cnn.system.errors import RunError
from tf_cnn.training.checkpoint_files import forget_begun, mark_begun, mark_ended, read_end, step_of
from tf_cnn.training.checkpoints import Checkpointer, WarmStart
from tf_cnn.training.contents import check_classes, read_class_names


class RunState:
    """Adds ops that initialise and save the variables of a run. steps_taken counts the steps of all
    workers.
    """

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
        self._saver = (
            self._make_saver(checkpoints.folder)
            if checkpoints.saves and checkpoints.folder
            else None
        )
        self._warm_start = None
        if checkpoints.warm_start:
            self._warm_start = WarmStart(
                checkpoints.warm_start,
                checkpoints.warm_start_flag,
                built.model_slices,
                HOST_DEVICE,
                checkpoints.class_names,
            )

    def _make_saver(self, folder: str) -> Checkpointer:
        names, resumed = self._checkpoints.class_names, self._checkpoints.resume_from
        if names is None and resumed:
            # Steps on images without class names do not make the checkpoint lose its names.
            names = read_class_names(resumed)
        return Checkpointer(
            folder, self._built.slices, HOST_DEVICE, self._checkpoints.max_to_keep, names
        )

    def prepare(self, session: tf.Session, counts: Counts) -> Schedule:
        """Gives the variables their first values, and returns the steps that follow."""
        worker = self._worker
        announced = worker.announced()
        if announced is None:
            start, end = self._set_variables(session), worker.agreed['end']
        else:
            # An asynchronous chief that came back, or a worker whose chief has set the variables.
            start, end = self._read_step(session) if worker.is_chief else announced[0], announced[1]
        num_counting = 1 if worker.together else worker.num_trainers
        schedule = make_schedule(start, end, counts.num_warmup, counts.num_timed, num_counting)
        worker.announce(schedule.start, schedule.end)
        self.steps_taken = schedule.start
        if self._checkpoints.saves and self._checkpoints.folder:
            length = _length(counts, num_counting) if worker.cluster else None
            mark_begun(self._checkpoints.folder, length, schedule.end)
            if schedule.is_fresh:
                # If the variables are lost later, training can restart from this checkpoint.
                self.save(session)
        return schedule

    def _set_variables(self, session: tf.Session) -> int:
        """Sets the first values, or those of a checkpoint or a warm start; returns the step where
        training begins.
        """
        cluster = self._worker.cluster
        session.run(self._built.initializers)
        if self._worker.is_chief:
            self._start_from_saved(session)
        if cluster and not cluster.servers:
            # The others copy the variables of the chief, but not its step.
            session.run(self._set_step, {self._new_step: self._worker.agreed['step'] or 0})
        step = self._read_step(session)
        if self._built.synchronous_step:
            self._built.synchronous_step.restart(session, step)
        return step

    def _start_from_saved(self, session: tf.Session) -> None:
        if self._checkpoints.resume_from:
            assert self._saver
            resumed = self._checkpoints.resume_from
            line = check_classes(resumed, self._checkpoints.class_names, self._checkpoints.data_dir)
            self._saver.restore(session, resumed)
            self._note(f'Continuing from {resumed}')
            if line:
                self._note(line)
        elif self._warm_start:
            self._warm_start.restore(session)
            self._note(self._warm_start.summary)
            for line in self._warm_start.warnings:
                self._warn(line)

    def _read_step(self, session: tf.Session) -> int:
        return int(session.run(self._built.global_step.value))

    def _completed_step(self, session: tf.Session) -> int | None:
        """The global step if the variables contain whole steps only; None while an update is being
        applied.
        """
        step = self._read_step(session)
        begun = session.run([begun.value for begun in self._built.begun])
        return step if all(number <= step for number in begun) else None

    def prepare_evaluation(self, session: tf.Session) -> None:
        """Gives this worker the values that a checkpoint would hold now. All workers that evaluate
        together call it.
        """
        if self._built.before_evaluation is not None:
            session.run(self._built.before_evaluation)

    def is_save_due(self, taken_before: int) -> bool:
        """Whether to save now; taken_before is the global step at the last call, which other
        workers increase too.
        """
        every, every_secs = self._checkpoints.every_steps, self._checkpoints.every_secs
        by_step = every is not None and self.steps_taken // every > taken_before // every
        return self._saver is not None and (
            by_step or 0 < every_secs <= time.monotonic() - self._last_save
        )

    def save(self, session: tf.Session) -> None:
        if self._saver:
            self._saver.save(session, self._read_step(session))
            self._last_save = time.monotonic()

    def keep(self, session: tf.Session, *, within_step: bool) -> None:
        """Saves a checkpoint while a step may be running, which may itself be waiting for other
        workers.

        In asynchronous modes updates are always being applied, and the checkpoint is saved all the
        same.

        Raises:
          RunError: in synchronous modes, the update of a step is being applied.
        """
        if not self._worker.together:
            self.save(session)
        elif self._saver:
            step = self._completed_step(session)
            # Only `begun` says whether an update has begun; a process alone and a controller have
            # none.
            if step is None or (within_step and not self._built.begun):
                raise RunError('a step is being applied')
            self._saver.save(session, step, lambda: self._completed_step(session) == step)

    def end(self, session: tf.Session) -> None:
        """Saves the last checkpoint, and marks the training in its folder as ended."""
        self.save(session)
        if self._checkpoints.saves and self._checkpoints.folder:
            mark_ended(self._checkpoints.folder, True)

    def forget(self) -> None:
        """Lets the next run train anew instead of continuing this training."""
        if self._checkpoints.saves and self._checkpoints.folder:
            forget_begun(self._checkpoints.folder)


def offer_of(checkpoints: Checkpoints, counts: Counts, processes: Processes) -> Offer:
    """Returns what this process brings from an earlier training: its newest checkpoint, and its end
    if not reached.
    """
    if not checkpoints.resume_from or not checkpoints.folder:
        return NOTHING
    step = step_of(checkpoints.resume_from)
    num_counting = 1 if processes.together else processes.num_trainers
    end = read_end(checkpoints.folder, _length(counts, num_counting)) if processes.cluster else None
    # Asynchronous workers may have taken a few steps more.
    return {'step': step, 'end': None if end is None else max(end, step)}


def _length(counts: Counts, num_counting: int) -> list[int] | None:
    """What makes two runs equally long; None if the clock decides. num_counting: see
    make_schedule.
    """
    return None if counts.target_secs else [counts.num_warmup, counts.num_timed, num_counting]


def restart_number(worker: Worker) -> int:
    """0 when training starts; a different number each time it continues, or a worker joins it
    later.
    """
    return (worker.agreed['step'] or 0) + worker.restart

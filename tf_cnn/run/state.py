"""The variables of a run between steps: initial values and checkpoints."""

import functools
import math

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.rendezvous import NO_RESUME_POINT, ResumePoint
from tf_cnn.cluster.worker import Worker
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.plan.plan import Plan
from tf_cnn.results.console import Console
from tf_cnn.run.step_loop import Schedule, make_schedule
from tf_cnn.step.constant_weights import names_in_training
from tf_cnn.step.step_graph import StepGraph
from tf_cnn.system.errors import RunError, format_flag
from tf_cnn.training.checkpoint_files import (
    checkpoint_step,
    clear_training_begun,
    mark_training_begun,
    mark_training_ended,
    read_end_step,
)
from tf_cnn.training.checkpoints import Checkpointer, WarmStart
from tf_cnn.training.contents import read_images_per_step


class RunState:
    """Adds ops that initialise and save the variables of a run."""

    def __init__(
        self,
        plan: Plan,
        step_graph: StepGraph,
        worker: Worker,
        console: Console,
    ) -> None:
        self._plan = plan
        # None if this process saves no checkpoints.
        self._folder = plan.checkpoint_folder
        self._step_graph = step_graph
        self._worker = worker
        self._console = console
        self._new_step = tf.placeholder(tf.int64, [])
        self._set_step = step_graph.global_step.assign(self._new_step)
        self._saver = None
        if self._folder:
            max_checkpoints = plan.params.checkpoints.max_ckpts_to_keep
            self._saver = Checkpointer(
                self._folder,
                step_graph.slices,
                HOST_DEVICE,
                max_checkpoints,
                plan.images_per_global_step,
            )
        # The slices of a network with constant weights, which are restored already, are empty.
        self._weights = None
        if plan.resume_from and not self._folder and step_graph.model_slices:
            self._weights = Checkpointer('', step_graph.model_slices, HOST_DEVICE, 0)
        self._warm_start = None
        if plan.warm_start:
            self._warm_start = WarmStart(
                plan.warm_start,
                format_flag('backbone_model_path', plan.params.checkpoints.backbone_model_path),
                step_graph.model_slices,
                HOST_DEVICE,
            )

    def prepare(self, session: tf.Session) -> Schedule:
        """Sets the variables, and returns the schedule of the steps that follow."""
        worker = self._worker
        announced_steps = worker.announced_steps()
        if announced_steps is None:
            start_step, end_step = self._set_variables(session), worker.resume_point['end']
        else:
            # This is an asynchronous chief that restarted, or a worker after its chief has set the
            # variables.
            start_step, end_step = (
                self._read_step(session) if worker.is_chief else announced_steps[0],
                announced_steps[1],
            )
        num_counters = 1 if worker.is_synchronous else worker.num_training_tasks
        flags = self._plan.params.run
        schedule = make_schedule(
            start_step, end_step, flags.num_warmup_batches, flags.num_timed, num_counters
        )
        worker.announce(schedule.start_step, schedule.end_step)
        if self._folder:
            length = _run_length(self._plan, num_counters) if worker.cluster else None
            mark_training_begun(self._folder, length, schedule.end_step)
            if schedule.is_fresh:
                # If the variables are lost later, training can restart from this checkpoint.
                self.save(session)
        return schedule

    def _set_variables(self, session: tf.Session) -> int:
        """Sets the variables to initial values, a checkpoint or a warm start.

        Returns the global step.
        """
        cluster = self._worker.cluster
        session.run(self._step_graph.initializers)
        if self._worker.is_chief:
            self._start_from_saved(session)
        if cluster and not cluster.servers:
            # The others copy the variables of the chief, but not its step.
            session.run(self._set_step, {self._new_step: self._worker.resume_point['step'] or 0})
        step = self._read_step(session)
        if self._step_graph.synchronous_step:
            self._step_graph.synchronous_step.restart(session, step)
        return step

    def _start_from_saved(self, session: tf.Session) -> None:
        if resumed := self._plan.resume_from:
            if self._saver:
                self._saver.restore(session, resumed)
                self._console.note(f'Continuing from {resumed}')
            else:
                if self._weights:
                    self._weights.restore(
                        session,
                        resumed,
                        for_training=False,
                        names_in_training=functools.partial(names_in_training, self._plan),
                    )
                step = checkpoint_step(resumed)
                self._console.note(f'Computing with the weights of step {step}: {resumed}')
            if self._saver and (jump := _epoch_jump(self._plan, resumed)):
                self._console.warning(jump)
        elif self._warm_start:
            self._warm_start.restore(session)
            self._console.note(self._warm_start.summary)
            for line in self._warm_start.warnings:
                self._console.warning(line)

    def _read_step(self, session: tf.Session) -> int:
        return int(session.run(self._step_graph.global_step.value))

    def _completed_step(self, session: tf.Session) -> int | None:
        """Returns the global step; None while an update is being applied."""
        step = self._read_step(session)
        begun_steps = session.run([begun.value for begun in self._step_graph.begun_steps])
        return step if all(number <= step for number in begun_steps) else None

    def prepare_evaluation(self, session: tf.Session) -> None:
        """Gives this worker the values that a checkpoint would hold now.

        Every worker that takes part in the evaluation must call it.
        """
        if self._step_graph.before_evaluation is not None:
            session.run(self._step_graph.before_evaluation)

    def save(self, session: tf.Session) -> None:
        if self._saver:
            self._saver.save(session, self._read_step(session))

    def save_early(self, session: tf.Session, *, is_in_step: bool) -> None:
        """Saves a checkpoint while a step may be running or waiting for other workers.

        In asynchronous modes it saves in any case, since updates are always being applied.

        Raises:
          RunError: in synchronous modes, the update of a step is being applied.
        """
        if not self._worker.is_synchronous:
            self.save(session)
        elif self._saver:
            step = self._completed_step(session)
            # Only begun_steps shows whether an update has begun; a single process and a controller
            # have no begun_steps.
            if step is None or (is_in_step and not self._step_graph.begun_steps):
                raise RunError('a step is being applied')
            self._saver.save(session, step, lambda: self._completed_step(session) == step)

    def finish(self, session: tf.Session) -> None:
        """Saves the last checkpoint, and marks the training in its folder as ended.

        Raises RunError if that fails. The checkpoint is then in the working folder, if possible.
        """
        if not (self._saver and self._folder):
            return
        step = self._read_step(session)
        try:
            self._saver.save(session, step)
        except RunError as fault:
            try:
                prefix = self._saver.save_elsewhere(session, step)
            except (OSError, RunError):
                raise fault from None
            raise RunError(f'{fault}; the last checkpoint is {prefix}') from fault
        mark_training_ended(self._folder, True)

    def forget_training(self) -> None:
        """Makes the next run train anew instead of continuing this training."""
        if self._folder:
            clear_training_begun(self._folder)


def _epoch_jump(plan: Plan, resumed: str) -> str | None:
    """Returns a warning if a schedule in epochs goes on from another epoch than the checkpoint."""
    saved, images = read_images_per_step(resumed), plan.images_per_global_step
    has_epochs = plan.learning_rate.changes or plan.params.evaluation.has_epochs
    if saved in (None, images) or not has_epochs:
        return None
    before, now = (
        checkpoint_step(resumed) * size / (plan.context.num_epoch_images(plan.params) or math.inf)
        for size in (saved, images)
    )
    return (
        f'{resumed}: it was saved with {saved} images per step, and this run has {images}; '
        f'schedules count all steps as if they had {images}, so they go from epoch {before:.1f} to '
        f'{now:.1f}; use the earlier batch size and number of devices to go on from there'
    )


def find_resume_point(plan: Plan) -> ResumePoint:
    """Returns the newest checkpoint of this process, and the end step of its training if that was
    not reached.
    """
    folder, processes = plan.checkpoint_folder, plan.cluster_role
    if not plan.resume_from or not folder:
        return NO_RESUME_POINT
    step = checkpoint_step(plan.resume_from)
    num_counters = 1 if processes.is_synchronous else processes.num_training_tasks
    end_step = None
    if processes.cluster:
        end_step = read_end_step(folder, _run_length(plan, num_counters))
    # Asynchronous workers may have taken a few steps past the end.
    return {'step': step, 'end': None if end_step is None else max(end_step, step)}


def _run_length(plan: Plan, num_counters: int) -> list[int] | None:
    """Returns a value that is equal for runs of equal length; None if the clock ends the run.

    num_counters: see make_schedule.
    """
    if plan.params.results.target_seconds:
        return None
    return [plan.params.run.num_warmup_batches, plan.params.run.num_timed, num_counters]


def restart_number(worker: Worker) -> int:
    """Returns 0 when training starts, and another number when it continues or a worker rejoins."""
    return (worker.resume_point['step'] or 0) + worker.restart

"""The variables of a run between its steps: their first values, checkpoints, and what another process goes on from."""

import contextlib
import tempfile
import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from cluster.worker import Worker
from errors import RunError
from run.plan import Checkpoints, Counts
from run.schedule import Origin, Schedule, StartFacts, choose_origin, make_schedule
from run.step_graph import StepGraph
from training.checkpoint_files import mark_ended, step_of
from training.checkpoints import Checkpointer
from training.variables import HOST_DEVICE
from training.warm_start import WarmStart


class RunState:
    """The variables of a run between its steps. Adds its ops to the current graph.

    Args:
      checkpoints: what is saved, and what training starts from.
      built: the graph of a step.
      worker: this process's part in the run.
      warn, progress: where lines go about the variables that training starts from: warnings, and the others.

    Attributes:
      steps_taken: the steps that all workers have taken.

    Raises:
      RunError: nothing of --backbone_model_path fits the model.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        built: StepGraph,
        worker: Worker,
        warn: Callable[[str], None],
        progress: Callable[[str], None],
    ) -> None:
        self.steps_taken = 0
        self._checkpoints = checkpoints
        self._built = built
        self._worker = worker
        self._warn, self._progress = warn, progress
        self._last_save = time.monotonic()
        self._new_step = tf.placeholder(tf.int64, [])
        self._set_step = built.global_step.assign(self._new_step)
        synchronous_step = built.synchronous_step
        self._set_begun = synchronous_step.begun.assign(self._new_step) if synchronous_step else tf.no_op()
        self._saver = self._make_saver(checkpoints.folder) if checkpoints.saves and checkpoints.folder else None
        self._warm_start = None
        if checkpoints.warm_start:
            self._warm_start = WarmStart(
                checkpoints.warm_start, checkpoints.warm_start_flag, built.model_slices, HOST_DEVICE
            )
        # Without parameter servers, any worker may be the one from which the others go on.
        self._relay = (
            self._make_saver(tempfile.mkdtemp(prefix='tf_cnn_benchmarks_')) if worker.hands_on_variables else None
        )

    def _make_saver(self, folder: str) -> Checkpointer:
        return Checkpointer(folder, self._built.slices, HOST_DEVICE, self._checkpoints.max_to_keep)

    def prepare(self, session: tf.Session, counts: Counts) -> Schedule:
        """Gives the variables their first values, and says which steps follow.

        Raises:
          RunError: the variables were lost with a process, and there is no checkpoint to go on from.
        """
        worker, servers = self._worker, self._worker.server_state
        end = worker.agreed['end']
        if servers is None:
            start = self._prepare_own(session)
        elif worker.is_chief:
            start, end = self._prepare_servers(session)
        else:
            start, end = servers.await_announcement()
        num_counting = 1 if worker.together else worker.num_trainers
        schedule = make_schedule(start, end, counts.num_warmup, counts.num_timed, num_counting)
        if servers and worker.is_chief:
            servers.announce(schedule.start, schedule.end)
        worker.end_step = schedule.end
        self.steps_taken = schedule.start
        if self._checkpoints.saves and self._checkpoints.folder:
            mark_ended(self._checkpoints.folder, False)
            if schedule.is_fresh:
                # Should the variables be lost, training can start again from here.
                self.save(session)
        return schedule

    def _prepare_own(self, session: tf.Session) -> int:
        """Where every worker has variables of its own: the root gives them their values, the others receive these."""
        worker = self._worker
        session.run(self._built.initializers)
        if worker.index == worker.agreed['root']:
            inherited = worker.inherited.get('state')
            facts = StartFacts(
                has_inherited=inherited is not None,
                has_checkpoint=self._checkpoints.resume_from is not None,
                has_warm_start=self._warm_start is not None,
            )
            self._start_from(choose_origin(facts, needs_state=False), session, inherited)
        if worker.cluster is None:
            return self._read_step(session)
        step = max(0, worker.agreed['step'])
        session.run(self._set_step, {self._new_step: step})
        return step

    def _prepare_servers(self, session: tf.Session) -> tuple[int, int | None]:
        """As the chief: makes the parameter servers hold the variables between two steps.

        Returns:
          The steps that were taken, and the one at which training ends if it had begun before.
        """
        worker, synchronous_step = self._worker, self._built.synchronous_step
        assert worker.cluster
        assert worker.server_state
        kept_end = worker.server_state.kept_end()
        on_servers = kept_end is not None
        end = kept_end if on_servers else worker.agreed['end']
        # A controller keeps the count of steps itself: nothing says whether the last one before its loss was whole.
        had_controller = on_servers and bool(worker.cluster.controller_hosts)
        facts = StartFacts(
            on_servers=on_servers,
            is_whole=not on_servers or had_controller or self._whole_step(session) is not None,
            had_controller=had_controller,
            has_checkpoint=self._checkpoints.resume_from is not None,
            has_warm_start=self._warm_start is not None,
            has_begun=end is not None,
        )
        origin = choose_origin(facts, needs_state=True)
        if origin is not Origin.SERVERS:
            session.run(self._built.initializers)
            self._start_from(origin, session)
        step = self._read_step(session)
        if synchronous_step:
            session.run(self._set_begun, {self._new_step: step})
            synchronous_step.clear(session)
        return step, end

    def _start_from(self, origin: Origin, session: tf.Session, inherited: str | None = None) -> None:
        """Gives the variables, which have their initial values, those of the origin."""
        if origin is Origin.INHERITED:
            assert self._relay
            assert inherited
            self._relay.restore(session, inherited)
        elif origin is Origin.CHECKPOINT:
            assert self._saver
            assert self._checkpoints.resume_from
            self._saver.restore(session, self._checkpoints.resume_from)
            self._progress(f'Continuing from {self._checkpoints.resume_from}')
        elif origin is Origin.WARM_START:
            assert self._warm_start
            self._warm_start.restore(session)
            self._progress(self._warm_start.summary)
            for line in self._warm_start.warnings:
                self._warn(line)

    def _read_step(self, session: tf.Session) -> int:
        return int(session.run(self._built.global_step.value))

    def _whole_step(self, session: tf.Session) -> int | None:
        """The step after which the variables are those of the model; None while the next one is being applied."""
        step, synchronous_step = self._read_step(session), self._built.synchronous_step
        return step if synchronous_step is None or step == session.run(synchronous_step.begun.value) else None

    def prepare_evaluation(self, session: tf.Session) -> None:
        """Gives this worker the variables that a checkpoint would hold now. All that evaluate together call it."""
        if self._built.before_evaluation is not None:
            session.run(self._built.before_evaluation)

    def save_if_due(self, session: tf.Session, taken_before: int) -> None:
        """Saves a checkpoint if --save_model_steps or --save_model_secs ask for one now.

        Args:
          taken_before: the steps that had been taken at the last call; other workers count, too.
        """
        every, every_secs = self._checkpoints.every_steps, self._checkpoints.every_secs
        by_step = every is not None and self.steps_taken // every > taken_before // every
        if by_step or 0 < every_secs <= time.monotonic() - self._last_save:
            self.save(session)

    def save(self, session: tf.Session) -> None:
        """Saves a checkpoint, if this process saves any."""
        if self._saver:
            self._saver.save(session, self._read_step(session))
            self._last_save = time.monotonic()

    def keep(self, session: tf.Session) -> None:
        """As save, while this process may be in a step, whose end may be waiting for others.

        Raises:
          RunError: the step is being applied. Workers that do not wait for each other always apply some.
        """
        if not self._worker.together:
            self.save(session)
        elif self._saver:
            step = self._whole_step(session)
            if step is None:
                raise RunError('a step is being applied')
            self._saver.save(session, step, lambda: self._whole_step(session) == step)

    def end(self, session: tf.Session) -> None:
        """Saves the last checkpoint and marks it as the last."""
        self.save(session)
        if self._checkpoints.saves and self._checkpoints.folder:
            mark_ended(self._checkpoints.folder, True)

    def hand_on(self) -> dict[str, object]:
        """What the process that takes the place of this one needs. Called when the session is over."""
        if self._relay is None:
            return {}
        session = tf.Session(self._worker.target, graph=self._new_step.graph, config=self._worker.config)
        with contextlib.closing(session):
            step = self._read_step(session)
            return {'state': self._relay.save(session, step), 'step': step}


def step_to_offer(checkpoints: Checkpoints, worker: Worker) -> int | None:
    """The step of the variables that a worker brings along, if it has some."""
    if 'step' in worker.inherited:
        return int(worker.inherited['step'])
    return step_of(checkpoints.resume_from) if checkpoints.resume_from else None


def restart_number(worker: Worker) -> int:
    """0 when training starts, and another number each time that it goes on: from a checkpoint, or after a loss."""
    return int(max(0, worker.agreed['step'])) + worker.generation - 1

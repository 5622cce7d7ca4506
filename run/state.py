"""The variables of a run between steps: first values, checkpoints, and hand-over to a replacing process."""

import contextlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow.compat.v1 as tf

from cluster.worker import Worker
from errors import RunError
from params.device_flags import HOST_DEVICE
from planning.plan import Checkpoints, Counts
from run.schedule import Origin, Schedule, StartFacts, choose_origin, make_schedule
from run.step_graph import StepGraph
from training.checkpoint_files import mark_ended, step_of
from training.checkpoints import Checkpointer, WarmStart


class RunState:
    """Initialises, saves and hands on the variables of a run. Adds its ops to the current graph.

    Args:
      checkpoints: what is saved, and what training starts from.
      built: the graph of a step.
      worker: the worker that this process is in the run.
      warn, note: print a warning, and a line that stays.

    Attributes:
      steps_taken: the steps that all workers have taken.

    Raises:
      RunError: no variable of --backbone_model_path fits the model.
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
        self._saver = self._make_saver(checkpoints.folder) if checkpoints.saves and checkpoints.folder else None
        self._warm_start = None
        if checkpoints.warm_start:
            self._warm_start = WarmStart(
                checkpoints.warm_start, checkpoints.warm_start_flag, built.model_slices, HOST_DEVICE
            )
        # Without parameter servers, the others may continue from the variables of any worker.
        self._handover_folder = Path(tempfile.gettempdir(), f'tf_cnn_benchmarks-{secrets.token_hex(8)}')
        self._handover = self._make_saver(str(self._handover_folder)) if worker.hands_on_variables else None

    def _make_saver(self, folder: str) -> Checkpointer:
        return Checkpointer(folder, self._built.slices, HOST_DEVICE, self._checkpoints.max_to_keep)

    def prepare(self, session: tf.Session, counts: Counts) -> Schedule:
        """Gives the variables their first values, and returns the steps that follow.

        Raises:
          RunError: the variables were lost with a process, and there is no checkpoint to go on from.
        """
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
        worker.end_step = schedule.end
        self.steps_taken = schedule.start
        if self._checkpoints.saves and self._checkpoints.folder:
            mark_ended(self._checkpoints.folder, False)
            if schedule.is_fresh:
                # If the variables are lost later, training can restart from this checkpoint.
                self.save(session)
        return schedule

    def _prepare_local(self, session: tf.Session) -> int:
        """For workers with variables of their own: the root sets the values, and the others copy them."""
        worker = self._worker
        session.run(self._built.initializers)
        inherited = worker.inherited.get('state')
        if worker.index == worker.agreed['root']:
            facts = StartFacts(
                has_inherited=inherited is not None,
                has_checkpoint=self._checkpoints.resume_from is not None,
                has_warm_start=self._warm_start is not None,
            )
            self._start_from(choose_origin(facts, needs_state=False), session, inherited)
        if inherited:
            shutil.rmtree(Path(inherited).parent, ignore_errors=True)
        if worker.cluster is None:
            return self._read_step(session)
        step = max(0, worker.agreed['step'])
        session.run(self._set_step, {self._new_step: step})
        return step

    def _prepare_servers(self, session: tf.Session) -> tuple[int, int | None]:
        """Sets the variables on the parameter servers, unless they still hold usable ones. Only the chief calls it.

        Returns:
          The steps taken so far, and the step at which training ends; None if training begins now.
        """
        worker = self._worker
        assert worker.cluster
        assert worker.server_state
        kept_end = worker.server_state.kept_end()
        on_servers = kept_end is not None
        end = kept_end if on_servers else worker.agreed['end']
        # A controller counts the steps itself, so nothing shows whether its last step was completed.
        had_controller = on_servers and bool(worker.cluster.controller_hosts)
        facts = StartFacts(
            on_servers=on_servers,
            is_whole=not on_servers or had_controller or self._completed_step(session) is not None,
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
        if self._built.synchronous_step:
            self._built.synchronous_step.restart(session, step)
        return step, end

    def _start_from(self, origin: Origin, session: tf.Session, inherited: str | None = None) -> None:
        """Replaces the initial values of the variables by those of the origin."""
        if origin is Origin.INHERITED:
            assert self._handover
            assert inherited
            self._handover.restore(session, inherited)
        elif origin is Origin.CHECKPOINT:
            assert self._saver
            assert self._checkpoints.resume_from
            self._saver.restore(session, self._checkpoints.resume_from)
            self._note(f'Continuing from {self._checkpoints.resume_from}')
        elif origin is Origin.WARM_START:
            assert self._warm_start
            self._warm_start.restore(session)
            self._note(self._warm_start.summary)
            for line in self._warm_start.warnings:
                self._warn(line)

    def _read_step(self, session: tf.Session) -> int:
        return int(session.run(self._built.global_step.value))

    def _completed_step(self, session: tf.Session) -> int | None:
        """The global step if the variables contain whole steps only; None while an update is being applied."""
        step, synchronous_step = self._read_step(session), self._built.synchronous_step
        return step if synchronous_step is None or step == session.run(synchronous_step.begun.value) else None

    def prepare_evaluation(self, session: tf.Session) -> None:
        """Gives this worker the values that a checkpoint would hold now. All workers that evaluate together call it."""
        if self._built.before_evaluation is not None:
            session.run(self._built.before_evaluation)

    def is_save_due(self, taken_before: int) -> bool:
        """Whether --save_model_steps or --save_model_secs ask for a checkpoint now.

        Args:
          taken_before: the global step at the last call; other workers may have increased it since.
        """
        every, every_secs = self._checkpoints.every_steps, self._checkpoints.every_secs
        by_step = every is not None and self.steps_taken // every > taken_before // every
        return self._saver is not None and (by_step or 0 < every_secs <= time.monotonic() - self._last_save)

    def save(self, session: tf.Session) -> None:
        """Saves a checkpoint, if this process saves checkpoints."""
        if self._saver:
            self._saver.save(session, self._read_step(session))
            self._last_save = time.monotonic()

    def keep(self, session: tf.Session) -> None:
        """Saves a checkpoint while a step may be running, which may itself be waiting for other workers.

        In asynchronous modes updates are always being applied, and the checkpoint is saved all the same.

        Raises:
          RunError: in synchronous modes, the update of a step is being applied.
        """
        if not self._worker.together:
            self.save(session)
        elif self._saver:
            step = self._completed_step(session)
            if step is None:
                raise RunError('a step is being applied')
            self._saver.save(session, step, lambda: self._completed_step(session) == step)

    def end(self, session: tf.Session) -> None:
        """Saves the last checkpoint, and marks the training in its folder as ended."""
        self.save(session)
        if self._checkpoints.saves and self._checkpoints.folder:
            mark_ended(self._checkpoints.folder, True)

    def hand_on(self) -> dict[str, object]:
        """The state that the process replacing this one inherits. Called after the session of the run has ended."""
        if self._handover is None:
            return {}
        self._handover_folder.mkdir(mode=0o700)
        session = tf.Session(self._worker.target, graph=self._new_step.graph, config=self._worker.config)
        with contextlib.closing(session):
            step = self._read_step(session)
            return {'state': self._handover.save(session, step), 'step': step}


def step_to_offer(checkpoints: Checkpoints, worker: Worker) -> int | None:
    """The global step of the variables that a worker inherited or can restore; None if it has none."""
    if 'step' in worker.inherited:
        return int(worker.inherited['step'])
    return step_of(checkpoints.resume_from) if checkpoints.resume_from else None


def restart_number(worker: Worker) -> int:
    """0 when training starts; a different number each time it continues, from a checkpoint or after a lost task."""
    return int(max(0, worker.agreed['step'])) + worker.generation - 1 + worker.num_replacements

"""Where training starts, where it ends, and what is kept of it on the way: checkpoints, and the state of a cluster."""

import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from cluster.horovod import HorovodWorker
from cluster.worker import Worker
from errors import RunError
from flag_spec import spelled
from params import Params
from step_graph import StepGraph
from training.backbone import Backbone
from training.checkpoints import Checkpointer, find_checkpoint, mark_ended, step_of
from training.variables import HOST_DEVICE


@dataclass(frozen=True)
class Schedule:
    """The steps of this process, of which num_batches are timed, and the numbers of steps between which it trains.

    own_start: its share in the steps before, which is all of them where workers take their steps together.
    """

    start: int
    own_start: int
    num_warmup: int
    num_batches: int
    end: int

    def is_over(self, steps_taken: int) -> bool:
        """Whether training has ended, by all workers' steps."""
        return steps_taken >= self.end


class RunState:
    """The variables of a run between its steps. Adds its ops to the current graph.

    Args:
      worker: this process's part in a cluster, or None.
      num_batches: timed steps of this process.
      warn, tell: where lines go about the variables that training starts from: those to mind, and the others.

    Raises:
      RunError: nothing of --backbone_model_path fits the model.
    """

    def __init__(
        self,
        params: Params,
        worker: Worker | HorovodWorker | None,
        built: StepGraph,
        num_batches: int,
        warn: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self.steps_taken = 0
        self._params = params
        self._worker = worker
        self._built = built
        self._num_batches = num_batches
        self._is_chief = worker is None or worker.cluster.is_chief
        self._last_save = time.monotonic()
        self._new_step = tf.placeholder(tf.int64, [])
        self._set_step = built.global_step.assign(self._new_step)
        self._set_begun = built.meeting.begun.assign(self._new_step) if built.meeting else tf.no_op()
        self._saver = None
        if self._saves:
            assert params.train_dir
            self._saver = self._make_saver(params.train_dir)
        self._warn, self._tell = warn, tell
        self._backbone = None
        written = spelled('backbone_model_path', params.backbone_model_path)
        if backbone := find_backbone(params, is_chief=self._is_chief):
            self._backbone = Backbone(backbone, written, built.model_slices, HOST_DEVICE)
        elif params.backbone_model_path and self._saves:
            warn(f'{written} has no effect: training goes on from {latest_checkpoint(params, is_chief=True)}')
        # Without parameter servers, any worker may be the one from which the others go on.
        may_relay = worker is not None and worker.target and not worker.cluster.servers
        self._folder = tempfile.mkdtemp(prefix='tf_cnn_benchmarks_') if may_relay else None
        self._relay = self._make_saver(self._folder) if self._folder else None

    def _make_saver(self, folder: str) -> Checkpointer:
        return Checkpointer(folder, self._built.slices, HOST_DEVICE, self._params.max_ckpts_to_keep)

    @property
    def _saves(self) -> bool:
        return self._params.train_dir is not None and not self._params.forward_only and self._is_chief

    def prepare(self, session: tf.Session, root: int) -> Schedule:
        """Gives the variables their values, and says which steps follow.

        Args:
          root: the worker whose variables all start from, where each has its own.

        Raises:
          RunError: the variables were lost with a process, and there is no checkpoint to go on from.
        """
        params, worker = self._params, self._worker
        num_counting = worker.cluster.num_trainers if worker and not worker.together else 1
        num_steps = num_counting * (params.num_warmup_batches + self._num_batches)
        if isinstance(worker, Worker) and worker.cluster.servers:
            start, end = self._prepare_servers(session, worker, num_steps) if self._is_chief else worker.await_state()
        else:
            start = self._prepare_own(session, worker, root)
            known = worker.agreed['end'] if worker else None
            end = start + num_steps if known is None else int(known)
        if worker:
            worker.legacy['end'] = end
        self.steps_taken = start
        if self._saves and params.train_dir:
            mark_ended(params.train_dir, False)
        if self._saves and start == end - num_steps:
            # Should the variables be lost, training can start anew from here.
            self.save(session)
        num_warmup = end - num_steps + num_counting * params.num_warmup_batches - start
        if start > end - num_steps:
            # Training that goes on after an interruption takes a step to warm up.
            num_warmup = max(num_warmup, min(1, end - start - 1), 0)
        own_warmup = num_warmup // num_counting
        return Schedule(start, start // num_counting, own_warmup, end - start - own_warmup, end)

    def _prepare_own(self, session: tf.Session, worker: Worker | HorovodWorker | None, root: int) -> int:
        """Where every worker has variables of its own: the root has the state, the others get it from there."""
        session.run(self._built.initializers)
        if worker is None or worker.cluster.index == root:
            saver = self._relay if worker and worker.legacy.get('state') else self._saver
            prefix = worker.legacy.get('state') if worker else None
            prefix = prefix or latest_checkpoint(self._params, is_chief=self._is_chief)
            if prefix and saver:
                saver.restore(session, prefix)
                if saver is self._saver:
                    self._tell(f'Going on from {prefix}')
            elif self._backbone:
                self._start_from(self._backbone, session)
        step = int(session.run(self._built.global_step.value))
        if worker:
            step = max(0, worker.agreed['step'])
            session.run(self._set_step, {self._new_step: step})
        return step

    def _prepare_servers(self, session: tf.Session, worker: Worker, num_steps: int) -> tuple[int, int]:
        """As the chief: sees to it that the parameter servers hold the state between two steps, and tells the others.

        Returns its step, and the one at which training ends.
        """
        meeting, end = self._built.meeting, worker.agreed['end']
        kept = worker.kept_state()
        if kept:
            end = kept['end']
        # A controller keeps the count of steps itself: nothing tells whether the last one before its loss was whole.
        had_controller = kept and worker.cluster.controller_hosts
        if not kept or had_controller or self._whole_step(session) is None:
            prefix = latest_checkpoint(self._params, is_chief=True)
            if prefix is None and end is not None:
                what = 'variables were lost with a server'
                if kept:
                    what = 'the controller was lost' if had_controller else 'a worker was lost while it applied a step'
                raise RunError(f'{what}, and there is no checkpoint to go on from; --train_dir=DIR would keep some')
            session.run(self._built.initializers)
            if prefix:
                assert self._saver
                self._saver.restore(session, prefix)
                self._tell(f'Going on from {prefix}')
            elif self._backbone:
                self._start_from(self._backbone, session)
        step = self._read_step(session)
        if meeting:
            session.run(self._set_begun, {self._new_step: step})
            meeting.clear(session)
        end = step + num_steps if end is None else int(end)
        worker.announce(step, end)
        return step, end

    def _start_from(self, backbone: Backbone, session: tf.Session) -> None:
        backbone.restore(session)
        self._tell(backbone.taken)
        for line in backbone.left:
            self._warn(line)

    def _read_step(self, session: tf.Session) -> int:
        return int(session.run(self._built.global_step.value))

    def _whole_step(self, session: tf.Session) -> int | None:
        """The step after which the variables are those of the model; None while the next one is being applied."""
        step, meeting = self._read_step(session), self._built.meeting
        return step if meeting is None or step == session.run(meeting.begun.value) else None

    def prepare_evaluation(self, session: tf.Session) -> None:
        """Sees to it that this worker has what a checkpoint would hold now. All that evaluate together call it."""
        if self._built.before_evaluation is not None:
            session.run(self._built.before_evaluation)

    def save_if_due(self, session: tf.Session, taken_before: int) -> None:
        """Saves a checkpoint if --save_model_steps or --save_model_secs ask for one now.

        Args:
          taken_before: the steps that had been taken when this was asked last; other workers count, too.
        """
        params = self._params
        every = params.save_model_steps
        by_step = every is not None and self.steps_taken // every > taken_before // every
        if self._saves and (by_step or 0 < params.save_model_secs <= time.monotonic() - self._last_save):
            self.save(session)

    def save(self, session: tf.Session) -> None:
        """Saves a checkpoint, if this run does and this process is the one to do it."""
        if self._saver:
            self._saver.save(session, self._read_step(session))
            self._last_save = time.monotonic()

    def keep(self, session: tf.Session) -> None:
        """As save, while this process may be in a step, whose end may be waiting for others.

        Raises:
          RunError: the step is being applied. Workers that do not wait for each other always apply some.
        """
        if self._saver and self._worker and not self._worker.together:
            self.save(session)
        elif self._saver:
            step = self._whole_step(session)
            if step is None:
                raise RunError('a step is being applied')
            self._saver.save(session, step, lambda: self._whole_step(session) == step)

    def end(self, session: tf.Session) -> None:
        """Saves the last checkpoint and says that it is the last."""
        self.save(session)
        if self._saves and self._params.train_dir:
            mark_ended(self._params.train_dir, True)

    def hand_on(self) -> dict[str, object]:
        """What the process that takes the place of this one needs. Called when the session is over."""
        if self._relay is None or self._worker is None:
            return {}
        session = tf.Session(self._worker.target, graph=self._new_step.graph, config=self._worker.config)
        with contextlib.closing(session):
            step = self._read_step(session)
            return {'state': self._relay.save(session, step), 'step': step}


def latest_checkpoint(params: Params, *, is_chief: bool) -> str | None:
    """The checkpoint that training goes on from."""
    if params.train_dir is None or params.forward_only or not is_chief:
        return None
    return Checkpointer.latest(params.train_dir)


def find_backbone(params: Params, *, is_chief: bool) -> str | None:
    """The other checkpoint that training starts from, unless it goes on from its own.

    Raises:
      UsageError: there is no such checkpoint.
      RunError: the folder holds none.
    """
    path = params.backbone_model_path
    if path is None or params.forward_only or not is_chief or latest_checkpoint(params, is_chief=True):
        return None
    return find_checkpoint(path, spelled('backbone_model_path', path))


def step_to_offer(params: Params, worker: Worker | HorovodWorker) -> int | None:
    """The step of the variables that a worker brings along, if it has some."""
    if 'step' in worker.legacy:
        return int(worker.legacy['step'])
    prefix = latest_checkpoint(params, is_chief=worker.cluster.is_chief)
    return step_of(prefix) if prefix else None


def restart_number(params: Params, worker: Worker | HorovodWorker | None) -> int:
    """0 when training starts, and another number each time that it goes on: from a checkpoint, or after a loss."""
    if worker:
        return max(0, worker.agreed['step']) + worker.generation - 1
    prefix = latest_checkpoint(params, is_chief=True)
    return step_of(prefix) if prefix else 0


class Window:
    """What a cluster did between the start of this worker's first timed step and the end of its last, by one clock."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._end = self._skipped = 0.0
        self._first = self._last = 0

    def note(self, seconds: float, steps_before: int, steps_after: int) -> None:
        """After each timed step: its seconds, and the steps of the cluster before and after it."""
        self._end = time.perf_counter()
        if self._start is None:
            self._start, self._first = self._end - seconds, steps_before
        else:
            self._start += self._skipped
        self._skipped = 0.0
        self._last = steps_after

    def skip(self, seconds: float) -> None:
        """After what is no part of training, such as an evaluation, and took so many seconds. It lies within the window
        once another step follows."""
        self._skipped += seconds

    @property
    def seconds(self) -> float:
        return self._end - self._start if self._start is not None else 0.0

    @property
    def num_steps(self) -> int:
        return self._last - self._first

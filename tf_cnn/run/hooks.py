"""What a training run does between its steps: checks, summaries, checkpoints, evaluations."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.worker import Worker
from tf_cnn.plan.config import EvaluationConfig
from tf_cnn.plan.evaluations import Evaluations
from tf_cnn.plan.params import Params
from tf_cnn.results.console import Console
from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import PauseCause, Step, StepValues
from tf_cnn.run.instruments import SummaryWriter, step_scalars
from tf_cnn.run.lifecycle import RunLifecycle
from tf_cnn.run.run_report import RunReport
from tf_cnn.run.session import Stepper
from tf_cnn.run.state import RunState
from tf_cnn.run.step_loop import Hook, Schedule
from tf_cnn.run.step_recorder import StepRecorder
from tf_cnn.step.evaluation import Evaluation
from tf_cnn.system.errors import RunError
from tf_cnn.training.config import CheckpointConfig

Steps = Sequence[Step[StepValues]]


@dataclass
class StepChecks(Hook[StepValues]):
    """Raises RunError for a loss that is not finite, and ends an asynchronous worker when all
    workers together have taken the steps of the run.

    If nothing is learnt, such a loss does no harm; the result has a warning.
    """

    params: Params
    schedule: Schedule

    def __post_init__(self) -> None:
        params = self.params
        learns = params.trains and not params.run.exchange_only and params.data.data_dir
        self._is_needed = bool(learns and not params.numerics.continue_on_nan)

    def after(self, steps: Steps) -> bool:
        for step in steps:
            if self._is_needed and not math.isfinite(step.values.loss):
                raise self._error(step.values)
        return self.schedule.is_over(steps[-1].values.steps_after)

    def _error(self, values: StepValues) -> RunError:
        advice, precision = [], self.params.numerics
        if values.learning_rate is not None:
            advice.append(
                f'a lower learning rate than {values.learning_rate:g} (--init_learning_rate)'
            )
        if precision.precision == 'fp16':
            advice.append('--precision=bf16, which has larger numbers')
            if not precision.fp16_enable_auto_loss_scale:
                advice.append('--fp16_enable_auto_loss_scale')
        return RunError(
            f'the loss is {values.loss} at step {values.steps_after}, counted from the start of '
            'training with warm-up; use '
            f'{", ".join([*advice, "or --continue_on_nan to go on with it"])}'
        )


@dataclass
class Summaries(Hook[StepValues]):
    """Writes TensorBoard summaries of the timed steps that are due.

    Variables can be read only between session calls, so a call has one histogram of each, after
    its last step.
    """

    writer: SummaryWriter
    session: tf.Session
    stepper: Stepper
    recorder: StepRecorder
    loss_name: str
    images_per_step: int

    def after(self, steps: Steps) -> bool:
        due_steps = [
            step for step in steps if step.phase is Phase.TIMED and self.writer.is_due(step.index)
        ]
        if due_steps:
            with self.recorder.pause(PauseCause.SUMMARY):
                for step in due_steps:
                    scalars = step_scalars(step, self.loss_name, self.images_per_step)
                    self.writer.write_scalars(step.values.steps_after, scalars)
                gradients = self.stepper.gradient_histograms
                last_step = steps[-1].values.steps_after
                self.writer.write_histograms(last_step, self.session, gradients)
        return False


@dataclass
class Checkpoints(Hook[StepValues]):
    """Saves a checkpoint every --save_model_steps or --save_model_secs.

    Attributes:
      last_step: the global step before the next session call.
      save_lock: held while saving, since a signal may save on another thread.
    """

    config: CheckpointConfig
    state: RunState
    session: tf.Session
    last_step: int
    worker: Worker
    recorder: StepRecorder
    save_lock: threading.Lock
    last_save: float = field(default_factory=time.monotonic)

    def after(self, steps: Steps) -> bool:
        step, interval = steps[-1].values.steps_after, self.config.save_model_steps
        is_due_by_step = interval is not None and step // interval > self.last_step // interval
        self.last_step = step
        secs = time.monotonic() - self.last_save
        if is_due_by_step or 0 < self.config.save_model_secs <= secs:
            pause = self.recorder.pause(PauseCause.CHECKPOINT)
            with pause, self.worker.pausing(), self.save_lock:
                self.state.save(self.session)
            self.last_save = time.monotonic()
        return False


@dataclass
class EvaluationsDuringTraining(Hook[StepValues]):
    """Evaluates after the steps of `evaluations`, and ends the run at --stop_at_top_1_accuracy.

    last_step is the global step before the next session call.
    """

    config: EvaluationConfig
    evaluations: Evaluations
    evaluation: Evaluation
    state: RunState
    session: tf.Session
    last_step: int
    report: RunReport
    console: Console
    lifecycle: RunLifecycle
    has_reached_goal: bool = False

    def begin(self, phase: Phase) -> bool:
        continues = self.lifecycle.worker.resume_point['end'] is not None and self.last_step
        if phase is Phase.WARMUP and continues:
            # The interruption may have stopped the evaluation after this step.
            self._evaluate_if_due(self.last_step, self.last_step - 1)
        return self.has_reached_goal

    def after(self, steps: Steps) -> bool:
        step = steps[-1].values.steps_after
        self._evaluate_if_due(step, self.last_step)
        self.last_step = step
        return self.has_reached_goal

    def _evaluate_if_due(self, step: int, last_step: int) -> None:
        if not self.evaluations.is_due(step, last_step):
            return
        recorder, worker = self.report.recorder, self.lifecycle.worker
        with recorder.pause(PauseCause.EVALUATION), self.lifecycle.evaluating(), worker.pausing():
            self.state.prepare_evaluation(self.session)
            self.console.progress(f'Evaluating after {recorder.describe_last_step(step)}')
            accuracy = self.report.evaluate(self.evaluation, self.session, step, worker, str(step))
        # A warm-up continues after the goal is reached; this note is printed only once.
        goal = self.config.stop_at_top_1_accuracy
        if goal is not None and accuracy.top_1 >= goal and not self.has_reached_goal:
            self.has_reached_goal = True
            self.console.note(
                f'Stopping after {recorder.describe_last_step(step)}: '
                f'--stop_at_top_1_accuracy={goal:g} is reached'
            )

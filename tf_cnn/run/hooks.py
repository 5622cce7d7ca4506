"""What a training run does between its steps: checks, summaries, checkpoints, evaluations."""

import math
import threading
import time
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.worker import Worker
from tf_cnn.results.console import Console
from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import PauseCause, Step, StepValues
from tf_cnn.run.config import EvaluationConfig
from tf_cnn.run.evaluation import Evaluation, combine_accuracy, write_accuracy_summary
from tf_cnn.run.evaluations import EvalSchedule
from tf_cnn.run.instruments import SummaryWriter, step_scalars
from tf_cnn.run.lifecycle import RunLifecycle
from tf_cnn.run.params import Params
from tf_cnn.run.run_report import RunReport
from tf_cnn.run.schedule import Schedule
from tf_cnn.run.session import Stepper
from tf_cnn.run.state import RunState
from tf_cnn.run.step_loop import Hook
from tf_cnn.run.step_recorder import StepRecorder
from tf_cnn.system.errors import RunError
from tf_cnn.training.config import CheckpointConfig

Steps = Sequence[Step[StepValues]]


class EndOfTraining(Hook[StepValues]):
    """Ends an asynchronous worker when all workers together have taken the steps of the run."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def after(self, steps: Steps) -> bool:
        return self._schedule.is_over(steps[-1].values.steps_after)


class LossCheck(Hook[StepValues]):
    """Raises RunError for a loss that is not finite.

    If nothing is learnt, such a loss does no harm; the result has a warning.
    """

    def __init__(self, params: Params) -> None:
        self._params = params
        learns = params.trains and not params.run.exchange_only and params.data.data_dir
        self._is_needed = bool(learns and not params.precision.continue_on_nan)

    def after(self, steps: Steps) -> bool:
        for step in steps:
            if self._is_needed and not math.isfinite(step.values.loss):
                raise self._error(step.values)
        return False

    def _error(self, values: StepValues) -> RunError:
        advice, precision = [], self._params.precision
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


class Summaries(Hook[StepValues]):
    """Writes TensorBoard summaries of the timed steps that are due."""

    def __init__(
        self,
        writer: SummaryWriter,
        session: tf.Session,
        stepper: Stepper,
        recorder: StepRecorder,
        loss_name: str,
        images_per_step: int,
    ) -> None:
        self._writer = writer
        self._session = session
        self._stepper = stepper
        self._recorder = recorder
        self._loss_name = loss_name
        self._images_per_step = images_per_step

    def after(self, steps: Steps) -> bool:
        for step in steps:
            if step.phase is Phase.TIMED and self._writer.is_due(step.index):
                with self._recorder.pause(PauseCause.SUMMARY):
                    scalars = step_scalars(step, self._loss_name, self._images_per_step)
                    self._writer.write(
                        step.values.steps_after,
                        scalars,
                        self._session,
                        self._stepper.gradient_summary,
                    )
        return False

    def end(self) -> None:
        self._writer.close()


class Checkpoints(Hook[StepValues]):
    """Saves a checkpoint every --save_model_steps or --save_model_secs.

    save_lock: held while saving, since a signal may save on another thread.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        state: RunState,
        session: tf.Session,
        start_step: int,
        worker: Worker,
        recorder: StepRecorder,
        save_lock: threading.Lock,
    ) -> None:
        self._step_interval = config.save_model_steps
        self._interval_secs = config.save_model_secs
        self._state = state
        self._session = session
        self._previous_step = start_step
        self._worker = worker
        self._recorder = recorder
        self._save_lock = save_lock
        self._last_save = time.monotonic()

    def after(self, steps: Steps) -> bool:
        step, interval = steps[-1].values.steps_after, self._step_interval
        is_due_by_step = interval is not None and step // interval > self._previous_step // interval
        self._previous_step = step
        if is_due_by_step or 0 < self._interval_secs <= time.monotonic() - self._last_save:
            pause = self._recorder.pause(PauseCause.CHECKPOINT)
            with pause, self._worker.pausing(), self._save_lock:
                self._state.save(self._session)
            self._last_save = time.monotonic()
        return False


class EvaluationsDuringTraining(Hook[StepValues]):
    """Evaluates after the steps of the schedule, and ends the run at --stop_at_top_1_accuracy."""

    def __init__(
        self,
        config: EvaluationConfig,
        schedule: EvalSchedule,
        evaluation: Evaluation,
        state: RunState,
        session: tf.Session,
        start_step: int,
        report: RunReport,
        console: Console,
        lifecycle: RunLifecycle,
    ) -> None:
        self._goal = config.stop_at_top_1_accuracy
        self._folder = config.eval_dir
        self._schedule = schedule
        self._evaluation = evaluation
        self._state = state
        self._session = session
        self._previous_step = start_step
        self._report = report
        self._console = console
        self._lifecycle = lifecycle
        self._has_reached_goal = False

    def begin(self, phase: Phase) -> bool:
        continues = self._lifecycle.worker.resume_point['end'] is not None and self._previous_step
        if phase is Phase.WARMUP and continues:
            # The interruption may have stopped the evaluation after this step.
            self._evaluate_if_due(self._previous_step, self._previous_step - 1)
        return self._has_reached_goal

    def after(self, steps: Steps) -> bool:
        step = steps[-1].values.steps_after
        self._evaluate_if_due(step, self._previous_step)
        self._previous_step = step
        return self._has_reached_goal

    def _evaluate_if_due(self, step: int, previous_step: int) -> None:
        if not self._schedule.is_due(step, previous_step):
            return
        recorder, worker = self._report.recorder, self._lifecycle.worker
        with recorder.pause(PauseCause.EVALUATION), self._lifecycle.evaluating(), worker.pausing():
            self._state.prepare_evaluation(self._session)
            self._console.progress(f'Evaluating after {recorder.describe_last_step(step)}')
            accuracy = combine_accuracy(
                self._evaluation.run(self._session, step), worker, f'accuracy/{step}'
            )
            self._report.add_evaluation(accuracy)
            if self._folder:
                write_accuracy_summary(accuracy, self._folder)
        # A warm-up continues after the goal is reached; this note is printed only once.
        if self._goal is not None and accuracy.top_1 >= self._goal and not self._has_reached_goal:
            self._has_reached_goal = True
            self._console.note(
                f'Stopping after {recorder.describe_last_step(step)}: '
                f'--stop_at_top_1_accuracy={self._goal:g} is reached'
            )

"""One run of the benchmark, from top to bottom: plan, join, build, prepare, steps, finish."""

import contextlib
import functools
import math
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.worker import Worker
from tf_cnn.graph.tensorflow_import import without_collecting
from tf_cnn.inputs.buffers import format_memory
from tf_cnn.machine.peak import measure_peak
from tf_cnn.machine.quiet import quiet_start
from tf_cnn.params import Params
from tf_cnn.planning.environment import Environment
from tf_cnn.planning.make_plan import make_plan
from tf_cnn.planning.plan import Plan, Role, ServerPlan
from tf_cnn.planning.this_process import THIS_PROCESS
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result
from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Cause, Step, StepValues
from tf_cnn.run.build import build_evaluation, build_step, export, make_banner
from tf_cnn.run.evaluation import Evaluation, SavedVariables, share_accuracy, write_summary
from tf_cnn.run.evaluator import evaluate_checkpoints
from tf_cnn.run.export import ModelValues
from tf_cnn.run.input_only import measure_input
from tf_cnn.run.instruments import StepProfiler, StepTracer, SummaryWriter, scalars_of, write_graph
from tf_cnn.run.invocation import Invocation, after_waiting
from tf_cnn.run.measurement import Measurement
from tf_cnn.run.process import Process
from tf_cnn.run.schedule import Schedule
from tf_cnn.run.session import Stepper, open_session
from tf_cnn.run.state import RunState, offer_of, restart_number
from tf_cnn.run.step_graph import StepGraph
from tf_cnn.run.step_loop import run_steps
from tf_cnn.run.steps_in_graph import StepsInGraph
from tf_cnn.system.errors import RunError, UsageError, format_flag, plural
from tf_cnn.system.signals import SIGNALS


@dataclass(frozen=True)
class _Built:
    graph: tf.Graph
    step_graph: StepGraph
    in_graph: StepsInGraph | None
    state: RunState
    summaries: SummaryWriter | None
    evaluation: Evaluation | None
    model_values: ModelValues | None


class BenchmarkCNN:
    """One run of the benchmark, by one process or as a worker of a cluster.

    Args:
      params: the settings, or the plan made from them.
      console: prints the lines; by default nothing is printed, and warnings become Python warnings.

    Raises:
      UsageError: the settings contradict each other, or do not fit this machine, the cluster or the
        data.
    """

    # ---- plan ------------------------------------------------------------------------------------

    def __init__(
        self,
        params: Params | Plan,
        console: Console | None = None,
        invocation: Invocation | None = None,
    ) -> None:
        self._console = console or Console()
        self._invocation = invocation or Invocation()
        self.plan = self._begin(params if isinstance(params, Plan) else _plan(params))
        self._has_run = False

    def run(self) -> Result:
        """Trains, or evaluates with --eval, and returns what was measured: what --result_file
        writes.

        In a cluster the chief's result has the steps of all workers, that of another worker only
        its own.

        Raises:
          RunError: a fault while running; its attribute `result` holds what was measured before it.
        """
        if self.plan.subject.role in (Role.EVALUATION, Role.INPUT_ONLY):
            measure = (
                evaluate_checkpoints if self.plan.subject.role is Role.EVALUATION else measure_input
            )
            invocation = after_waiting(self._invocation, self.plan.reports.idle_secs, self._console)
            return measure(self.plan, self._console, invocation)
        with contextlib.closing(self.steps()) as all_steps:
            for _ in all_steps:
                pass
        return self._measurement.result

    def steps(self) -> Generator[Step[StepValues], None, None]:
        """Runs one step, or --steps_per_run at once, each time the generator is advanced. Handles
        faults as run() does.

        Closing the generator ends the run: it saves the trained variables and prints the result so
        far. Close it explicitly (contextlib.closing), not by ending the program.

        Raises:
          UsageError: --eval and --input_only take no steps of a model; call run().
        """
        if self.plan.subject.role is Role.EVALUATION:
            raise UsageError('--eval: it takes no steps; call run()')
        if self.plan.subject.role is Role.INPUT_ONLY:
            raise UsageError('--input_only: it takes no steps of a model; call run()')
        if self._has_run:
            # The previous run may have saved a checkpoint, from which this one continues.
            self.plan = self._begin(_plan(self.plan.params))
            self._invocation = Invocation()
        self._has_run = True
        plan = self.plan
        self._invocation = after_waiting(self._invocation, plan.reports.idle_secs, self._console)
        self._measurement = Measurement(plan, self._console, self._invocation)
        self._state: RunState | None = None
        self._session: tf.Session | None = None
        self._has_reached_goal = False
        # A signal may be answered on another thread, see SIGNALS.
        self._saving = threading.Lock()
        self._process = Process(plan, self._console, self._measurement, self._keep)
        profiler = StepProfiler(plan.instruments.profile_folder, plan.instruments.profile_steps)
        with self._process.guarded():
            worker = self._process.join(offer_of(plan.checkpoints, plan.counts, plan.processes))
            built = self._build(worker)
            with (
                open_session(worker.target, built.graph, worker.config) as session,
                contextlib.closing(profiler),
            ):
                worker.watch(session, self._keep)
                schedule = self._prepare(session, built)
                with self._process.stepping():
                    yield from self._take_steps(session, built, schedule, profiler)
                    values = self._finish(session, built)
            # All steps are taken and saved: whoever is restarted now finds that training is over.
            worker.stop_watching()
            self._write(built, values)
            built.state.forget()

    def _begin(self, plan: Plan) -> Plan:
        THIS_PROCESS.apply(plan.session.process)
        for line in plan.warnings:
            self._console.warning(line)
        return plan

    # ---- build -----------------------------------------------------------------------------------

    def _build(self, worker: Worker) -> _Built:
        plan, instruments = self.plan, self.plan.instruments
        if plan.data.input_row.in_memory and plan.data.images:
            self._console.progress(
                f'Reading {plural(plan.data.images.num_images, "image")} into memory'
            )
        else:
            self._console.progress('Building the graph')
        # Each run has its own graph, so that runs in one process share nothing.
        with without_collecting(), tf.Graph().as_default() as graph, tf.device(worker.device):
            tf.set_random_seed(plan.step.seed)
            step_graph = build_step(plan, restart_number(worker))
            SIGNALS.ask()
            summaries = None
            if instruments.summaries:
                summaries = SummaryWriter(
                    instruments.summaries, step_graph.variables, step_graph.gradients
                )
            evaluation = self._build_evaluation(step_graph, worker)
            in_graph = None
            if plan.counts.steps_per_run > 1:
                in_graph = StepsInGraph(step_graph.fetches, step_graph.drawing_ops)
            state = RunState(
                plan.checkpoints, step_graph, worker, self._console.warning, self._console.note
            )
            model_values = (
                ModelValues(step_graph.model_slices) if plan.checkpoints.export_folder else None
            )
        self._measurement.recording.transfer = step_graph.transfer
        self._measurement.recording.input_buffers = buffers = step_graph.pipeline.buffers
        if buffers and plan.params.verbose:
            self._console.note(format_memory(buffers))
        prefix = worker.device if worker.device and plan.machine.is_here else ''
        self._console.result(make_banner(plan, prefix, step_graph))
        if instruments.graph_file:
            write_graph(graph, instruments.graph_file)
        self._state = state
        return _Built(graph, step_graph, in_graph, state, summaries, evaluation, model_values)

    def _build_evaluation(self, step_graph: StepGraph, worker: Worker) -> Evaluation | None:
        """Builds the evaluation during training, if there is one; in asynchronous modes only the
        chief evaluates.
        """
        if self.plan.evaluations is None or not (worker.together or worker.is_chief):
            return None
        towers = [SavedVariables(step_graph.slices) for _ in self.plan.machine.towers]
        process, num_processes = (worker.index, worker.num_trainers) if worker.together else (0, 1)
        return build_evaluation(self.plan, towers, process, num_processes)

    # ---- prepare ---------------------------------------------------------------------------------

    def _prepare(self, session: tf.Session, built: _Built) -> Schedule:
        SIGNALS.ask()
        self._console.progress('Initialising the variables')
        self._measurement.recording.begin('initialise')
        schedule = built.state.prepare(session, self.plan.counts)
        run = built.in_graph.runner(session) if built.in_graph else None
        built.step_graph.start(session, schedule.own_start, run)
        # From here on _keep() has variables to save.
        self._session = session
        evaluations = self.plan.evaluations
        if evaluations and built.evaluation:
            self._warn(evaluations.schedule.warning(schedule.start, schedule.end))
        return schedule

    # ---- steps -----------------------------------------------------------------------------------

    def _take_steps(
        self, session: tf.Session, built: _Built, schedule: Schedule, profiler: StepProfiler
    ) -> Iterator[Step[StepValues]]:
        """Runs the steps, and between them whatever is due: summaries, checkpoints, evaluations."""
        state, images_of_step, worker = (
            built.state,
            self.plan.counts.images_of_step,
            self._process.worker,
        )
        tracer = StepTracer(self.plan.instruments)
        step_graph, num_warmup = built.step_graph, schedule.num_warmup
        stepper = Stepper(
            session,
            step_graph.fetches,
            tracer,
            num_warmup,
            built.summaries,
            built.in_graph,
            step_graph.pipeline,
        )
        self._console.progress(f'Running {plural(schedule.num_warmup, "warm-up step")}')
        self._measurement.recording.begin('warm_up')
        if worker.agreed['end'] is not None and schedule.start:
            # The interruption may have come during the evaluation of this step.
            self._evaluate_if_due(session, built, schedule.start - 1)
        taken = state.steps_taken

        def counted_steps() -> Iterator[list[Step[StepValues]]]:
            for steps in run_steps(
                profiler.marked(stepper.run),
                schedule.num_warmup,
                schedule.num_timed,
                self.plan.counts.steps_per_run,
                is_over=functools.partial(self._is_over, schedule, state),
                begin_timed=self._measurement.begin_timed_steps,
            ):
                state.steps_taken = stepper.steps_after
                self._measurement.add_steps(steps)
                yield steps

        for steps in profiler.profiled(
            self._process.stoppable(counted_steps()), schedule.num_warmup
        ):
            taken_before, taken = taken, state.steps_taken
            self._measurement.num_skipped = stepper.num_skipped
            for step in steps:
                self._check_loss(step.values)
                if (
                    step.phase is Phase.TIMED
                    and built.summaries
                    and built.summaries.is_due(step.index)
                ):
                    with self._measurement.doing(Cause.SUMMARY):
                        scalars = scalars_of(step, self.plan.reports.losses.name, images_of_step)
                        built.summaries.write(
                            step.values.steps_after, scalars, session, stepper.gradient_summary
                        )
            if state.is_save_due(taken_before):
                with self._measurement.doing(Cause.CHECKPOINT), worker.pausing(), self._saving:
                    state.save(session)
            self._measurement.show_steps(steps)
            for step in steps:
                with SIGNALS.suspended():
                    yield step
            self._evaluate_if_due(session, built, taken_before)
        self._measurement.recording.end_timed_steps()
        self._warn(profiler.warning)
        if built.step_graph.num_skipped is not None:
            stepper.note_skipped(int(session.run(built.step_graph.num_skipped)))
            self._measurement.num_skipped = stepper.num_skipped
        self._measurement.share_total()

    def _is_over(self, schedule: Schedule, state: RunState) -> bool:
        has_ended = self._has_reached_goal or self._measurement.has_reached_target
        return has_ended or schedule.is_over(state.steps_taken)

    def _check_loss(self, values: StepValues) -> None:
        losses, rate = self.plan.reports.losses, values.learning_rate
        if math.isfinite(values.loss) or losses.continue_on_nan:
            return
        advice = (
            [] if rate is None else [f'a lower learning rate than {rate:g} (--init_learning_rate)']
        )
        raise RunError(
            f'the loss is {values.loss} at step {values.steps_after}, counted from the start of '
            'training with warm-up; write '
            f'{", ".join([*advice, *losses.advice, "or --continue_on_nan to go on with it"])}'
        )

    def _evaluate_if_due(self, session: tf.Session, built: _Built, taken_before: int) -> None:
        evaluations, worker, step = (
            self.plan.evaluations,
            self._process.worker,
            built.state.steps_taken,
        )
        if (
            built.evaluation is None
            or evaluations is None
            or not evaluations.schedule.is_due(step, taken_before)
        ):
            return
        with (
            self._measurement.doing(Cause.EVALUATION),
            self._process.evaluating(),
            worker.pausing(),
        ):
            built.state.prepare_evaluation(session)
            self._console.progress(f'Evaluating after {self._measurement.name_step(step)}')
            found = share_accuracy(built.evaluation.run(session, step), worker, f'accuracy/{step}')
            self._measurement.add_evaluation(found)
            if evaluations.summary_folder:
                write_summary(found, evaluations.summary_folder)
        # The warm-up goes on to its end; nothing is said twice meanwhile.
        if (
            evaluations.goal is not None
            and found.top_1 >= evaluations.goal
            and not self._has_reached_goal
        ):
            self._has_reached_goal = True
            goal = f'--stop_at_top_1_accuracy={evaluations.goal:g}'
            self._console.note(
                f'Stopping after {self._measurement.name_step(step)}: {goal} is reached'
            )

    # ---- finish ----------------------------------------------------------------------------------

    def _finish(self, session: tf.Session, built: _Built) -> Mapping[str, Any] | None:
        """Saves the last checkpoint. Returns the values of the model's variables if the model is
        exported.
        """
        with self._saving:
            built.state.end(session)
            self._session = None
        return built.model_values.read(session) if built.model_values else None

    def _write(self, built: _Built, values: Mapping[str, Any] | None) -> None:
        SIGNALS.ask()
        if self.plan.reports.measures_peak:
            self._console.progress('Measuring the peak of the devices')
            peak = measure_peak(
                self.plan.session.config,
                self.plan.machine.towers,
                self.plan.step.precision.compute.name,
            )
            self._measurement.recording.peak_flops = peak
        if built.summaries:
            built.summaries.close()
        SIGNALS.ask()
        if values and (folder := self.plan.checkpoints.export_folder):
            self._console.progress(f'Writing the model to {folder}')
            export(self.plan, values, folder)

    def _keep(self) -> None:
        """Saves the trained variables when the run ends early, if training had begun."""
        if self._state and self._session:
            try:
                with self._saving:
                    self._state.keep(self._session, within_step=self._process.is_in_step)
            except (RunError, tf.errors.OpError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                self._warn(f'the training since the last checkpoint is lost: {reason}')

    def _warn(self, line: str | None) -> None:
        if line:
            self._console.warning(line)


def _plan(params: Params) -> Plan:
    if params.repeat > 1:
        raise UsageError(
            f'{format_flag("repeat", params.repeat)}: it is for the command; from Python, call '
            'run() each time'
        )
    with quiet_start(verbose=params.verbose):
        plan = make_plan(params, Environment())
    if isinstance(plan, ServerPlan):
        raise UsageError(
            f'--job_name={plan.processes.job}: this process serves others and runs no benchmark'
        )
    return plan

"""One run of the benchmark, from top to bottom: plan, join, build, prepare, steps, finish."""

import contextlib
import dataclasses
import functools
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from tf_cnn.machine.quiet import import_tensorflow_quietly, quiet_start

if 'tensorflow' not in sys.modules:
    import_tensorflow_quietly()

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.serve import run_server
from tf_cnn.cluster.worker import Worker
from tf_cnn.graph.tensorflow_import import without_garbage_collection
from tf_cnn.inputs.pipeline_stages import format_memory
from tf_cnn.machine.peak import measure_peak
from tf_cnn.machine.this_process import THIS_PROCESS, ProcessEnvironment
from tf_cnn.plan.params import Params, Role
from tf_cnn.plan.parsing import make_params
from tf_cnn.plan.plan import Plan, ServerPlan, make_plan
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result
from tf_cnn.results.steps import Step, StepValues
from tf_cnn.run.banner import make_banner
from tf_cnn.run.evaluator import evaluate_checkpoints
from tf_cnn.run.hooks import Checkpoints, EvaluationsDuringTraining, StepChecks, Summaries
from tf_cnn.run.input_only import measure_input
from tf_cnn.run.instruments import StepProfiler, StepTracer, SummaryWriter, write_graph
from tf_cnn.run.lifecycle import RunLifecycle
from tf_cnn.run.run_report import RunReport
from tf_cnn.run.session import Stepper
from tf_cnn.run.state import RunState, find_resume_point, restart_number
from tf_cnn.run.step_loop import Hook, Schedule, TargetSeconds, run_steps
from tf_cnn.run.steps_alone import LEAST_PARTS, StepsAlone, workers_alone
from tf_cnn.step.build import build_evaluation, build_step
from tf_cnn.step.evaluation import Evaluation, sliced_variables
from tf_cnn.step.graph_loop import GraphLoop
from tf_cnn.system.errors import RunError, UsageError, format_flag, plural
from tf_cnn.system.signals import SIGNALS, Stopped

__all__ = ['BenchmarkCNN', 'make_params', 'setup']
# Names of the original's module, and what has taken their place.
_REPLACEMENTS = {
    'allreduce': 'make_params(all_reduce_spec=...), or register_variable_mgr for sums of your own',
    'convnet_builder': 'register_model, whose networks get layers as cnn',
    'create_config_proto': 'setup, which starts TensorFlow by flags such as allow_growth',
    'datasets': 'make_params(data_dir=..., data_name=...)',
    'define_flags': 'make_params, which takes flags by name',
    'flags': 'make_params, which takes flags by name',
    'log_fn': 'cnn_util.log_fn',
    'make_params_from_flags': 'make_params, or tf_cnn_benchmarks.main for a command line',
    'model_config': 'make_params(model=...), or register_model for a network of your own',
    'test_util': 'run, or read_result for a file of --result_file',
    'variable_mgr_util': 'register_variable_mgr, for a mode of your own',
}

# What setup() returned last, and its plan: to scan a folder of data again may take half a minute.
_LAST_SETUP: list[tuple[Params, Plan | ServerPlan]] = []


class BenchmarkCNN:
    """One run of the benchmark, by one process or as a worker of a cluster.

    Args:
      params: the settings, or the plan that was made from them.
      dataset, model: None: the settings name both.
      console: prints the lines. By default a run prints as the command does after setup(), else
        nothing, and warnings become Python warnings.
      argv: the command line that started the run, without the program.
      start_time: when the time to the first step began, in seconds of time.perf_counter(); by
        default now.

    Raises:
      UsageError: the settings contradict each other, or do not fit this machine, the cluster or the
        data.
    """

    # ---- plan ------------------------------------------------------------------------------------

    def __init__(
        self,
        params: Params | Plan | ServerPlan,
        dataset: None = None,
        model: None = None,
        *,
        console: Console | None = None,
        argv: Sequence[str] = (),
        start_time: float | None = None,
    ) -> None:
        if dataset is not None or model is not None:
            raise UsageError(
                'BenchmarkCNN: it takes no object for dataset or model; use make_params('
                'data_dir=..., model=...), and register_model for a network of your own'
            )
        is_set_up = isinstance(params, Params) and params.is_set_up
        self._is_silent = console is None and not is_set_up
        self._has_banner = False
        self._console = console or (Console(sys.stdout, sys.stderr) if is_set_up else Console())
        self._argv = argv
        self._start_time = start_time or time.perf_counter()
        plan = params if isinstance(params, Plan | ServerPlan) else _take_plan(params)
        self._apply_process_settings(plan)
        self._server: ServerPlan | None = None
        if isinstance(plan, ServerPlan):
            self._server = plan
        else:
            self.plan = plan
        self._has_run = False

    def print_info(self) -> None:
        """Prints the banner, without the version of TensorFlow, before the run, which then omits
        it.

        Raises:
          UsageError: the run prints nothing, since its settings did not pass through setup().
        """
        if self._is_silent:
            raise UsageError(
                'print_info: a run prints nothing without setup; use BenchmarkCNN(setup(params))'
            )
        if self._server is None:
            self._console.result(make_banner(self.plan).partition('\n')[2])
            self._has_banner = True

    def run(self) -> dict[str, float]:
        """Trains, or evaluates with --eval, or serves, and returns Result.original_statistics() of
        `result`; a server of a cluster returns {} when the training tasks have exited.

        Raises:
          RunError: a fault while running; its attribute `result` holds the measurements before it.
        """
        if self._server:
            role, flags = self._server.cluster_role, self._server.params.cluster
            assert role.cluster
            run_server(
                role.cluster,
                self._server.session.config,
                settings=role.shared_settings,
                is_synchronous=role.is_synchronous,
                connect_secs=flags.connect_timeout_secs,
                linger_secs=flags.ps_linger_secs,
                report=self._console.progress,
                warn=self._console.warning,
            )
            return {}
        if self.plan.role in (Role.EVALUATION, Role.INPUT_ONLY):
            measure = evaluate_checkpoints if self.plan.role is Role.EVALUATION else measure_input
            self._report, self._has_run = self._make_report(), True
            measure(self.plan, self._console, self._report)
        else:
            with contextlib.closing(self.steps()) as all_steps:
                for _ in all_steps:
                    pass
        return self.result.original_statistics()

    @property
    def result(self) -> Result:
        """The document of the last run, which --result_file writes.

        In a cluster, the result of the chief has the steps of all workers. The result of another
        worker has only the steps of that worker.

        Raises:
          UsageError: there was no run, or the process is a server.
        """
        if not self._has_run:
            raise UsageError('result: there is none before run(), or in a server')
        return self._report.result

    def steps(self) -> Generator[Step[StepValues], None, None]:
        """Yields the steps; runs one, or --steps_per_run at once, when the generator is advanced.

        Handles faults as run() does.

        Closing the generator ends the run: it saves the trained variables and prints the result so
        far. Close it explicitly (contextlib.closing) before the program ends.

        Raises:
          UsageError: --eval, --input_only and servers take no steps of a model; call run().
        """
        if self._server:
            job = self._server.cluster_role.job
            raise UsageError(f'--job_name={job}: this process serves others; call run()')
        if self.plan.role is Role.EVALUATION:
            raise UsageError('--eval: it takes no steps; call run()')
        if self.plan.role is Role.INPUT_ONLY:
            raise UsageError('--input_only: it takes no steps of a model; call run()')
        if self._has_run:
            # This run continues from a checkpoint of the previous run, if there is one.
            plan = _make_plan(self.plan.unresolved)
            assert isinstance(plan, Plan)
            self._apply_process_settings(plan)
            self.plan = plan
            self._argv, self._start_time = (), time.perf_counter()
        self._has_run = True
        plan = self.plan
        self._report = self._make_report()
        # Set while there are variables to save.
        self._session: tf.Session | None = None
        # A signal may be answered on another thread, see SIGNALS.
        self._save_lock = threading.Lock()
        self._lifecycle = RunLifecycle(plan, self._console, self._report, self._save_early)
        with self._lifecycle.guard():
            worker = self._lifecycle.join(find_resume_point(plan))
            graph = self._build(worker)
            with (
                self._lifecycle.open_session(graph) as session,
                contextlib.ExitStack() as stack,
            ):
                worker.watch(session, self._save_early)
                schedule = self._prepare(session)
                with self._lifecycle.save_if_interrupted():
                    yield from self._take_steps(session, schedule, stack)
                    self._finish(session)
                # All steps are saved: a process that restarts now finds that training is over.
                worker.stop_watching()
                self._measure_alone(session)
            self._write_outputs()
            self._state.forget_training()

    def _make_report(self) -> RunReport:
        report = RunReport(self.plan, self._console, self._argv, self._start_time)
        report.has_banner, self._has_banner = self._has_banner, False
        return report

    def _apply_process_settings(self, plan: Plan | ServerPlan) -> None:
        THIS_PROCESS.apply(plan.session.process)
        for line in plan.warnings:
            self._console.warning(line)

    # ---- build -----------------------------------------------------------------------------------

    def _build(self, worker: Worker) -> tf.Graph:
        """Builds the graph of the run, and sets the attributes for its parts."""
        plan, instruments = self.plan, self.plan.params.instruments
        if plan.data.input_row.in_memory and plan.data.images:
            self._console.progress(
                f'Reading {plural(plan.data.images.num_images, "image")} into memory'
            )
        else:
            self._console.progress('Building the graph')
        # Each run builds a new graph, so that runs in one process share nothing.
        with (
            without_garbage_collection(),
            tf.Graph().as_default() as graph,
            tf.device(worker.device),
        ):
            tf.set_random_seed(plan.params.run.tf_random_seed)
            self._step_graph = step_graph = build_step(plan, restart_number(worker))
            SIGNALS.check()
            self._summaries: SummaryWriter | None = None
            folder = plan.params.checkpoints.train_dir
            if folder and instruments.save_summaries_steps:
                self._summaries = SummaryWriter(
                    folder, instruments, step_graph.variables, step_graph.gradients
                )
            self._evaluation = self._build_evaluation(worker)
            self._graph_loop: GraphLoop | None = None
            if plan.params.run.steps_per_run > 1:
                self._graph_loop = GraphLoop(step_graph.fetches, step_graph.stateful_ops)
            self._state = RunState(plan, step_graph, worker, self._console)
            alone = workers_alone(plan)
            self._steps_alone = StepsAlone(step_graph, alone) if alone else None
        self._report.meters.transfer = step_graph.transfer
        self._report.meters.input_buffers = buffers = step_graph.step_input.buffers
        if buffers and plan.params.run.verbose:
            self._console.note(format_memory(buffers))
        prefix = worker.device if worker.device and plan.devices.is_local else ''
        self._report.print_banner(prefix, step_graph)
        if instruments.graph_file:
            write_graph(graph, instruments.graph_file)
        return graph

    def _build_evaluation(self, worker: Worker) -> Evaluation | None:
        """Builds the evaluation during training, if there is one; in asynchronous modes only the
        chief evaluates.
        """
        if self.plan.evaluations is None or not (worker.is_synchronous or worker.is_chief):
            return None
        towers = [sliced_variables(self._step_graph.slices) for _ in self.plan.devices.towers]
        process, num_processes = (
            (worker.index, worker.num_training_tasks) if worker.is_synchronous else (0, 1)
        )
        return build_evaluation(self.plan, towers, process, num_processes)

    # ---- prepare ---------------------------------------------------------------------------------

    def _prepare(self, session: tf.Session) -> Schedule:
        SIGNALS.check()
        self._console.progress(
            'Reading the checkpoint' if self.plan.resume_from else 'Initialising the variables'
        )
        self._report.meters.begin_phase('initialise')
        schedule = self._state.prepare(session)
        run_op = self._graph_loop.make_op_runner(session) if self._graph_loop else None
        self._step_graph.prepare_first_step(session, schedule.own_start_step, run_op)
        # From here on _save_early() has variables to save.
        self._session = session
        evaluations = self.plan.evaluations
        if evaluations and self._evaluation:
            self._warn(evaluations.warning(schedule.start_step, schedule.end_step))
        return schedule

    # ---- steps -----------------------------------------------------------------------------------

    def _take_steps(
        self, session: tf.Session, schedule: Schedule, stack: contextlib.ExitStack
    ) -> Iterator[Step[StepValues]]:
        """Takes the steps. The stack ends the profile and warns of omitted summaries, after the
        variables are saved.
        """
        plan, step_graph, instruments = self.plan, self._step_graph, self.plan.params.instruments
        tracer = None
        if instruments.traces_step:
            has_warmup = plan.params.run.num_warmup_batches > 0
            tracer = StepTracer(instruments, session, schedule.num_warmup if has_warmup else None)
        stepper = Stepper(session, step_graph, tracer, self._summaries, self._graph_loop)
        take_steps, profiler = stepper.run, None
        if summaries := self._summaries:
            stack.callback(lambda: self._warn(summaries.warning))
        hooks = self._make_hooks(session, schedule, stepper)
        if instruments.profile_steps:
            profiler = stack.enter_context(contextlib.closing(StepProfiler(instruments)))
            take_steps = profiler.annotate_steps(take_steps)
            # The first hook, so that the profile ends with its last step.
            hooks.insert(0, profiler)
        self._console.phase(f'Running {plural(schedule.num_warmup, "warm-up step")}')
        yield from run_steps(
            take_steps,
            # The last one ends the steps after a signal or a loss.
            [*hooks, self._lifecycle],
            schedule.num_warmup,
            schedule.num_timed,
            plan.params.run.steps_per_run,
            self._lifecycle.in_step,
        )
        self._report.meters.end()
        self._warn(profiler.warning if profiler else None)
        num_skipped = None
        if step_graph.num_skipped is not None:
            num_skipped = int(session.run(step_graph.num_skipped))
        self._report.recorder.record_end(num_skipped, self._lifecycle.worker)

    # Long, since it lists all hooks in their order.
    def _make_hooks(
        self, session: tf.Session, schedule: Schedule, stepper: Stepper
    ) -> list[Hook[StepValues]]:
        """Returns what happens between the steps, in this order; see Hook."""
        plan, params, report = self.plan, self.plan.params, self._report
        worker, recorder, state = self._lifecycle.worker, report.recorder, self._state
        hooks: list[Hook[StepValues]] = [
            report.meters,
            recorder,
            StepChecks(params, schedule),
        ]
        if self._summaries:
            hooks.append(
                Summaries(
                    self._summaries,
                    session,
                    stepper,
                    recorder,
                    params.run.loss_type_to_report,
                    plan.images_per_global_step,
                )
            )
        if plan.checkpoint_folder:
            hooks.append(
                Checkpoints(
                    params.checkpoints,
                    state,
                    session,
                    schedule.start_step,
                    worker,
                    recorder,
                    self._save_lock,
                )
            )
        hooks.append(report.printer)
        if plan.evaluations and self._evaluation:
            hooks.append(
                EvaluationsDuringTraining(
                    params.evaluation,
                    plan.evaluations,
                    self._evaluation,
                    state,
                    session,
                    schedule.start_step,
                    report,
                    self._console,
                    self._lifecycle,
                )
            )
        if target := params.results.target_seconds:
            agrees = worker.is_synchronous and worker.num_training_tasks > 1
            target_hook: TargetSeconds[StepValues] = TargetSeconds(
                target,
                functools.partial(worker.gather, 'pace') if agrees else None,
                functools.partial(worker.gather, 'first pace')
                if agrees and params.run.exchange_only
                else None,
                lambda: recorder.evaluation_seconds,
            )
            report.printer.follow(target_hook)
            hooks.append(target_hook)
        return hooks

    # ---- finish ----------------------------------------------------------------------------------

    def _finish(self, session: tf.Session) -> None:
        with self._save_lock:
            self._state.finish(session)
            self._session = None

    def _measure_alone(self, session: tf.Session) -> None:
        meters, steps = self._report.meters, self._report.recorder.log().timed_steps
        if self._steps_alone and len(steps) >= LEAST_PARTS:
            self._console.progress('Taking steps of each worker alone')
            try:
                with self._lifecycle.in_step():
                    meters.alone, meters.alone_wait = self._steps_alone.measure(
                        session, [step.seconds for step in steps]
                    )
            except (tf.errors.OpError, Stopped) as error:
                # The run is complete without them, also where a lost worker stops the others.
                reason = error.reason if isinstance(error, Stopped) else str(error).splitlines()[0]
                self._warn(f'no steps of each worker alone: {reason}')

    def _write_outputs(self) -> None:
        SIGNALS.check()
        if self.plan.params.results.measure_peak:
            self._console.progress('Measuring the peak of the devices')
            self._report.meters.peak_flops = measure_peak(
                self.plan.session.config,
                self.plan.devices.towers,
                self.plan.precision.compute_dtype.name,
            )
        if self._summaries:
            self._summaries.close()

    def _save_early(self) -> None:
        """Saves the trained variables when the run ends early, if training had begun."""
        if self._session:
            try:
                with self._save_lock:
                    self._state.save_early(self._session, is_in_step=self._lifecycle.is_in_step)
            except (RunError, tf.errors.OpError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                self._warn(f'the training since the last checkpoint is lost: {reason}')

    def _warn(self, line: str | None) -> None:
        if line:
            self._console.warning(line)


def setup(params: Params) -> Params:
    """Checks the settings on this machine, starts TensorFlow for them, and returns them for a run
    that prints as the command does.

    Raises UsageError in the cases of BenchmarkCNN.
    """
    plan = _make_plan(params)
    checked = dataclasses.replace(params, is_set_up=True)
    _LAST_SETUP[:] = [(checked, plan)]
    return checked


def _take_plan(params: Params) -> Plan | ServerPlan:
    """Returns the plan that setup() has made of these settings, for one run; else a new one."""
    if _LAST_SETUP and _LAST_SETUP[0][0] is params:
        return _LAST_SETUP.pop()[1]
    return _make_plan(params)


def _make_plan(params: Params) -> Plan | ServerPlan:
    if not isinstance(params, Params):
        raise UsageError(
            f'BenchmarkCNN: it takes the settings that make_params() returns, not {params!r:.60}'
        )
    if params.results.repeat > 1:
        raise UsageError(
            f'{format_flag("repeat", params.results.repeat)}: it is for the command; from '
            'Python, call run() each time'
        )
    with quiet_start(verbose=params.run.verbose):
        return make_plan(params, ProcessEnvironment())


if not TYPE_CHECKING:
    # Else type checkers would accept any name.
    def __getattr__(name: str) -> None:
        hint = f'; use {_REPLACEMENTS[name]}' if name in _REPLACEMENTS else ''
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}{hint}')

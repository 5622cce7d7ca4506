"""The benchmark: builds the graph of a step, runs it, and says what was measured."""

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf

from assembly import Assembly
from cluster.crew import Timeout
from cluster.horovod import HorovodWorker, horovod_cluster, load_horovod
from cluster.members import Cluster, find_cluster
from cluster.signals import Stop, terminable
from cluster.watch import Verdict
from cluster.worker import LostError, Worker
from errors import RunError, UsageError
from evaluation import Evaluation, SavedVariables, report
from faults import check_ends, explain
from observation import make_profiler, make_summaries, make_tracer, scalars_of
from output_files import check_outputs
from params import Params
from reporting import console as lines
from reporting.console import Console
from reporting.result import Accuracy, ClusterTotal, Result, StepValues
from run_state import RunState, Schedule, Window, find_backbone, restart_number, step_to_offer
from saved_model import ModelValues
from step_graph import StepGraph
from stepper import Stepper, open_session
from training.instruments import SummaryWriter, write_graph
from training.step_loop import Phase, Step, steps


@dataclass(frozen=True)
class _Run:
    """What a run adds to its graph."""

    graph: tf.Graph
    built: StepGraph
    state: RunState
    summaries: SummaryWriter | None
    evaluation: Evaluation | None
    to_export: ModelValues | None


class BenchmarkCNN:
    """One run of the benchmark, by one process or as a worker of a cluster.

    Args:
      params: the settings.
      console: where lines are printed; nowhere by default.

    Raises:
      UsageError: the settings do not fit this machine, or the data folder does not hold what they need.
    """

    def __init__(self, params: Params, console: Console | None = None) -> None:
        if params.eval:
            raise UsageError('--eval: it trains nothing; evaluator.Evaluator takes these settings')
        self._horovod = load_horovod() if params.variable_update == 'horovod' else None
        self._cluster = horovod_cluster(self._horovod) if self._horovod else find_cluster(params, os.environ)
        check_outputs(params, is_chief=self._is_chief)
        # What is wrong with it is better known before the run than in it.
        find_backbone(params, is_chief=self._is_chief)
        if self._cluster and self._cluster.serves:
            raise UsageError(f'--job_name={self._cluster.job}: it runs no benchmark; see cluster.serve')
        if self._horovod and not self._is_chief:
            # horovodrun gives all processes the same flags; in other clusters each may have files of its own.
            params = replace(
                params, trace_file=None, tfprof_file=None, graph_file=None, partitioned_graph_file_prefix=None
            )
        self.params = params
        self._console = console or Console()
        if self._cluster and not self._cluster.servers and params.forward_only:
            raise UsageError(
                f'--forward_only: workers of --variable_update={params.variable_update} have nothing to do with each '
                'other then; measure one process, or write --variable_update=parameter_server with --ps_hosts'
            )
        self._parts = Assembly(params, self._cluster, self._horovod, self._console.warning)
        self._profiler = make_profiler(
            params, self._parts.num_batches, is_chief=self._is_chief, warn=self._console.warning
        )
        self._eval_schedule = self._parts.eval_schedule()
        self._worker: Worker | HorovodWorker | None = None
        self._state: RunState | None = None
        self._session: tf.Session | None = None
        self._stepper: Stepper | None = None
        self._stop = Stop(self._finish_for, self._expect_ends)
        self._total: ClusterTotal | None = None
        self._is_complete = False
        self._is_good_enough = False
        self._done: list[Step[StepValues]] = []
        self._evaluations: list[Accuracy] = []

    def run(self) -> Result:
        """Builds the graph, runs warm-up and timed steps, and returns what was measured.

        Raises:
          RunError: a fault while running; its attribute `result` holds what was measured before it.
        """
        self._done, self._evaluations, self._total = [], [], None
        self._is_complete = self._is_good_enough = False
        with contextlib.ExitStack() as until_the_end:
            if self._cluster is None:
                until_the_end.enter_context(terminable())
            else:
                until_the_end.enter_context(self._stop.listening())
            try:
                for step in self.steps():
                    self._done.append(step)
                    self._show(step)
                for shards in (self._parts.shards, self._parts.validation):
                    check_ends(shards, self._console.warning)
                self._is_complete = True
                result = self._conclude()
            except LostError as lost:
                raise self._fail(self._part(lost.verdict)) from lost
            except RunError as fault:
                raise self._fail(fault) from fault.__cause__
            except tf.errors.OpError as error:
                raise self._fail(self._explain(error)) from error
            except RuntimeError as error:
                # A session that was closed between two steps, because another task was lost.
                verdict = self._worker.verdict() if self._worker else None
                if verdict is None:
                    raise
                raise self._fail(self._part(verdict)) from error
            except BrokenPipeError:
                if self._worker:
                    self._worker.end(1, 'whoever read its standard output has left')
                raise
            except KeyboardInterrupt:
                self._keep()
                self._conclude()
                raise
            if self._worker:
                self._worker.end(0)
        return result

    def _fail(self, fault: RunError) -> RunError:
        try:
            fault.result = self._conclude()
        finally:
            # Also if what was measured cannot be told.
            if self._worker:
                self._worker.end(fault.exit_code, str(fault))
        return fault

    def _expect_ends(self) -> None:
        """Called at once when there was a signal. Others may have got it, and must not keep this one from saving."""
        if self._worker:
            self._worker.unwatch()

    def _finish_for(self, exit_code: int, signal_name: str) -> None:
        """Called when a signal ends a worker: what was trained is saved, what was measured is told."""
        self._keep()
        try:
            self._conclude()
        finally:
            if self._worker:
                self._worker.end(exit_code, f'stopped by {signal_name}')
        self._console.warning(f'stopped by {signal_name}')

    def _keep(self) -> None:
        """Saves what was trained, if there is something, when a signal ends the run."""
        if self._state and self._session:
            try:
                self._state.keep(self._session)
            except (RunError, tf.errors.OpError, RuntimeError) as error:
                self._console.warning(
                    f'what was trained since the last checkpoint is lost: {str(error).splitlines()[0]}'
                )

    def steps(self) -> Iterator[Step[StepValues]]:
        """Builds the graph and runs warm-up and timed steps, each when it is asked for. The session ends with them."""
        root = self._meet()
        worker = self._worker
        run = self._build(root)
        target, config = (worker.target, worker.config) if worker else ('', self._parts.config)
        values = None
        with open_session(target, run.graph, config) as session, contextlib.closing(self._profiler):
            if worker:
                worker.watch(session)
            schedule = self._prepare(session, run, root)
            try:
                yield from self._take_steps(session, run, schedule)
            except tf.errors.OpError:
                # A step may lack what the others brought, who were told to end, too.
                self._stop.check()
                raise
            run.state.end(session)
            self._session = None
            if run.to_export:
                values = run.to_export.read(session)
        if run.summaries:
            run.summaries.close()
        if values and (folder := self.params.export_saved_model):
            self._console.progress(f'Writing the model to {folder}')
            self._parts.export(values, folder)

    def _build(self, root: int) -> _Run:
        """Builds the graph, and tells what it is."""
        params, worker = self.params, self._worker
        self._console.progress('Building the graph')
        # In a graph of its own: runs in one process share nothing.
        with tf.Graph().as_default() as graph, tf.device(worker.device if worker else None):
            tf.set_random_seed(params.tf_random_seed)
            built = self._parts.build(root, restart_number(params, worker))
            exports = params.export_saved_model and self._is_chief and not params.forward_only
            summaries = make_summaries(params, built, is_chief=self._is_chief, warn=self._console.warning)
            evaluation = self._make_evaluation(built)
            self._state = state = RunState(
                params, worker, built, self._parts.num_batches, self._console.warning, self._console.progress
            )
            to_export = ModelValues(built.model_slices) if exports else None
        if not (worker and worker.legacy):
            mode = 'forward-only' if params.forward_only else 'training'
            job = (worker.device if worker and self._parts.machine.is_here else None) or ''
            banner = self._parts.banner(mode, self._parts.batch_size, self._num_trainers, job, built)
            self._console.result(lines.format_banner(banner))
        if params.graph_file:
            write_graph(graph, params.graph_file)
        return _Run(graph, built, state, summaries, evaluation, to_export)

    def _prepare(self, session: tf.Session, run: _Run, root: int) -> Schedule:
        """Gives the variables and the input what the first step needs."""
        self._console.progress('Initialising the variables')
        schedule = run.state.prepare(session, root)
        session.run(run.built.pipeline.initializers)
        if run.built.post_init is not None:
            session.run(run.built.post_init)
        run.built.pipeline.warm_up(session, schedule.own_start)
        # From now on there is something to save.
        self._session = session
        if run.evaluation and (lacks := self._eval_schedule.lacks(schedule.start, schedule.end)):
            self._console.warning(lacks)
        return schedule

    def _take_steps(self, session: tf.Session, run: _Run, schedule: Schedule) -> Iterator[Step[StepValues]]:
        """Runs the steps, and what is due between them."""
        state, worker, profiler = run.state, self._worker, self._profiler
        self._stepper = stepper = Stepper(
            session, run.built.fetches, make_tracer(self.params), schedule.num_warmup, run.summaries
        )
        self._console.progress(f'Running {schedule.num_warmup} warm-up steps')
        window, images_of_step = Window(), self._parts.images_of_step
        if worker and worker.agreed.get('end') is not None:
            # The evaluation of this step may be what was interrupted.
            self._evaluate_if_due(run.evaluation, session, schedule.start - 1)
        is_over = functools.partial(self._is_over, schedule)
        profiler.between(-schedule.num_warmup)
        num_timed = 0
        for step in steps(profiler.marked(stepper.run), schedule.num_warmup, schedule.num_batches, is_over=is_over):
            num_timed = step.index - (schedule.num_warmup if step.phase is Phase.WARMUP else 0)
            taken_before, state.steps_taken = state.steps_taken, stepper.steps_after
            self._check_loss(step.values, state.steps_taken)
            if step.phase is Phase.TIMED:
                window.note(step.seconds, stepper.steps_before, state.steps_taken)
                if worker:
                    # Should the run end here. At its end all workers tell the chief's.
                    self._total = ClusterTotal(images_of_step * window.num_steps, window.seconds)
                if run.summaries and run.summaries.is_due(step.index):
                    run.summaries.write(
                        state.steps_taken,
                        scalars_of(step, self.params, images_of_step),
                        session,
                        stepper.gradient_summary,
                    )
            profiler.between(num_timed)
            state.save_if_due(session, taken_before)
            yield step
            window.skip(self._evaluate_if_due(run.evaluation, session, taken_before))
            if not self._ends_after_chief:
                self._stop.check(step.seconds)
        if lacks := profiler.lacks(num_timed):
            self._console.warning(lacks)
        if run.built.num_skipped is not None:
            stepper.note_skipped(int(session.run(run.built.num_skipped)))
        if worker:
            self._total = ClusterTotal(*worker.share_total(images_of_step * window.num_steps, window.seconds))

    def _check_loss(self, values: StepValues, number: int) -> None:
        """Raises RunError if the loss of the step of that number is no number, unless training is to go on with it."""
        params = self.params
        if math.isfinite(values.loss) or params.continue_on_nan:
            return
        rate = values.learning_rate
        hints = [] if rate is None else [f'a lower learning rate than {rate:g} (--init_learning_rate)']
        if params.precision == 'fp16':
            hints.append('--precision=bf16, which has larger numbers')
            if not (params.fp16_enable_auto_loss_scale or params.forward_only):
                hints.append('--fp16_enable_auto_loss_scale')
        raise RunError(
            f'the loss is {values.loss} at step {number}, counted from the start of training with warm-up; '
            f'write {", ".join([*hints, "or --continue_on_nan to go on with it"])}'
        )

    def _is_over(self, schedule: Schedule) -> bool:
        return self._is_good_enough or (self._state is not None and schedule.is_over(self._state.steps_taken))

    def _make_evaluation(self, built: StepGraph) -> Evaluation | None:
        """What training waits for, if anything. Without --cross_replica_sync the chief evaluates alone."""
        worker = self._worker
        if not self.params.evaluates_in_training or (worker and not worker.together and not worker.cluster.is_chief):
            return None
        towers = [SavedVariables(built.slices) for _ in self._parts.machine.towers]
        if worker and worker.together:
            return self._parts.build_evaluation(towers, worker.cluster.index, worker.cluster.num_trainers)
        return self._parts.build_evaluation(towers)

    def _evaluate_if_due(self, evaluation: Evaluation | None, session: tf.Session, taken_before: int) -> float:
        """Evaluates if that is due, and was not after so many steps. Returns the seconds in which nobody trained."""
        assert self._state
        step = self._state.steps_taken
        if evaluation is None or not self._eval_schedule.is_due(step, taken_before):
            return 0.0
        start = time.perf_counter()
        self._state.prepare_evaluation(session)
        worker = self._worker if self._worker and self._worker.together else None
        self._console.progress(f'Evaluating after {step} steps')
        found = report(evaluation.run(session, step), worker, f'accuracy/{step}', self.params.eval_dir, self._console)
        self._evaluations.append(found)
        goal = self.params.stop_at_top_1_accuracy
        if goal is not None and found.top_1 >= goal:
            self._is_good_enough = True
            self._console.progress(f'Stopping after {step} steps: --stop_at_top_1_accuracy={goal:g} is reached')
        goes_on = self._worker is not None and worker is None
        return 0.0 if goes_on else time.perf_counter() - start

    def _meet(self) -> int:
        """In a cluster: waits for the others. Returns the worker whose variables all start from."""
        if not self._cluster:
            return 0
        params = self.params
        if self._horovod:
            self._worker = HorovodWorker(self._horovod, self._cluster, self._parts.config)
        if self._worker is None:
            self._warn_of_strangers(self._cluster)
            self._worker = Worker(
                self._cluster,
                self._parts.config,
                together=self._parts.takes_steps_together,
                keeps_state=params.train_dir is not None,
                connect=Timeout('connect_timeout_secs', params.connect_timeout_secs),
                peer=Timeout('peer_timeout_secs', params.peer_timeout_secs),
                warn=self._console.warning,
                hand_over=self._console.hand_over,
            )
        self._console.progress(f'Waiting for the other tasks ({len(self._cluster.tasks) - 1})')
        return int(self._worker.join(step_to_offer(params, self._worker))['root'])

    def _warn_of_strangers(self, cluster: Cluster) -> None:
        if public := cluster.public_hosts():
            self._console.warning(
                f"{', '.join(public)}: not in a private network; TensorFlow's servers know neither passwords nor "
                'encryption, and who reaches one can do all that its user can'
            )

    @property
    def _is_chief(self) -> bool:
        return self._cluster is None or self._cluster.is_chief

    @property
    def _ends_after_chief(self) -> bool:
        """Whether a signal leaves this process at its steps until process 0 has ended, as Horovod's sums need all."""
        return self._horovod is not None and not self._is_chief

    @property
    def _num_trainers(self) -> int:
        return self._cluster.num_trainers if self._cluster else 1

    def _show(self, step: Step[StepValues]) -> None:
        if step.phase is not Phase.TIMED:
            return
        if step.index == 1:
            with_accuracy = step.values.top_1 is not None
            self._console.result(lines.format_step_header(self.params.loss_type_to_report, with_accuracy=with_accuracy))
        if step.index == 1 or step.index % self.params.display_every == 0:
            self._console.result(lines.format_step(step.index, self._result().rate, step.values))

    def _conclude(self) -> Result:
        """Prints the total of what was measured, says so if that is not all, and returns it."""
        result = self._result()
        # Of workers that do not wait for each other, one may have warmed up while the others took all timed steps.
        if result.images:
            self._console.result(lines.format_total(result.images_per_second))
        if result.num_skipped_steps:
            self._console.warning(lines.format_skipped(result.num_skipped_steps))
        if not result.complete:
            self._console.warning(lines.format_incomplete(len(result.timed_steps), self._parts.num_batches))
        return result

    def _result(self) -> Result:
        return Result(
            params=self.params,
            model=self.params.model,
            data_set=self._parts.data_set.name,
            is_synthetic=self.params.data_dir is None,
            data_format=self._parts.machine.data_format,
            batch_size=self._parts.batch_size,
            devices=self._parts.machine.towers,
            tensorflow_version=tf.__version__,
            steps=tuple(self._done),
            num_missing_shards=self._parts.shards.num_missing if self._parts.shards else 0,
            complete=self._is_complete,
            num_workers=self._num_trainers,
            takes_steps_together=self._worker is None or self._worker.together,
            cluster_total=self._total,
            evaluations=tuple(self._evaluations),
            precision=self.params.precision,
            num_skipped_steps=self._stepper.num_skipped if self._stepper else 0,
        )

    def _part(self, verdict: Verdict) -> RunError:
        """What follows from the loss of another task. Does not return if it is back: then all workers start anew."""
        if verdict.is_back and self._state and isinstance(self._worker, Worker):
            result = self._result()
            measured = f', until then {result.images_per_second:.2f} images/sec' if result.timed_steps else ''
            self._console.warning(
                f'{verdict.line}; all workers join again (after {self._state.steps_taken} steps{measured})'
            )
            self._worker.replace(self._state.hand_on())
        return RunError(verdict.line)

    def _explain(self, error: tf.errors.OpError) -> RunError:
        """The fault in one line: of another task or of the data if that explains it, else as TensorFlow says it.

        Does not return when this process must start anew to go on with the others.
        """
        if self._worker and (verdict := self._worker.verdict()):
            return self._part(verdict)
        parts = self._parts
        line = explain(
            error,
            f'--batch_size={parts.batch_size}',
            parts.shards,
            parts.data_set.num_classes,
            self.params.data_dir,
            self._console.progress,
        )
        if isinstance(self._worker, HorovodWorker) and self._worker.is_of_others(error):
            line = f'Horovod lost another process, whose own lines say why ({line})'
        return RunError(line)

"""The benchmark: wires input pipeline, network, variable manager and optimizer into one graph and runs its steps."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

import input_pipeline
from all_reduce import by_halves, make_algorithm
from cluster.crew import Timeout
from cluster.members import Cluster, find_cluster
from cluster.signals import Stop
from cluster.watch import Verdict
from cluster.worker import LostError, Worker
from data_sets import DATA_SETS, Shards, choose_shards
from errors import RunError, UsageError
from flag_rules import check_outputs
from input_pipeline import InputPipeline, RecordPipeline, SyntheticInput
from machine import check_xla, find_machine, session_config
from models.catalog import find_model
from packing import Packing
from params import Params
from preprocessing import ImageOptions
from records.check import first_cut_shard, first_fault
from reporting import console as lines
from reporting.console import Console
from reporting.result import ClusterTotal, Result, StepValues
from run_state import RunState, Schedule, Window, step_to_offer
from step_graph import StepGraph, StepSettings, build_step_graph
from training.instruments import StepTracer, SummaryWriter, write_graph
from training.optimizers import Adam, GradientDescent, Momentum, Optimizer, RmsProp
from training.step_loop import Phase, Step, steps
from training.variables import HOST_DEVICE
from variable_mgr import Placement, make_variable_mgr

# What TensorFlow raises for bad records.
_DATA_FAULTS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
# How long to look for the record that made a step fail.
_FAULT_SEARCH_SECS = 120.0
# How long to look for the ends of shards after a run; a million records take some seconds if they are in memory.
_END_SEARCH_SECS = 30.0


class BenchmarkCNN:
    """One run of the benchmark, by one process or as a worker of a cluster.

    Args:
      params: the settings.
      console: where lines are printed; nowhere by default.

    Raises:
      UsageError: the settings do not fit this machine, or the data folder does not hold what they need.
    """

    def __init__(self, params: Params, console: Console | None = None) -> None:
        check_outputs(params)
        self._cluster = find_cluster(params, os.environ)
        if self._cluster and self._cluster.job != 'worker':
            raise UsageError(f'--job_name={self._cluster.job}: it runs no benchmark; see cluster.serve')
        self.params = params
        self._console = console or Console()
        if self._cluster and not self._cluster.ps_hosts and params.forward_only:
            raise UsageError(
                f'--forward_only: workers of --variable_update={params.variable_update} have nothing to do with each '
                'other then; measure one process, or write --variable_update=parameter_server with --ps_hosts'
            )
        self._facts = find_model(params.model, params.data_name)
        self._data_set = DATA_SETS[self._facts.data_set]
        self._shards = self._find_shards()
        self._machine = find_machine(params)
        self._batch_size = params.batch_size or self._facts.batch_size
        self._learning_rate = (
            self._facts.learning_rate if params.init_learning_rate is None else params.init_learning_rate
        )
        self._placement = self._place()
        self._config = session_config(params, self._machine)
        if params.xla:
            check_xla(self._config, self._machine.towers[0])
        self._worker: Worker | None = None
        self._state: RunState | None = None
        self._session: tf.Session | None = None
        self._stop = Stop(self._finish_for)
        self._total: ClusterTotal | None = None
        self._is_complete = False
        self._done: list[Step[StepValues]] = []

    def run(self) -> Result:
        """Builds the graph, runs warm-up and timed steps, and returns what was measured.

        Raises:
          RunError: a fault while running; its attribute `result` holds what was measured before it.
        """
        self._done = []
        self._is_complete = False
        with contextlib.ExitStack() as until_the_end:
            if self._cluster:
                until_the_end.enter_context(self._stop.listening())
            try:
                for step in self.steps():
                    self._done.append(step)
                    self._show(step)
                self._check_ends()
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
            except KeyboardInterrupt:
                self._conclude()
                raise
            if self._worker:
                self._worker.end(0)
        return result

    def _fail(self, fault: RunError) -> RunError:
        fault.result = self._conclude()
        if self._worker:
            self._worker.end(fault.exit_code, str(fault))
        return fault

    def _finish_for(self, exit_code: int, signal_name: str) -> None:
        """Called when a signal ends a worker: what was trained is saved, what was measured is told."""
        if self._state and self._session:
            self._state.save(self._session)
        self._conclude()
        if self._worker:
            self._worker.end(exit_code, f'stopped by {signal_name}')
        self._console.warning(f'stopped by {signal_name}')

    def steps(self) -> Iterator[Step[StepValues]]:
        """Builds the graph and runs warm-up and timed steps, each when it is asked for. The session ends with them."""
        params = self.params
        root = self._meet()
        worker = self._worker
        self._console.progress('Building the graph')
        # In a graph of its own: runs in one process share nothing.
        with tf.Graph().as_default() as graph, tf.device(worker.cluster.own.device if worker else None):
            tf.set_random_seed(params.tf_random_seed)
            built = self._build(root)
            summaries = self._make_summaries(built)
            self._state = state = RunState(params, worker, built)
        if not (worker and worker.legacy):
            self._console.result(lines.format_banner(self._banner(built)))
        if params.graph_file:
            write_graph(graph, params.graph_file)
        target, config = (worker.target, worker.config) if worker else ('', self._config)
        with _session(target, graph, config) as session:
            self._session = session
            if worker:
                worker.watch(session)
            self._console.progress('Initialising the variables')
            schedule = state.prepare(session, root)
            session.run(built.pipeline.initializers)
            if built.post_init is not None:
                session.run(built.post_init)
            built.pipeline.warm_up(session)
            stepper = Stepper(session, built.fetches, self._make_tracer(), schedule.num_warmup, summaries)
            self._console.progress(f'Running {schedule.num_warmup} warm-up steps')
            window = Window()
            is_over = functools.partial(self._is_over, schedule)
            for step in steps(stepper.run, schedule.num_warmup, schedule.num_batches, is_over=is_over):
                state.steps_taken = stepper.steps_before + 1
                if step.phase is Phase.TIMED:
                    window.note(step.seconds, stepper.steps_before, state.steps_taken)
                    if summaries and summaries.is_due(step.index):
                        summaries.write(step.index, self._scalars(step), session, stepper.gradient_summary)
                state.save_if_due(session)
                yield step
                self._stop.check()
            if worker:
                images = self._images_of_step * window.num_steps
                self._total = ClusterTotal(*worker.share_total(images, window.seconds))
            state.save(session)
        if summaries:
            summaries.close()

    def _is_over(self, schedule: Schedule) -> bool:
        return self._state is not None and schedule.is_over(self._state.steps_taken)

    def _meet(self) -> int:
        """In a cluster: waits for the others. Returns the worker whose variables all start from."""
        if not self._cluster:
            return 0
        params = self.params
        if self._worker is None:
            self._warn_of_strangers(self._cluster)
            self._worker = Worker(
                self._cluster,
                self._config,
                together=params.cross_replica_sync and not params.forward_only,
                keeps_state=params.train_dir is not None,
                connect=Timeout('connect_timeout_secs', params.connect_timeout_secs),
                peer=Timeout('peer_timeout_secs', params.peer_timeout_secs),
                warn=self._console.warning,
            )
        self._console.progress(f'Waiting for the other {len(self._cluster.tasks) - 1} tasks')
        return int(self._worker.join(step_to_offer(params, self._worker))['root'])

    def _warn_of_strangers(self, cluster: Cluster) -> None:
        if public := cluster.public_hosts():
            self._console.warning(
                f"{', '.join(public)}: not in a private network; TensorFlow's servers know neither passwords nor "
                'encryption, and who reaches one can do all that its user can'
            )

    def _find_shards(self) -> Shards | None:
        data_dir = self.params.data_dir
        if data_dir is None:
            return None
        shards = choose_shards(data_dir, forward_only=self.params.forward_only)
        # It refuses shards that cannot be read, which is better known before the run than in it.
        input_pipeline.shard_pattern(shards)
        if shards.num_missing:
            self._console.warning(
                f'--data_dir={data_dir}: {shards.num_missing} of the {len(shards.paths) + shards.num_missing} shards '
                'that the file names promise are missing; the run uses the others'
            )
        return shards

    def _place(self) -> Placement:
        params, towers = self.params, self._machine.towers
        if params.hierarchical_copy:
            if len(towers) % 2:
                raise UsageError(
                    f'--hierarchical_copy: it sums in two halves, and --num_gpus={params.num_gpus} is odd; '
                    'write an even number or --nohierarchical_copy'
                )
            if params.network_topology != 'dgx1':
                raise UsageError(
                    f'--network_topology={params.network_topology}: this version knows dgx1 only; '
                    'write --nohierarchical_copy, or try it with dgx1'
                )
            algorithm = by_halves(towers)
        else:
            spec = params.all_reduce_spec or f'ps{self._machine.parameter_device_kind}'
            algorithm = make_algorithm(spec, towers, HOST_DEVICE)
        return Placement(
            devices=towers,
            seed=params.tf_random_seed,
            parameter_devices=self._machine.parameter_devices,
            algorithm=algorithm,
            packing=Packing(
                params.gradient_repacking, params.agg_small_grads_max_bytes, params.agg_small_grads_max_group
            ),
        )

    @property
    def _sums_gradients(self) -> bool:
        params = self.params
        return params.variable_update == 'replicated' and params.num_gpus > 1 and not params.forward_only

    def _banner(self, built: StepGraph) -> lines.Banner:
        params = self.params
        global_batch_size = self._batch_size * len(self._machine.towers) * self._num_workers
        own = self._cluster.own.device if self._cluster else ''
        return lines.Banner(
            tensorflow_version=tf.__version__,
            model=params.model,
            data_set=self._data_set.name,
            is_synthetic=self._shards is None,
            forward_only=params.forward_only,
            batch_size=self._batch_size,
            global_batch_size=global_batch_size,
            num_batches=params.num_batches,
            num_epochs=params.num_batches * global_batch_size / self._data_set.num_train_examples,
            devices=tuple(f'{own}{tower}' for tower in self._machine.towers),
            data_format=self._machine.data_format,
            optimizer=params.optimizer,
            variable_update=params.variable_update,
            all_reduce_spec=params.all_reduce_spec if self._sums_gradients else None,
            sync=params.cross_replica_sync,
            num_workers=self._num_workers,
            bytes_of_servers=tuple(built.bytes_of_servers.values()),
            bytes_of_step=built.bytes_of_step,
        )

    @property
    def _first_tower(self) -> int:
        """The number of this worker's first tower among those of all workers."""
        return self._cluster.index * len(self._machine.towers) if self._cluster else 0

    @property
    def _num_workers(self) -> int:
        return self._cluster.num_workers if self._cluster else 1

    @property
    def _images_of_step(self) -> int:
        """The images behind one count of the global step: of all workers if they take their steps together."""
        together = self._worker is None or self._worker.together
        return self._batch_size * len(self._machine.towers) * (self._num_workers if together else 1)

    def _build(self, root: int) -> StepGraph:
        params = self.params
        placement = self._placement
        if self._cluster:
            placement = replace(
                placement,
                server_devices=[f'{task.device}/cpu:0' for task in self._cluster.tasks if task.job == 'ps'],
                worker=self._cluster.index,
                num_workers=self._cluster.num_workers,
                root=root,
                sync=params.cross_replica_sync and not params.forward_only,
                transfer=tf.bfloat16 if params.compact_gradient_transfer else None,
            )
        manager = make_variable_mgr(
            params.variable_update,
            placement,
            distributed=self._cluster is not None,
            staged=params.staged_vars and not params.forward_only,
        )
        return build_step_graph(
            StepSettings(
                model=params.model,
                num_classes=self._data_set.num_classes,
                data_format=self._machine.data_format,
                forward_only=params.forward_only,
                with_accuracy=params.forward_only or params.print_training_accuracy,
                loss_type_to_report=params.loss_type_to_report,
                weight_decay=params.weight_decay,
                gradient_clip=params.gradient_clip,
                learning_rate=self._learning_rate,
                seed=params.tf_random_seed,
                first_tower=self._first_tower,
            ),
            _make_optimizer(params),
            manager,
            self._make_pipeline(manager.get_devices()),
        )

    def _make_pipeline(self, devices: Sequence[str]) -> InputPipeline:
        params, size, channels = self.params, self._facts.image_size, self._data_set.channels
        # Workers see other data than their neighbours.
        seed = params.tf_random_seed + self._first_tower
        if self._shards is None:
            return SyntheticInput(devices, self._batch_size, size, size, channels, self._data_set.num_classes, seed)
        return RecordPipeline(
            self._shards,
            devices,
            self._batch_size,
            self._data_set.num_classes,
            ImageOptions(
                height=size,
                width=size,
                channels=channels,
                training=not params.forward_only,
                distortions=params.distortions,
                resize_method=params.resize_method,
                seed=seed,
            ),
            normalize_on_device=self._machine.kind == 'gpu',
            shift=(self._cluster.index / self._cluster.num_workers) if self._cluster else 0.0,
        )

    def _make_tracer(self) -> StepTracer:
        params = self.params
        return StepTracer(
            params.trace_file,
            params.use_chrome_trace_format,
            params.tfprof_file,
            params.partitioned_graph_file_prefix,
        )

    def _make_summaries(self, built: StepGraph) -> SummaryWriter | None:
        params = self.params
        if params.train_dir is None or not params.save_summaries_steps or not params.summary_verbosity:
            return None
        if params.summary_verbosity >= 3:
            self._console.warning(
                f'--summary_verbosity={params.summary_verbosity}: every {params.save_summaries_steps}th step computes '
                'the histograms of its gradients in its timed seconds, so the rate is lower than it would be without'
            )
        return SummaryWriter(
            params.train_dir, params.save_summaries_steps, params.summary_verbosity, built.variables, built.gradients
        )

    def _scalars(self, step: Step[StepValues]) -> dict[str, float]:
        values = {
            self.params.loss_type_to_report: step.values.loss,
            'images_per_second': self._batch_size * len(self._machine.towers) / step.seconds,
            'learning_rate': self._learning_rate,
            'top_1_accuracy': step.values.top_1,
            'top_5_accuracy': step.values.top_5,
        }
        return {name: value for name, value in values.items() if value is not None}

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
        if result.timed_steps:
            self._console.result(lines.format_total(result.images_per_second))
        if not result.complete:
            self._console.warning(lines.format_incomplete(len(result.timed_steps), self.params.num_batches))
        return result

    def _result(self) -> Result:
        return Result(
            params=self.params,
            model=self.params.model,
            data_set=self._data_set.name,
            is_synthetic=self._shards is None,
            data_format=self._machine.data_format,
            batch_size=self._batch_size,
            devices=self._machine.towers,
            tensorflow_version=tf.__version__,
            steps=tuple(self._done),
            num_missing_shards=self._shards.num_missing if self._shards else 0,
            complete=self._is_complete,
            num_workers=self._num_workers,
            cluster_total=self._total,
        )

    def _check_ends(self) -> None:
        """Raises RunError if a shard is cut where TensorFlow does not notice it, so that its last record was lost."""
        if self._shards is None:
            return
        fault, num_unknown = first_cut_shard(self._shards.paths, _END_SEARCH_SECS)
        if fault:
            raise RunError(fault)
        if num_unknown:
            self._console.warning(
                f'--data_dir={self.params.data_dir}: whether {num_unknown} of {len(self._shards.paths)} shards are cut '
                f'short was not found out in {_END_SEARCH_SECS:.0f} s; tf_cnn_benchmarks records --check tells'
            )

    def _part(self, verdict: Verdict) -> RunError:
        """What follows from the loss of another task. Does not return if it is back: then all workers start anew."""
        if verdict.is_back and self._state and self._worker:
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
        cause = _cause(error)
        line = f'{type(error).__name__}: {cause}'
        if isinstance(error, tf.errors.ResourceExhaustedError):
            line = f'--batch_size={self._batch_size}: out of memory; write a smaller one ({cause})'
        elif self._shards is not None and isinstance(error, _DATA_FAULTS):
            self._console.progress('A step failed; looking for the record that made it fail')
            fault = first_fault(self._shards.paths, self._data_set.num_classes, _FAULT_SEARCH_SECS)
            if fault:
                line = fault
            else:
                line += f' (--data_dir={self.params.data_dir}; tf_cnn_benchmarks records --check may tell more)'
        return RunError(line)


@contextlib.contextmanager
def _session(target: str, graph: tf.Graph, config: tf.ConfigProto) -> Iterator[tf.Session]:
    """A session that ends with the block. After a fault of a cluster it is left behind: closing it would wait for a
    task that is gone."""
    session = tf.Session(target, graph=graph, config=config)
    try:
        yield session
    except Exception:
        if not target:
            session.close()
        raise
    session.close()


def _cause(error: tf.errors.OpError) -> str:
    """The line of an error of TensorFlow that tells what went wrong: the first, or the one below the node's name."""
    told = [line.strip() for line in error.message.splitlines() if line.strip() not in ('', 'Graph execution error:')]
    nodes = [number for number, line in enumerate(told[:-1]) if line.startswith('Node: ')]
    return told[nodes[-1] + 1] if nodes else told[0] if told else 'no reason given'


def _make_optimizer(params: Params) -> Optimizer:
    make: dict[str, Callable[[], Optimizer]] = {
        'sgd': GradientDescent,
        'momentum': functools.partial(Momentum, params.momentum),
        'rmsprop': functools.partial(RmsProp, params.rmsprop_decay, params.rmsprop_momentum, params.rmsprop_epsilon),
        'adam': functools.partial(Adam, params.adam_beta1, params.adam_beta2, params.adam_epsilon),
    }
    return make[params.optimizer]()


class Stepper:
    """Runs the steps of a session, the special ones too: the last warm-up step is traced, some get a summary."""

    def __init__(
        self,
        session: tf.Session,
        fetches: dict[str, Any],
        tracer: StepTracer,
        num_warmup: int,
        summaries: SummaryWriter | None,
    ) -> None:
        self.gradient_summary: bytes | None = None
        self.steps_before = 0
        self._session = session
        self._fetches = fetches
        self._plain_step = session.make_callable(fetches)
        self._traced_index = num_warmup if tracer.is_wanted else None
        self._tracer = tracer
        self._summaries = summaries
        self._summarized_step = None
        if summaries and summaries.gradient_summary is not None:
            self._summarized_step = session.make_callable([fetches, summaries.gradient_summary])

    def run(self, phase: Phase, index: int) -> StepValues:
        """Runs one step and returns what it computed."""
        if phase is Phase.WARMUP and index == self._traced_index:
            fetched = self._tracer.run(self._session, self._fetches)
        elif self._summarized_step and self._is_summarized(phase, index):
            fetched, self.gradient_summary = self._summarized_step()
        else:
            fetched = self._plain_step()
        self.steps_before = int(fetched['global_step'])
        return _step_values(fetched)

    def _is_summarized(self, phase: Phase, index: int) -> bool:
        # The first warm-up step too: it takes the time that TensorFlow needs to prepare for the others.
        return index == 1 if phase is Phase.WARMUP else self._summaries is not None and self._summaries.is_due(index)


def _step_values(fetched: dict[str, Any]) -> StepValues:
    top_1, top_5 = (float(fetched[name]) if name in fetched else None for name in ('top_1', 'top_5'))
    return StepValues(float(fetched['loss']), top_1, top_5)

"""The benchmark: wires input pipeline, network, variable manager and optimizer into one graph and runs its steps."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

import input_pipeline
from all_reduce import by_halves, make_algorithm
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
from reporting.result import Result, StepValues
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
    """One run of the benchmark.

    Args:
      params: the settings.
      console: where lines are printed; nowhere by default.

    Raises:
      UsageError: the settings do not fit this machine, or the data folder does not hold what they need.
    """

    def __init__(self, params: Params, console: Console | None = None) -> None:
        check_outputs(params)
        self.params = params
        self._console = console or Console()
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
        self._done: list[Step[StepValues]] = []

    def run(self) -> Result:
        """Builds the graph, runs warm-up and timed steps, and returns what was measured.

        Raises:
          RunError: a fault while running; its attribute `result` holds what was measured before it.
        """
        self._done = []
        self._console.result(lines.format_banner(self._banner()))
        try:
            for step in self.steps():
                self._done.append(step)
                self._show(step)
            self._check_ends()
        except RunError as fault:
            fault.result = self._conclude()
            raise
        except tf.errors.OpError as error:
            explained = self._explain(error)
            explained.result = self._conclude()
            raise explained from error
        except KeyboardInterrupt:
            self._conclude()
            raise
        return self._conclude()

    def steps(self) -> Iterator[Step[StepValues]]:
        """Builds the graph and runs warm-up and timed steps, each when it is asked for. The session ends with them."""
        params = self.params
        self._console.progress('Building the graph')
        # In a graph of its own: runs in one process share nothing.
        with tf.Graph().as_default() as graph:
            tf.set_random_seed(params.tf_random_seed)
            built = self._build()
            summaries = self._make_summaries(built)
        if params.graph_file:
            write_graph(graph, params.graph_file)
        with contextlib.closing(tf.Session(graph=graph, config=self._config)) as session:
            self._console.progress('Initialising the variables')
            session.run(built.initializers)
            if built.post_init is not None:
                session.run(built.post_init)
            built.pipeline.warm_up(session)
            stepper = Stepper(session, built.fetches, self._make_tracer(), params.num_warmup_batches, summaries)
            self._console.progress(f'Running {params.num_warmup_batches} warm-up steps')
            for step in steps(stepper.run, params.num_warmup_batches, params.num_batches):
                if summaries and step.phase is Phase.TIMED and summaries.is_due(step.index):
                    summaries.write(step.index, self._scalars(step), session, stepper.gradient_summary)
                yield step
        if summaries:
            summaries.close()

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

    def _banner(self) -> lines.Banner:
        params = self.params
        global_batch_size = self._batch_size * len(self._machine.towers)
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
            devices=self._machine.towers,
            data_format=self._machine.data_format,
            optimizer=params.optimizer,
            variable_update=params.variable_update,
            all_reduce_spec=params.all_reduce_spec if self._sums_gradients else None,
        )

    def _build(self) -> StepGraph:
        params = self.params
        manager = make_variable_mgr(params.variable_update, self._placement)
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
            ),
            _make_optimizer(params),
            manager,
            self._make_pipeline(manager.get_devices()),
        )

    def _make_pipeline(self, devices: Sequence[str]) -> InputPipeline:
        params, size, channels = self.params, self._facts.image_size, self._data_set.channels
        if self._shards is None:
            return SyntheticInput(
                devices, self._batch_size, size, size, channels, self._data_set.num_classes, params.tf_random_seed
            )
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
                seed=params.tf_random_seed,
            ),
            normalize_on_device=self._machine.kind == 'gpu',
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
            complete=len(self._done) == self.params.num_warmup_batches + self.params.num_batches,
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

    def _explain(self, error: tf.errors.OpError) -> RunError:
        """The fault in one line: of the data if a record can be found that explains it, else as TensorFlow says it."""
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
        return _step_values(fetched)

    def _is_summarized(self, phase: Phase, index: int) -> bool:
        # The first warm-up step too: it takes the time that TensorFlow needs to prepare for the others.
        return index == 1 if phase is Phase.WARMUP else self._summaries is not None and self._summaries.is_due(index)


def _step_values(fetched: dict[str, Any]) -> StepValues:
    top_1, top_5 = (float(fetched[name]) if name in fetched else None for name in ('top_1', 'top_5'))
    return StepValues(float(fetched['loss']), top_1, top_5)

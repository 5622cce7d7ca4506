"""The flags about a run: its length, what it prints and evaluates, and what it writes. Does not
import TensorFlow.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from tf_cnn.flags.spec import (
    ABOVE_0,
    IN_EVAL,
    IN_FORWARD_ONLY,
    MOST_EPOCHS,
    NEW,
    NO_COMPUTING,
    NO_FOLDER,
    NO_MODEL,
    NO_STEPS,
    Note,
    Output,
    flag,
    parse_numbers,
)
from tf_cnn.results.file_names import FIELD, OTHER_FIELDS, fill_fields
from tf_cnn.system.errors import STDIO, UsageError, format_flag, plural
from tf_cnn.training.schedules import epochs_to_steps

if TYPE_CHECKING:
    from tf_cnn.plan.params import Params, RuleContext
    from tf_cnn.plan.workload import Context

# The default number of timed steps.
NUM_BATCHES = 100
# The flags of files that StepTracer writes.
_TRACES = ('trace_file', 'tfprof_file', 'partitioned_graph_file_prefix')
# With --target_seconds: more steps than a run can take.
_MOST_BATCHES = 2**31 - 1


@dataclass(frozen=True)
class RunConfig:
    """The model, the number of steps, and printed lines."""

    GROUP: ClassVar[str] = 'Model and run'
    PROPERTIES: ClassVar[Mapping[str, object]] = {'shared_by_workers': True}

    model: str = flag(
        'trivial',
        'The network.',
        common=True,
        original='a network of the same name has the same cost; docs/models.md lists the '
        'differences',
    )
    model_file: str | None = flag(
        None,
        'Python file that defines more models with register_model, see docs/models.md.',
        is_path=True,
        original=NEW,
        # Workers compare the content of the file, not its path.
        shared_by_workers=False,
        setting=False,
    )
    batch_size: int = flag(
        0,
        "Images per step on each device; 0 takes the model's default.",
        unit='images',
        common=True,
        in_run_section=True,
        chosen=True,
        ignored=(NO_COMPUTING,),
    )
    num_batches: int | None = flag(
        None,
        f'Timed steps of each worker; by default {NUM_BATCHES}, or as many as --num_epochs needs. '
        'With --eval, the default of --num_eval_batches.',
        lower_bound=1,
        unit='steps',
        common=True,
        setting=False,
    )
    num_epochs: float | None = flag(
        None,
        'Length of the timed steps in passes over the training images, by all devices of all '
        'workers, instead of --num_batches. The steps of --num_warmup_batches come before, and '
        'train too. With --eval, the default of --num_eval_epochs.',
        lower_bound=ABOVE_0,
        upper_bound=MOST_EPOCHS,
        unit='epochs',
        common=True,
        setting=False,
    )
    num_warmup_batches: int = flag(
        10,
        'Warm-up steps before the timed steps; they train, but results do not include their time.',
        unit='steps',
        common=True,
        setting=False,
        ignored=(IN_EVAL,),
    )
    steps_per_run: int = flag(
        1,
        'Steps of one session call, which runs a loop in the graph. The time of a call is divided '
        'equally among its steps. Lines, checkpoints, evaluations and signals wait for the end of '
        'the call.',
        lower_bound=1,
        unit='steps',
        original=NEW,
        ignored=NO_STEPS,
    )
    display_every: int = flag(
        10,
        'Steps between two printed lines.',
        lower_bound=1,
        unit='steps',
        common=True,
        shared_by_workers=False,
        ignored=(IN_EVAL,),
    )
    display_perf_ewma: float | None = flag(
        None,
        'Print an exponentially weighted moving average of the throughput, with this weight for '
        'the last step, instead of the average of all steps so far; the total at the end stays the '
        'same.',
        upper_bound=1,
        ignored=(IN_EVAL,),
    )
    forward_only: bool = flag(
        False,
        'Compute only the loss and the accuracy: no gradients, no updates.',
        common=True,
        shared_by_servers=True,
    )
    freeze_when_forward_only: bool = flag(
        False,
        "With --forward_only, make the weights constants, so that TensorFlow's graph passes fold "
        'batch norm.',
        ignored=(NO_MODEL,),
    )
    exchange_only: bool = flag(
        False,
        'Exchange and apply gradients as in training, but compute nothing: gradients in the sizes '
        'of the model are in memory already.',
        original=NEW,
    )
    exchange_bytes: int | None = flag(
        None,
        'With --exchange_only: exchange one float32 tensor of this many bytes instead of the '
        'gradients of the model.',
        lower_bound=4,
        upper_bound=1 << 30,
        unit='bytes',
        original=NEW,
    )
    print_training_accuracy: bool = flag(
        False,
        'Compute and print top-1 and top-5 accuracy while training.',
        shared_by_workers=False,
        ignored=(*NO_STEPS, NO_COMPUTING),
    )
    loss_type_to_report: str = flag(
        'total_loss',
        'The loss to print: base_loss excludes weight decay, total_loss includes it.',
        choices=('base_loss', 'total_loss'),
        shared_by_workers=False,
        ignored=(*NO_STEPS, NO_COMPUTING),
    )
    tf_random_seed: int = flag(
        1234,
        'Seed of weights, dropout, augmentation and image order (the order of records also '
        'depends on read timing, unless --deterministic is given).',
        lower_bound=-math.inf,
        shared_by_workers=False,
        setting=False,
    )
    deterministic: bool = flag(
        False,
        'Make losses bit-identical for the same --tf_random_seed, by deterministic ops and a '
        'deterministic order of records.',
        original=NEW,
        shared_by_servers=True,
    )
    verbose: bool = flag(
        False,
        'Print the startup messages of TensorFlow, and a traceback after an error.',
        common=True,
        original=NEW,
        shared_by_workers=False,
        setting=False,
    )

    @property
    def num_timed(self) -> int:
        """The timed steps; with --target_seconds more than a run can take. Of resolved flags."""
        return _MOST_BATCHES if self.num_batches is None else self.num_batches

    @property
    def computes_accuracy(self) -> bool:
        return self.forward_only or (self.print_training_accuracy and not self.exchange_only)

    def resolve(self, params: 'Params', context: 'Context') -> Self:
        # An exchange has no images: each device counts one for a step.
        batch_size = 1 if self.exchange_only else self.batch_size or context.model.batch_size
        resolved = replace(self, batch_size=batch_size)
        if params.evaluation.eval:
            return resolved
        num_batches = self.num_batches
        if self.num_epochs is not None:
            images_per_step = context.global_batch_size(dataclasses.replace(params, run=resolved))
            num_images = context.num_epoch_images(params)
            num_batches = math.ceil(epochs_to_steps(self.num_epochs, num_images, images_per_step))
        elif num_batches is None and params.results.target_seconds is None:
            num_batches = NUM_BATCHES
        return replace(resolved, num_batches=num_batches)

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        # Importing the flags should not import the models.
        from models.registry import MODELS

        # The --model_file may define the model; it is looked up after the file has run.
        if self.model_file is None:
            try:
                MODELS.find_model(self.model, params.data.data_name)
            except UsageError as error:
                yield str(error)
        if self.num_epochs is not None and self.num_batches is not None:
            yield params.conflict(
                'num_epochs', 'num_batches', 'both set the length of the run; remove one'
            )
        if (
            self.steps_per_run > 1
            and params.instruments.profile_steps
            and not params.evaluation.eval
        ):
            yield params.conflict(
                'steps_per_run',
                'profile_steps',
                'single steps of a loop cannot be profiled; remove one',
            )
        if self.exchange_only:
            yield from self._exchange_problems(params)
        else:
            yield ('exchange_bytes',), 'only --exchange_only uses it'
        if params.exchanges_one_tensor:
            reason = '--exchange_bytes replaces the gradients of the model'
            yield ('model', 'model_file'), reason
        if self.steps_per_run > 1 and not rules.is_single_process:
            yield (
                f'{params.flag_text("steps_per_run")}: the workers of a cluster synchronize after '
                'each step, to detect a lost worker; remove it'
            )
        if self.forward_only:
            yield ('print_training_accuracy',), '--forward_only always prints the accuracy'
            reason = '--forward_only computes no weight decay, so that both losses are the same'
            yield ('loss_type_to_report',), reason
        else:
            yield ('freeze_when_forward_only',), 'only --forward_only freezes weights'
        if params.evaluation.eval:
            yield from self._ignored_by_eval(params)

    def _exchange_problems(self, params: 'Params') -> Iterator[str]:
        for name in (
            'num_epochs',
            'forward_only',
            'data_dir',
            'input_only',
            'eval',
            *params.evaluation.SCHEDULE_FLAGS,
            'train_dir',
            'backbone_model_path',
        ):
            if params.value(name) not in (None, False):
                yield params.conflict(
                    'exchange_only', name, 'it computes nothing and trains no model; remove one'
                )
                break
        if not params.variables.mode.shares_model:
            yield params.conflict(
                'exchange_only', 'variable_update', 'its towers exchange nothing; remove one'
            )
        if self.exchange_bytes is not None and self.exchange_bytes % 4:
            yield f'{params.flag_text("exchange_bytes")}: a value has 4 bytes; use a multiple of 4'

    def _ignored_by_eval(self, params: 'Params') -> Iterator[Note]:
        evaluation = params.evaluation
        if evaluation.eval_batch_size:
            yield ('batch_size',), '--eval_batch_size sets how many images are evaluated at a time'
        if (evaluation.num_eval_batches, evaluation.num_eval_epochs) != (None, None):
            reason = '--num_eval_batches or --num_eval_epochs sets how many images --eval evaluates'
            yield ('num_batches', 'num_epochs'), reason
        if params.data.data_dir is not None:
            reason = '--eval takes its weights from a checkpoint and does not augment images'
            yield ('tf_random_seed',), reason


@dataclass(frozen=True)
class EvaluationConfig:
    """The evaluation of checkpoints with --eval, and of the model during training."""

    GROUP: ClassVar[str] = 'Evaluation'
    # The flags that set when training pauses for an evaluation; only one of them may be given.
    SCHEDULE_FLAGS: ClassVar[tuple[str, ...]] = (
        'eval_during_training_every_n_steps',
        'eval_during_training_every_n_epochs',
        'eval_during_training_at_specified_steps',
        'eval_during_training_at_specified_epochs',
    )
    PROPERTIES: ClassVar[Mapping[str, object]] = {
        'shared_by_workers': True,
        'ignored': (NO_MODEL, NO_COMPUTING),
    }

    eval: bool = flag(
        False,
        'Do not train; print the accuracy of the newest checkpoint of --train_dir on the '
        'validation images.',
        common=True,
        original='by default it evaluates as many batches as training takes; here each '
        'validation image once',
    )
    eval_interval_secs: float = flag(
        0.0,
        'With --eval, the time between two looks for a new checkpoint, until the training that '
        'writes them has finished; 0 evaluates the newest checkpoint once.',
        unit='seconds',
        shared_by_workers=False,
    )
    eval_batch_size: int = flag(
        0,
        'Images evaluated at a time on each device; 0 uses the batch size of training.',
        unit='images',
        chosen=True,
    )
    num_eval_batches: int | None = flag(
        None,
        'Batches to evaluate; a batch is a global batch of all devices. By default --num_batches '
        'with --eval, else every validation image once, or as many synthetic batches as timed '
        'steps.',
        lower_bound=1,
        unit='batches',
    )
    num_eval_epochs: float | None = flag(
        None,
        'Passes over the validation images, instead of --num_eval_batches; fractions are allowed. '
        'By default --num_epochs with --eval.',
        lower_bound=ABOVE_0,
        upper_bound=MOST_EPOCHS,
        unit='epochs',
    )
    eval_during_training_every_n_steps: int | None = flag(
        None, 'Steps of training between two evaluations.', lower_bound=1, unit='steps'
    )
    eval_during_training_every_n_epochs: float | None = flag(
        None,
        'Epochs of training between two evaluations, fractions are allowed.',
        lower_bound=ABOVE_0,
        upper_bound=MOST_EPOCHS,
        unit='epochs',
    )
    eval_during_training_at_specified_steps: str | None = flag(
        None, 'Evaluate after these steps of training, separated by commas.'
    )
    eval_during_training_at_specified_epochs: str | None = flag(
        None, 'Evaluate after these epochs of training, separated by commas; fractions are allowed.'
    )
    stop_at_top_1_accuracy: float | None = flag(
        None,
        'Stop training after the first evaluation with at least this top-1 accuracy.',
        upper_bound=1,
    )
    eval_dir: str | None = flag(
        None,
        'Folder for summaries of evaluations, created if missing; by default none are written.',
        original='its default is a folder in /tmp',
        output=Output.FOLDER,
        shared_by_workers=False,
        setting=False,
    )

    @property
    def has_epochs(self) -> bool:
        """Whether epochs set when training pauses for an evaluation."""
        return bool(
            self.eval_during_training_every_n_epochs
            or self.eval_during_training_at_specified_epochs
        )

    def resolve(self, params: 'Params', context: 'Context') -> Self:
        return replace(
            self,
            eval_batch_size=self.eval_batch_size or params.run.batch_size,
            eval_dir=self.eval_dir if context.cluster_role.is_chief else None,
        )

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        if not self.eval:
            yield ('eval_interval_secs',), 'only --eval uses it'
        if not params.evaluates:
            names = ('eval_batch_size', 'num_eval_batches', 'num_eval_epochs', 'eval_dir')
            yield names, 'nothing is evaluated; see --eval'
        if params.run.forward_only:
            yield self.SCHEDULE_FLAGS, IN_FORWARD_ONLY
        kinds = [
            name for name in ('forward_only', 'eval', *self.SCHEDULE_FLAGS) if params.value(name)
        ]
        if ('eval' in kinds and len(kinds) > 1) or len(set(kinds) - {'forward_only'}) > 1:
            yield params.conflict(kinds[-2], kinds[-1], 'they exclude each other; remove one')
        if self.num_eval_batches is not None and self.num_eval_epochs is not None:
            yield params.conflict(
                'num_eval_batches', 'num_eval_epochs', 'both set how much to evaluate; remove one'
            )
        elif self.num_eval_epochs is not None and params.data.data_dir is None:
            yield (
                f'{params.flag_text("num_eval_epochs")}: synthetic images have no epochs; use '
                '--num_eval_batches, or add --data_dir=DIR'
            )
        if self.eval and params.checkpoints.train_dir is None:
            yield '--eval: the folder of the checkpoints is missing; add --train_dir=DIR'
        for name, kind, noun in (
            ('eval_during_training_at_specified_steps', int, 'steps, such as 100,200'),
            ('eval_during_training_at_specified_epochs', float, 'epochs, such as 0.5,1,2'),
        ):
            try:
                parse_numbers(getattr(self, name), kind)
            except ValueError:
                yield f'{params.flag_text(name)}: it must be a list of {noun}, each above 0'
        if self.stop_at_top_1_accuracy is None:
            return
        if not params.evaluates_in_training:
            yield (
                f'{params.flag_text("stop_at_top_1_accuracy")}: nothing is evaluated while '
                'training; add --eval_during_training_every_n_epochs=1'
            )
        elif not rules.is_single_process and not params.variables.cross_replica_sync:
            yield params.conflict(
                'stop_at_top_1_accuracy',
                'cross_replica_sync',
                'workers that do not wait for each other stop at different steps; remove one',
            )


@dataclass(frozen=True)
class InstrumentConfig:
    """Summaries, traces and profiles."""

    GROUP: ClassVar[str] = 'Files'
    PROPERTIES: ClassVar[Mapping[str, object]] = {'ignored': NO_STEPS}

    save_summaries_steps: int = flag(
        0,
        'Steps between two summaries in --train_dir; 0 writes none.',
        unit='steps',
        ignored=(*NO_STEPS, NO_FOLDER),
    )
    summary_verbosity: int = flag(
        0,
        '0 writes no summaries, 1 scalars, 2 also histograms of variables, 3 also histograms of '
        'gradients. With --steps_per_run, one histogram for a session call, of its last step.',
        upper_bound=3,
        ignored=(*NO_STEPS, NO_FOLDER),
    )
    trace_file: str | None = flag(
        None,
        'File for a trace of the last warm-up step; without warm-up, of the first timed step.',
        common=True,
        output=Output.FILE,
    )
    use_chrome_trace_format: bool = flag(
        True,
        'The format of --trace_file: chrome://tracing, or text if the switch is off.',
    )
    graph_file: str | None = flag(
        None,
        'File for the graph, as text if its name ends with txt.',
        output=Output.FILE,
    )
    partitioned_graph_file_prefix: str | None = flag(
        None,
        'Prefix of files with the partitioned graph of each device, as the last warm-up step ran '
        'it; without warm-up, the first timed step.',
        output=Output.PREFIX,
    )
    tfprof_file: str | None = flag(
        None,
        'File for a profile of the last warm-up step; without warm-up, of the first ten timed '
        'steps.',
        output=Output.FILE,
    )
    profile_steps: str | None = flag(
        None,
        'FIRST,LAST: the first and the last timed step to profile for TensorBoard, counted from 1.',
        original=NEW,
    )
    profile_dir: str | None = flag(
        None,
        'Folder for the profile of --profile_steps, created if missing.',
        original=NEW,
        output=Output.CHIEF_FOLDER,
    )

    def resolve(self, params: 'Params', context: 'Context') -> Self:
        """Keeps the profile and the summaries of the chief only.

        Processes of one machine would overwrite each other's profile, and TensorBoard would merge
        the workers' curves.
        """
        is_chief = context.cluster_role.is_chief
        resolved = replace(
            self, profile_steps=None, profile_dir=None, save_summaries_steps=0, summary_verbosity=0
        )
        if is_chief and self.profile_steps:
            flag_text = format_flag('profile_steps', self.profile_steps)
            context.warnings.append(
                f'{flag_text}: these timed steps run under the profiler, which makes them slower'
            )
            resolved = replace(
                resolved, profile_steps=self.profile_steps, profile_dir=self.profile_dir
            )
        if self.traces_step and not params.run.num_warmup_batches:
            name = next(name for name in _TRACES if getattr(self, name))
            context.warnings.append(
                f'{params.flag_text(name)}: there is no warm-up, so it records timed steps, which '
                'makes them slower; use --num_warmup_batches=1 or more'
            )
        interval, verbosity = self.save_summaries_steps, self.summary_verbosity
        if is_chief and params.checkpoints.train_dir and self.writes_summaries:
            # A frozen network has no variables, so only scalars can be written. Gradients stay
            # inside a loop of steps.
            has_gradients = params.trains and params.run.steps_per_run == 1
            most = 3 if has_gradients else 1 if params.run.freeze_when_forward_only else 2
            flag_text = f'--summary_verbosity={verbosity}'
            if verbosity > most:
                because = '--steps_per_run' if params.trains else '--forward_only'
                context.warnings.append(
                    f'{flag_text} writes the same as {most}, because of {because}'
                )
            elif verbosity >= 3:
                which = 'each step' if interval == 1 else f'one step in {interval}'
                context.warnings.append(
                    f'{flag_text}: {which} computes the histograms of its gradients within its '
                    'timed seconds, and is slower'
                )
            resolved = replace(
                resolved, save_summaries_steps=interval, summary_verbosity=min(verbosity, most)
            )
        return resolved

    @property
    def writes_summaries(self) -> bool:
        return bool(self.save_summaries_steps and self.summary_verbosity)

    @property
    def traces_step(self) -> bool:
        """Whether the run traces its last warm-up step, or without warm-up some timed steps."""
        return any(getattr(self, name) for name in _TRACES)

    def check_profile_steps(self, num_timed: int) -> None:
        """Raises UsageError if the profile goes past the last timed step. Of resolved flags."""
        if self.profile_steps and parse_numbers(self.profile_steps, int)[1] > num_timed:
            raise UsageError(
                f'{format_flag("profile_steps", self.profile_steps)}: the run has '
                f'{plural(num_timed, "timed step")}; name no step after the last'
            )

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        if not self.summary_verbosity:
            yield ('save_summaries_steps',), '--summary_verbosity=0 writes no summaries'
        if not self.save_summaries_steps:
            yield ('summary_verbosity',), '--save_summaries_steps=0 writes no summaries'
        if self.trace_file is None:
            yield ('use_chrome_trace_format',), 'only --trace_file uses it'
        for given_flag, missing in itertools.permutations(('profile_steps', 'profile_dir')):
            if getattr(self, given_flag) and not getattr(self, missing):
                yield f'{params.flag_text(given_flag)}: a profile needs --{missing} too; add it'
                return
        try:
            first, last = parse_numbers(self.profile_steps, int) or (1, 1)
        except ValueError:
            first, last = 1, 0
        if first > last:
            yield (
                f'{params.flag_text("profile_steps")}: it must be the first and the last of the '
                'timed steps to profile, such as 10,20'
            )


@dataclass(frozen=True)
class ResultConfig:
    """The result: its files, repeats, and additional measurements."""

    GROUP: ClassVar[str] = 'Results'
    PROPERTIES: ClassVar[Mapping[str, object]] = {'original': NEW, 'setting': False}

    result_file: str | None = flag(
        None,
        'File for the result as JSON (docs/results.md); with - the result is the only text on '
        'standard output. Flags in braces are replaced by their values, as in '
        '{model}-{batch_size}.json; so are {shape}, {hostname}, {date}, {time} and {run}, the '
        'number of a run. With {date}, {time} or {run} no file is replaced: if the name is taken, '
        'it gets the next free number.',
        common=True,
        output=Output.CHIEF_FILE,
        may_be_stdio=True,
    )
    benchmark_log_dir: str | None = flag(
        None,
        'Folder for benchmark_run.log and metric.log, in the format of the benchmark logger '
        "of TensorFlow's official "
        'models; created if missing.',
        original=None,
        output=Output.CHIEF_FOLDER,
    )
    benchmark_test_id: str | None = flag(
        None,
        'The test_id in benchmark_run.log, for people who read it.',
        original=None,
    )
    repeat: int = flag(
        1,
        'Number of runs, each in a new process; the total covers all runs.',
        lower_bound=1,
        unit='runs',
        common=True,
    )
    target_seconds: float | None = flag(
        None,
        'Duration of the timed steps, instead of --num_batches. Synchronous workers derive a '
        'number of steps from the pace of their warm-up.',
        lower_bound=0.001,
        unit='seconds',
        common=True,
        shared_by_workers=True,
        ignored=(IN_EVAL,),
    )
    measure_peak: bool = flag(
        False,
        'After the steps, measure large matrix products on the same devices, and print the share '
        'of this peak that the steps reached.',
        ignored=(*NO_STEPS, NO_COMPUTING),
    )

    def resolve(self, params: 'Params', context: 'Context') -> Self:
        if not context.cluster_role.is_chief:
            # Only the chief writes the result.
            return replace(self, result_file=None, benchmark_log_dir=None)
        if self.result_file is None:
            return self
        # The module imports Params, which imports this module.
        from tf_cnn.plan.outputs import field_values

        values = field_values(
            context.unresolved,
            model=context.model.name,
            batch_size=params.run.batch_size,
            shape=context.cluster_role.shape,
        )
        return replace(self, result_file=fill_fields(self.result_file, values))

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        # Params imports this module.
        from tf_cnn.plan.params import SPECS, output_flags

        if self.benchmark_log_dir is None:
            yield ('benchmark_test_id',), 'only --benchmark_log_dir uses it'
        is_cluster, evaluates = not rules.is_single_process, params.evaluation.eval
        if is_cluster:
            reason = 'workers would slow each other down; measure the peak in one process'
            yield ('measure_peak',), reason

        for field in FIELD.findall(self.result_file or ''):
            if field not in OTHER_FIELDS and field not in SPECS:
                yield (
                    f'{params.flag_text("result_file")}: unknown field {{{field}}}; use the name '
                    'of a flag, or one of '
                    f'{", ".join(f"{{{other}}}" for other in OTHER_FIELDS)}'
                )
            elif field not in OTHER_FIELDS and params.value(field) is None:
                yield (
                    f'{params.flag_text("result_file")}: {{{field}}} has no value, since --{field} '
                    f'is not set; use --{field}=VALUE, or remove {{{field}}}'
                )
        if self.repeat > 1:
            if self.result_file == STDIO:
                yield params.conflict('result_file', 'repeat', 'each run has a result; use a file')
            if evaluates:
                yield params.conflict(
                    'repeat', 'eval', 'it repeats the measurement of steps; remove it'
                )
            for name in output_flags(*(kind for kind in Output if kind is not Output.CHIEF_FILE)):
                if params.value(name) and params.writes_to(name) and not evaluates:
                    yield params.conflict('repeat', name, 'all runs would write there; remove one')
        if self.target_seconds is not None:
            for name in ('num_batches', 'num_epochs'):
                if params.value(name) is not None:
                    yield params.conflict(
                        'target_seconds', name, 'both set the length of the run; remove one'
                    )
            if is_cluster and not params.run.num_warmup_batches and not evaluates:
                yield params.conflict(
                    'target_seconds',
                    'num_warmup_batches',
                    'synchronous workers derive the number of steps from the pace of their '
                    'warm-up; use --num_warmup_batches=1 or more',
                )
        if is_cluster and self.repeat > 1:
            yield (
                f'{params.flag_text("repeat")}: it is for runs of one process; repeat a cluster '
                'with sweep --repeats; remove it'
            )

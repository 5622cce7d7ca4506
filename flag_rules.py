"""The rules between flags: which do not go together, and which data must be there."""

import itertools
import math
import os
from collections.abc import Callable
from typing import TypeVar

from data_sets import RECORDS
from errors import UsageError
from flag_spec import spelled
from flag_table import EVAL_DURING_TRAINING, Params
from output_files import FILES
from training.schedules import parse_piecewise

Number = TypeVar('Number', int, float)

# Each of these sets the learning rate by itself, which these others do together.
WHOLE_SCHEDULES = ('piecewise_learning_rate_schedule', 'resnet_base_lr')
RATE_FLAGS = ('init_learning_rate', 'num_epochs_per_decay', 'learning_rate_decay_factor', 'minimum_learning_rate')


def is_residual(params: Params) -> bool:
    # Here, since only rules need the zoo.
    from models.catalog import is_resnet

    return is_resnet(params.model)


def check(params: Params) -> None:
    """Raises UsageError for the first rule that the settings break."""
    for rule in _RULES:
        if message := rule(params):
            raise UsageError(message)


def _the_model_is_for_the_data(params: Params) -> str | None:
    # Here, since only this rule needs the zoo.
    from models.catalog import find_model

    find_model(params.model, params.data_name)
    if params.data_name == RECORDS and params.data_dir is None:
        return f'--data_name={RECORDS}: the folder tells the classes; add --data_dir=DIR, or leave it out'
    return None


def _summaries_have_a_folder(params: Params) -> str | None:
    for name in ('save_summaries_steps', 'summary_verbosity'):
        value = getattr(params, name)
        if value and params.train_dir is None:
            return f'{spelled(name, value)}: summaries need a folder; add --train_dir=DIR'
    return None


def _a_step_can_be_traced(params: Params) -> str | None:
    for name in ('trace_file', 'tfprof_file', 'partitioned_graph_file_prefix'):
        value = getattr(params, name)
        if value is not None and params.num_warmup_batches == 0:
            return (
                f'{spelled(name, value)}: the last warm-up step is the traced one, and --num_warmup_batches=0 '
                'leaves none; write --num_warmup_batches=1 or more'
            )
    return None


def _gradients_are_packed_in_one_way(params: Params) -> str | None:
    if params.gradient_repacking and params.agg_small_grads_max_bytes:
        return (
            f'{spelled("gradient_repacking", params.gradient_repacking)} clashes with '
            f'{spelled("agg_small_grads_max_bytes", params.agg_small_grads_max_bytes)}: each packs the '
            'gradients in its own way; leave one out'
        )
    return None


def _gradients_are_summed_in_one_way(params: Params) -> str | None:
    if params.hierarchical_copy and params.all_reduce_spec:
        return (
            f'--hierarchical_copy clashes with {spelled("all_reduce_spec", params.all_reduce_spec)}: each sums the '
            'gradients in its own way; leave one out'
        )
    return None


def _files_are_not_the_same(params: Params) -> str | None:
    flags_by_path: dict[str, str] = {}
    for name in FILES:
        path = getattr(params, name)
        if path and (first := flags_by_path.setdefault(path, name)) != name:
            return f'{spelled(name, path)} clashes with {spelled(first, path)}: write another path in one of them'
    return None


def _the_clip_leaves_something(params: Params) -> str | None:
    if params.gradient_clip == 0:
        return '--gradient_clip=0: it would make every gradient zero; leave it out, or write a magnitude above 0'
    return None


def _the_end_is_told_once(params: Params) -> str | None:
    if params.num_epochs is None:
        return None
    written = spelled('num_epochs', params.num_epochs)
    if params.num_batches is not None:
        return f'{written} clashes with {spelled("num_batches", params.num_batches)}: each ends the run; leave one out'
    if params.num_epochs == 0:
        return f'{written}: there would be nothing to do; write a number above 0, a fraction will do'
    return None


def _the_learning_rate_is_told_once(params: Params) -> str | None:
    defaults = type(params)()
    given = [name for name in (*WHOLE_SCHEDULES, *RATE_FLAGS) if getattr(params, name) != getattr(defaults, name)]
    if not is_residual(params):
        given = [name for name in given if name != 'resnet_base_lr']
    if len(given) > 1 and given[0] in WHOLE_SCHEDULES:
        whole, other = (spelled(name, getattr(params, name)) for name in given[:2])
        return f'{whole} clashes with {other}: the first sets the learning rate of the whole training; leave one out'
    return None


def _a_piecewise_schedule_has_pieces(params: Params) -> str | None:
    schedule = params.piecewise_learning_rate_schedule
    if schedule is not None:
        try:
            parse_piecewise(schedule)
        except ValueError as error:
            written = spelled('piecewise_learning_rate_schedule', schedule)
            return f"{written}: {error}; write 'RATE;EPOCH;RATE;...', such as '0.3;10;0.2;25;0.02'"
    return None


def _a_decay_has_an_interval_and_a_factor(params: Params) -> str | None:
    for given, missing in itertools.permutations(('num_epochs_per_decay', 'learning_rate_decay_factor')):
        if (value := getattr(params, given)) and not getattr(params, missing):
            return f'{spelled(given, value)}: it takes both to lower the learning rate; add --{missing}, above 0'
    return None


def _staged_variables_are_read_from_somewhere(params: Params) -> str | None:
    if params.staged_vars and params.variable_update != 'parameter_server':
        return (
            f'--staged_vars clashes with {spelled("variable_update", params.variable_update)}, which reads none '
            'of its variables from parameter servers; leave one out'
        )
    return None


def _horovod_has_a_process_for_each_device(params: Params) -> str | None:
    if params.variable_update == 'horovod' and params.num_gpus > 1:
        return (
            f'{spelled("num_gpus", params.num_gpus)} clashes with --variable_update=horovod, which has a process for '
            'each GPU; write --num_gpus=1, and start more processes with horovodrun'
        )
    return None


def _horovod_knows_its_processes(params: Params) -> str | None:
    if params.variable_update != 'horovod':
        return None
    for name in ('ps_hosts', 'worker_hosts', 'job_name', 'task_index', 'controller_host'):
        if (value := getattr(params, name)) is not None:
            return (
                f'{spelled(name, value)} clashes with --variable_update=horovod, whose processes horovodrun starts and '
                'numbers; leave it out, or write --variable_update=collective_all_reduce'
            )
    if not params.cross_replica_sync:
        return (
            f'{spelled("cross_replica_sync", False)} clashes with --variable_update=horovod, whose processes take each '
            'step together; leave it out, or write --variable_update=parameter_server'
        )
    return None


def _16_bits_hold_what_the_optimizer_keeps(params: Params) -> str | None:
    if params.fp16_vars and params.precision != 'fp32' and params.optimizer not in ('sgd', 'momentum'):
        return (
            f'--fp16_vars clashes with {spelled("optimizer", params.optimizer)}: it works with squares and norms of '
            'gradients, for which 16 bits are not enough; write --optimizer=momentum or sgd, or leave --fp16_vars out'
        )
    return None


def _evaluations_are_of_one_kind(params: Params) -> str | None:
    kinds = [name for name in ('forward_only', 'eval', *EVAL_DURING_TRAINING) if getattr(params, name)]
    if ('eval' in kinds and len(kinds) > 1) or len(set(kinds) - {'forward_only'}) > 1:
        first, second = (spelled(name, getattr(params, name)) for name in kinds[-2:])
        return f'{first} clashes with {second}: each says in its own way when to evaluate; leave one out'
    if params.num_eval_batches is not None and params.num_eval_epochs is not None:
        return (
            f'{spelled("num_eval_batches", params.num_eval_batches)} clashes with '
            f'{spelled("num_eval_epochs", params.num_eval_epochs)}: each says how much to evaluate; leave one out'
        )
    return None


def _there_is_a_model_to_evaluate(params: Params) -> str | None:
    if params.eval and params.train_dir is None:
        return '--eval: it needs the folder of the checkpoints; add --train_dir=DIR'
    if params.stop_at_top_1_accuracy is not None and not params.evaluates_in_training:
        return (
            f'{spelled("stop_at_top_1_accuracy", params.stop_at_top_1_accuracy)}: nothing is evaluated while training; '
            'add --eval_during_training_every_n_epochs=1'
        )
    if params.stop_at_top_1_accuracy is not None and not (params.cross_replica_sync or is_alone(params)):
        return (
            f'{spelled("stop_at_top_1_accuracy", params.stop_at_top_1_accuracy)} clashes with '
            '--cross_replica_sync=False: such workers do not stop at the same step; leave one out'
        )
    return None


def _evaluations_are_not_empty(params: Params) -> str | None:
    for name in ('num_eval_epochs', 'eval_during_training_every_n_epochs'):
        if getattr(params, name) == 0:
            return f'--{name}=0: it must be above 0'
    if params.num_eval_epochs is not None and params.data_dir is None:
        return (
            f'{spelled("num_eval_epochs", params.num_eval_epochs)}: synthetic images have no epochs; '
            'write --num_eval_batches, or add --data_dir=DIR'
        )
    return None


def _an_export_has_a_folder_of_its_own(params: Params) -> str | None:
    if (export := params.export_saved_model) is None:
        return None
    whole = os.path.abspath(export)
    for name in ('train_dir', 'eval_dir', 'profile_dir'):
        other = getattr(params, name)
        if other is not None and os.path.commonpath([whole, os.path.abspath(other)]) == whole:
            return (
                f'{spelled("export_saved_model", export)} clashes with {spelled(name, other)}: nothing else can be in '
                'the folder of an export; write another path in one of them'
            )
    return None


def _profiled_steps_are_two(params: Params) -> str | None:
    for given, missing in itertools.permutations(('profile_steps', 'profile_dir')):
        if (value := getattr(params, given)) and not getattr(params, missing):
            return f'{spelled(given, value)}: it takes both to profile; add --{missing}'
    try:
        first, last = numbers_of(params.profile_steps, int) or (1, 1)
    except ValueError:
        first, last = 1, 0
    if first > last:
        written = spelled('profile_steps', params.profile_steps)
        return f'{written}: it must be the first and the last of the timed steps to profile, such as 10,20'
    return None


def _evaluation_lists_are_numbers(params: Params) -> str | None:
    for name in EVAL_DURING_TRAINING[2:]:
        try:
            numbers_of(getattr(params, name), int if name.endswith('steps') else float)
        except ValueError:
            noun = 'steps, such as 100,200' if name.endswith('steps') else 'epochs, such as 0.5,1,2'
            return f'{spelled(name, getattr(params, name))}: it must be a list of {noun}, each above 0'
    return None


def numbers_of(text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    """The numbers of a list with commas between, none if there is no text.

    Raises:
      ValueError: one is not a number above 0.
    """
    numbers = [kind(part) for part in text.split(',')] if text else []
    if not all(0 < number < math.inf for number in numbers):
        raise ValueError(text)
    return numbers


_RULES: tuple[Callable[[Params], str | None], ...] = (
    _the_model_is_for_the_data,
    _summaries_have_a_folder,
    _a_step_can_be_traced,
    _gradients_are_packed_in_one_way,
    _gradients_are_summed_in_one_way,
    _files_are_not_the_same,
    _the_clip_leaves_something,
    _the_end_is_told_once,
    _the_learning_rate_is_told_once,
    _a_piecewise_schedule_has_pieces,
    _a_decay_has_an_interval_and_a_factor,
    _staged_variables_are_read_from_somewhere,
    _horovod_has_a_process_for_each_device,
    _horovod_knows_its_processes,
    _16_bits_hold_what_the_optimizer_keeps,
    _evaluations_are_of_one_kind,
    _there_is_a_model_to_evaluate,
    _evaluations_are_not_empty,
    _evaluation_lists_are_numbers,
    _an_export_has_a_folder_of_its_own,
    _profiled_steps_are_two,
)

# The launchers' numbers of processes, in the order in which cluster.environments asks for them.
_SIZES = ('OMPI_COMM_WORLD_SIZE', 'SLURM_STEP_NUM_TASKS')


def is_alone(params: Params) -> bool:
    """Whether nothing speaks of other processes."""
    if params.variable_update == 'horovod':
        return False
    size = next((os.environ[name] for name in _SIZES if name in os.environ), None)
    is_launched = 'PMIX_RANK' in os.environ if size is None else size != '1'
    return not (params.ps_hosts or params.worker_hosts or 'TF_CONFIG' in os.environ or is_launched)


def check_inputs(params: Params) -> None:
    """Proves that the data folder holds the files of the run; raises UsageError if not."""
    if params.data_dir is not None:
        # Here, since NumPy need not be there to parse a command line.
        from data_folder import find_data

        find_data(params)

"""The rules between flags: which do not go together, which have no effect, which files a run must be able to write."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from data_sets import RECORDS
from errors import UsageError
from flag_spec import spelled

if TYPE_CHECKING:
    from params import Params

_FILES = ('trace_file', 'tfprof_file', 'graph_file')


def check(params: 'Params') -> None:
    """Raises UsageError for the first rule that the settings break."""
    for rule in _RULES:
        if message := rule(params):
            raise UsageError(message)


def _the_model_is_for_the_data(params: 'Params') -> str | None:
    # Here, since only this rule needs the zoo.
    from models.catalog import find_model

    find_model(params.model, params.data_name)
    if params.data_name == RECORDS and params.data_dir is None:
        return f'--data_name={RECORDS}: the folder tells the classes; add --data_dir=DIR, or leave it out'
    return None


def _summaries_have_a_folder(params: 'Params') -> str | None:
    for name in ('save_summaries_steps', 'summary_verbosity'):
        value = getattr(params, name)
        if value and params.train_dir is None:
            return f'{spelled(name, value)}: summaries need a folder; add --train_dir=DIR'
    return None


def _a_step_can_be_traced(params: 'Params') -> str | None:
    for name in ('trace_file', 'tfprof_file', 'partitioned_graph_file_prefix'):
        value = getattr(params, name)
        if value is not None and params.num_warmup_batches == 0:
            return (
                f'{spelled(name, value)}: the last warm-up step is the traced one, and --num_warmup_batches=0 '
                'leaves none; write --num_warmup_batches=1 or more'
            )
    return None


def _gradients_are_packed_in_one_way(params: 'Params') -> str | None:
    if params.gradient_repacking and params.agg_small_grads_max_bytes:
        return (
            f'{spelled("gradient_repacking", params.gradient_repacking)} clashes with '
            f'{spelled("agg_small_grads_max_bytes", params.agg_small_grads_max_bytes)}: each packs the '
            'gradients in its own way; leave one out'
        )
    return None


def _gradients_are_summed_in_one_way(params: 'Params') -> str | None:
    if params.hierarchical_copy and params.all_reduce_spec:
        return (
            f'--hierarchical_copy clashes with {spelled("all_reduce_spec", params.all_reduce_spec)}: each sums the '
            'gradients in its own way; leave one out'
        )
    return None


def _files_are_not_the_same(params: 'Params') -> str | None:
    flags_by_path: dict[str, str] = {}
    for name in _FILES:
        path = getattr(params, name)
        if path and (first := flags_by_path.setdefault(path, name)) != name:
            return f'{spelled(name, path)} clashes with {spelled(first, path)}: write another path in one of them'
    return None


def _the_clip_leaves_something(params: 'Params') -> str | None:
    if params.gradient_clip == 0:
        return '--gradient_clip=0: it would make every gradient zero; leave it out, or write a magnitude above 0'
    return None


def _staged_variables_are_read_from_somewhere(params: 'Params') -> str | None:
    if params.staged_vars and params.variable_update != 'parameter_server':
        return (
            f'--staged_vars clashes with {spelled("variable_update", params.variable_update)}, which reads none '
            'of its variables from parameter servers; leave one out'
        )
    return None


def _horovod_has_a_process_for_each_device(params: 'Params') -> str | None:
    if params.variable_update == 'horovod' and params.num_gpus > 1:
        return (
            f'{spelled("num_gpus", params.num_gpus)} clashes with --variable_update=horovod, which has a process for '
            'each GPU; write --num_gpus=1, and start more processes with horovodrun'
        )
    return None


_RULES: tuple[Callable[['Params'], str | None], ...] = (
    _the_model_is_for_the_data,
    _summaries_have_a_folder,
    _a_step_can_be_traced,
    _gradients_are_packed_in_one_way,
    _gradients_are_summed_in_one_way,
    _files_are_not_the_same,
    _the_clip_leaves_something,
    _staged_variables_are_read_from_somewhere,
    _horovod_has_a_process_for_each_device,
)

_Test = Callable[['Params'], bool]
_UPDATE = (
    'init_learning_rate',
    'optimizer',
    'momentum',
    'rmsprop_decay',
    'rmsprop_momentum',
    'rmsprop_epsilon',
    'adam_beta1',
    'adam_beta2',
    'adam_epsilon',
    'weight_decay',
    'gradient_clip',
)
_PACKING = ('gradient_repacking', 'agg_small_grads_max_bytes', 'agg_small_grads_max_group')
_LOCAL_REDUCTION = ('all_reduce_spec', 'hierarchical_copy', 'network_topology')
_REDUCTION = (*_LOCAL_REDUCTION, *_PACKING)
_CLUSTER = (
    'cross_replica_sync',
    'compact_gradient_transfer',
    'num_ps',
    'cluster_port',
    'connect_timeout_secs',
    'peer_timeout_secs',
    'ps_linger_secs',
    'distinct_worker_data',
)
_CHECKPOINTS = ('save_model_secs', 'save_model_steps', 'max_ckpts_to_keep')
# By one of these a process learns of a cluster without host flags.
_CLUSTER_VARIABLES = ('TF_CONFIG', 'SLURM_STEP_ID', 'OMPI_COMM_WORLD_RANK', 'PMIX_RANK')


def _is_alone(params: 'Params') -> bool:
    """Whether nothing speaks of other processes."""
    if params.variable_update == 'horovod':
        return False
    return not (params.ps_hosts or params.worker_hosts or any(name in os.environ for name in _CLUSTER_VARIABLES))


# Flags, when they have no effect, and why. Of the rows that are true of a flag, the first one is told.
_IDLE: tuple[tuple[tuple[str, ...], _Test, str], ...] = (
    ((*_UPDATE, *_REDUCTION), lambda p: p.forward_only, '--forward_only updates no variables'),
    (('loss_type_to_report',), lambda p: p.forward_only, '--forward_only computes no weight decay, the losses are one'),
    (('print_training_accuracy',), lambda p: p.forward_only, '--forward_only prints the accuracy anyway'),
    (('distortions',), lambda p: p.forward_only, '--forward_only takes images as they are'),
    (
        ('augmentation', 'distortions', 'resize_method'),
        lambda p: p.data_dir is None,
        'images are synthetic without --data_dir',
    ),
    (('momentum',), lambda p: p.optimizer != 'momentum', 'it belongs to --optimizer=momentum'),
    (
        ('rmsprop_decay', 'rmsprop_momentum', 'rmsprop_epsilon'),
        lambda p: p.optimizer != 'rmsprop',
        'it belongs to --optimizer=rmsprop',
    ),
    (('adam_beta1', 'adam_beta2', 'adam_epsilon'), lambda p: p.optimizer != 'adam', 'it belongs to --optimizer=adam'),
    (_CLUSTER, _is_alone, 'it belongs to clusters, and this process is alone'),
    (
        ('num_ps', 'cluster_port'),
        lambda p: bool(p.ps_hosts or p.worker_hosts),
        'the flags of the hosts say where the tasks are',
    ),
    (
        ('compact_gradient_transfer', 'cross_replica_sync', 'staged_vars'),
        lambda p: p.forward_only,
        '--forward_only updates no variables',
    ),
    (
        ('local_parameter_device',),
        lambda p: not _is_alone(p),
        'the variables of a cluster are on the CPUs of its parameter servers, or on the devices of the towers',
    ),
    (('horovod_device',), lambda p: p.variable_update != 'horovod', 'it belongs to --variable_update=horovod'),
    (_LOCAL_REDUCTION, lambda p: p.variable_update != 'replicated', 'it belongs to --variable_update=replicated'),
    (
        _PACKING,
        lambda p: p.variable_update != 'replicated' and _is_alone(p),
        'it belongs to --variable_update=replicated, and to clusters',
    ),
    (
        _REDUCTION,
        lambda p: p.num_gpus == 1 and _is_alone(p),
        'with --num_gpus=1 there is one gradient, and nothing to sum',
    ),
    (('network_topology',), lambda p: not p.hierarchical_copy, 'it belongs to --hierarchical_copy'),
    (
        ('agg_small_grads_max_group',),
        lambda p: not p.agg_small_grads_max_bytes,
        'gradients are summed together with --agg_small_grads_max_bytes above 0 only',
    ),
    (
        ('local_parameter_device',),
        lambda p: p.variable_update == 'independent',
        'with --variable_update=independent each device keeps its own variables',
    ),
    (
        ('local_parameter_device',),
        lambda p: p.variable_update == 'replicated' and bool(p.all_reduce_spec or p.hierarchical_copy),
        'with --variable_update=replicated it only says where gradients are summed, and another flag says that already',
    ),
    (('allow_growth', 'gpu_memory_frac_for_testing'), lambda p: p.device == 'cpu', 'the run is on the CPU'),
    (('use_chrome_trace_format',), lambda p: p.trace_file is None, 'it belongs to --trace_file'),
    (('save_summaries_steps',), lambda p: not p.summary_verbosity, '--summary_verbosity=0 writes no summaries'),
    (('summary_verbosity',), lambda p: not p.save_summaries_steps, '--save_summaries_steps=0 writes no summaries'),
    (
        ('train_dir',),
        lambda p: p.forward_only and not (p.save_summaries_steps and p.summary_verbosity),
        '--forward_only saves no checkpoints, and summaries need --save_summaries_steps and --summary_verbosity',
    ),
    (_CHECKPOINTS, lambda p: p.train_dir is None, 'checkpoints are saved with --train_dir only'),
    (_CHECKPOINTS, lambda p: p.forward_only, '--forward_only saves no checkpoints'),
)


def find_idle(params: 'Params', as_written: Mapping[str, str]) -> list[str]:
    """One line for each flag that was given and has no effect.

    Args:
      as_written: the flags that were given, by name, each as it was written. One that leaves off what is off by default
        (--nodistortions) asks for nothing and is passed over.
    """
    defaults = type(params)()
    lines = []
    for name, written in as_written.items():
        value = getattr(params, name)
        if not value and value == getattr(defaults, name):
            continue
        reasons = (reason for names, is_idle, reason in _IDLE if name in names and is_idle(params))
        if reason := next(reasons, None):
            lines.append(f'{written} has no effect: {reason}')
    return lines


def check_inputs(params: 'Params') -> None:
    """Proves that the data folder holds the files of the run; raises UsageError if not."""
    if params.data_dir is not None:
        # Here, since NumPy need not be there to parse a command line.
        from data_folder import find_data

        find_data(params)


def check_outputs(params: 'Params') -> None:
    """Proves that the files of the run can be written; leaves existing ones as they are, and makes --train_dir.

    Raises:
      UsageError: one cannot, with the flag, the path and the reason.
    """
    for name in _FILES:
        if path := getattr(params, name):
            with _told_of(name, path):
                _try_file(Path(path))
    if prefix := params.partitioned_graph_file_prefix:
        with _told_of('partitioned_graph_file_prefix', prefix):
            _try_folder(Path(f'{prefix}0').parent)
    if params.train_dir:
        with _told_of('train_dir', params.train_dir):
            Path(params.train_dir).mkdir(parents=True, exist_ok=True)
            _try_folder(Path(params.train_dir))


@contextlib.contextmanager
def _told_of(name: str, path: str) -> Iterator[None]:
    if '://' in path:
        raise UsageError(f'{spelled(name, path)}: only files of this machine can be written; write a local path')
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f'{spelled(name, path)}: a file is where a folder must be; write another path') from None
    except OSError as error:
        folder = Path(path).parent
        if name != 'train_dir' and not folder.exists():
            raise UsageError(f'{spelled(name, path)}: there is no folder {folder}; make it first') from None
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f'{spelled(name, path)}: it cannot be written ({reason}); write another path') from None


def _try_file(path: Path) -> None:
    # What is made, and taken away again, is the file that a symbolic link names, not the link.
    file = path.resolve()
    existed = file.exists()
    # Appending nothing leaves the content as it is.
    file.open('ab').close()
    if not existed:
        file.unlink()


def _try_folder(folder: Path) -> None:
    # Gone as soon as it is closed.
    tempfile.TemporaryFile(dir=folder).close()

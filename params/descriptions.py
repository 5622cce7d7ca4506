"""Describes each flag in words, from the tables of flags, for help FLAG and the page of flags. No TensorFlow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from errors import UsageError, nearest, spelled
from params.all_rules import reasons_of_idleness
from params.original import TABLE, Fate, OriginalFlag
from params.shared_flags import flags_to_agree_on
from params.spec import FlagSpec
from params.table import SPECS, Params

_GROUPS = {
    Fate.RENAMED: 'Other names of flags',
    Fate.NO_EFFECT: 'Flags of the original without an effect here',
    Fate.REFUSED: 'Flags of the original that are refused',
}
_OF_OTHERS = 'only older versions, or versions of others, have it'

# The meaning in the original program of each flag that is not among ours: of its last version ...
MEANINGS: Mapping[str, str] = {
    'allreduce_merge_scope': 'How many neighbouring gradients of a collective all-reduce may be merged into one.',
    'batch_group_size': 'How many batches the threads of the input prepare together.',
    'collect_eval_results_async': 'Collect the accuracies of evaluations while the next batches are computed.',
    'compute_lr_on_cpu': 'Compute the learning rate on the CPU.',
    'debugger': 'Run the steps in the debugger of TensorFlow: in a terminal, or in a TensorBoard at HOST:PORT.',
    'fuse_decode_and_crop': 'Decode only the part of a JPEG that a random crop keeps.',
    'mkl': 'Say that TensorFlow was built with MKL, so that the settings of OpenMP are passed on.',
    'sparse_to_dense_grads': 'Convert sparse gradients to dense ones.',
    'trt_max_workspace_size_bytes': 'Memory that TensorRT may use.',
    'trt_mode': 'Convert the frozen graph of --forward_only by TensorRT, to compute in this precision.',
    'use_datasets': 'Read images by tf.data instead of RecordInput.',
    'use_fp16': 'Compute in 16 bits: --use_fp16 is --precision=fp16.',
    'use_python32_barrier': 'Let threads that prepare batches wait for each other in Python.',
    'use_resource_vars': 'Make resource variables instead of reference variables.',
    'use_tf_layers': 'Make layers by tf.layers instead of own code.',
    'xla_compile': 'Compile the model by XLA: --xla_compile is --xla.',
}
# ... and of older versions, and versions in other repositories.
OF_OTHER_VERSIONS: Mapping[str, str] = {
    'cache_data': 'Read one record, and repeat it from memory.',
    'datasets_prefetch_threadpool_size': 'Threads that prepare batches.',
    'enable_layout_optimizer': 'Let TensorFlow choose the order of the axes of images.',
    'flush_stdout': 'Write each line as soon as it is printed.',
    'gpu_pending_cap': 'How many kernels may be queued on a GPU at a time.',
    'iters_per_step': 'How many steps one call of the session takes.',
    'learning_rate': 'The learning rate: --learning_rate is --init_learning_rate.',
    'log_dir': 'Folder for logs.',
    'ml_perf_compliance_logging': 'Print the log lines that the rules of MLPerf ask for.',
    'pretrain_dir': 'Folder with the checkpoint from which training starts.',
    'result_storage': 'Where to store the result of the run.',
    'use_data_sets': 'Read images by tf.data.',
    'use_multi_device_iterator': 'Hand batches of tf.data to all devices by one iterator.',
    'use_nccl': 'Sum gradients by NCCL: --use_nccl is --all_reduce_spec=nccl.',
}
# Flags that work here although only those other versions have them.
WORKING_OF_OTHER_VERSIONS = ('log_device_placement',)
# How a flag that works differs in the original, besides its default.
DIFFERENCES: Mapping[str, str] = {
    'all_reduce_spec': 'workers that sum among themselves need collective there; here they do so without it, too',
    'eval': 'by default there it evaluates as many batches as training takes, here each validation image once',
    'gpu_indices': 'there it only orders the ring of --all_reduce_spec',
    'model': 'equal names mean equal cost; docs/models.md lists the differences between the networks',
    'resize_method': 'there resizing samples the corners of pixels, here their centres',
    'server_protocol': 'TensorFlow had grpc+verbs and others then',
    'variable_update': (
        'there, towers of one process that each have all variables take steps by the sum of their gradients, here by '
        'the mean in every mode; docs/training.md has the learning rate that takes the same steps'
    ),
    'weight_decay': 'there biases decay, too',
}


@dataclass(frozen=True)
class FlagDescription:
    """The description of one flag.

    Attributes:
      name: its name without dashes.
      group: its heading in --help; for flags of the original that are not ours, a heading of _GROUPS.
      usage: how it is written.
      meaning: what it means, in sentences.
      fate: what becomes of the flag if the last version of the original has it, else None.
      facts: further facts that apply, each a title and a text: its values, its default, when it has no effect, ...
      choices: the only values that it takes, if these are few.
    """

    name: str
    group: str
    usage: str
    meaning: str
    fate: Fate | None
    facts: Mapping[str, str]
    choices: tuple[str, ...] = ()


def describe_flag(name: str, others: Iterable[str] = ()) -> FlagDescription:
    """Describes a flag of ours or of the original.

    Args:
      name: with or without dashes in front; --noNAME is the switch NAME.
      others: other names that help accepts, which an error may suggest.

    Raises:
      UsageError: there is no such flag.
    """
    plain = _plain(name)
    if plain in SPECS:
        return _of_ours(SPECS[plain])
    if plain in TABLE:
        return _of_original(TABLE[plain])
    near = nearest(plain, [*SPECS, *TABLE, *others])
    hint = f'did you mean --help={near}?' if near else '--help lists all flags'
    raise UsageError(f'{spelled("help", name)}: there is no such flag or subcommand; {hint}')


def is_known(name: str) -> bool:
    """Whether there is a flag of this name, which is read as by describe_flag."""
    plain = _plain(name)
    return plain in SPECS or plain in TABLE


def describe_all_flags() -> list[FlagDescription]:
    """Describes all flags: ours in the order of --help, then the original's other flags by fate and by name."""
    others = [_of_original(row) for name, row in TABLE.items() if name not in SPECS]
    order = list(_GROUPS.values())
    others.sort(key=lambda flag: (order.index(flag.group), flag.name))
    return [*map(_of_ours, SPECS.values()), *others]


def usage_of(spec: FlagSpec) -> str:
    """Returns how a flag is written: --[no]eval, --batch_size=VALUE."""
    return f'--[no]{spec.name}' if spec.type is bool else f'--{spec.name}=VALUE'


def value_of(spec: FlagSpec) -> str:
    """Returns the values that a flag takes, in words."""
    takes = 'switch' if spec.type is bool else spec.expects
    return f'{takes}, in {spec.unit}' if spec.unit else takes


def default_of(spec: FlagSpec) -> str | None:
    """Returns the default as written on a command line; None if the run chooses it, or there is none."""
    if spec.default is None:
        return None
    return str(spec.default).lower() if spec.type is bool else str(spec.default)


def _plain(name: str) -> str:
    plain = name.lstrip('-').partition('=')[0]
    positive = plain.removeprefix('no')
    return positive if plain not in SPECS and plain not in TABLE and (positive in SPECS or positive in TABLE) else plain


def _of_ours(spec: FlagSpec) -> FlagDescription:
    facts = {'Value': value_of(spec)}
    if (default := default_of(spec)) is not None:
        facts['Default'] = default
    if reasons := reasons_of_idleness(spec.name):
        facts['No effect'] = '; '.join(reasons)
    if spec.name in flags_to_agree_on(Params(), serves=False):
        facts['Clusters'] = 'all processes need the same value'
    in_last_version = spec.name in TABLE and spec.name not in WORKING_OF_OTHER_VERSIONS
    if in_last_version:
        differences = [DIFFERENCES.get(spec.name)]
        if spec.original is not None:
            differences.insert(0, f'its default is {spec.original}')
        facts['Original'] = '; '.join(filter(None, ['works', *differences]))
    else:
        facts['Original'] = _OF_OTHERS if spec.name in TABLE else 'has no such flag'
    fate = Fate.WORKS if in_last_version else None
    return FlagDescription(spec.name, spec.group, usage_of(spec), spec.help, fate, facts, spec.choices or ())


def _of_original(row: OriginalFlag) -> FlagDescription:
    spec = row.spec
    in_last_version = spec.name in MEANINGS
    facts = {'Value': value_of(spec)}
    if row.fate is Fate.RENAMED:
        facts['Here'] = f'works, as another name of --{row.says}'
    elif row.fate is Fate.REFUSED:
        facts['Here'] = f'is refused: {row.says}'
    else:
        facts['Here'] = f'has no effect, and a warning says so: {row.says}'
    if row.silent is not None:
        facts['Accepted'] = f'{spelled(spec.name, row.silent)} brings no warning'
    facts['Original'] = 'the last version has it' if in_last_version else _OF_OTHERS
    meaning = MEANINGS[spec.name] if in_last_version else OF_OTHER_VERSIONS[spec.name]
    fate = row.fate if in_last_version else None
    return FlagDescription(spec.name, _GROUPS[row.fate], usage_of(spec), meaning, fate, facts, spec.choices or ())

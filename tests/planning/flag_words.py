"""Words that people could write on a command line: right ones, wrong ones, odd ones, from the tables of flags."""

import json
from collections.abc import Iterator, Mapping

from params.older_names import OLDER_NAMES
from params.original import TABLE
from params.spec import FlagSpec
from params.table import SPECS

ALL_FLAGS: Mapping[str, FlagSpec] = {**{name: row.spec for name, row in TABLE.items()}, **OLDER_NAMES, **SPECS}

# Values of flags whose texts have a special form. 'folder' and 'file' are a folder and a file of the test.
_TEXTS: Mapping[str, tuple[str, ...]] = {
    'model': ('trivial', 'lenet', 'resnet20', 'resnet50', 'mobilenet'),
    'all_reduce_spec': ('pscpu', 'psgpu#2', 'xring', 'pscpu:32k:xring', 'nccl', 'nccl/xring', 'collective', 'pscpu:2'),
    'gpu_indices': ('0', '0,1', '1,1', '-1', 'a'),
    'profile_steps': ('1,2', '2,2', '3,900', '2,1', '1'),
    'piecewise_learning_rate_schedule': ('0.3;10;0.2', '0.1', '1;2', '0.1;20;0.2;10;0.3'),
    'eval_during_training_at_specified_steps': ('1,3', '0', '1,,2'),
    'eval_during_training_at_specified_epochs': ('0.5,1', '-1'),
    'rewriter_config': ('remapping: OFF', 'remapping: 7', '{'),
    'server_protocol': ('grpc', 'grpc+verbs'),
    'ps_hosts': ('127.0.0.1:2222', '127.0.0.1:2222,127.0.0.1:2223', ',', 'a', 'host:99999'),
    'worker_hosts': ('127.0.0.1:3222', '127.0.0.1:3222,127.0.0.1:3223', '127.0.0.1:2222', ':1', 'a:b'),
    'controller_host': ('127.0.0.1:4222', '127.0.0.1:4222,127.0.0.1:4223'),
    'result_file': ('-', '{model}-{batch_size}-{time}.json', '{nonsense}.json', 'result.json'),
    'input_preprocessor': ('default', 'test_preprocessor'),
}
_PATHS = (*('out', 'out/deeper/path', 'folder', 'folder/new', 'file', '/dev/null/x', '~/out', '~nobody/x', 'a*b', '.'),)
_PATHS_TO_READ = ('folder', 'file', '/no/such', '~/none', 'caf\udce9')
_READ = ('data_dir', 'model_file', 'backbone_model_path')
# Values that nearly no flag takes.
_ODD = (
    *('', "''", '""', ' ', 'nan', 'inf', '-inf', '1e999', '-1', '0x10', '99999999999999999999', '1.5', '٣', '½', '+1'),
    *(
        'None',
        'ü',
        '日本',
        'a\nb',
        'a\x1b[2Jb',
        '\x7f',
        '\u2028',
        '-',
        '--',
        '=',
        '--x=y',
        '%s{}',
        "'",
        '"',
        'x' * 5000,
    ),
)
# Words that are not flags of the program.
STRANGE = (
    *(
        '',
        '-',
        '--',
        '---',
        '--=',
        '--=3',
        '-=',
        'stray',
        '64',
        '--bogus',
        '--bogus=3',
        '--bogus 3',
        '-x',
        '--no',
        '--nono',
    ),
    *('--nobatch_size', '--batch-size=3', '--Batch_Size=3', '--batchsize=2', '--batch_size', '--flagfile=/no/such'),
    *(
        '--flagfile',
        '--flagfile=',
        '--flagfile=file',
        '--undefok=bogus',
        '--undefok',
        '--model',
        '--ünïcode=1',
        '--a\nb=1',
    ),
)


def right_words() -> list[str]:
    """Returns flags with allowed values."""
    return [word for spec in ALL_FLAGS.values() for word in _right(spec)]


def wrong_words() -> list[str]:
    """Returns flags with values of another type, out of bounds, or odd; some flags accept them."""
    words = [*STRANGE]
    for spec in ALL_FLAGS.values():
        words += (f'--{spec.name}={value}' for value in _ODD)
        if spec.type is bool:
            words += (f'--no{spec.name}=1', f'--{spec.name}=maybe', f'-no{spec.name}')
        for bound, step in ((spec.lower_bound, -1), (spec.upper_bound, 1)):
            if bound is not None:
                words.append(f'--{spec.name}={int(bound + step)}')
    return words


def _right(spec: FlagSpec) -> Iterator[str]:
    if spec.type is bool:
        # XLA stays off, since the plan tries it out, which takes time.
        forms = ('no{}', '{}=False') if spec.name in ('xla', 'xla_compile') else ('{}', 'no{}', '{}=True', '{}=f')
        yield from (f'--{form.format(spec.name)}' for form in forms)
    elif spec.choices:
        yield from (f'--{spec.name}={choice}' for choice in spec.choices)
    elif spec.type is str:
        paths = _PATHS_TO_READ if spec.name in _READ else _PATHS
        yield from (f'--{spec.name}={text}' for text in _TEXTS.get(spec.name, paths))
    else:
        low = 0 if spec.lower_bound is None else spec.lower_bound
        high = low + 3 if spec.upper_bound is None else spec.upper_bound
        kind = spec.type
        values = {kind(low), kind(low + 1), kind(high)} if spec.type is int else {low, (low + high) / 2, high}
        yield from (f'--{spec.name}={value}' for value in sorted(values))
    if spec.default is not None:
        yield f'--{spec.name}={spec.default}'


def _tf_config(**changes: object) -> dict[str, str]:
    hosts = {'worker': ['127.0.0.1:5222', '127.0.0.1:5223'], 'ps': ['127.0.0.1:5224']}
    return {'TF_CONFIG': json.dumps({'cluster': hosts, 'task': {'type': 'worker', 'index': 0}, **changes})}


def _slurm(**changes: str) -> dict[str, str]:
    return {
        'SLURM_JOB_ID': '1207',
        'SLURM_PROCID': '1',
        'SLURM_LOCALID': '1',
        'SLURM_NODEID': '0',
        'SLURM_STEP_ID': '0',
        'SLURM_STEP_NODELIST': '127.0.0.1',
        'SLURM_STEP_NUM_NODES': '1',
        'SLURM_STEP_NUM_TASKS': '3',
        'SLURM_STEP_TASKS_PER_NODE': '3',
        **changes,
    }


def _open_mpi(**changes: str) -> dict[str, str]:
    names = ('RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE')
    values = dict(zip(names, ('1', '3', '1', '3'), strict=True))
    return {f'OMPI_COMM_WORLD_{name}': value for name, value in {**values, **changes}.items()}


# Environments of a process, right and malformed.
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    _tf_config(),
    _tf_config(task={'type': 'ps', 'index': 0}),
    _tf_config(task={'type': 'worker', 'index': 7}),
    _tf_config(task={'type': 'evaluator', 'index': 0}),
    _tf_config(task={'type': 'nonsense', 'index': 0}),
    _tf_config(task=None),
    _tf_config(cluster={}),
    _tf_config(cluster={'worker': 'x'}),
    _tf_config(cluster={'worker': [3]}),
    *({'TF_CONFIG': text} for text in ('', '{}', '[]', 'null', '3', '{"cluster":', 'x', '\x00', '[' * 10_000)),
    _slurm(),
    _slurm(SLURM_PROCID='0', SLURM_LOCALID='0'),
    *(_slurm(SLURM_PROCID=text) for text in ('', 'x', '-1', '99')),
    *(_slurm(SLURM_STEP_NODELIST=text) for text in ('', 'a[', 'a[1-999999999]', 'a[1-3]')),
    *(_slurm(SLURM_STEP_TASKS_PER_NODE=text) for text in ('', '1', '9(x9)', 'x')),
    _open_mpi(),
    _open_mpi(RANK='0', LOCAL_RANK='0'),
    *(_open_mpi(RANK=text) for text in ('', 'x', '-1', '9')),
    *(_open_mpi(SIZE=text) for text in ('', 'x', '0', '1')),
    {'PMIX_RANK': '0'},
    {'PMIX_RANK': '1'},
    {'PMIX_RANK': 'x'},
    {'CUDA_VISIBLE_DEVICES': '0,0'},
    {'KMP_BLOCKTIME': '7', 'TF_GPU_THREAD_MODE': 'global'},
)

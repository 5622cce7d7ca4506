"""Each working flag of the original has an effect: a row of a table compares two runs, without
and with the flag, or another file of tests holds the effect.

A row has the flag, the property to compare, and the other flags of both runs. If these name the
folders SAVED (a finished training), CIFAR or SHARDS (images in two kinds of files), the working
directory has them.
"""

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.step.gpu_graphs import build_on_gpus
from tests.support.files import quoted
from tests.support.images import write_cifar, write_noise
from tests.support.runs import make_benchmark, params_of
from tf_cnn.inputs.layout import shard_name
from tf_cnn.machine.tensorflow_build import TensorFlowBuild
from tf_cnn.machine.this_process import THIS_PROCESS, ProcessEnvironment, ThisProcess
from tf_cnn.plan.devices import Devices
from tf_cnn.plan.original_flags import TABLE, Status
from tf_cnn.plan.parsing import split_argv
from tf_cnn.plan.plan import make_plan
from tf_cnn.plan.process_settings import Threads
from tf_cnn.plan.session_config import session_config
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.graph

SMALL_RUN = (
    '--model=trivial --data_name=cifar10 --device=cpu --batch_size=4 --num_warmup_batches=1 '
    '--display_every=1'
)
WORKERS = '--worker_hosts=10.0.0.1:1,10.0.0.2:1 --job_name=worker --task_index=0'
SERVERS = f'{WORKERS} --ps_hosts=10.0.0.3:1'
CONTROLLED = f'{WORKERS} --variable_update=distributed_all_reduce'
# These tests need no network, only its gradients.
REPLICATED = '--variable_update=replicated --num_gpus=2 --exchange_only'
EVAL = '--eval --train_dir=SAVED --num_eval_batches=2'
FP16 = '--use_fp16 --fp16_enable_auto_loss_scale --train_dir=t'
RECORDS = '--data_dir=SHARDS --data_name=imagenet --model=trivial'
TF_DATA = f'{RECORDS} --use_datasets'
_GPUS = '0,1,2,3,4,5,6,7'


@functools.cache
def _folders() -> 'tempfile.TemporaryDirectory[str]':
    """Makes a folder with CIFAR, SHARDS and SAVED, which lasts until the process ends."""
    folder = tempfile.TemporaryDirectory()
    root = Path(folder.name)
    random = np.random.default_rng(1)
    for subset, count in (('train', 20), ('validation', 10)):
        images = random.integers(0, 256, [count, 32, 32, 3], np.uint8)
        write_cifar(root / 'CIFAR', images, random.integers(0, 10, count), subset)
    shards = root / 'SHARDS'
    shards.mkdir()
    write_noise(shards, 12)
    (shards / shard_name('train', 0, 1)).rename(shards / shard_name('train', 0, 2))
    shutil.copy(shards / shard_name('train', 0, 2), shards / shard_name('train', 1, 2))
    with _gpu_machine():
        saved = f'--train_dir={quoted(root)}/SAVED --init_learning_rate=0.5'
        make_benchmark(f'{SMALL_RUN} {saved}').run()
    return folder


@contextlib.contextmanager
def _gpu_machine(flags: str = '') -> Iterator[Path]:
    """Pretends that this process is new, and has OpenMP and 8 GPUs, which nothing opens.

    Yields the working directory, with the folders that the flags name.
    """

    def visible_gpus(kind: str) -> list[str]:
        return os.environ.get('CUDA_VISIBLE_DEVICES', _GPUS).split(',')

    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(tf.config, 'list_physical_devices', side_effect=visible_gpus),
        mock.patch.dict(os.environ),
        mock.patch.dict(vars(THIS_PROCESS), vars(ThisProcess())),
        mock.patch('tf_cnn.machine.visible_gpus.has_nvidia_gpu', return_value=True),
        mock.patch('tf_cnn.machine.tensorflow_build.tensorflow_build') as build,
    ):
        folder = Path(name)
        build.return_value = TensorFlowBuild(folder / 'tensorflow', None, None, ())
        (folder / 'tensorflow').mkdir()
        (folder / 'tensorflow' / 'libiomp5.so').touch()
        (folder / 'here').mkdir()
        os.environ.pop('CUDA_VISIBLE_DEVICES', None)
        # The driver's cache of kernels is in this folder.
        os.environ['HOME'] = name
        for word in re.findall('=(CIFAR|SHARDS|SAVED)', flags):
            shutil.copytree(Path(_folders().name) / word, folder / 'here' / word)
        with contextlib.chdir(folder / 'here'):
            yield folder / 'here'


def _plan(flags: str) -> Any:
    return make_plan(params_of(flags), ProcessEnvironment({'CUDA_VISIBLE_DEVICES': _GPUS}))


def check_effect(observe: Callable[[str], Any], flag: str, other_flags: str) -> None:
    """Asserts that a run with the flag differs from a run with only the other flags."""
    assert observe(other_flags) != observe(f'{other_flags} {flag}')


# ---- environment variables -----------------------------------------------------------------------

VARIABLES = [
    ('--autotune_threshold=3', 'TF_AUTOTUNE_THRESHOLD'),
    ('--gpu_indices=5,3', 'CUDA_VISIBLE_DEVICES'),
    ('--kmp_affinity=compact', 'KMP_AFFINITY'),
    ('--kmp_settings=1', 'KMP_SETTINGS'),
    ('--nosync_on_finish', 'TF_SYNC_ON_FINISH'),
    ('--nowinograd_nonfused', 'TF_ENABLE_WINOGRAD_NONFUSED'),
]


@pytest.mark.parametrize(('flag', 'variable'), VARIABLES)
def test_a_flag_changes_a_variable_that_tensorflow_reads(flag, variable):
    def value(flags: str) -> str | None:
        with _gpu_machine():
            THIS_PROCESS.apply(_plan(flags).session.process)
            return os.environ.get(variable)

    check_effect(value, flag, '--device=gpu')


# ---- plans ---------------------------------------------------------------------------------------

# Some of these take effect in other processes, or after hours.
PLANS = [
    ('--display_perf_ewma=0.9', 'params.run.display_perf_ewma', ''),
    ('--eval_during_training_at_specified_epochs=2', 'evaluations', ''),
    ('--eval_during_training_every_n_epochs=2', 'evaluations', ''),
    ('--eval_interval_secs=5', 'params.evaluation.eval_interval_secs', EVAL),
    ('--job_name=ps', '__class__', f'{SERVERS} --device=cpu'),
    ('--num_epochs=3', 'params.run.num_timed', SMALL_RUN),
    # TensorFlow alone binds the devices of a server.
    (
        '--use_numa_affinity',
        'session.config.experimental.use_numa_affinity',
        f'{CONTROLLED} --controller_host=10.0.0.9:1 --device=cpu',
    ),
    (
        '--worker_hosts=10.0.0.1:1,10.0.0.2:1,10.0.0.9:1',
        'cluster_role.num_training_tasks',
        f'{SERVERS} --device=cpu',
    ),
]


@pytest.mark.parametrize(('flag', 'path', 'other_flags'), PLANS)
def test_a_flag_changes_the_plan(flag, path, other_flags):
    def value(flags: str) -> Any:
        with _gpu_machine(flags):
            return attrgetter(path)(_plan(flags))

    check_effect(value, flag, other_flags)


CONFIGS = [
    ('--allow_growth', 'gpu_options.allow_growth'),
    ('--force_gpu_compatible', 'gpu_options.force_gpu_compatible'),
    ('--gpu_kt_max_bytes=3', 'gpu_options.experimental.kernel_tracker_max_bytes'),
    ('--gpu_kt_max_interval=3', 'gpu_options.experimental.kernel_tracker_max_interval'),
    ('--gpu_kt_max_pending=3', 'gpu_options.experimental.kernel_tracker_max_pending'),
    ('--gpu_memory_frac_for_testing=0.5', 'gpu_options.per_process_gpu_memory_fraction'),
    ('--log_device_placement', 'log_device_placement'),
    ('--timestamped_allocator', 'gpu_options.experimental.timestamped_allocator'),
    ('--use_unified_memory', 'gpu_options.experimental.use_unified_memory'),
    ('--xla_compile', 'graph_options.optimizer_options.global_jit_level'),
]


@pytest.mark.parametrize(('flag', 'path'), CONFIGS)
def test_a_flag_changes_the_config_of_sessions(flag, path):
    def value(flags: str) -> Any:
        devices, threads = Devices(('/cpu:0',), ('/cpu:0',)), Threads(0, 0, '')
        with _gpu_machine():
            config = session_config(params_of(flags), devices, threads, in_cluster=False)
        return attrgetter(path)(config)

    check_effect(value, flag, '--device=cpu --data_format=NHWC')


@pytest.mark.parametrize(
    ('refused', 'accepted'),
    [
        (CONTROLLED, f'{CONTROLLED} --controller_host=10.0.0.3:1'),
        (f'{SERVERS} --server_protocol=grpc+verbs', SERVERS),
    ],
)
def test_a_flag_of_clusters_decides_whether_the_run_is_refused(refused, accepted):
    with _gpu_machine(), pytest.raises(UsageError):
        _plan(f'--device=cpu {refused}')
    with _gpu_machine():
        assert _plan(f'--device=cpu {accepted}')


# ---- graphs --------------------------------------------------------------------------------------

# The property is a key of `graph`, or a type of ops, which are counted by kind of device.
GRAPHS = [
    ('--agg_small_grads_max_bytes=1048576', 'work', REPLICATED),
    ('--agg_small_grads_max_group=2', 'work', f'{REPLICATED} --agg_small_grads_max_bytes=1048576'),
    ('--all_reduce_spec=nccl', 'work', REPLICATED),
    ('--batch_size=7', 'images of a step', ''),
    ('--compact_gradient_transfer', 'Cast', REPLICATED),
    ('--nocross_replica_sync', 'work', SERVERS),
    ('--data_format=NHWC', 'layouts', '--model=lenet'),
    ('--data_name=cifar10', 'work', '--model=alexnet'),
    ('--datasets_sloppy_parallel_interleave', 'data sets', TF_DATA),
    ('--nodatasets_use_prefetch', 'data sets', TF_DATA),
    ('--data_dir=CIFAR', 'work', ''),
    ('--device=cpu', 'devices', ''),
    ('--nodistort_color_in_yiq', 'MatMul', '--data_dir=CIFAR --distortions'),
    ('--distortions', 'work', '--data_dir=CIFAR'),
    ('--forward_only', 'work', ''),
    ('--fp16_enable_auto_loss_scale', 'work', '--use_fp16'),
    ('--fp16_vars', 'types of variables', '--use_fp16'),
    ('--freeze_when_forward_only', 'work', '--forward_only'),
    ('--gradient_clip=1e-3', 'work', ''),
    ('--gradient_repacking=2', 'work', REPLICATED),
    ('--hierarchical_copy', 'links', f'{REPLICATED} --num_gpus=8'),
    ('--local_parameter_device=cpu', 'places of variables', ''),
    ('--model=alexnet', 'work', ''),
    ('--network_topology=gcp_v100', 'links', f'{REPLICATED} --num_gpus=8 --hierarchical_copy'),
    ('--num_gpus=2', 'devices', ''),
    ('--optimizer=adam', 'work', ''),
    ('--ps_hosts=10.0.0.3:1,10.0.0.4:1', 'places of variables', SERVERS),
    ('--resize_method=area', 'ResizeArea', '--data_dir=SHARDS --data_name=imagenet'),
    ('--staged_vars', 'Stage', ''),
    ('--task_index=1', 'devices', SERVERS),
    ('--tf_random_seed=5', 'seeds', ''),
    ('--use_datasets', 'data sets', RECORDS),
    ('--use_fp16', 'Cast', ''),
    ('--use_nccl', 'work', REPLICATED),
    ('--variable_consistency=relaxed', 'work', REPLICATED),
    ('--variable_update=replicated', 'places of variables', '--num_gpus=2'),
]


@functools.cache
def graph(flags: str) -> dict[str, Any]:
    """Returns the properties of the graph of a run on GPUs."""
    with _gpu_machine(flags):
        values: dict[str, Any] = {'num_gpus': 1, 'model': 'trivial', **split_argv(flags.split())}
        values['num_gpus'] = int(values['num_gpus'])
        gpu_graph = build_on_gpus(**values)
    ops = gpu_graph.graph.get_operations()
    variables = [op for op in ops if op.type == 'VarHandleOp']
    losses = gpu_graph.of_type('SparseSoftmaxCrossEntropyWithLogits')
    constants = defaultdict(set)
    for op in gpu_graph.step:
        if op.type.startswith('ResourceApply'):
            for arg, value in zip(op.op_def.input_arg, op.inputs, strict=True):
                if value.op.type == 'Const':
                    constants[arg.name].add(float(tf.get_static_value(value)))
    counts: dict[str, Any] = defaultdict(Counter)
    definition = gpu_graph.graph.as_graph_def()
    functions = [node for function in definition.library.function for node in function.node_def]
    for node in [*definition.node, *functions]:
        counts[node.op][re.sub(r'\d+$', '', node.device)] += 1
    return {
        **counts,
        'work': Counter(op.type for op in gpu_graph.step),
        'devices': {op.device for op in gpu_graph.step},
        'places of variables': Counter(op.device for op in variables),
        'types of variables': Counter(op.node_def.attr['dtype'].type for op in variables),
        'constants of updates': constants,
        'layouts': {op.get_attr('data_format') for op in gpu_graph.of_type('Conv2D')},
        'images of a step': [int(op.inputs[0].shape[0]) for op in losses],
        'seeds': {op.get_attr('seed') for op in ops if 'seed' in op.node_def.attr},
        'links': {
            (value.device, op.device)
            for op in gpu_graph.step
            for value in op.inputs
            if value.device != op.device
        },
        # Types, integer inputs and settings.
        'data sets': sorted(
            (
                op.type,
                [repr(tf.get_static_value(value)) for value in op.inputs if value.dtype.is_integer],
                [repr(op.node_def.attr[name]) for name in ('deterministic', 'serialized_options')],
            )
            for op in ops
            if 'Dataset' in op.type
        ),
    }


@pytest.mark.long
@pytest.mark.parametrize(('flag', 'name', 'other_flags'), GRAPHS)
def test_a_flag_changes_the_graph(flag, name, other_flags):
    check_effect(lambda flags: graph(flags).get(name), flag, other_flags)


# The constants of updates, by their names in TensorFlow, and the flags that change them.
OPTIMIZERS = {
    'adam': {
        'beta1': '--adam_beta1=0.25',
        'beta2': '--adam_beta2=0.5',
        'epsilon': '--adam_epsilon=0.125',
    },
    'momentum': {'momentum': '--momentum=0.25'},
    'rmsprop': {
        'rho': '--rmsprop_decay=0.25',
        'momentum': '--rmsprop_momentum=0.5',
        'epsilon': '--rmsprop_epsilon=0.125',
    },
}


@pytest.mark.long
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_flags_set_the_constants_of_updates(optimizer):
    flags = OPTIMIZERS[optimizer]
    constants = graph(f'--optimizer={optimizer} {" ".join(flags.values())}')['constants of updates']
    assert constants == {name: {float(flag.split('=')[1])} for name, flag in flags.items()}


# ---- runs ----------------------------------------------------------------------------------------

RUNS = [
    ('--fp16_inc_loss_scale_every_n=1', 'loss scale', FP16),
    ('--fp16_loss_scale=4', 'loss scale', FP16),
    ('--max_ckpts_to_keep=1', 'files', '--train_dir=t'),
    ('--save_model_secs=1e-6', 'files', '--train_dir=t'),
]


@functools.cache
def run(flags: str) -> dict[str, Any]:
    """Returns the names of the files of a run, and its last loss scale."""
    with _gpu_machine() as folder:
        make_benchmark(f'{SMALL_RUN} {flags}').run()
        has_scale = '--fp16_enable_auto_loss_scale' in flags
        return {
            'files': {str(path.relative_to(folder)) for path in folder.rglob('*')},
            'loss scale': has_scale and tf.train.load_variable('t', 'loss_scale/scale'),
        }


@pytest.mark.long
@pytest.mark.parametrize(('flag', 'name', 'other_flags'), RUNS)
def test_a_flag_changes_the_run(flag, name, other_flags):
    check_effect(lambda flags: run(flags)[name], flag, other_flags)


# ---- the tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize('flags', [TF_DATA, REPLICATED])
def test_two_graphs_with_the_same_flags_are_the_same(flags):
    assert graph(flags) == graph.__wrapped__(flags)


def test_two_runs_with_the_same_flags_are_the_same():
    assert run(FP16) == run.__wrapped__(FP16)


# The flags with an effect that other tests hold, by the file of these tests.
ELSEWHERE = {
    'inputs/test_record_pipelines.py': """
        datasets_num_private_threads datasets_parallel_interleave_cycle_length
        datasets_parallel_interleave_prefetch datasets_prefetch_buffer_size
        datasets_repeat_cached_sample datasets_use_caching multi_device_iterator_max_buffer_size
        """,
    'distributed/test_horovod.py': 'horovod_device',
    'flags/test_original_flags.py': 'learning_rate',
    'plan/test_devices.py': 'xla',
    'plan/test_gpu_settings.py': """
        batchnorm_persistent gpu_thread_mode num_inter_threads num_intra_threads
        per_gpu_thread_count
        """,
    'plan/test_onednn.py': 'mkl',
    'plan/test_tensorflow_settings.py': 'enable_optimizations kmp_blocktime rewriter_config',
    'run/test_evaluation.py': """
        eval eval_batch_size eval_dir eval_during_training_at_specified_steps
        eval_during_training_every_n_steps num_eval_batches num_eval_epochs stop_at_top_1_accuracy
        """,
    'run/test_training_data.py': 'input_preprocessor ml_perf',
    'run/test_instruments.py': """
        benchmark_log_dir benchmark_test_id graph_file partitioned_graph_file_prefix
        print_training_accuracy save_summaries_steps summary_verbosity tfprof_file trace_file
        use_chrome_trace_format
        """,
    'run/test_run_state.py': 'train_dir',
    'run/test_whole_runs.py': 'display_every num_batches num_warmup_batches save_model_steps',
    'step/test_step_graph.py': 'loss_type_to_report single_l2_loss_op weight_decay',
    'training/test_backbone.py': 'backbone_model_path',
    'training/test_schedules.py': """
        init_learning_rate learning_rate_decay_factor minimum_learning_rate
        num_epochs_per_decay num_learning_rate_warmup_epochs piecewise_learning_rate_schedule
        resnet_base_lr
        """,
}


def test_each_working_flag_of_the_original_has_a_row():
    rows = [*VARIABLES, *PLANS, *CONFIGS, *GRAPHS, *RUNS]
    flags = [flag for flag, *_ in rows]
    flags += [flag for constants in OPTIMIZERS.values() for flag in constants.values()]
    walked = {'controller_host', 'server_protocol', *' '.join(ELSEWHERE.values()).split()}
    for flag in flags:
        walked |= split_argv([flag]).keys()
    works = (Status.WORKS, Status.RENAMED)
    assert walked == {name for name, row in TABLE.items() if row.status in works}

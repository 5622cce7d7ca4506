"""Each flag of the original that works here changes what it should: one row for each, compared
without and with it.

To add a flag: a row with a value, and what to look at under which other flags. A look takes the
flags of a run and returns what it observes of a real run, a graph, a plan, session settings or the
environment. In the values of flags
these words stand for folders: DIR for an empty one, SAVED for a copy of the folder of a finished
training, CIFAR and SHARDS for images in the two kinds of files.
"""

import contextlib
import functools
import io
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from tests.support.gpu_graphs import GpuGraph, Horovod, build_on_gpus
from tests.support.graphs import open_session
from tests.support.images import write_cifar, write_noise
from tf_cnn.graph.onednn import ONEDNN_VARIABLE
from tf_cnn.inputs.layout import shard_name
from tf_cnn.machine.process_environment import ProcessEnvironment
from tf_cnn.machine.process_settings import Threads
from tf_cnn.machine.tensorflow_build import TensorFlowBuild
from tf_cnn.machine.this_process import THIS_PROCESS, ThisProcess
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result, as_float
from tf_cnn.results.statistics import summarize
from tf_cnn.run.devices import Devices
from tf_cnn.run.original_flags import TABLE, Status
from tf_cnn.run.parsing import make_params
from tf_cnn.run.plan import Plan, ServerPlan, make_plan
from tf_cnn.run.session_config import session_config
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.graph

Flags = Mapping[str, Any]
Look = Callable[[Flags], Any]

SMALL_RUN: Flags = {
    'model': 'trivial',
    'data_name': 'cifar10',
    'device': 'cpu',
    'batch_size': 4,
    'num_batches': 3,
    'num_warmup_batches': 1,
    'display_every': 1,
}
WORKERS: Flags = {'worker_hosts': '10.0.0.1:1,10.0.0.2:1', 'job_name': 'worker', 'task_index': 0}
SERVERS: Flags = {**WORKERS, 'ps_hosts': '10.0.0.3:1'}
_GPUS = '0,1,2,3,4,5,6,7'


@functools.cache
def _made() -> 'tempfile.TemporaryDirectory[str]':
    """Makes a folder with CIFAR, SHARDS and SAVED, which is removed when the process ends."""
    folder = tempfile.TemporaryDirectory()
    root = Path(folder.name)
    random = np.random.default_rng(1)
    for subset, count in (('train', 20), ('validation', 10)):
        images = random.integers(0, 256, [count, 32, 32, 3], np.uint8)
        write_cifar(root / 'CIFAR', images, random.integers(0, 10, count), subset)
    (root / 'SHARDS').mkdir()
    write_noise(root / 'SHARDS', 12)
    shutil.copy(
        root / 'SHARDS' / shard_name('train', 0, 1), root / 'SHARDS' / shard_name('train', 1, 2)
    )
    (root / 'SHARDS' / shard_name('train', 0, 1)).rename(
        root / 'SHARDS' / shard_name('train', 0, 2)
    )
    with _surroundings():
        BenchmarkCNN(
            make_params(**SMALL_RUN, init_learning_rate=0.5, train_dir=str(root / 'SAVED'))
        ).run()
    return folder


def _visible_gpus(kind: str) -> list[object]:
    return [object() for _ in os.environ.get('CUDA_VISIBLE_DEVICES', _GPUS).split(',')]


@contextlib.contextmanager
def _surroundings() -> Iterator[Path]:
    """Makes this process look fresh, with OpenMP and 8 GPUs that nothing opens; yields an empty
    folder.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(tf.config, 'list_physical_devices', side_effect=_visible_gpus),
        mock.patch.dict(os.environ),
        mock.patch.dict(vars(THIS_PROCESS), vars(ThisProcess())),
        mock.patch('tf_cnn.machine.visible_gpus.has_nvidia_gpu', return_value=True),
        mock.patch('tf_cnn.machine.tensorflow_build.tensorflow_build') as build,
        mock.patch('tf_cnn.cluster.horovod_worker.load_horovod', return_value=Horovod()),
    ):
        build.return_value = TensorFlowBuild(Path(folder) / 'tensorflow', None, None, ())
        (Path(folder) / 'tensorflow').mkdir()
        (Path(folder) / 'tensorflow' / 'libiomp5.so').touch()
        os.environ.pop('CUDA_VISIBLE_DEVICES', None)
        (Path(folder) / 'DIR').mkdir()
        yield Path(folder) / 'DIR'


def _filled(flags: Flags, folder: Path) -> dict[str, Any]:
    def fill(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        for word in ('CIFAR', 'SHARDS', 'SAVED'):
            if value == word:
                shutil.copytree(Path(_made().name) / word, folder.parent / word, dirs_exist_ok=True)
                return str(folder.parent / word)
        return value.replace('DIR/', f'{folder}/')

    return {name: fill(value) for name, value in flags.items()}


def _plan(flags: Flags, folder: Path) -> Plan | ServerPlan:
    return make_plan(
        make_params(**_filled(flags, folder)), ProcessEnvironment({'CUDA_VISIBLE_DEVICES': _GPUS})
    )


# ---- plans, session settings, environment --------------------------------------------------------


def fact(path: str) -> Look:
    """Observes a fact of the plan whose effect cannot be seen here: in other processes, or after
    hours.
    """

    def look(flags: Flags) -> Any:
        with _surroundings() as folder:
            return attrgetter(path)(_plan(flags, folder))

    return look


# The role of the process in its cluster.
kind_of_process = fact('__class__')


def is_refused(flags: Flags) -> bool:
    """Observes whether the run is refused."""
    with _surroundings() as folder, contextlib.suppress(UsageError):
        _plan(flags, folder)
        return False
    return True


def config(path: str) -> Look:
    """Observes a field of the ConfigProto of the run's sessions."""

    def look(flags: Flags) -> Any:
        kind = flags.get('device', 'cpu')
        with _surroundings():
            devices = Devices((f'/{kind}:0',), ('/cpu:0',))
            params = make_params(**{'device': kind, 'data_format': 'NHWC', **flags})
            return attrgetter(path)(
                session_config(params, devices, Threads(0, 0, ''), in_cluster=False)
            )

    return look


def variable(name: str) -> Look:
    """Observes an environment variable as TensorFlow finds it."""

    def look(flags: Flags) -> str | None:
        with _surroundings() as folder:
            THIS_PROCESS.apply(_plan({'device': 'gpu', **flags}, folder).session.process)
            return os.environ.get(name)

    return look


def onednn_switch(flags: Flags) -> str | None:
    """Observes TF_ENABLE_ONEDNN_OPTS as a process would set it that has not imported TensorFlow
    yet.
    """
    with mock.patch.object(ProcessEnvironment, 'has_tensorflow', new=False):
        variables: Mapping[str, str | None] = fact('session.process.variables')(flags)
    return variables[ONEDNN_VARIABLE]


def averaged_rate(flags: Flags) -> float:
    """Observes the rate printed after steps of 1, 2 and 3 seconds."""
    return summarize(
        10, [1.0, 2.0, 3.0], fact('params.run.display_perf_ewma')(flags)
    ).images_per_second


def rates(flags: Flags) -> list[float]:
    """Observes the learning rates of steps in the first 120 epochs; an epoch has 100 steps of 500
    images.
    """
    learning_rate = fact('learning_rate')({**SMALL_RUN, 'batch_size': 500, **flags})
    with tf.Graph().as_default(), open_session() as session:
        steps = (0, 50, 150, 250, 350, 12_000)
        return [
            float(rate)
            for rate in session.run(
                [learning_rate.rate_at(tf.constant(step, tf.int64)) for step in steps]
            )
        ]


# ---- graphs --------------------------------------------------------------------------------------


def _build(flags: Flags) -> GpuGraph:
    with _surroundings() as folder:
        return build_on_gpus(**{'num_gpus': 1, 'model': 'trivial', **_filled(flags, folder)})


def in_graph(look: Callable[[GpuGraph], Any]) -> Look:
    """Observes the graph of a run on GPUs by `look`."""
    return lambda flags: look(_build(flags))


def ops(*types: str) -> Look:
    """Counts the ops of these types in the graph and its functions, on each kind of device."""

    def look(built: GpuGraph) -> Counter[tuple[str, str]]:
        graph = built.graph.as_graph_def()
        library = graph.library
        nodes = [
            *graph.node,
            *(node for function in library.function for node in function.node_def),
        ]
        return Counter(
            (node.op, re.sub(r'\d+$', '', node.device)) for node in nodes if node.op in types
        )

    return in_graph(look)


def _variables(built: GpuGraph) -> list[tf.Operation]:
    return [op for op in built.graph.get_operations() if op.type == 'VarHandleOp']


# The number of ops of each type in a step, and the devices of its ops.
work = in_graph(lambda built: Counter(op.type for op in built.step))
devices = in_graph(lambda built: {op.device for op in built.step})
places_of_variables = in_graph(lambda built: Counter(op.device for op in _variables(built)))
types_of_variables = in_graph(
    lambda built: Counter(op.node_def.attr['dtype'].type for op in _variables(built))
)
layouts = in_graph(lambda built: {op.get_attr('data_format') for op in built.of_type('Conv2D')})
# The number of images in the loss of each tower.
images_of_step = in_graph(
    lambda built: [
        int(op.inputs[0].shape[0]) for op in built.of_type('SparseSoftmaxCrossEntropyWithLogits')
    ]
)
seeds = in_graph(
    lambda built: {
        op.get_attr('seed') for op in built.graph.get_operations() if 'seed' in op.node_def.attr
    }
)


@in_graph
def links(built: GpuGraph) -> set[tuple[str, str]]:
    """Returns the pairs of devices between which a step sends tensors."""
    return {
        (value.device, op.device)
        for op in built.step
        for value in op.inputs
        if {value.device, op.device} - {''}
    } - {(device, device) for device in {op.device for op in built.step}}


@in_graph
def data_sets(built: GpuGraph) -> list[tuple[Any, ...]]:
    """Returns the data sets of tf.data: their types, the numbers among their inputs, and their
    settings.
    """
    found = [op for op in built.graph.get_operations() if 'Dataset' in op.type]
    return sorted(
        (
            op.type,
            [repr(tf.get_static_value(value)) for value in op.inputs if value.dtype.is_integer],
            *(
                repr(op.node_def.attr[name])
                for name in ('deterministic', 'serialized_options')
                if op.node_def.attr[name]
            ),
        )
        for op in found
    )


# ---- runs ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _run(flags: Flags) -> Iterator[tuple[Path, Result, str]]:
    """Runs in an empty folder; yields the folder, the result and what was printed."""
    with _surroundings() as folder:
        out = io.StringIO()
        result = BenchmarkCNN(
            make_params(**_filled({**SMALL_RUN, **flags}, folder)), Console(out, io.StringIO())
        ).run()
        yield folder, result, out.getvalue()


def losses(flags: Flags) -> list[float]:
    """Observes the losses of the steps, each of which depends on the updates before it."""
    with _run(flags) as (_, result, _):
        return [*map(as_float, result.steps.loss)]


def lines(flags: Flags) -> list[str]:
    """Observes the printed lines, without the parts that depend on time."""
    with _run(flags) as (folder, _, text):
        text = re.sub(r'images/sec: .*?(\t|$)', r'\1', text, flags=re.MULTILINE)
        return text.replace(str(folder), 'DIR').splitlines()


def files(flags: Flags) -> list[str]:
    """Observes the files that a run leaves, without the process numbers and seconds in their
    names.
    """
    with _run(flags) as (folder, _, _):
        names = [str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()]
        return sorted(re.sub(r'events\..*', 'events', name) for name in names)


def words_in(name: str) -> Look:
    """Observes the quoted words in a file that a run writes, except those that differ between two
    equal runs.
    """

    def look(flags: Flags) -> set[str]:
        with _run(flags) as (folder, _, _):
            return {
                word
                for word in re.findall('"([^"]*)"', (folder / name).read_text())
                if word.isalpha()
            }

    return look


def is_json(name: str) -> Look:
    """Observes whether a file that a run writes is JSON."""

    def look(flags: Flags) -> bool:
        with _run(flags) as (folder, _, _), contextlib.suppress(ValueError):
            json.loads((folder / name).read_bytes())
            return True
        return False

    return look


def summaries(flags: Flags) -> list[tuple[int, str]]:
    """Observes the step and the tag of each summary."""
    with _run(flags) as (folder, _, _):
        return sorted(
            (event.step, value.tag)
            for path in folder.rglob('events.*')
            for event in tf.train.summary_iterator(str(path))
            for value in event.summary.value
        )


def saved(name: str) -> Look:
    """Observes a value in the last checkpoint of DIR/t."""

    def look(flags: Flags) -> float:
        with _run(flags) as (folder, _, _):
            return float(tf.train.load_variable(str(folder / 't'), name))

    return look


# ---- the flags -----------------------------------------------------------------------------------


class Row(NamedTuple):
    """A value of the flag, what to look at, and the other flags of both runs; among these may be
    another value.
    """

    value: Any
    look: Look
    others: Flags = MappingProxyType({})


REPLICATED: Flags = {'variable_update': 'replicated', 'num_gpus': 2}
EVAL: Flags = {'eval': True, 'train_dir': 'SAVED', 'num_eval_batches': 2}
EVAL_OF_FILES: Flags = {'eval': True, 'train_dir': 'SAVED', 'data_dir': 'CIFAR', 'batch_size': 2}
IN_TRAINING: Flags = {'eval_during_training_every_n_steps': 1, 'num_eval_batches': 1}
TRAIN_DIR: Flags = {'train_dir': 'DIR/t'}
SUMMARIES: Flags = {**TRAIN_DIR, 'summary_verbosity': 1, 'save_summaries_steps': 2}
DECAY: Flags = {
    'init_learning_rate': 0.5,
    'num_epochs_per_decay': 1,
    'learning_rate_decay_factor': 0.5,
}
FP16: Flags = {'use_fp16': True, 'fp16_enable_auto_loss_scale': True, **TRAIN_DIR}
GPU: Flags = {'device': 'gpu'}
# The devices of a server are bound by TensorFlow alone.
CONTROLLED: Flags = {
    **WORKERS,
    'variable_update': 'distributed_all_reduce',
    'controller_host': '10.0.0.9:1',
    'device': 'cpu',
}
NARROW: Flags = {'agg_small_grads_max_bytes': 1 << 20}
RECORDS: Flags = {'data_dir': 'SHARDS', 'data_name': 'imagenet', 'model': 'trivial'}
TF_DATA: Flags = {**RECORDS, 'use_datasets': True}
_OPTIONS, _REWRITES = 'gpu_options', 'graph_options.rewrite_options'

WALK: dict[str, Row] = {
    'adam_beta1': Row(0.1, losses, {'optimizer': 'adam'}),
    'adam_beta2': Row(0.1, losses, {'optimizer': 'adam'}),
    'adam_epsilon': Row(0.1, losses, {'optimizer': 'adam'}),
    'agg_small_grads_max_bytes': Row(1 << 20, work, REPLICATED),
    'agg_small_grads_max_group': Row(2, work, {**REPLICATED, **NARROW}),
    'all_reduce_spec': Row('nccl', work, REPLICATED),
    'allow_growth': Row(True, config(f'{_OPTIONS}.allow_growth')),
    'autotune_threshold': Row(3, variable('TF_AUTOTUNE_THRESHOLD')),
    'backbone_model_path': Row('SAVED', losses),
    'batch_size': Row(7, images_of_step),
    'batchnorm_persistent': Row(False, variable('TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT')),
    'benchmark_log_dir': Row('DIR/b', files),
    'benchmark_test_id': Row(
        'mine', words_in('b/benchmark_run.log'), {'benchmark_log_dir': 'DIR/b'}
    ),
    'compact_gradient_transfer': Row(True, ops('Cast'), REPLICATED),
    'controller_host': Row(
        '10.0.0.3:1',
        is_refused,
        {**WORKERS, 'variable_update': 'distributed_all_reduce', 'device': 'cpu'},
    ),
    'cross_replica_sync': Row(False, work, SERVERS),
    'data_dir': Row('CIFAR', losses),
    'data_format': Row('NHWC', layouts, {'model': 'lenet'}),
    'data_name': Row('cifar10', work, {'model': 'alexnet'}),
    'datasets_num_private_threads': Row(3, data_sets, TF_DATA),
    'datasets_parallel_interleave_cycle_length': Row(1, data_sets, TF_DATA),
    'datasets_parallel_interleave_prefetch': Row(2, data_sets, TF_DATA),
    'datasets_prefetch_buffer_size': Row(3, data_sets, TF_DATA),
    'datasets_repeat_cached_sample': Row(True, data_sets, TF_DATA),
    'datasets_sloppy_parallel_interleave': Row(True, data_sets, TF_DATA),
    'datasets_use_caching': Row(True, data_sets, TF_DATA),
    'datasets_use_prefetch': Row(False, data_sets, TF_DATA),
    'device': Row('cpu', devices),
    'display_every': Row(3, lines),
    'display_perf_ewma': Row(0.9, averaged_rate),
    'distort_color_in_yiq': Row(False, losses, {'data_dir': 'CIFAR', 'distortions': True}),
    'distortions': Row(True, losses, {'data_dir': 'CIFAR'}),
    'enable_optimizations': Row(False, config(f'{_REWRITES}.remapping')),
    'eval': Row(True, lines, {'train_dir': 'SAVED'}),
    'eval_batch_size': Row(3, lines, EVAL),
    'eval_dir': Row('DIR/e', files, IN_TRAINING),
    'eval_during_training_at_specified_epochs': Row('0.0001', lines),
    'eval_during_training_at_specified_steps': Row('2', lines),
    'eval_during_training_every_n_epochs': Row(0.0001, lines),
    'eval_during_training_every_n_steps': Row(2, lines),
    'eval_interval_secs': Row(5, fact('params.evaluation.eval_interval_secs'), EVAL),
    'force_gpu_compatible': Row(True, config(f'{_OPTIONS}.force_gpu_compatible')),
    'forward_only': Row(True, work),
    'fp16_enable_auto_loss_scale': Row(True, work, {'use_fp16': True}),
    'fp16_inc_loss_scale_every_n': Row(1, saved('loss_scale/scale'), FP16),
    'fp16_loss_scale': Row(4, saved('loss_scale/scale'), FP16),
    'fp16_vars': Row(True, types_of_variables, {'use_fp16': True}),
    'freeze_when_forward_only': Row(True, work, {'forward_only': True}),
    'gpu_indices': Row('5,3', variable('CUDA_VISIBLE_DEVICES')),
    'gpu_kt_max_bytes': Row(3, config(f'{_OPTIONS}.experimental.kernel_tracker_max_bytes')),
    'gpu_kt_max_interval': Row(3, config(f'{_OPTIONS}.experimental.kernel_tracker_max_interval')),
    'gpu_kt_max_pending': Row(3, config(f'{_OPTIONS}.experimental.kernel_tracker_max_pending')),
    'gpu_memory_frac_for_testing': Row(0.5, config(f'{_OPTIONS}.per_process_gpu_memory_fraction')),
    'gpu_thread_mode': Row('gpu_shared', variable('TF_GPU_THREAD_MODE')),
    'gradient_clip': Row(1e-3, losses),
    'gradient_repacking': Row(2, work, REPLICATED),
    'graph_file': Row('DIR/g', files),
    'hierarchical_copy': Row(True, links, {**REPLICATED, 'num_gpus': 4}),
    'horovod_device': Row('cpu', ops('Identity'), {'variable_update': 'horovod'}),
    'init_learning_rate': Row(0.5, losses),
    'input_preprocessor': Row('official_models_imagenet', losses, TF_DATA),
    'job_name': Row('ps', kind_of_process, {**SERVERS, 'device': 'cpu'}),
    'kmp_affinity': Row('compact', variable('KMP_AFFINITY')),
    'kmp_blocktime': Row(7, variable('KMP_BLOCKTIME')),
    'kmp_settings': Row(1, variable('KMP_SETTINGS')),
    'learning_rate': Row(0.5, losses),
    'learning_rate_decay_factor': Row(0.1, rates, DECAY),
    'local_parameter_device': Row('cpu', places_of_variables),
    'log_device_placement': Row(True, config('log_device_placement')),
    'loss_type_to_report': Row('base_loss', lines),
    'max_ckpts_to_keep': Row(1, files, TRAIN_DIR),
    'minimum_learning_rate': Row(0.2, rates, DECAY),
    'ml_perf': Row(True, losses, TF_DATA),
    'mkl': Row(True, onednn_switch),
    'model': Row('alexnet', work),
    'momentum': Row(0.1, losses, {'optimizer': 'momentum'}),
    'multi_device_iterator_max_buffer_size': Row(3, data_sets, TF_DATA),
    'network_topology': Row(
        'gcp_v100', links, {**REPLICATED, 'num_gpus': 8, 'hierarchical_copy': True}
    ),
    'num_batches': Row(2, losses),
    'num_epochs': Row(0.0001, losses, {'num_batches': None}),
    'num_epochs_per_decay': Row(3, rates, DECAY),
    'num_eval_batches': Row(1, lines, EVAL),
    'num_eval_epochs': Row(2, lines, EVAL_OF_FILES),
    'num_gpus': Row(2, devices),
    'num_inter_threads': Row(3, fact('session.threads.inter_op'), {'device': 'cpu'}),
    'num_intra_threads': Row(3, fact('session.threads.intra_op'), {'device': 'cpu'}),
    'num_learning_rate_warmup_epochs': Row(2, rates),
    'num_warmup_batches': Row(2, losses),
    'optimizer': Row('adam', losses),
    'partitioned_graph_file_prefix': Row('DIR/p', files),
    'per_gpu_thread_count': Row(5, variable('TF_GPU_THREAD_COUNT')),
    'piecewise_learning_rate_schedule': Row('0.3;1;0.2;3;0.1', rates),
    'print_training_accuracy': Row(True, lines),
    'ps_hosts': Row('10.0.0.3:1,10.0.0.4:1', places_of_variables, SERVERS),
    'resize_method': Row(
        'area', ops('ResizeArea'), {'data_dir': 'SHARDS', 'data_name': 'imagenet'}
    ),
    'resnet_base_lr': Row(0.5, rates, {'model': 'resnet20'}),
    'rewriter_config': Row('remapping: OFF', config(f'{_REWRITES}.remapping')),
    'rmsprop_decay': Row(0.1, losses, {'optimizer': 'rmsprop'}),
    'rmsprop_epsilon': Row(0.1, losses, {'optimizer': 'rmsprop'}),
    'rmsprop_momentum': Row(0.1, losses, {'optimizer': 'rmsprop'}),
    'save_model_secs': Row(1e-6, files, TRAIN_DIR),
    'save_model_steps': Row(1, files, TRAIN_DIR),
    'save_summaries_steps': Row(1, summaries, SUMMARIES),
    'server_protocol': Row('grpc+verbs', is_refused, {**SERVERS, 'device': 'cpu'}),
    'single_l2_loss_op': Row(True, ops('L2Loss')),
    'staged_vars': Row(True, ops('Stage')),
    'stop_at_top_1_accuracy': Row(0.0, losses, IN_TRAINING),
    'summary_verbosity': Row(2, summaries, SUMMARIES),
    'sync_on_finish': Row(False, variable('TF_SYNC_ON_FINISH')),
    'task_index': Row(1, devices, SERVERS),
    'tf_random_seed': Row(5, seeds),
    'tfprof_file': Row('DIR/f', files),
    'timestamped_allocator': Row(True, config(f'{_OPTIONS}.experimental.timestamped_allocator')),
    'trace_file': Row('DIR/f', files),
    'train_dir': Row('DIR/t', files),
    'use_chrome_trace_format': Row(False, is_json('f'), {'trace_file': 'DIR/f'}),
    'use_datasets': Row(True, data_sets, RECORDS),
    'use_fp16': Row(True, ops('Cast')),
    'use_nccl': Row(True, work, REPLICATED),
    'use_numa_affinity': Row(
        True, fact('session.config.experimental.use_numa_affinity'), CONTROLLED
    ),
    'use_unified_memory': Row(True, config(f'{_OPTIONS}.experimental.use_unified_memory')),
    'variable_consistency': Row('relaxed', work, REPLICATED),
    'variable_update': Row('replicated', places_of_variables, {'num_gpus': 2}),
    'weight_decay': Row(0.5, losses),
    'winograd_nonfused': Row(False, variable('TF_ENABLE_WINOGRAD_NONFUSED')),
    'worker_hosts': Row(
        '10.0.0.1:1,10.0.0.2:1,10.0.0.9:1',
        fact('cluster_role.num_training_tasks'),
        {**SERVERS, 'device': 'cpu'},
    ),
    'xla': Row(True, config('graph_options.optimizer_options.global_jit_level')),
    'xla_compile': Row(True, config('graph_options.optimizer_options.global_jit_level')),
}


@functools.cache
def _without_it(name: str) -> Any:
    """What is seen without the flag; rows with the same look and flags share it."""
    row = WALK[name]
    first = next(other for other, its in WALK.items() if its[1:] == row[1:])
    return row.look(row.others) if first == name else _without_it(first)


def _is_same(first: Any, second: Any) -> bool:
    """Whether two runs show the same, but for how a sum of floats is rounded."""
    if isinstance(first, list) and first and isinstance(first[0], float):
        return len(first) == len(second) and bool(np.allclose(first, second, rtol=1e-5))
    return bool(first == second)


def test_no_flag_of_the_original_that_works_is_forgotten() -> None:
    assert {*WALK} == {
        name for name, row in TABLE.items() if row.status in (Status.WORKS, Status.RENAMED)
    }


@pytest.mark.long
@pytest.mark.parametrize('name', WALK)
def test_the_flag_changes_what_it_should(name: str) -> None:
    row = WALK[name]
    assert not _is_same(_without_it(name), row.look({**row.others, name: row.value}))


# One row for each way to look.
_OF_LOOKS = {row.look: name for name, row in reversed(WALK.items())}


@pytest.mark.parametrize('name', _OF_LOOKS.values())
def test_two_runs_with_the_same_flags_show_the_same(name: str) -> None:
    row = WALK[name]
    assert _is_same(_without_it(name), row.look(row.others))

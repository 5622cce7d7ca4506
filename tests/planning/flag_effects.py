"""Observes the effects of a flag on real runs, graphs, plans, session settings and the environment.

Each function takes the flags of a run and returns an observation, to compare between two runs. In the values of flags
these words stand for folders: DIR for an empty one, SAVED for a copy of the folder of a finished training, CIFAR and
SHARDS for images in the two kinds of files.
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
from typing import Any
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from errors import UsageError
from machine.tensorflow_build import TensorFlowBuild
from params import make_params
from planning.environment import Environment
from planning.make_plan import make_plan
from planning.plan import Machine, Plan, ServerPlan
from planning.process_settings import Threads
from planning.session import session_config
from planning.this_process import THIS_PROCESS, ThisProcess
from records.layout import shard_name
from results.console import Console
from results.result import Result
from results.statistics import summarize
from tests.support.gpu_graphs import GpuGraph, Horovod, build_on_gpus
from tests.support.graphs import open_session
from tests.support.images import write_cifar, write_noise

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
    shutil.copy(root / 'SHARDS' / shard_name('train', 0, 1), root / 'SHARDS' / shard_name('train', 1, 2))
    (root / 'SHARDS' / shard_name('train', 0, 1)).rename(root / 'SHARDS' / shard_name('train', 0, 2))
    BenchmarkCNN(make_params(**SMALL_RUN, init_learning_rate=0.5, train_dir=str(root / 'SAVED'))).run()
    return folder


def _visible_gpus(kind: str) -> list[object]:
    del kind
    return [object() for _ in os.environ.get('CUDA_VISIBLE_DEVICES', _GPUS).split(',')]


@contextlib.contextmanager
def _surroundings() -> Iterator[Path]:
    """Makes this process look fresh, with OpenMP and 8 GPUs that nothing opens; yields an empty folder."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(tf.config, 'list_physical_devices', side_effect=_visible_gpus),
        mock.patch.dict(os.environ),
        mock.patch.dict(vars(THIS_PROCESS), vars(ThisProcess())),
        mock.patch('machine.visible_gpus.has_nvidia_gpu', return_value=True),
        mock.patch('machine.tensorflow_build.tensorflow_build') as build,
        mock.patch('cluster.horovod_worker.load_horovod', return_value=Horovod()),
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


def _plan(flags: Flags) -> Plan | ServerPlan:
    return make_plan(make_params(**flags), Environment({'CUDA_VISIBLE_DEVICES': _GPUS}))


# ---- plans, session settings, environment ---------------------------------------------------------------------------


def fact(path: str) -> Look:
    """Observes a fact of the plan whose effect cannot be seen here: in other processes, or after hours."""

    def look(flags: Flags) -> Any:
        with _surroundings() as folder:
            return attrgetter(path)(_plan(_filled(flags, folder)))

    return look


def kind_of_process(flags: Flags) -> str:
    """Observes the role of the process in its cluster."""
    with _surroundings() as folder:
        return type(_plan(_filled(flags, folder))).__name__


def is_refused(flags: Flags) -> bool:
    """Observes whether the run is refused."""
    with _surroundings() as folder:
        try:
            _plan(_filled(flags, folder))
        except UsageError:
            return True
    return False


def config(path: str) -> Look:
    """Observes a field of the ConfigProto of the run's sessions."""

    def look(flags: Flags) -> Any:
        kind = flags.get('device', 'cpu')
        with _surroundings():
            machine = Machine(kind, (f'/{kind}:0',), kind, ('/cpu:0',), 'NHWC')
            params = make_params(**{'device': kind, **flags})
            return attrgetter(path)(session_config(params, machine, Threads(0, 0, ''), in_cluster=False))

    return look


def variable(name: str) -> Look:
    """Observes an environment variable as TensorFlow finds it."""

    def look(flags: Flags) -> str | None:
        with _surroundings() as folder:
            THIS_PROCESS.apply(_plan(_filled({'device': 'gpu', **flags}, folder)).session.process)
            return os.environ.get(name)

    return look


def averaged_rate(flags: Flags) -> float:
    """Observes the rate printed after steps of 1, 2 and 3 seconds."""
    return summarize(10, [1.0, 2.0, 3.0], fact('counts.newest_weight')(flags)).images_per_second


def rates(flags: Flags) -> list[float]:
    """Observes the learning rates of steps in the first 120 epochs; an epoch has 100 steps of 500 images."""
    learning_rate = fact('step.learning_rate')({**SMALL_RUN, 'batch_size': 500, **flags})
    with tf.Graph().as_default(), open_session() as session:
        steps = (0, 50, 150, 250, 350, 12_000)
        return [float(rate) for rate in session.run([learning_rate.at(tf.constant(step, tf.int64)) for step in steps])]


# ---- graphs ---------------------------------------------------------------------------------------------------------


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
        nodes = [*graph.node, *(node for function in library.function for node in function.node_def)]
        return Counter((node.op, re.sub(r'\d+$', '', node.device)) for node in nodes if node.op in types)

    return in_graph(look)


@in_graph
def work(built: GpuGraph) -> Counter[str]:
    """Counts the ops of each type in a step."""
    return Counter(op.type for op in built.step)


@in_graph
def links(built: GpuGraph) -> set[tuple[str, str]]:
    """Returns the pairs of devices between which a step sends tensors."""
    return {
        (value.device, op.device) for op in built.step for value in op.inputs if {value.device, op.device} - {''}
    } - {(device, device) for device in {op.device for op in built.step}}


@in_graph
def devices(built: GpuGraph) -> set[str]:
    """Returns the devices of a step's ops."""
    return {op.device for op in built.step}


@in_graph
def places_of_variables(built: GpuGraph) -> Counter[str]:
    """Counts the variables on each device."""
    return Counter(op.device for op in built.graph.get_operations() if op.type == 'VarHandleOp')


@in_graph
def types_of_variables(built: GpuGraph) -> Counter[int]:
    """Counts the variables of each type."""
    return Counter(op.node_def.attr['dtype'].type for op in built.graph.get_operations() if op.type == 'VarHandleOp')


@in_graph
def seeds(built: GpuGraph) -> set[int]:
    """Returns the seeds of random ops."""
    return {op.get_attr('seed') for op in built.graph.get_operations() if 'seed' in op.node_def.attr}


@in_graph
def layouts(built: GpuGraph) -> set[bytes]:
    """Returns the data formats of convolutions."""
    return {op.get_attr('data_format') for op in built.of_type('Conv2D')}


@in_graph
def data_sets(built: GpuGraph) -> list[tuple[Any, ...]]:
    """Returns the data sets of tf.data: their types, the numbers among their inputs, and their settings."""
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


@in_graph
def images_of_step(built: GpuGraph) -> list[int]:
    """Returns the number of images in the loss of each tower."""
    return [int(op.inputs[0].shape[0]) for op in built.of_type('SparseSoftmaxCrossEntropyWithLogits')]


# ---- runs -----------------------------------------------------------------------------------------------------------


def _run(flags: Flags, folder: Path) -> tuple[Result, str]:
    out = io.StringIO()
    result = BenchmarkCNN(make_params(**_filled({**SMALL_RUN, **flags}, folder)), Console(out, io.StringIO())).run()
    assert isinstance(result, Result)
    return result, out.getvalue()


def losses(flags: Flags) -> list[float]:
    """Observes the losses of the steps, each of which depends on the updates before it."""
    with _surroundings() as folder:
        return [step.values.loss for step in _run(flags, folder)[0].steps]


def lines(flags: Flags) -> list[str]:
    """Observes the printed lines, without the parts that depend on time."""
    with _surroundings() as folder:
        text = _run(flags, folder)[1]
    text = re.sub(r'images/sec: .*?(\t|$)', r'\1', text, flags=re.MULTILINE)
    return text.replace(str(folder), 'DIR').splitlines()


def files(flags: Flags) -> list[str]:
    """Observes the files that a run leaves, without the process numbers and seconds in their names."""
    with _surroundings() as folder:
        _run(flags, folder)
        names = [str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()]
        return sorted(re.sub(r'events\..*', 'events', name) for name in names)


def words_in(name: str) -> Callable[[Flags], set[str]]:
    """Observes the quoted words in a file that a run writes, except those that differ between two equal runs."""

    def look(flags: Flags) -> set[str]:
        with _surroundings() as folder:
            _run(flags, folder)
            return {word for word in re.findall('"([^"]*)"', (folder / name).read_text()) if word.isalpha()}

    return look


def is_json(name: str) -> Look:
    """Observes whether a file that a run writes is JSON."""

    def look(flags: Flags) -> bool:
        with _surroundings() as folder:
            _run(flags, folder)
            try:
                json.loads((folder / name).read_bytes())
            except ValueError:
                return False
            return True

    return look


def summaries(flags: Flags) -> list[tuple[int, str]]:
    """Observes the step and the tag of each summary."""
    with _surroundings() as folder:
        _run(flags, folder)
        return sorted(
            (event.step, value.tag)
            for path in folder.rglob('events.*')
            for event in tf.train.summary_iterator(str(path))
            for value in event.summary.value
        )


def saved(name: str) -> Look:
    """Observes a value in the last checkpoint of DIR/t."""

    def look(flags: Flags) -> float:
        with _surroundings() as folder:
            _run(flags, folder)
            return float(tf.train.load_variable(str(folder / 't'), name))

    return look

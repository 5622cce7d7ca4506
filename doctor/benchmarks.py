"""Checks that run the whole program: losses, several processes, and images/sec."""

import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cluster.child_process import ChildProcess, end_of
from cluster.environments import without_clusters
from doctor.verdicts import Context, Verdict, ok, skipped, warning, wrong
from errors import RunError, counted
from machine.gpus import gpu_facts, visible
from params.modes import MODES
from sweeps.limited_process import explain

# A few steps of a small network, whose losses differ only by rounding. More steps or a larger learning rate would
# amplify the differences.
_FEW_STEPS = ('--model=resnet20', '--batch_size=16', '--init_learning_rate=0.01', '--num_batches=3')
_ONE_WARM_UP = '--num_warmup_batches=1'
_TOLERANCE = 2e-3
_SECS = 120.0
# The major number of the first compute capability with TF32.
_FIRST_MAJOR_WITH_TF32 = 8
_MEASURE_SECS = 270.0
# The codes of the warnings in a result that explain why this machine was slower than it can be.
_DISTURBED = ('machine_loaded', 'steal', 'cpu_quota', 'thermal_throttling', 'powersave')
# On a CPU a step of ResNet-50 takes seconds; a GPU needs some steps until its clock is steady.
_PACES = {
    'cpu': ('--batch_size=8', '--num_warmup_batches=1', '--target_seconds=8'),
    'gpu': ('--num_warmup_batches=20', '--target_seconds=15'),
}
_PROGRAM = str(Path(__file__).resolve().parent.parent / 'tf_cnn_benchmarks.py')
# How long a process may take to print its stacks, and to die after SIGKILL.
_ABORT_SECS = 5.0
# The shards of photographs.
_NUM_SHARDS, _IMAGES_PER_SHARD = 4, 48
# The most frequent size in ImageNet.
_HEIGHT, _WIDTH = 375, 500
# The distance in pixels between the random colours of a picture. With some noise, JPEGs have 110 KB, as in ImageNet.
_COARSE = 24
_NOISE = 9.0
_QUALITY = 95
_NUM_CLASSES = 1000


def losses(context: Context) -> Verdict:
    """Checks that a GPU trains as the CPU does, in full float32 (without TF32)."""
    found = {}
    for device in ('gpu', 'cpu'):
        context.doing(f'training on the {device}')
        flags = [*_FEW_STEPS, _ONE_WARM_UP, f'--device={device}', *(('--notf32',) if device == 'gpu' else ())]
        found[device] = losses_of(run_program(flags, _SECS * context.time_limit))[0]
    return _compared('GPU', found['gpu'], 'CPU', found['cpu'])


def two_processes(context: Context) -> Verdict:
    """Checks that two processes with one device each train exactly as one process does on the same images.

    Then the averages of their gradients are the gradients of the single process.
    """
    device = 'gpu' if context.num_gpus > 1 else 'cpu'
    mode = next(mode for mode in MODES.values() if mode.is_for_peers)
    flags = [*_FEW_STEPS, _ONE_WARM_UP, f'--device={device}', *(('--notf32',) if device == 'gpu' else ())]
    context.doing('training in one process')
    alone = losses_of(run_program(flags, _SECS * context.time_limit))[0]
    context.doing('training in two processes')
    shared = [*flags, f'--variable_update={mode.name}', '--nodistinct_worker_data']
    first, second = losses_of(run_program(shared, _SECS * context.time_limit, ('cluster', '--workers=2', '--')))
    return compare_processes(device, alone, first, second)


def compare_processes(device: str, alone: Sequence[float], first: Sequence[float], second: Sequence[float]) -> Verdict:
    """Compares the losses of two processes, with one device each, to those of a process that trains alone.

    Equal sums of gradients give equal variables. Even then the losses of two GPUs differ by rounding: each process
    chooses the fastest algorithms of cuDNN by its own measurement.
    """
    if first != second and (device == 'cpu' or not _difference(first, second) <= _TOLERANCE):
        return wrong(
            f'the losses of the two processes differ: {_listed(first)} and {_listed(second)}',
            'report it: their variables should be equal',
            losses=[first, second],
        )
    return _compared(f'two processes on {device.upper()}s', first, 'one', alone)


def _compared(name: str, found: Sequence[float], other: str, expected: Sequence[float]) -> Verdict:
    figures = {name: list(found), other: list(expected)}
    difference = _difference(found, expected)
    shown = f'losses of {name} and {other} differ by {difference:.1e} at most'
    if not difference <= _TOLERANCE:
        return wrong(
            f'{shown}: {_listed(found)} and {_listed(expected)}',
            'report it; until it is explained, do not trust what is trained here',
            **figures,
        )
    return ok(shown, **figures)


def _difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference; NaN if there is one among the values."""
    differences = [abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def _listed(values: Sequence[float]) -> str:
    """Formats values with all digits of float32."""
    return ', '.join(f'{value:.9g}' for value in values)


def throughput(context: Context, flags: Sequence[str]) -> Verdict:
    """Measures the images/sec of a run with these flags, on one device."""
    if '--tf32' in flags and (why := lacks_tf32(gpu_facts()[0], os.environ)):
        return skipped(why)
    context.doing('running')
    flags = [*flags, *_PACES['gpu' if context.num_gpus else 'cpu']]
    document = run_program(flags, _MEASURE_SECS * context.time_limit)
    return _judged(document, '', _DISTURBED, command_line(flags))


def lacks_tf32(gpus: Sequence[Mapping[str, Any]], environ: Mapping[str, str]) -> str | None:
    """Returns why --tf32 has no effect on the first visible GPU; None if it has one.

    Args:
      gpus: the GPUs that gpu_facts() returns.
      environ: the environment variables of the run.
    """
    if environ.get('NVIDIA_TF32_OVERRIDE') == '0':
        return 'NVIDIA_TF32_OVERRIDE=0 turns TF32 off'
    first = next(iter(visible([gpu['uuid'] or '' for gpu in gpus], environ)), None)
    capability = None if first is None else gpus[first]['compute_capability']
    if capability is None or int(capability.partition('.')[0]) >= _FIRST_MAJOR_WITH_TF32:
        return None
    return f'GPUs of compute capability {capability} have no TF32'


def real_data(context: Context, flags: Sequence[str]) -> Verdict:
    """Measures a run that decodes JPEGs of 500 x 375 pixels: its images/sec, and whether its steps wait for images."""
    with tempfile.TemporaryDirectory() as folder:
        context.doing('making JPEGs')
        write_shards(folder)
        context.doing('running')
        flags = [*flags, *_PACES['gpu' if context.num_gpus else 'cpu'], '--data_name=imagenet']
        document = run_program([*flags, f'--data_dir={folder}'], _MEASURE_SECS * context.time_limit)
    command = command_line([*flags, '--data_dir=SHARDS'])
    if not context.num_gpus:
        cores = len(os.sched_getaffinity(0))
        more = f'; {counted(cores, "core")} read and decode, for a network of one layer'
        return _judged(document, more, _DISTURBED, command)
    wait = document['input']['wait_share'] or 0.0
    return _judged(document, f'; steps wait for images {wait:.0%} of the time', (*_DISTURBED, 'input_bound'), command)


def _judged(document: dict[str, Any], more: str, codes: Sequence[str], command: str) -> Verdict:
    """Returns the verdict on a throughput: a warning if the result has a warning with one of these codes.

    Args:
      document: the document of the result.
      more: follows the rate in the verdict.
      codes: the codes of warnings.
      command: the command that was run.
    """
    measured, run = document['throughput'], document['run']
    shown = f'{measured["images_per_second"]:.1f} images/sec'
    if measured['standard_error'] is not None:
        shown += f' +/- {measured["standard_error"]:.1f}'
    shown += f', batch {run["batch_size"]}, {run["data_format"]}{more}'
    figures = {
        'command': command,
        'images_per_second': measured['images_per_second'],
        'standard_error': measured['standard_error'],
        **{name: run[name] for name in ('batch_size', 'precision', 'data_format', 'device')},
        **{name: document[name] for name in ('statistics', 'input', 'disturbance', 'warnings')},
    }
    if advice := next((found['text'] for found in document['warnings'] if found['code'] in codes), None):
        return warning(shown, advice, **figures)
    return ok(shown, **figures)


def command_line(arguments: Sequence[str]) -> str:
    """Returns the command as a user would write it."""
    return ' '.join(['tf_cnn_benchmarks', *arguments])


def run_program(flags: Sequence[str], secs: float, launcher: Sequence[str] = ()) -> dict[str, Any]:
    """Runs the program with these flags, and copies its output to the standard error of this process.

    Args:
      flags: the flags of the run.
      secs: the time limit in seconds.
      launcher: the arguments before the flags, such as ('cluster', '--workers=2', '--').

    Returns:
      The document of --result_file.

    Raises:
      RunError: the program failed (the error quotes its last line), or took longer than secs.
    """
    arguments = [*launcher, *flags]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        path = Path(folder) / 'result.json'
        argv = [sys.executable, _PROGRAM, *arguments, f'--result_file={path}']
        env = without_clusters(os.environ)
        with ChildProcess(argv, stdout=log, stderr=log, env=env, kill_secs=_ABORT_SECS) as child:
            has_ended = child.wait(secs)
            if not has_ended:
                child.abort(_ABORT_SECS)
        output = end_of(log)
        print(output, file=sys.stderr, flush=True)
        if not has_ended:
            raise RunError(f'no answer within {secs:g} s from {command_line(arguments)}')
        if code := child.exit_code():
            raise RunError(f'{explain(output, code)[0]}; the command was {command_line(arguments)}')
        document: dict[str, Any] = json.loads(path.read_text())
        return document


def losses_of(document: dict[str, Any]) -> list[list[float]]:
    """Returns the losses of all steps, for each worker."""
    return [worker['steps']['loss'] for worker in document['workers']]


def write_shards(folder: str) -> None:
    """Writes shards of JPEGs that are as much work for the input pipeline as photographs, in the layout of ImageNet.

    A session without GPUs makes the JPEGs: eager ops would open every GPU and keep its memory until this process ends,
    and a run in another process would find none.

    Raises:
      OSError: the disk is full.
    """
    import tensorflow.compat.v1 as tf

    random = np.random.default_rng(0)
    with tf.Graph().as_default() as graph:
        coarse = tf.placeholder(tf.float32, [_HEIGHT // _COARSE, _WIDTH // _COARSE, 3])
        noise = tf.placeholder(tf.float32, [_HEIGHT, _WIDTH, 1])
        picture = tf.image.resize(coarse, [_HEIGHT, _WIDTH], 'bicubic') + noise
        jpeg = tf.io.encode_jpeg(tf.saturate_cast(picture, tf.uint8), quality=_QUALITY)
    with tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0})) as session:
        for shard in range(_NUM_SHARDS):
            path = Path(folder) / f'train-{shard:05d}-of-{_NUM_SHARDS:05d}'
            with tf.io.TFRecordWriter(str(path)) as writer:
                for _ in range(_IMAGES_PER_SHARD):
                    fed = {
                        coarse: random.uniform(0, 255, coarse.shape.as_list()),
                        noise: random.normal(0, _NOISE, noise.shape.as_list()),
                    }
                    writer.write(_example(session.run(jpeg, fed), int(random.integers(1, _NUM_CLASSES + 1))))


def _example(jpeg: bytes, label: int) -> bytes:
    """Returns the serialized record of an image; labels count from 1 to 1000."""
    import tensorflow.compat.v1 as tf

    features = {
        'image/encoded': tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
        'image/class/label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return serialized

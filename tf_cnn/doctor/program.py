"""The checks of `doctor` that use the program. Only a process of doctor imports them, so they may
import every room.
"""

import functools
import itertools
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

from benchmark_cnn import BenchmarkCNN
from tf_cnn.doctor.checks import OK, SKIPPED, WARNING, WRONG, Finding
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.onednn import ONEDNN_VARIABLE, uses_onednn
from tf_cnn.managers.all_reduce import Algorithm, make_algorithm
from tf_cnn.managers.all_reduce_spec import ALGORITHMS, COLLECTIVE, NCCL_TRANSFER_DTYPES, parse_spec
from tf_cnn.managers.collective import by_collective
from tf_cnn.managers.modes import MODES, Place
from tf_cnn.params import make_params
from tf_cnn.sweep.runner import PROGRAM
from tf_cnn.system.documents import read_json
from tf_cnn.system.errors import RunError, plural
from tf_cnn.system.limited_process import run_process


def _num_gpus() -> int:
    return len(tf.config.list_physical_devices('GPU'))


# ---- placement -----------------------------------------------------------------------------------

_NUM_SHOWN = 6


def placement(flags: Mapping[str, Any]) -> Finding:
    """Trains two steps, and compares the devices in the graph as built with those in the graph that
    ran.

    An op whose device the graph does not name may run anywhere. Ops that TensorFlow adds
    (transfers) or fuses have no counterpart in the graph as built.
    """
    if (num_gpus := _num_gpus()) < 2 and flags.get('all_reduce_spec') == 'nccl':
        return Finding(SKIPPED, 'fewer than two GPUs')
    params = {
        'model': 'resnet20',
        'batch_size': 4,
        'num_batches': 1,
        'num_warmup_batches': 1,
        **({'device': 'gpu', 'allow_growth': True} if num_gpus else {'device': 'cpu'}),
        'num_gpus': min(2, num_gpus or 2),
        **flags,
    }
    with tempfile.TemporaryDirectory() as folder:
        graph_file, prefix = f'{folder}/graph.pb', f'{folder}/part'
        BenchmarkCNN(
            make_params(**params, graph_file=graph_file, partitioned_graph_file_prefix=prefix)
        ).run()
        built = tf.GraphDef.FromString(Path(graph_file).read_bytes())
        parts = [
            text_format.Parse(path.read_text(), tf.GraphDef())
            for path in sorted(Path(folder).glob('part*'))
        ]
    ran = [node for part in parts for node in part.node]
    moved = list_moved(built.node, ran)
    counts = Counter(_kind(node.device) for node in ran)
    figures = {'ops_by_device': dict(counts), 'moved': moved, 'flags': params}
    if moved:
        found = (
            f'{plural(len(moved), "op")} did not run where the graph asks for: '
            f'{"; ".join(moved[:_NUM_SHOWN])}'
        )
        advice = 'TensorFlow has no kernel for them there, which makes steps slow: report it'
        return Finding(WRONG, found, advice, figures)
    listed = ', '.join(f'{number} on {device}' for device, number in sorted(counts.items()))
    return Finding(OK, f'every op ran where the graph asks for: {listed}', None, figures)


def list_moved(built: Iterable[Any], ran: Iterable[Any]) -> list[str]:
    """Returns the ops of floating numbers that ran on another device than the graph names, with
    both devices.

    Ops of whole numbers and text alone take hardly any time.
    """
    devices = {node.name: node.device for node in built}
    return [
        f'{node.op} {node.name} on {_kind(node.device)} instead of {_kind(devices[node.name])}'
        for node in ran
        if devices.get(node.name)
        and _kind(devices[node.name]) != _kind(node.device)
        and any(tf.as_dtype(value.type).is_floating for value in node.attr.values() if value.type)
    ]


def _kind(device: str) -> str:
    """Returns 'GPU:0' for '/job:localhost/replica:0/task:0/device:GPU:0' and for '/gpu:0'."""
    spec = tf.DeviceSpec.from_string(device)
    return f'{spec.device_type or "any device"}:{spec.device_index or 0}'


def _settings() -> dict[str, dict[str, Any]]:
    """Returns the flags of each check of placement: every mode in one process, and what changes its
    ops.
    """
    alone = [mode for mode in MODES.values() if mode.runs(Place.ALONE)]
    found: dict[str, dict[str, Any]] = {mode.name: {'variable_update': mode.name} for mode in alone}
    found |= {precision: {'precision': precision} for precision in ('fp16', 'bf16')}
    found['bf16_variables'] = {'precision': 'bf16', 'fp16_vars': True}
    for mode in alone:
        if mode.takes_all_reduce_spec:
            found |= {
                spec: {'variable_update': mode.name, 'all_reduce_spec': spec}
                for spec in ('xring', 'nccl')
            }
        if mode.can_stage:
            found['staged'] = {
                'variable_update': mode.name,
                'local_parameter_device': 'cpu',
                'staged_vars': True,
            }
    return found


# ---- sums ----------------------------------------------------------------------------------------

_DTYPES = {'fp32': 'float32', 'fp16': 'float16', 'bf16': 'bfloat16'}
# NCCL has different protocols for short and long tensors. Most of these sizes are not divisible by
# the number of devices.
_SIZES = (1, 5, 4097, 2**20 + 1)
_VIRTUAL_CPUS = (2, 4)
_NUM_RUNS = 3
# No sum over up to 64 devices exceeds 160: whole numbers up to 256 are exact even in bfloat16, in
# any order.
_LARGEST_FACTOR = 4


def exact_sums(algorithm: str, precision: str) -> Finding:
    """Compares sums of whole numbers over 2, 3 ... GPUs or virtual CPUs; by an --all_reduce_spec,
    or COLLECTIVE.
    """
    dtype, num_gpus = _DTYPES[precision], _num_gpus()
    by_nccl = algorithm == 'nccl' or (algorithm == COLLECTIVE and num_gpus > 1)
    if algorithm == 'nccl' and num_gpus < 2:
        return Finding(SKIPPED, 'fewer than two GPUs')
    if by_nccl and dtype not in ('float32', *NCCL_TRANSFER_DTYPES):
        return Finding(
            SKIPPED, f'NCCL sums no {dtype} in TensorFlow; a run sums such gradients in float32'
        )
    kind, numbers = ('gpu', range(2, num_gpus + 1)) if num_gpus > 1 else ('cpu', _VIRTUAL_CPUS)
    for number in numbers:
        towers = [f'/{kind}:{index}' for index in range(number)]
        if faults := list_faults(towers, algorithm_over(towers, algorithm), tf.as_dtype(dtype)):
            shown = f'over {number} {kind.upper()}s: {"; ".join(faults[:3])}'
            advice = 'train with another --all_reduce_spec, and report it: gradients would be wrong'
            return Finding(WRONG, shown, advice, {'faults': faults})
    listed = ', '.join(map(str, numbers))
    return Finding(OK, f'exact over {listed} {"GPUs" if kind == "gpu" else "virtual CPUs"}')


def list_faults(towers: Sequence[str], reduce: Algorithm, dtype: tf.DType) -> list[str]:
    """Returns the faults of the sums over these towers, a line for each tensor on each tower."""
    with tf.Graph().as_default() as graph:
        sums = []
        for index, size in enumerate(_SIZES):
            tensors = []
            for tower, device in enumerate(towers):
                with tf.device(device):
                    tensors.append(tf.constant(_values(size, tower), dtype) * tf.ones([], dtype))
            sums.append([tf.cast(total, tf.float32) for total in reduce(tensors, index)])
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    if 'cpu' in towers[0]:
        config.device_count['CPU'] = len(towers)
    found: dict[str, None] = {}
    expected = [
        np.sum([_values(size, tower) for tower in range(len(towers))], 0) for size in _SIZES
    ]
    with tf.Session(graph=graph, config=config) as session:
        for _ in range(_NUM_RUNS):
            # All sums at once, as in a step: with NCCL all devices must start them in the same
            # order.
            for right, totals in zip(expected, session.run(sums), strict=True):
                for device, total in zip(towers, totals, strict=True):
                    differing = np.flatnonzero(total != right)
                    if len(differing):
                        first = f'{total[differing[0]]:g} for {right[differing[0]]:g}'
                        found[
                            f'{len(differing)} of {len(right)} sums are wrong on {device}, such '
                            f'as {first}'
                        ] = None
    return list(found)


def _values(size: int, tower: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns float32 [size]: whole numbers from -4 to 4, which differ between towers and between
    neighbours.
    """
    return ((np.arange(size) % 3 - 1) * (tower % _LARGEST_FACTOR + 1)).astype(np.float32)


def algorithm_over(towers: Sequence[str], name: str) -> Algorithm:
    """Returns the algorithm of that name, or that of workers that sum by collective ops.

    On CPUs TensorFlow replaces NCCL by its ring, with the same order of the sums.
    """
    if name == COLLECTIVE:
        return by_collective(towers, 1, None, on_towers=True)
    return make_algorithm(parse_spec(name), towers, HOST_DEVICE)


# ---- two processes -------------------------------------------------------------------------------

# A few steps of a small network, whose losses differ only by rounding. More steps or a larger
# learning rate would amplify the differences.
_FEW_STEPS = (
    *('--model=resnet20', '--batch_size=16', '--init_learning_rate=0.01'),
    *('--num_batches=3', '--num_warmup_batches=1'),
)
_TOLERANCE = 2e-3


def two_processes() -> Finding:
    """Checks that two processes with one device each train exactly as one process does on the same
    images.
    """
    device = 'gpu' if _num_gpus() > 1 else 'cpu'
    mode = next(mode for mode in MODES.values() if mode.is_for_peers)
    flags = [*_FEW_STEPS, f'--device={device}', *(('--notf32',) if device == 'gpu' else ())]
    (alone,) = losses(*flags)
    two = (
        'cluster',
        '--workers=2',
        '--',
        f'--variable_update={mode.name}',
        '--nodistinct_worker_data',
    )
    return compare_losses(device, alone, *losses(*two, *flags))


def compare_losses(
    device: str, alone: Sequence[float], first: Sequence[float], second: Sequence[float]
) -> Finding:
    """Compares the losses of two processes, with one device each, to those of a process that trains
    alone.

    Equal sums of gradients give equal variables. Even then the losses of two GPUs differ by
    rounding: each process chooses the fastest algorithms of cuDNN by its own measurement.
    """
    if first != second and (device == 'cpu' or not _difference(first, second) <= _TOLERANCE):
        listed = f'{_listed(first)} and {_listed(second)}'
        advice = 'report it: their variables should be equal'
        return Finding(WRONG, f'the losses of the two processes differ: {listed}', advice)
    difference = _difference(first, alone)
    shown = (
        f'losses of two processes on {device.upper()}s and of one differ by {difference:.1e} at '
        f'most'
    )
    if difference <= _TOLERANCE:
        return Finding(OK, shown)
    advice = 'report it; until it is explained, do not trust what is trained here'
    return Finding(WRONG, f'{shown}: {_listed(first)} and {_listed(alone)}', advice)


def _difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference; NaN if there is one among the values."""
    differences = [abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def _listed(values: Sequence[float]) -> str:
    """Formats values with all digits of float32."""
    return ', '.join(f'{value:.9g}' for value in values)


def losses(*arguments: str) -> list[list[float]]:
    """Runs the program, and returns the losses of all steps, for each worker; raises RunError if it
    fails.
    """
    return [worker['steps']['loss'] for worker in _run_program(arguments, os.environ)['workers']]


def _run_program(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Runs the program, and returns the document of its result; raises RunError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder, 'result.json'), Path(folder, 'log')
        ended = run_process(
            [*PROGRAM, *arguments, f'--result_file={result}'], log, environment=environment
        )
        print(log.read_text(errors='backslashreplace'), file=sys.stderr)
        if ended.exit_code:
            raise RunError(
                f'{ended.reason}; the command was tf_cnn_benchmarks {" ".join(arguments)}'
            )
        return read_json(result, dict[str, Any])


# ---- the processor -------------------------------------------------------------------------------

# Few steps, since a processor without oneDNN may take seconds for each.
_MEASURED = (
    '--model=resnet50',
    '--device=cpu',
    '--batch_size=8',
    '--num_batches=3',
    '--num_warmup_batches=1',
)
_ONEDNN_ROUNDS = 2
# Single runs of so few steps differ by less.
_ONEDNN_GAIN = 1.15


def onednn(
    switch: Callable[[], bool | None] = uses_onednn, flags: Sequence[str] = _MEASURED
) -> Finding:
    """Measures what oneDNN changes if TensorFlow leaves it off here. `switch` returns whether it is
    on.
    """
    if (is_on := switch()) is None:
        return Finding(SKIPPED, 'this TensorFlow does not say whether it uses oneDNN')
    if is_on:
        return Finding(OK, 'TensorFlow computes by oneDNN')
    environment = {name: value for name, value in os.environ.items() if name != ONEDNN_VARIABLE}
    rates: dict[str, list[float]] = {'false': [], 'true': []}
    for value in [*rates] * _ONEDNN_ROUNDS:
        document = _run_program([*flags, f'--onednn={value}'], environment)
        if document['run']['onednn'] is not (value == 'true'):
            return Finding(SKIPPED, 'this TensorFlow was built without oneDNN')
        rates[value].append(document['throughput']['images_per_second'])
    return compare_onednn(rates, os.environ.get(ONEDNN_VARIABLE))


def compare_onednn(rates: Mapping[str, Sequence[float]], variable: str | None) -> Finding:
    """Compares the images/sec of each value of --onednn. variable: TF_ENABLE_ONEDNN_OPTS, None if
    it is not set.
    """
    without, with_it = (max(rates[value]) for value in ('false', 'true'))
    reason = 'TensorFlow leaves it off on this processor'
    if variable is not None:
        reason = f'{ONEDNN_VARIABLE}={variable} turns it off'
    shown = (
        f'ResNet-50 trains at {without:.2f} images/sec without oneDNN ({reason}), and at '
        f'{with_it:.2f} with it'
    )
    figures = {'images_per_second': rates}
    if with_it < _ONEDNN_GAIN * without:
        return Finding(OK, shown, None, figures)
    both = ' '.join(f"--run='--model=resnet50 --onednn={value}'" for value in rates)
    unset = '' if variable is None else f'unset {ONEDNN_VARIABLE} and '
    advice = f'{unset}use --onednn=true; to measure longer: tf_cnn_benchmarks.py compare {both}'
    return Finding(WARNING, shown, advice, figures)


FAMILIES: Mapping[str, Mapping[str, Callable[[], Finding]]] = {
    'processor': {'onednn': onednn},
    'placement': {name: functools.partial(placement, flags) for name, flags in _settings().items()},
    'all_reduce': {
        f'{algorithm}/{precision}': functools.partial(exact_sums, algorithm, precision)
        # NCCL is last: if it crashes, the others have been checked.
        for algorithm, precision in itertools.product(
            (*sorted(ALGORITHMS, key='nccl'.__eq__), COLLECTIVE), _DTYPES
        )
    },
    'processes': {'collectives': two_processes},
}

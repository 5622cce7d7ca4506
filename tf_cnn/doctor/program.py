"""The checks of `doctor` that use the program.

Only a process of doctor imports them, so they may import every package of the program.
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
from tf_cnn.managers.collective import collective_algorithm
from tf_cnn.managers.modes import MODES, Topology
from tf_cnn.plan.parsing import make_params
from tf_cnn.sweep.runner import PROGRAM
from tf_cnn.system.documents import read_json
from tf_cnn.system.errors import RunError, plural
from tf_cnn.system.limited_process import run_process


def _num_gpus() -> int:
    return len(tf.config.list_physical_devices('GPU'))


# ---- placement -----------------------------------------------------------------------------------

_MAX_LISTED_OPS = 6


def check_placement(flags: Mapping[str, Any]) -> Finding:
    """Trains two steps, and checks that each op ran on the device that its graph names.

    An op without a device in the graph may run anywhere. Ops that TensorFlow adds (transfers) or
    fuses are not in the graph as built, and are not checked.
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
        built_graph = tf.GraphDef.FromString(Path(graph_file).read_bytes())
        partitions = [
            text_format.Parse(path.read_text(), tf.GraphDef())
            for path in sorted(Path(folder).glob('part*'))
        ]
    executed_nodes = [node for partition in partitions for node in partition.node]
    misplaced_ops = list_misplaced_ops(built_graph.node, executed_nodes)
    counts = Counter(_device_name(node.device) for node in executed_nodes)
    figures = {'ops_by_device': dict(counts), 'moved': misplaced_ops, 'flags': params}
    if misplaced_ops:
        summary = (
            f'{plural(len(misplaced_ops), "op")} did not run where the graph asks for: '
            f'{"; ".join(misplaced_ops[:_MAX_LISTED_OPS])}'
        )
        advice = 'TensorFlow has no kernel for them there, so steps are slow: report it'
        return Finding(WRONG, summary, advice, figures)
    listed = ', '.join(f'{number} on {device}' for device, number in sorted(counts.items()))
    return Finding(OK, f'every op ran where the graph asks for: {listed}', None, figures)


def list_misplaced_ops(built_nodes: Iterable[Any], executed_nodes: Iterable[Any]) -> list[str]:
    """Returns a line for each floating-point op that ran on another device than its graph names.

    Ops on integers and text take hardly any time, and are not listed.
    """
    devices = {node.name: node.device for node in built_nodes}
    return [
        f'{node.op} {node.name} on {_device_name(node.device)} instead of '
        f'{_device_name(devices[node.name])}'
        for node in executed_nodes
        if devices.get(node.name)
        and _device_name(devices[node.name]) != _device_name(node.device)
        and any(tf.as_dtype(value.type).is_floating for value in node.attr.values() if value.type)
    ]


def _device_name(device: str) -> str:
    """Returns 'GPU:0' for '/job:localhost/replica:0/task:0/device:GPU:0' and for '/gpu:0'."""
    spec = tf.DeviceSpec.from_string(device)
    return f'{spec.device_type or "any device"}:{spec.device_index or 0}'


def _placement_flags() -> dict[str, dict[str, Any]]:
    """Returns the flags of each placement check: every mode of one process, and variants of it."""
    single_process_modes = [mode for mode in MODES.values() if mode.runs_in(Topology.LOCAL)]
    flags_by_check: dict[str, dict[str, Any]] = {
        mode.name: {'variable_update': mode.name} for mode in single_process_modes
    }
    flags_by_check |= {precision: {'precision': precision} for precision in ('fp16', 'bf16')}
    flags_by_check['bf16_variables'] = {'precision': 'bf16', 'fp16_vars': True}
    for mode in single_process_modes:
        if mode.takes_all_reduce_spec:
            flags_by_check |= {
                spec: {'variable_update': mode.name, 'all_reduce_spec': spec}
                for spec in ('xring', 'nccl')
            }
        if mode.can_stage:
            flags_by_check['staged'] = {
                'variable_update': mode.name,
                'local_parameter_device': 'cpu',
                'staged_vars': True,
            }
    return flags_by_check


# ---- sums ----------------------------------------------------------------------------------------

_DTYPES = {'fp32': 'float32', 'fp16': 'float16', 'bf16': 'bfloat16'}
# NCCL has different protocols for short and long tensors. Most of these sizes are not divisible by
# the number of devices.
_SIZES = (1, 5, 4097, 2**20 + 1)
_VIRTUAL_CPUS = (2, 4)
_NUM_RUNS = 3
# No sum over up to 64 devices exceeds 160. Integers up to 256 are exact even in bfloat16, in any
# order of summation.
_LARGEST_FACTOR = 4


def check_sums(algorithm: str, precision: str) -> Finding:
    """Checks that sums of integers over 2, 3 ... GPUs, or over virtual CPUs, are exact.

    Args:
      algorithm: an --all_reduce_spec, or COLLECTIVE.
      precision: a key of _DTYPES.
    """
    dtype, num_gpus = _DTYPES[precision], _num_gpus()
    uses_nccl = algorithm == 'nccl' or (algorithm == COLLECTIVE and num_gpus > 1)
    if algorithm == 'nccl' and num_gpus < 2:
        return Finding(SKIPPED, 'fewer than two GPUs')
    if uses_nccl and dtype not in ('float32', *NCCL_TRANSFER_DTYPES):
        return Finding(
            SKIPPED, f'TensorFlow has no NCCL sum of {dtype}; a run sums such gradients in float32'
        )
    kind, numbers = ('gpu', range(2, num_gpus + 1)) if num_gpus > 1 else ('cpu', _VIRTUAL_CPUS)
    for number in numbers:
        towers = [f'/{kind}:{index}' for index in range(number)]
        if faults := list_wrong_sums(
            towers, algorithm_for_towers(towers, algorithm), tf.as_dtype(dtype)
        ):
            summary = f'over {number} {kind.upper()}s: {"; ".join(faults[:3])}'
            advice = 'train with another --all_reduce_spec, and report it: gradients would be wrong'
            return Finding(WRONG, summary, advice, {'faults': faults})
    listed = ', '.join(map(str, numbers))
    return Finding(OK, f'exact over {listed} {"GPUs" if kind == "gpu" else "virtual CPUs"}')


def list_wrong_sums(towers: Sequence[str], reduce: Algorithm, dtype: tf.DType) -> list[str]:
    """Returns a line for each tensor with a wrong sum on a tower."""
    with tf.Graph().as_default() as graph:
        sums = []
        for index, size in enumerate(_SIZES):
            tensors = []
            for tower, device in enumerate(towers):
                with tf.device(device):
                    tensors.append(
                        tf.constant(_tower_values(size, tower), dtype) * tf.ones([], dtype)
                    )
            sums.append([tf.cast(total, tf.float32) for total in reduce(tensors, index)])
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    if 'cpu' in towers[0]:
        config.device_count['CPU'] = len(towers)
    faults: dict[str, None] = {}
    expected = [
        np.sum([_tower_values(size, tower) for tower in range(len(towers))], 0) for size in _SIZES
    ]
    with tf.Session(graph=graph, config=config) as session:
        for _ in range(_NUM_RUNS):
            # Fetches all sums at once, as a step does: with NCCL all devices must start them in the
            # same order.
            for right, totals in zip(expected, session.run(sums), strict=True):
                for device, total in zip(towers, totals, strict=True):
                    differing = np.flatnonzero(total != right)
                    if len(differing):
                        first = f'{total[differing[0]]:g} for {right[differing[0]]:g}'
                        faults[
                            f'{len(differing)} of {len(right)} sums are wrong on {device}, such '
                            f'as {first}'
                        ] = None
    return list(faults)


def _tower_values(size: int, tower: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns float32 [size]: integers in [-4, 4], different on each tower and for neighbours."""
    return ((np.arange(size) % 3 - 1) * (tower % _LARGEST_FACTOR + 1)).astype(np.float32)


def algorithm_for_towers(towers: Sequence[str], name: str) -> Algorithm:
    """Returns the all-reduce algorithm of an --all_reduce_spec, or collective ops for COLLECTIVE.

    On CPUs TensorFlow replaces NCCL by its ring, with the same order of the sums.
    """
    if name == COLLECTIVE:
        return collective_algorithm(towers, 1, None, nccl_over_towers=True)
    return make_algorithm(parse_spec(name), towers, HOST_DEVICE)


# ---- two processes -------------------------------------------------------------------------------

# A few steps of a small network: the losses differ only by rounding. More steps or a larger
# learning rate would amplify the differences.
_TRAINING_FLAGS = (
    *('--model=resnet20', '--batch_size=16', '--init_learning_rate=0.01'),
    *('--num_batches=3', '--num_warmup_batches=1'),
)
_TOLERANCE = 2e-3


def check_two_processes() -> Finding:
    """Checks that two processes with one device each train as a single process does."""
    device = 'gpu' if _num_gpus() > 1 else 'cpu'
    mode = next(mode for mode in MODES.values() if mode.is_for_peers)
    flags = [*_TRAINING_FLAGS, f'--device={device}', *(('--notf32',) if device == 'gpu' else ())]
    (single_process_losses,) = measure_losses(*flags)
    cluster_command = (
        'cluster',
        '--workers=2',
        '--',
        f'--variable_update={mode.name}',
        '--nodistinct_worker_data',
    )
    return compare_losses(device, single_process_losses, *measure_losses(*cluster_command, *flags))


def compare_losses(
    device: str,
    single_process_losses: Sequence[float],
    first: Sequence[float],
    second: Sequence[float],
) -> Finding:
    """Compares the losses of two processes with one device each, and of a single process.

    Equal sums of gradients give equal variables. Even then the losses on two GPUs differ by
    rounding, since each process measures by itself which algorithms of cuDNN are the fastest.
    """
    if first != second and (
        device == 'cpu' or not _largest_relative_difference(first, second) <= _TOLERANCE
    ):
        listed = f'{_format_losses(first)} and {_format_losses(second)}'
        advice = 'report it: their variables should be equal'
        return Finding(WRONG, f'the losses of the two processes differ: {listed}', advice)
    difference = _largest_relative_difference(first, single_process_losses)
    summary = (
        f'losses of two processes on {device.upper()}s and of one differ by {difference:.1e} at '
        f'most'
    )
    if difference <= _TOLERANCE:
        return Finding(OK, summary)
    advice = 'report it; do not trust models trained here until it is explained'
    return Finding(
        WRONG,
        f'{summary}: {_format_losses(first)} and {_format_losses(single_process_losses)}',
        advice,
    )


def _largest_relative_difference(actual: Sequence[float], expected: Sequence[float]) -> float:
    """Returns the largest relative difference; NaN if any value is NaN."""
    differences = [abs(a - b) / abs(b) for a, b in zip(actual, expected, strict=True)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def _format_losses(values: Sequence[float]) -> str:
    """Formats losses with all digits of float32."""
    return ', '.join(f'{value:.9g}' for value in values)


def measure_losses(*arguments: str) -> list[list[float]]:
    """Runs the program, and returns the losses of each worker's steps; raises RunError if it
    fails.
    """
    return [worker['steps']['loss'] for worker in _run_program(arguments, os.environ)['workers']]


def _run_program(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Runs the program, and returns its result document; raises RunError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder, 'result.json'), Path(folder, 'log')
        process_exit = run_process(
            [*PROGRAM, *arguments, f'--result_file={result}'], log, environment=environment
        )
        print(log.read_text(errors='backslashreplace'), file=sys.stderr)
        if process_exit.exit_code:
            raise RunError(
                f'{process_exit.reason}; the command was tf_cnn_benchmarks {" ".join(arguments)}'
            )
        return read_json(result, dict[str, Any])


# ---- the processor -------------------------------------------------------------------------------

# Few steps, since each may take seconds without oneDNN.
_ONEDNN_FLAGS = (
    '--model=resnet50',
    '--device=cpu',
    '--batch_size=8',
    '--num_batches=3',
    '--num_warmup_batches=1',
)
_ONEDNN_ROUNDS = 2
# Single runs of so few steps differ by less.
_ONEDNN_GAIN = 1.15


def check_onednn(
    is_onednn_on: Callable[[], bool | None] = uses_onednn, flags: Sequence[str] = _ONEDNN_FLAGS
) -> Finding:
    """Measures the gain from oneDNN if TensorFlow leaves it off on this processor."""
    if (is_on := is_onednn_on()) is None:
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
    """Compares the images/sec with and without oneDNN.

    Args:
      rates: the images/sec of the runs, by the value of --onednn.
      variable: TF_ENABLE_ONEDNN_OPTS; None if it is not set.
    """
    rate_without, rate_with = (max(rates[value]) for value in ('false', 'true'))
    reason = 'TensorFlow leaves it off on this processor'
    if variable is not None:
        reason = f'{ONEDNN_VARIABLE}={variable} turns it off'
    summary = (
        f'ResNet-50 trains at {rate_without:.2f} images/sec without oneDNN ({reason}), and at '
        f'{rate_with:.2f} with it'
    )
    figures = {'images_per_second': rates}
    if rate_with < _ONEDNN_GAIN * rate_without:
        return Finding(OK, summary, None, figures)
    run_flags = ' '.join(f"--run='--model=resnet50 --onednn={value}'" for value in rates)
    unset = '' if variable is None else f'unset {ONEDNN_VARIABLE} and '
    advice = (
        f'{unset}use --onednn=true; to measure longer: tf_cnn_benchmarks.py compare {run_flags}'
    )
    return Finding(WARNING, summary, advice, figures)


FAMILIES: Mapping[str, Mapping[str, Callable[[], Finding]]] = {
    'processor': {'onednn': check_onednn},
    'placement': {
        name: functools.partial(check_placement, flags)
        for name, flags in _placement_flags().items()
    },
    'all_reduce': {
        f'{algorithm}/{precision}': functools.partial(check_sums, algorithm, precision)
        # NCCL comes last: if it crashes, the other algorithms have been checked.
        for algorithm, precision in itertools.product(
            (*sorted(ALGORITHMS, key='nccl'.__eq__), COLLECTIVE), _DTYPES
        )
    },
    'processes': {'collectives': check_two_processes},
}

"""Where the time of a step goes, and how near each kind of operation is to what the machine can do, on a CPU.

    python benchmarks/roofline.py --model=resnet50 --batch_size=32 --precision=bf16
    python benchmarks/roofline.py --steps=5 --model=vgg16 --forward_only

Flags that this script does not know are those of a run. The operations of a step run one after the other, each on all
cores, and TensorFlow traces some steps. From the shapes of its tensors follow the floating-point operations and the
bytes of each operation (benchmarks/op_costs.py), and from these the least time it can take: that of the operations at
the rate of large matrix products, or that of the bytes at the bandwidth of the memory, whichever is longer: Williams,
Waterman & Patterson 2009 (doi:10.1145/1498765.1498785). Both are measured. The sum of the least times is what no kernel
can beat unless it does the work of several operations at once; operations whose tensors are still in a cache can.
"""

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

from benchmarks.op_costs import TensorFacts, bytes_of, flops_of, plain_type
from benchmarks.turns import load
from errors import UsageError
from hardware.peak import measure_peak
from params.parsing import parse_argv
from run.build import build_step
from run.plan import Plan
from run.resolve import resolve

_NUM_WARMUP = 3
# Elements of each of the arrays of the stream: 256 MB in float32, several times the caches of a CPU.
_STREAM_SIZE = 64 * 1024**2
_STREAM_SECS = 2.0


@dataclass(frozen=True)
class Operation:
    """One operation of a step. dtype is that of its arithmetic."""

    type: str
    dtype: str
    seconds: float
    flops: int
    num_bytes: int


@dataclass(frozen=True)
class Limits:
    """What the machine reaches: FLOP/s of matrix products by dtype, and bytes/s of memory."""

    flops_per_second: Mapping[str, float]
    bytes_per_second: float

    def least_seconds(self, operation: Operation) -> tuple[float, str]:
        """The time that an operation takes at the limit, and what limits it: 'products' or 'memory'."""
        moving = operation.num_bytes / self.bytes_per_second
        if operation.flops:
            computing = operation.flops / self.flops_per_second[operation.dtype]
            if computing > moving:
                return computing, 'products'
        return moving, 'memory'


def trace(plan: Plan, num_steps: int) -> tuple[list[Operation], list[float]]:
    """Takes steps and returns the operations of one, with the medians of their times, and the seconds of other steps.

    The other steps alternate with the traced ones and are not traced.
    """
    with tf.Graph().as_default() as graph:
        step = build_step(plan, 0)
        fetches = step.fetches.present()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
        seconds: dict[str, list[float]] = defaultdict(list)
        untraced = []
        with tf.Session(graph=graph, config=plan.config) as session:
            session.run(step.initializers)
            step.start(session)
            for _ in range(_NUM_WARMUP):
                session.run(fetches)
            for _ in range(num_steps):
                start = time.perf_counter()
                session.run(fetches)
                untraced.append(time.perf_counter() - start)
                metadata = tf.RunMetadata()
                session.run(fetches, options=options, run_metadata=metadata)
                for stats in _stats(metadata):
                    seconds[stats.node_name].append((stats.op_end_rel_micros - stats.op_start_rel_micros) / 1e6)
        return _operations(
            metadata, {name: statistics.median(of_steps) for name, of_steps in seconds.items()}
        ), untraced


def _stats(metadata: Any) -> Iterable[Any]:
    return (stats for device in metadata.step_stats.dev_stats for stats in device.node_stats)


def _operations(metadata: Any, seconds: Mapping[str, float]) -> list[Operation]:
    """The operations of the last traced step, with these seconds by their names."""
    results = {
        stats.node_name: {output.slot: _facts(output.tensor_description) for output in stats.output}
        for stats in _stats(metadata)
    }
    operations = []
    for node in (node for partition in metadata.partition_graphs for node in partition.node):
        if node.name not in seconds:
            continue
        inputs = [_source(name, results) for name in node.input if not name.startswith('^')]
        outputs = [facts for _, facts in sorted(results[node.name].items())]
        operations.append(
            Operation(
                type=plain_type(node.op),
                dtype=outputs[0].dtype if outputs else '',
                seconds=seconds[node.name],
                flops=flops_of(node.op, inputs, outputs),
                num_bytes=bytes_of(node.op, inputs, outputs, of_batch=node.attr['is_training'].b),
            )
        )
    return operations


def _source(name: str, results: Mapping[str, Mapping[int, TensorFacts]]) -> TensorFacts:
    """The tensor that an input names, 'node' or 'node:slot'; an empty one if it is not among the results of a step."""
    node, _, slot = name.partition(':')
    return results.get(node, {}).get(int(slot or 0), TensorFacts((0,), '', 0))


def _facts(description: Any) -> TensorFacts:
    dtype = tf.as_dtype(description.dtype)
    # Resources and strings have no size of their own.
    item_bytes = 0 if dtype in (tf.resource, tf.string, tf.variant) else dtype.size
    return TensorFacts(tuple(dim.size for dim in description.shape.dim), dtype.name, item_bytes)


def measure_bandwidth(config: tf.ConfigProto, secs: float = _STREAM_SECS) -> float:
    """The bytes/s of adding one large array to another on all cores, the best of all runs: two reads and one write."""
    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        array = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[_STREAM_SIZE], shared_name='stream')
        ones = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[_STREAM_SIZE], shared_name='ones')
        prepare = [
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.fill([_STREAM_SIZE], 1.0)) for handle in (array, ones)
        ]
        value = tf.raw_ops.ReadVariableOp(resource=ones, dtype=tf.float32)
        add = tf.raw_ops.AssignAddVariableOp(resource=array, value=value)
        best = 0.0
        with tf.Session(graph=graph, config=config) as session:
            session.run(prepare)
            end = time.perf_counter() + secs
            while time.perf_counter() < end:
                start = time.perf_counter()
                session.run(add)
                best = max(best, 3 * 4 * _STREAM_SIZE / (time.perf_counter() - start))
    return best


def format_table(operations: Sequence[Operation], limits: Limits) -> list[str]:
    """A line for each type of operation, by their time, after a line of headings."""
    groups = defaultdict(list)
    for operation in operations:
        groups[operation.type].append(operation)
    total = sum(operation.seconds for operation in operations)
    lines = [
        f'{"operation":34} {"count":>5} {"ms":>8} {"share":>6} {"GFLOP/s":>8} {"GB/s":>7}  {"limit":8} {"ms at it":>8} '
        f'{"reached":>8}'
    ]
    for name, group in sorted(groups.items(), key=lambda item: -sum(each.seconds for each in item[1])):
        seconds = sum(each.seconds for each in group)
        least = dict.fromkeys(('products', 'memory'), 0.0)
        for each in group:
            secs, limit = limits.least_seconds(each)
            least[limit] += secs
        at_limit = sum(least.values())
        flops, num_bytes = sum(each.flops for each in group), sum(each.num_bytes for each in group)
        rate = f'{flops / seconds / 1e9:8.0f}' if flops else f'{"":8}'
        # Very short operations have no time in the trace.
        reached = f'{at_limit / seconds:8.0%}' if seconds else f'{"":8}'
        moved = f'{num_bytes / seconds / 1e9:7.1f}' if seconds else f'{"":7}'
        if seconds >= total / 1000:
            lines.append(
                f'{name:34} {len(group):5} {seconds * 1e3:8.2f} {seconds / total:6.1%} {rate} {moved}  '
                f'{max(least, key=lambda limit: least[limit]):8} {at_limit * 1e3:8.2f} {reached}'
            )
    return lines


def format_summary(operations: Sequence[Operation], limits: Limits, step_seconds: float, num_images: int) -> list[str]:
    """What the step reaches, and the most that its operations allow.

    Args:
      step_seconds: of a step that was not traced. num_images: those of a step.
    """
    total = sum(operation.seconds for operation in operations)
    at_limits = sum(limits.least_seconds(operation)[0] for operation in operations)
    flops = sum(operation.flops for operation in operations)
    products = sum(
        operation.flops / limits.flops_per_second[operation.dtype] for operation in operations if operation.flops
    )
    return [
        f'step {step_seconds * 1e3:.1f} ms, {num_images / step_seconds:.2f} images/sec; '
        f'its operations, traced one after the other, {total * 1e3:.1f} ms',
        f'at its limits each operation would take {at_limits * 1e3:.1f} ms together, {num_images / at_limits:.2f} '
        f'images/sec: the step reaches {at_limits / step_seconds:.1%} of what is possible without more fusing',
        f'products and convolutions: {flops / 1e9:.0f} GFLOP, {products / step_seconds:.1%} of the rate of matrix '
        f'products in this step, {products / at_limits:.1%} at the limits',
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument('--steps', type=int, default=5, help='how many steps to trace, and how many others to time')
    args, flags = parser.parse_known_args()
    if args.steps < 1:
        parser.error(f'--steps={args.steps}: it must be at least 1')
    try:
        plan = resolve(parse_argv([*flags, '--device=cpu', '--num_inter_threads=1']).params, os.environ)
    except UsageError as error:
        parser.error(str(error))
    if not isinstance(plan, Plan) or plan.processes.cluster is not None:
        parser.error('it traces the steps of one process: leave out the flags of a cluster')
    operations, untraced = trace(plan, args.steps)
    dtypes = sorted({operation.dtype for operation in operations if operation.flops})
    peaks = {dtype: measure_peak(plan.config, plan.machine.towers[:1], dtype) for dtype in dtypes}
    limits = Limits(peaks, measure_bandwidth(plan.config))
    print(*format_table(operations, limits), sep='\n')
    rates = ', '.join(f'{peak / 1e9:.0f} GFLOP/s in {dtype}' for dtype, peak in peaks.items())
    print(f'\nlimits: {rates}; memory {limits.bytes_per_second / 1e9:.1f} GB/s ({load()})')
    num_images = plan.counts.batch_size * len(plan.machine.towers)
    print(*format_summary(operations, limits, statistics.median(untraced), num_images), sep='\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""Checks that each op of a training step runs on the device that the graph asks for."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf
from google.protobuf import text_format  # type: ignore[import-untyped]  # protobuf ships no types

from benchmark_cnn import BenchmarkCNN
from doctor.verdicts import Context, Verdict, ok, warning, wrong
from errors import counted
from params import make_params

_NUM_SHOWN = 6


def step(context: Context, flags: Mapping[str, Any]) -> Verdict:
    """Trains two steps, and compares the devices in the graph as built with those in the graph that ran.

    An op whose device the graph does not name may run anywhere. Ops that TensorFlow adds (transfers) or fuses have no
    counterpart in the graph as built.

    Args:
      context: the context of the check.
      flags: the settings of the run, as make_params takes them.
    """
    params = {
        'batch_size': 4,
        'num_batches': 1,
        'num_warmup_batches': 1,
        **({'device': 'gpu', 'allow_growth': True} if context.num_gpus else {'device': 'cpu'}),
        'num_gpus': min(2, context.num_gpus or 2),
        **flags,
    }
    with tempfile.TemporaryDirectory() as folder:
        graph_file, prefix = f'{folder}/graph.pb', f'{folder}/part'
        context.doing('training')
        files = {'graph_file': graph_file, 'partitioned_graph_file_prefix': prefix}
        BenchmarkCNN(make_params(**params, **files)).run()
        context.doing('comparing the devices')
        built = tf.GraphDef.FromString(Path(graph_file).read_bytes())
        ran = [text_format.Parse(path.read_text(), tf.GraphDef()) for path in sorted(Path(folder).glob('part*'))]
    moved = list_moved(built.node, (node for part in ran for node in part.node))
    counts = Counter(_kind(node.device) for part in ran for node in part.node)
    listed = ', '.join(f'{number} on {device}' for device, number in sorted(counts.items()))
    figures = {'ops_by_device': dict(counts), 'moved': moved, 'flags': params}
    if not moved:
        return ok(f'every op ran where the graph asks for: {listed}', **figures)
    ops = Counter(f'{op["op"]} of {op["dtype"]} from {op["asked"]} to {op["ran"]}' for op in moved)
    shown = '; '.join(f'{number} x {what}' for what, number in ops.most_common(_NUM_SHOWN))
    found = f'{counted(len(moved), "op")} did not run where the graph asks for: {shown}'
    if any(op['is_floating'] for op in moved):
        return wrong(found, 'TensorFlow has no kernel for them there, which makes steps slow: report it', **figures)
    return warning(found, 'they hold whole numbers or text only, so steps are hardly slower; report it', **figures)


def list_moved(built: Iterable[Any], ran: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns the ops that ran on another device than the graph names: name, op, dtype, asked, ran, is_floating.

    Args:
      built: the nodes of the graph as built.
      ran: the nodes of the graphs of all devices.
    """
    devices = {node.name: node.device for node in built}
    moved = []
    for node in ran:
        if devices.get(node.name) and _kind(devices[node.name]) != _kind(node.device):
            dtypes = [value.type for name, value in sorted(node.attr.items()) if value.type]
            moved.append(
                {
                    'name': node.name,
                    'op': node.op,
                    'dtype': ', '.join(tf.as_dtype(dtype).name for dtype in dtypes) or 'no type',
                    'asked': _kind(devices[node.name]),
                    'ran': _kind(node.device),
                    'is_floating': any(tf.as_dtype(dtype).is_floating for dtype in dtypes),
                }
            )
    return moved


def _kind(device: str) -> str:
    """Returns 'GPU:0' for '/job:localhost/replica:0/task:0/device:GPU:0' and for '/gpu:0'."""
    spec = tf.DeviceSpec.from_string(device)
    return f'{spec.device_type or "any device"}:{spec.device_index or 0}'

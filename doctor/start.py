"""Checks that TensorFlow starts, sees every GPU, and computes on each device."""

import os
from collections.abc import Mapping
from typing import Any

from doctor.verdicts import Context, Verdict, ok, warning, wrong
from errors import counted
from machine.gpus import VISIBLE, gpu_facts, has_nvidia_gpu, visible
from machine.missing_gpu import explain_missing_gpu
from machine.surroundings import environment_facts
from machine.tensorflow_import import import_tensorflow

_SIZE = 256
# TensorFlow ignores GPUs with fewer multiprocessors than this variable says, by default 8 or as many as the largest GPU
# has (GetMinGPUMultiprocessorCount in gpu_device.cc).
_FEWEST_MULTIPROCESSORS = 'TF_MIN_GPU_MULTIPROCESSOR_COUNT'


def devices(context: Context) -> Verdict:
    """Checks that TensorFlow can be imported, sees all GPUs that the driver shows it, and computes on each device.

    The other checks depend on num_gpus in its figures.
    """
    context.doing('importing TensorFlow')
    import_tensorflow()
    import tensorflow.compat.v1 as tf

    context.doing('listing the devices')
    found = tf.config.list_physical_devices('GPU')
    num_gpus = len(found)
    figures = {
        'num_gpus': num_gpus,
        'tensorflow': tf.__version__,
        'build': dict(tf.sysconfig.get_build_info()),
        'gpus': [tf.config.experimental.get_device_details(device) for device in found],
        'environment': environment_facts(os.environ),
    }
    shown = f'TensorFlow {tf.__version__}'
    context.doing('asking the driver for its GPUs')
    gpus = gpu_facts()[0] if has_nvidia_gpu() else []
    at_least = int(context.expects_gpu or has_nvidia_gpu())
    expected = max(len(visible([gpu['uuid'] or '' for gpu in gpus], os.environ)), at_least)
    if num_gpus < expected and not num_gpus:
        why = explain_missing_gpu() or '--device=gpu, and this machine has no GPU of NVIDIA'
        return wrong(f'{shown} sees no GPU: {why}', 'see docs/gpu.md', **figures)
    names = ['/cpu:0', *(f'/gpu:{index}' for index in range(num_gpus))]
    for name in names:
        context.doing(f'multiplying a matrix on {name}')
        _multiply(tf, name)
    return compare_counts(f'{shown} computes on {", ".join(names)}', num_gpus, expected, os.environ, figures)


def compare_counts(
    shown: str, num_gpus: int, expected: int, environ: Mapping[str, str], figures: Mapping[str, Any]
) -> Verdict:
    """Returns the verdict on a TensorFlow that computes on each GPU that it sees.

    Args:
      shown: describes what it does.
      num_gpus: how many GPUs it sees.
      expected: how many GPUs the driver shows it.
      environ: the environment variables of this process.
      figures: the figures of the verdict.
    """
    if num_gpus >= expected:
        return ok(shown, **figures)
    fewest = environ.get(_FEWEST_MULTIPROCESSORS, '8')
    return warning(
        f'{shown}, and ignores {expected - num_gpus} of {counted(expected, "GPU")}',
        f'if these have fewer than {fewest} multiprocessors, set {_FEWEST_MULTIPROCESSORS}=1 to use them, or {VISIBLE} '
        'to hide them; else see gpu/architecture, and the log in doctor --json',
        **figures,
    )


def _multiply(tf: Any, device: str) -> None:
    """Multiplies a matrix of ones with itself on a device.

    Raises:
      ArithmeticError: the product is wrong.
    """
    with tf.Graph().as_default(), tf.device(device):
        ones = tf.fill([_SIZE, _SIZE], tf.placeholder_with_default(1.0, []))
        product = tf.matmul(ones, ones)
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    with tf.Session(graph=product.graph, config=config) as session:
        values = session.run(product)
    if not (values == _SIZE).all():
        raise ArithmeticError(f'the product of matrices on {device} is {values.min()} to {values.max()}, not {_SIZE}')

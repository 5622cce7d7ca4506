"""Checks that TensorFlow starts, sees every GPU, and computes on each device."""

import os
from typing import Any

from doctor.verdicts import Context, Verdict, ok, wrong
from errors import counted
from hardware.gpus import gpu_facts, has_nvidia_gpu, visible
from hardware.missing_gpu import explain_missing_gpu
from hardware.surroundings import environment_facts

_SIZE = 256


def devices(context: Context, expects_gpu: bool = False) -> Verdict:
    """Whether TensorFlow can be imported, sees as many GPUs as the driver shows it, and multiplies on each device.

    The other checks go by num_gpus of its figures.

    Args:
      expects_gpu: whether --device=gpu was written.
    """
    context.doing('importing TensorFlow')
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
    expected = max(len(visible([gpu['uuid'] or '' for gpu in gpus], os.environ)), int(expects_gpu or has_nvidia_gpu()))
    if num_gpus < expected:
        if num_gpus:
            why = f'it ignores {expected - num_gpus} of {counted(expected, "GPU")}: see the log in doctor --json'
        else:
            why = explain_missing_gpu() or '--device=gpu, and this machine has no GPU of NVIDIA'
        return wrong(f'{shown} sees {counted(num_gpus, "GPU")}: {why}', 'see docs/gpu.md', **figures)
    names = ['/cpu:0', *(f'/gpu:{index}' for index in range(num_gpus))]
    for name in names:
        context.doing(f'multiplying a matrix on {name}')
        _multiply(tf, name)
    return ok(f'{shown} computes on {", ".join(names)}', **figures)


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

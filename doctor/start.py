"""Checks that TensorFlow starts, sees every GPU, and computes on each device."""

import os
from typing import Any

from doctor.verdicts import Context, Verdict, ok, wrong
from errors import counted
from run.cuda_libraries import check_libraries, describe_missing
from run.gpus import gpu_facts, has_nvidia_gpu, visible
from run.surroundings import environment_facts

# Of CUDA 12, by the major version: CUDA Toolkit Release Notes, table "CUDA Toolkit and Minimum Required Driver Version
# for CUDA Minor Version Compatibility".
_OLDEST_DRIVERS = {'12': '525.60.13', '13': '580.65.06'}
_SIZE = 256


def devices(context: Context, expects_gpu: bool = False) -> Verdict:
    """Whether TensorFlow can be imported, sees as many GPUs as the driver shows it, and multiplies on each device.

    Its figures are what the other checks go by: num_gpus.

    Args:
      expects_gpu: whether --device=gpu was written.
    """
    context.doing('importing TensorFlow')
    import tensorflow.compat.v1 as tf

    context.doing('listing the devices')
    found = tf.config.list_physical_devices('GPU')
    num_gpus = len(found)
    build: dict[str, Any] = dict(tf.sysconfig.get_build_info())
    details = [tf.config.experimental.get_device_details(device) for device in found]
    figures = {
        'num_gpus': num_gpus,
        'tensorflow': tf.__version__,
        'build': build,
        'gpus': details,
        'environment': environment_facts(os.environ),
    }
    shown = f'TensorFlow {tf.__version__}'
    # Without the driver, gpu_facts would ask it in vain.
    gpus, driver = gpu_facts() if has_nvidia_gpu() else ([], None)
    expected = len(visible([gpu['uuid'] or '' for gpu in gpus], os.environ))
    if num_gpus < max(expected, expects_gpu):
        wanted = f'the driver shows {counted(expected, "GPU")}' if expected else '--device=gpu asks for one'
        oldest = _OLDEST_DRIVERS.get(str(build.get('cuda_version', '')).partition('.')[0])
        missing = describe_missing(check_libraries()) if build.get('is_cuda_build') else None
        if not build.get('is_cuda_build'):
            advice = "install the [cuda] extra: pip install '.[cuda]'"
        else:
            advice = missing or (
                f'the driver must be {oldest} or newer for CUDA {build["cuda_version"]}, and is {driver or "unknown"}; '
                'see gpu/driver and gpu/libraries, and the log of doctor --json'
            )
        return wrong(f'{shown} sees {counted(num_gpus, "GPU")}; {wanted}', advice, **figures)
    names = ['/cpu:0', *(f'/gpu:{index}' for index in range(num_gpus))]
    for name in names:
        context.doing(f'multiplying a matrix on {name}')
        _multiply(tf, name)
    with_gpus = f' with {counted(num_gpus, "GPU")}' if num_gpus else ''
    return ok(f'{shown}{with_gpus} starts and computes on {", ".join(names)}', **figures)


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

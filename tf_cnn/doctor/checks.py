"""The checks of `doctor` on TensorFlow's view of the GPUs. Only the check imports TensorFlow."""

import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.machine.findings import OK, WARNING, WRONG, Finding
from tf_cnn.machine.gpus import VISIBLE_VARIABLE, has_nvidia_gpu, visible_gpus
from tf_cnn.machine.missing_gpu import GPU_CHECKS, explain_missing_gpu
from tf_cnn.machine.tensorflow_build import explain_kernel_fault
from tf_cnn.system.errors import install_command, plural

# TensorFlow ignores GPUs with fewer multiprocessors than this variable says. Its default is 8, or
# the number of the largest GPU if that is smaller (GetMinGPUMultiprocessorCount in gpu_device.cc).
_MIN_MULTIPROCESSORS_VARIABLE = 'TF_MIN_GPU_MULTIPROCESSOR_COUNT'
_GUIDE = 'see docs/gpu.md'
_MATRIX_SIZE = 256


# ---- the GPUs ------------------------------------------------------------------------------------


def check_number(expected: int, findings: Iterable[Finding]) -> Finding:
    """Checks the number of GPUs: those of the driver, and those that TensorFlow found, if it was
    checked.
    """
    counts = [len(visible_gpus())]
    counts += [
        len(gpus)
        for finding in findings
        if finding.name.startswith('tensorflow')
        if isinstance(gpus := finding.figures.get('gpus'), list)
    ]
    outcome = OK if min(counts) >= expected else WRONG
    summary = f'{plural(min(counts), "GPU")}, and --num_gpus={expected} are expected'
    return Finding(outcome, summary, name='gpu/number')


# ---- TensorFlow ----------------------------------------------------------------------------------


def check_devices() -> Finding:
    """Checks that TensorFlow can be imported, sees all GPUs, and computes on each device."""
    try:
        import_tensorflow()
        import tensorflow.compat.v1 as tf
    # A damaged package may raise anything.
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or ['no message']
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == 'tensorflow'
        install = install_command('tensorflow', again=not is_missing)
        return Finding(
            WRONG,
            f'TensorFlow cannot be imported: {type(error).__name__}: {lines[0]}',
            f'use {install}',
        )
    gpus = tf.config.list_physical_devices('GPU')
    details = [tf.config.experimental.get_device_details(device) for device in gpus]
    figures = {
        'tensorflow': tf.__version__,
        'build': dict(tf.sysconfig.get_build_info()),
        'gpus': details,
    }
    expected = max(len(visible_gpus()), int(has_nvidia_gpu()))
    if expected and not gpus:
        why = explain_missing_gpu()
        return Finding(WRONG, f'TensorFlow {tf.__version__} sees no GPU: {why}', _GUIDE, figures)
    names = ['/cpu:0', *(f'/gpu:{index}' for index in range(len(gpus)))]
    for name in names:
        try:
            _check_arithmetic(tf, name)
        except tf.errors.OpError as error:
            if kernel_fault := explain_kernel_fault(error.message):
                return Finding(WRONG, f'{name}: {kernel_fault}', _GUIDE, figures)
            raise
    return compare_gpu_counts(
        f'TensorFlow {tf.__version__} computes on {", ".join(names)}', len(gpus), expected, figures
    )


def compare_gpu_counts(
    summary: str, num_gpus: int, expected: int, figures: Mapping[str, Any]
) -> Finding:
    """Returns the finding: TensorFlow computes on num_gpus GPUs, the driver shows `expected`."""
    if num_gpus >= expected:
        return Finding(OK, summary, None, figures)
    return Finding(
        WARNING,
        f'{summary}, and ignores {expected - num_gpus} of {plural(expected, "GPU")}',
        f'if these have few multiprocessors, set {_MIN_MULTIPROCESSORS_VARIABLE}=1 to use them, or '
        f'{VISIBLE_VARIABLE} to hide them; otherwise see gpu/architecture, and the lines of '
        'TensorFlow below',
        figures,
    )


def _check_arithmetic(tf: Any, device: str) -> None:
    """Multiplies matrices of ones on a device; raises ArithmeticError if the product is wrong.

    The product is a kernel of cuBLAS. Signs change by generated kernels of TensorFlow, those that a
    driver may fail to compile for a new GPU.
    """
    with tf.Graph().as_default(), tf.device(device):
        ones = tf.fill([_MATRIX_SIZE, _MATRIX_SIZE], tf.placeholder_with_default(1.0, []))
        product = tf.abs(tf.matmul(ones, -ones))
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    with tf.Session(graph=product.graph, config=config) as session:
        values = session.run(product)
    if not (values == _MATRIX_SIZE).all():
        raise ArithmeticError(
            f'the product of matrices on {device} is {values.min()} to {values.max()}, not '
            f'{_MATRIX_SIZE}'
        )


FAMILIES: Mapping[str, Mapping[str, Callable[..., Finding]]] = {
    'gpu': GPU_CHECKS,
    'tensorflow': {'devices': check_devices},
}

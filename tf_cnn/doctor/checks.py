"""The checks of `doctor` on the GPUs, and on TensorFlow's view of them.

Only the check of the devices imports TensorFlow.
"""

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.machine.gpus import (
    VISIBLE_VARIABLE,
    describe_gpus,
    gpus_on_bus,
    has_nvidia_gpu,
    visible_indices,
)
from tf_cnn.machine.missing_gpu import (
    OPTIONAL,
    check_libraries,
    describe_driver_fault,
    describe_missing,
    explain_missing_gpu,
    query_driver,
)
from tf_cnn.machine.tensorflow_build import (
    explain_kernel_fault,
    supports_gpu,
    tensorflow_build,
)
from tf_cnn.system.errors import install_command, plural
from tf_cnn.system.kernel_files import ROOT

# WARNING: runs work, but slower than possible. WRONG: some runs fail, or compute wrong values.
OK, WARNING, WRONG, SKIPPED = 'ok', 'warning', 'wrong', 'skipped'

_GIBIBYTE = 2**30
# TensorFlow ignores GPUs with fewer multiprocessors than this variable says. Its default is 8, or
# the number of the largest GPU if that is smaller (GetMinGPUMultiprocessorCount in gpu_device.cc).
_MIN_MULTIPROCESSORS_VARIABLE = 'TF_MIN_GPU_MULTIPROCESSOR_COUNT'
_GUIDE = 'see docs/gpu.md'
_MATRIX_SIZE = 256
# The newest compute capability that the PTX of all supported versions of TensorFlow fits.
_HOPPER = 9.0


class Finding(Struct, frozen=True):
    """The outcome of a check.

    Attributes:
      found: one line with the finding, or why the check was skipped.
      advice: one line; None if there is nothing to do.
      figures: the measured values and versions, for --json.
    """

    outcome: str
    found: str
    advice: str | None = None
    figures: Mapping[str, object] = {}  # a Struct copies it
    name: str = ''


# ---- the GPUs ------------------------------------------------------------------------------------


def check_driver(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Finding:
    if not has_nvidia_gpu({}, root):
        if not (on_bus := gpus_on_bus(root)):
            return Finding(SKIPPED, 'this machine has no NVIDIA GPU')
        advice = (
            f'install the driver ({_GUIDE}); if it is installed, dmesg says why it was not loaded'
        )
        summary = f'{plural(len(on_bus), "GPU")} of NVIDIA on the PCI bus, but no driver is loaded'
        return Finding(WRONG, summary, advice)
    if not has_nvidia_gpu(environ, root):
        return Finding(SKIPPED, f'{VISIBLE_VARIABLE} hides the GPUs')
    nvidia_driver, build, (gpus, _) = query_driver(environ), tensorflow_build(), describe_gpus()
    figures = {'driver': vars(nvidia_driver), 'gpus': gpus}
    if build and (fault := describe_driver_fault(nvidia_driver, build)):
        return Finding(WRONG, fault, _GUIDE, figures)
    if not gpus:
        advice = f'nvidia-smi may say why; without nvidia-ml-py: {install_command("nvidia-ml-py")}'
        return Finding(WARNING, 'the driver names no GPUs', advice, figures)
    cuda = '.'.join(map(str, nvidia_driver.cuda_version or ())) or 'of unknown version'
    return Finding(
        OK, f'driver {nvidia_driver.version} for CUDA {cuda}; {list_gpus(gpus)}', None, figures
    )


def check_cuda_libraries() -> Finding:
    if not has_nvidia_gpu():
        return Finding(SKIPPED, 'no NVIDIA GPU')
    errors, install = check_libraries(), install_command('tensorflow[and-cuda]')
    if not errors:
        return Finding(WRONG, 'the installed TensorFlow is built without CUDA', f'use {install}')
    if missing := describe_missing(errors):
        return Finding(WRONG, missing, _GUIDE, errors)
    if lacking := [f'{name} for {OPTIONAL[name]}' for name, error in errors.items() if error]:
        return Finding(WARNING, f'cannot be opened: {", ".join(lacking)}', f'use {install}', errors)
    return Finding(OK, f'all {len(errors)} can be opened', None, errors)


def check_architectures() -> Finding:
    """Checks that TensorFlow has machine code for every GPU visible in CUDA_VISIBLE_DEVICES."""
    if not has_nvidia_gpu():
        return Finding(SKIPPED, 'no NVIDIA GPU')
    capabilities, build = query_driver().capabilities, tensorflow_build()
    architectures = build.architectures if build else ()
    if not capabilities or not architectures:
        return Finding(SKIPPED, 'the driver names no GPUs, or TensorFlow is built without CUDA')
    has = {capability: supports_gpu(capability, architectures) for capability in capabilities}
    figures = {'architectures': architectures, 'capabilities': capabilities}
    summary = f'TensorFlow has kernels for {", ".join(architectures)}'
    if lacking := [capability for capability, code in has.items() if code is False]:
        summary += f', and ignores GPUs of compute capability {", ".join(lacking)}'
        advice = (
            f'install an older TensorFlow for an older GPU, or hide these with {VISIBLE_VARIABLE}'
        )
        return Finding(WRONG, summary, advice, figures)
    if compiled := [capability for capability, code in has.items() if code is None]:
        summary += (
            f'; for compute capability {", ".join(compiled)} the driver compiles kernels at first '
            'use'
        )
        advice = (
            'the first run may take up to half an hour to start; CUDA_CACHE_PATH '
            '(~/.nv/ComputeCache) must be a folder that can keep its kernels'
        )
        if any(float(capability) > _HOPPER for capability in compiled):
            summary += f', which fails above {_HOPPER} with TensorFlow 2.16 to 2.20'
            advice = f'see tensorflow/devices, which tries it, and docs/gpu.md, Blackwell; {advice}'
        return Finding(WARNING, summary, advice, figures)
    return Finding(OK, f'{summary}; the GPUs have {", ".join(has)}', None, figures)


def list_gpus(gpus: Sequence[Mapping[str, Any]]) -> str:
    """Returns text such as '8 x NVIDIA A100-SXM4-40GB (compute capability 8.0, 39.6 GiB)'."""
    descriptions = []
    for gpu in gpus:
        size = f', {gpu["memory_bytes"] / _GIBIBYTE:.1f} GiB' if gpu['memory_bytes'] else ''
        descriptions.append(
            f'{gpu["name"] or "unknown GPU"} (compute capability {gpu["compute_capability"]}{size})'
        )
    return ', '.join(f'{descriptions.count(text)} x {text}' for text in dict.fromkeys(descriptions))


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
    uuids = [gpu['uuid'] or '' for gpu in describe_gpus()[0]] if has_nvidia_gpu() else []
    expected = max(len(visible_indices(uuids, os.environ)), int(has_nvidia_gpu()))
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


FAMILIES: Mapping[str, Mapping[str, Callable[[], Finding]]] = {
    'gpu': {
        'driver': check_driver,
        'libraries': check_cuda_libraries,
        'architecture': check_architectures,
    },
    'tensorflow': {'devices': check_devices},
}

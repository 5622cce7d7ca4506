"""The checks of `doctor` on the GPUs and TensorFlow's view of them. Only the last one imports
TensorFlow.
"""

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.machine.gpus import VISIBLE, gpu_facts, gpus_on_bus, has_nvidia_gpu, visible
from tf_cnn.machine.missing_gpu import (
    OPTIONAL,
    ask_driver,
    check_libraries,
    describe_driver_fault,
    describe_missing,
    explain_missing_gpu,
)
from tf_cnn.machine.tensorflow_build import runs_on, tensorflow_build
from tf_cnn.system.errors import plural, to_install
from tf_cnn.system.kernel_files import ROOT

# WARNING: runs work, but slower than they could. WRONG: some runs fail, or compute something wrong.
OK, WARNING, WRONG, SKIPPED = 'ok', 'warning', 'wrong', 'skipped'

_GIBIBYTE = 2**30
# TensorFlow ignores GPUs with fewer multiprocessors than this variable says, by default 8 or as
# many as the largest GPU has (GetMinGPUMultiprocessorCount in gpu_device.cc).
_FEWEST_MULTIPROCESSORS = 'TF_MIN_GPU_MULTIPROCESSOR_COUNT'
_GUIDE = 'see docs/gpu.md'
_SIZE = 256


class Finding(Struct, frozen=True):
    """A check's outcome, a line with what was found (or why it was skipped), one of advice, and its
    facts as JSON.
    """

    outcome: str
    found: str
    advice: str | None = None
    figures: Mapping[str, Any] = {}  # a Struct copies it
    name: str = ''


# ---- the GPUs ------------------------------------------------------------------------------------


def driver(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Finding:
    if not has_nvidia_gpu({}, root):
        if not (on_bus := gpus_on_bus(root)):
            return Finding(SKIPPED, 'this machine has no GPU of NVIDIA')
        advice = (
            f'install the driver ({_GUIDE}); if it is installed, dmesg says why it was not loaded'
        )
        shown = f'{plural(len(on_bus), "GPU")} of NVIDIA on the PCI bus, but no driver is loaded'
        return Finding(WRONG, shown, advice)
    if not has_nvidia_gpu(environ, root):
        return Finding(SKIPPED, f'{VISIBLE} hides the GPUs')
    found, build, (gpus, _) = ask_driver(environ), tensorflow_build(), gpu_facts()
    figures = {'driver': vars(found), 'gpus': gpus}
    if build and (fault := describe_driver_fault(found, build)):
        return Finding(WRONG, fault, _GUIDE, figures)
    if not gpus:
        advice = f'nvidia-smi may say why; without nvidia-ml-py: {to_install("nvidia-ml-py")}'
        return Finding(WARNING, 'the driver names no GPUs', advice, figures)
    cuda = '.'.join(map(str, found.cuda_version or ())) or 'of unknown version'
    return Finding(OK, f'driver {found.version} for CUDA {cuda}; {list_gpus(gpus)}', None, figures)


def libraries() -> Finding:
    if not has_nvidia_gpu():
        return Finding(SKIPPED, 'no GPU of NVIDIA')
    errors, install = check_libraries(), to_install('tensorflow[and-cuda]')
    if not errors:
        return Finding(WRONG, 'the installed TensorFlow is built without CUDA', f'write {install}')
    if missing := describe_missing(errors):
        return Finding(WRONG, missing, _GUIDE, errors)
    if lacking := [f'{name} for {OPTIONAL[name]}' for name, error in errors.items() if error]:
        return Finding(
            WARNING, f'cannot be opened: {", ".join(lacking)}', f'write {install}', errors
        )
    return Finding(OK, f'all {len(errors)} can be opened', None, errors)


def architecture() -> Finding:
    """Checks that TensorFlow has machine code for every GPU that CUDA_VISIBLE_DEVICES shows."""
    if not has_nvidia_gpu():
        return Finding(SKIPPED, 'no GPU of NVIDIA')
    capabilities, build = ask_driver().capabilities, tensorflow_build()
    architectures = build.architectures if build else ()
    if not capabilities or not architectures:
        return Finding(SKIPPED, 'the driver names no GPUs, or TensorFlow is built without CUDA')
    has = {capability: runs_on(capability, architectures) for capability in capabilities}
    figures = {'architectures': architectures, 'capabilities': capabilities}
    shown = f'TensorFlow has kernels for {", ".join(architectures)}'
    if lacking := [capability for capability, code in has.items() if code is False]:
        shown += f', and ignores GPUs of compute capability {", ".join(lacking)}'
        advice = f'install an older TensorFlow for an older GPU, or hide these by {VISIBLE}'
        return Finding(WRONG, shown, advice, figures)
    if compiled := [capability for capability, code in has.items() if code is None]:
        shown += (
            f'; for compute capability {", ".join(compiled)} the driver compiles kernels at first '
            'use'
        )
        advice = (
            'the first run may take up to half an hour to start; set '
            'CUDA_CACHE_MAXSIZE=4294967296, so that later '
        )
        return Finding(WARNING, shown, f'{advice}ones find all of them compiled', figures)
    return Finding(OK, f'{shown}; the GPUs have {", ".join(has)}', None, figures)


def list_gpus(gpus: Sequence[Mapping[str, Any]]) -> str:
    """Returns text such as '8 x NVIDIA A100-SXM4-40GB (compute capability 8.0, 39.6 GiB)'."""
    shown = []
    for gpu in gpus:
        size = f', {gpu["memory_bytes"] / _GIBIBYTE:.1f} GiB' if gpu['memory_bytes'] else ''
        shown.append(
            f'{gpu["name"] or "unknown GPU"} (compute capability {gpu["compute_capability"]}{size})'
        )
    return ', '.join(f'{shown.count(text)} x {text}' for text in dict.fromkeys(shown))


# ---- TensorFlow ----------------------------------------------------------------------------------


def devices() -> Finding:
    """Checks that TensorFlow can be imported, sees all GPUs that the driver shows it, and computes
    on each device.
    """
    try:
        import_tensorflow()
        import tensorflow.compat.v1 as tf
    # A damaged package may raise anything.
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or ['no message']
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == 'tensorflow'
        install = to_install('tensorflow', again=not is_missing)
        return Finding(
            WRONG,
            f'TensorFlow cannot be imported: {type(error).__name__}: {lines[0]}',
            f'write {install}',
        )
    found = tf.config.list_physical_devices('GPU')
    details = [tf.config.experimental.get_device_details(device) for device in found]
    figures = {
        'tensorflow': tf.__version__,
        'build': dict(tf.sysconfig.get_build_info()),
        'gpus': details,
    }
    uuids = [gpu['uuid'] or '' for gpu in gpu_facts()[0]] if has_nvidia_gpu() else []
    expected = max(len(visible(uuids, os.environ)), int(has_nvidia_gpu()))
    if expected and not found:
        why = explain_missing_gpu()
        return Finding(WRONG, f'TensorFlow {tf.__version__} sees no GPU: {why}', _GUIDE, figures)
    names = ['/cpu:0', *(f'/gpu:{index}' for index in range(len(found)))]
    for name in names:
        _multiply(tf, name)
    return compare_counts(
        f'TensorFlow {tf.__version__} computes on {", ".join(names)}', len(found), expected, figures
    )


def compare_counts(shown: str, num_gpus: int, expected: int, figures: Mapping[str, Any]) -> Finding:
    """Returns the finding on a TensorFlow that computes on num_gpus; the driver shows it the
    expected number.
    """
    if num_gpus >= expected:
        return Finding(OK, shown, None, figures)
    return Finding(
        WARNING,
        f'{shown}, and ignores {expected - num_gpus} of {plural(expected, "GPU")}',
        f'if these have few multiprocessors, set {_FEWEST_MULTIPROCESSORS}=1 to use them, or '
        f'{VISIBLE} to hide them; '
        "else see gpu/architecture, and TensorFlow's own lines below",
        figures,
    )


def _multiply(tf: Any, device: str) -> None:
    """Multiplies a matrix of ones with itself on a device; raises ArithmeticError if the product is
    wrong.
    """
    with tf.Graph().as_default(), tf.device(device):
        ones = tf.fill([_SIZE, _SIZE], tf.placeholder_with_default(1.0, []))
        product = tf.matmul(ones, ones)
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    with tf.Session(graph=product.graph, config=config) as session:
        values = session.run(product)
    if not (values == _SIZE).all():
        raise ArithmeticError(
            f'the product of matrices on {device} is {values.min()} to {values.max()}, not {_SIZE}'
        )


FAMILIES: Mapping[str, Mapping[str, Callable[[], Finding]]] = {
    'gpu': {'driver': driver, 'libraries': libraries, 'architecture': architecture},
    'tensorflow': {'devices': devices},
}

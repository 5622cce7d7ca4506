"""The data format of a run on GPUs, and whether it computes fp32 in TF32. Does not import TensorFlow.

TensorFlow's own layout pass (tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc, GetSrcAndDstDataFormats)
converts convolutions to NHWC if at least half of the GPUs are of compute capability 7.0 (Volta) or above and half of
the convolutions are in float16, or 8.0 (Ampere) and bfloat16; else to NCHW, float32 with TF32 included. That is also
what it does in 2.21: tests/hardware/test_data_formats.py runs that pass for such GPUs. Its reason: tensor cores
multiply in NHWC, and cuDNN transposes what it gets in NCHW (tensorflow/core/kernels/conv_ops_gpu.cc,
ComputeInNhwcEnabled, which counts TF32 as well). Float32 stays in NCHW all the same: when it trains, batch norm has a
kernel for NHWC in 16 bits only (tensorflow/core/kernels/fused_batch_norm_op.cc), and in 32 would transpose each
activation twice. Not measured on a GPU.
"""

from collections.abc import Mapping, Sequence

Capability = tuple[int, int]

# The lowest compute capability of which NHWC is faster.
_NHWC_FROM: Mapping[str, Capability] = {'fp16': (7, 0), 'bf16': (8, 0)}
# NVIDIA, "Ampere GPU Architecture Tuning Guide", section 1.4.1.2: tensor cores for TF32.
_TF32_FROM: Capability = (8, 0)


def choose_data_format(precision: str, capabilities: Sequence[Capability | None]) -> tuple[str, str]:
    """The faster data format on GPUs, and the reason in a few words, for the banner.

    A synchronous step lasts until the slowest GPU is done, so the lowest capability decides. If one is unknown, as for
    GPUs of other processes, the GPUs count as made for the precision that was asked for.

    Args:
      precision: a value of --precision. capabilities: the compute capability of each GPU, (8, 0); None is unknown.
    """
    lowest = _NHWC_FROM.get(precision)
    if lowest is None:
        return 'NCHW', f'{precision} on GPUs'
    known = [capability for capability in capabilities if capability is not None]
    if len(known) < len(capabilities) or not known:
        return 'NHWC', f'{precision} on GPUs'
    least = min(known)
    return 'NHWC' if least >= lowest else 'NCHW', f'{precision} on GPUs of compute capability {dotted(least)}'


def uses_tf32(precision: str, capabilities: Sequence[Capability | None], environ: Mapping[str, str]) -> bool | None:
    """Whether GPUs compute fp32 in TF32, if that is allowed; None if it depends on what is unknown.

    Args:
      environ: NVIDIA_TF32_OVERRIDE=0 in it makes NVIDIA's libraries compute in 32 bits (cuBLAS and cuDNN).
    """
    if precision != 'fp32' or environ.get('NVIDIA_TF32_OVERRIDE') == '0':
        return False
    if any(capability is not None and capability >= _TF32_FROM for capability in capabilities):
        return True
    return None if None in capabilities else False


def dotted(capability: Capability) -> str:
    """As NVIDIA writes it: '8.0'."""
    return '.'.join(map(str, capability))

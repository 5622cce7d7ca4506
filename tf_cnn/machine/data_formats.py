"""The data format of a run on GPUs, and whether it computes fp32 in TF32. Does not import
TensorFlow.

The choice follows TensorFlow's layout pass
(tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc, GetSrcAndDstDataFormats): NHWC if
at least half of the GPUs have compute capability 7.0 (Volta) or above and half of the convolutions
are in float16, or 8.0 (Ampere) and bfloat16; else NCHW, even for float32 with TF32. It was compared
with that pass of TensorFlow 2.21, and not measured on a GPU.

The reason for NHWC: tensor cores multiply in it, and cuDNN transposes its inputs in NCHW
(conv_ops_gpu.cc in tensorflow/core/kernels, ComputeInNhwcEnabled, which includes TF32). Float32
stays in NCHW because in training batch norm has a kernel for NHWC only in 16 bits
(fused_batch_norm_op.cc); else it would transpose each activation twice.
"""

from collections.abc import Mapping, Sequence

# A compute capability such as (8, 0).
Capability = tuple[int, int]

# The lowest compute capability that is faster with NHWC.
_NHWC_FROM: Mapping[str, Capability] = {'fp16': (7, 0), 'bf16': (8, 0)}
# NVIDIA, "Ampere GPU Architecture Tuning Guide", section 1.4.1.2: tensor cores for TF32.
_TF32_FROM: Capability = (8, 0)


def choose_data_format(
    precision: str, capabilities: Sequence[Capability | None]
) -> tuple[str, str]:
    """Returns the faster data format on GPUs, and the reason in a few words, for the banner.

    A synchronous step lasts until the slowest GPU is done, so the lowest capability decides. If one
    is unknown, such as the capability of another process's GPU, all GPUs are assumed to have tensor
    cores for the precision.
    """
    lowest = _NHWC_FROM.get(precision)
    if lowest is None:
        return 'NCHW', f'{precision} on GPUs'
    known_capabilities = [capability for capability in capabilities if capability is not None]
    if len(known_capabilities) < len(capabilities) or not known_capabilities:
        return 'NHWC', f'{precision} on GPUs'
    least = min(known_capabilities)
    reason = f'{precision} on GPUs of compute capability {".".join(map(str, least))}'
    return 'NHWC' if least >= lowest else 'NCHW', reason


def uses_tf32(
    precision: str, capabilities: Sequence[Capability | None], environ: Mapping[str, str]
) -> bool | None:
    """Returns whether GPUs compute fp32 in TF32 where that is allowed; None if an unknown
    capability decides.

    With NVIDIA_TF32_OVERRIDE=0 in environ, NVIDIA's libraries (cuBLAS and cuDNN) compute in 32
    bits.
    """
    if precision != 'fp32' or environ.get('NVIDIA_TF32_OVERRIDE') == '0':
        return False
    if any(capability is not None and capability >= _TF32_FROM for capability in capabilities):
        return True
    return None if None in capabilities else False

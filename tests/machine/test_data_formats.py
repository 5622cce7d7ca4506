"""The data format of GPUs is that of TensorFlow's own layout pass; TF32 is what the GPUs and the
environment allow.
"""

import pytest
import tensorflow.compat.v1 as tf

from tf_cnn.machine.data_formats import Capability, choose_data_format, uses_tf32
from tf_cnn.machine.tensorflow_build import tensorflow_build

pytestmark = pytest.mark.graph


@pytest.mark.parametrize(
    ('precision', 'capability', 'expected'),
    [
        *(('fp32', capability, 'NCHW') for capability in [(6, 0), (7, 0), (9, 0)]),
        *(('fp16', (6, 0), 'NCHW'), ('fp16', (7, 0), 'NHWC'), ('fp16', (9, 0), 'NHWC')),
        *(('bf16', (7, 5), 'NCHW'), ('bf16', (8, 0), 'NHWC'), ('bf16', (9, 0), 'NHWC')),
    ],
)
def test_tensor_cores_of_16_bits_have_nhwc(
    precision: str, capability: Capability, expected: str
) -> None:
    chosen, reason = choose_data_format(precision, [capability])
    assert (chosen, precision in reason) == (expected, True)


def test_the_slowest_gpu_decides_and_unknown_ones_count_as_made_for_the_precision() -> None:
    assert choose_data_format('fp16', [(8, 0), (6, 1)])[0] == 'NCHW'
    assert choose_data_format('bf16', [(8, 0), (7, 5)]) == (
        'NCHW',
        'bf16 on GPUs of compute capability 7.5',
    )
    for precision, expected in (('fp32', 'NCHW'), ('fp16', 'NHWC'), ('bf16', 'NHWC')):
        assert choose_data_format(precision, [None])[0] == expected
        assert choose_data_format(precision, [None, (6, 1)])[0] == expected


def test_one_gpu_computes_fp32_in_tf32_where_it_can_and_an_unknown_one_may() -> None:
    assert uses_tf32('fp32', [(7, 5), (8, 6)], {}) is True
    assert uses_tf32('fp32', [(7, 5), None], {}) is None


def test_the_build_is_what_tensorflow_says() -> None:
    facts, build = tf.sysconfig.get_build_info(), tensorflow_build()
    assert build is not None
    assert (build.cuda_version, build.cudnn_version) == (
        facts.get('cuda_version'),
        facts.get('cudnn_version'),
    )
    assert list(build.architectures) == (facts.get('cuda_compute_capabilities') or [])

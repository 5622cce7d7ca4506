"""GPUs get the data format that TensorFlow's own layout pass chooses; TF32 follows from the GPUs
and the environment.
"""

import pytest
import tensorflow.compat.v1 as tf

from tf_cnn.machine.tensorflow_build import tensorflow_build
from tf_cnn.plan.devices import choose_data_format, uses_tf32

pytestmark = pytest.mark.graph


def test_the_slowest_gpu_decides():
    assert choose_data_format('fp16', [(8, 0), (6, 1)])[0] == 'NCHW'
    reason = 'bf16 on GPUs of compute capability 7.5'
    assert choose_data_format('bf16', [(8, 0), (7, 5)]) == ('NCHW', reason)


def test_unknown_gpus_count_as_fast_in_the_precision():
    for precision, expected in (('fp32', 'NCHW'), ('fp16', 'NHWC'), ('bf16', 'NHWC')):
        for capabilities in ([None], [None, (6, 1)]):
            assert choose_data_format(precision, capabilities)[0] == expected


def test_fp32_uses_tf32_if_any_gpu_can():
    assert uses_tf32('fp32', [(7, 5), (8, 6)], {}) is True
    assert uses_tf32('fp32', [(7, 5), None], {}) is None


def test_the_build_equals_tensorflows_own_report():
    says, build = tf.sysconfig.get_build_info(), tensorflow_build()
    assert build is not None
    assert build.cuda_version == says.get('cuda_version')
    assert build.cudnn_version == says.get('cudnn_version')
    assert list(build.architectures) == (says.get('cuda_compute_capabilities') or [])

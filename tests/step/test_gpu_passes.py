"""The data format that TensorFlow's own layout pass chooses, for GPUs that are not there."""

import pytest
import tensorflow.compat.v1 as tf

from tests.step.gpu_graphs import build_on_gpus, optimize

pytestmark = pytest.mark.graph


@pytest.mark.parametrize('capability', ['7.0', '8.0'])
@pytest.mark.parametrize('precision', ['fp32', 'fp16', 'bf16'])
@pytest.mark.parametrize('forward_only', [False, True])
def test_the_default_data_format_is_the_choice_of_the_layout_pass(
    capability, precision, forward_only, monkeypatch
):
    version = tuple(map(int, capability.split('.')))
    monkeypatch.setattr(
        tf.config.experimental, 'get_device_details', lambda _: {'compute_capability': version}
    )
    flags = {'precision': precision, 'forward_only': forward_only}
    default = build_on_gpus(data_format=None, **flags).plan.devices.data_format
    for data_format in ('NHWC', 'NCHW'):
        nodes = optimize(build_on_gpus(data_format=data_format, **flags), capability).node
        formats = {node.attr['data_format'].s.decode() for node in nodes if 'Conv2D' in node.op}
        assert formats == {default}, data_format

"""What TensorFlow's graph passes make of a step on an H100 that is not there."""

import json

import pytest
import tensorflow.compat.v1 as tf

from tests.step.gpu_graphs import build_on_gpus, optimize
from tests.support.programs import run_python

pytestmark = pytest.mark.graph

# A process of its own: TensorFlow reads the switch of persistent batch norm once.
COUNT_OPS = """
import json, os, sys
from collections import Counter

from models.registry import register_model
from tests.step.gpu_graphs import build_on_gpus, optimize

def build(cnn, x, num_classes):
    for number in range(3):
        x = cnn.relu(cnn.batch_norm(cnn.conv(x, 16, 3, f'conv{number}'), f'norm{number}'))
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')

register_model('three_norms', build, data_set='cifar10', image_size=16)
counts = [
    Counter(node.op for node in optimize(build_on_gpus(model='three_norms', **row), '9.0').node)
    for row in json.loads(sys.argv[1])
]
print(json.dumps(counts), flush=True)
os._exit(0)
"""
FORMATS = [
    {'precision': precision, 'data_format': data_format}
    for precision in ('fp32', 'fp16', 'bf16')
    for data_format in ('NHWC', 'NCHW')
]


@pytest.mark.distributed
def test_only_images_in_nchw_are_transposed_and_fp16_in_nhwc_fuses_batch_norm_with_relu():
    # On some processors with oneDNN these passes fuse no batch norm in fp16, of GPUs either.
    variables = {
        'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT': '1',
        'TF_ENABLE_ONEDNN_OPTS': '0',
    }
    counts = json.loads(run_python(COUNT_OPS, json.dumps(FORMATS), **variables).out)
    for row, ops in zip(FORMATS, counts, strict=True):
        assert ops.get('Transpose', 0) == (row['data_format'] == 'NCHW'), row
        is_fused = row == {'precision': 'fp16', 'data_format': 'NHWC'}
        assert ops.get('_FusedBatchNormEx', 0) == 3 * is_fused, row
        assert '_FusedBatchNormGradEx' not in ops, row


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
        nodes = optimize(
            build_on_gpus(data_format=data_format, **flags), capability, chooses_format=True
        ).node
        formats = {node.attr['data_format'].s.decode() for node in nodes if 'Conv2D' in node.op}
        assert formats == {default}, data_format

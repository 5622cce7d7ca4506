"""The data format of GPUs is that of TensorFlow's own layout pass; TF32 is what the GPUs and the environment allow."""

from types import ModuleType

import pytest
import tensorflow.compat.v1 as tf

from machine.data_formats import Capability, choose_data_format, uses_tf32
from machine.tensorflow_build import tensorflow_build

pytestmark = pytest.mark.graph

DTYPES = {'fp32': tf.float32, 'fp16': tf.float16, 'bf16': tf.bfloat16}
CAPABILITIES = [(6, 0), (7, 0), (7, 5), (8, 0), (9, 0)]


@pytest.fixture(scope='module')
def grappler() -> ModuleType:
    return pytest.importorskip('tensorflow.python.grappler.tf_optimizer')


def formats_after_the_layout_pass(
    grappler: ModuleType, dtype: tf.DType, data_format: str, capability: Capability
) -> set[str]:
    """The data formats of a convolution and its gradients after TensorFlow has optimised them for such a GPU."""
    from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties, NamedDevice
    from tensorflow.python.grappler.cluster import Cluster

    with tf.Graph().as_default() as graph, tf.device('/gpu:0'):
        shape = [8, 16, 16, 64] if data_format == 'NHWC' else [8, 64, 16, 16]
        images, kernel = tf.placeholder(dtype, shape), tf.placeholder(dtype, [3, 3, 64, 64])
        hidden = tf.nn.relu(tf.nn.conv2d(images, kernel, 1, 'SAME', data_format=data_format))
        loss = tf.reduce_sum(tf.nn.conv2d(hidden, kernel, 1, 'SAME', data_format=data_format))
        tf.add_to_collection('train_op', tf.identity(tf.gradients(loss, kernel)[0]))
        meta_graph = tf.train.export_meta_graph(graph=graph)
    place = '/job:localhost/replica:0/task:0/device:'
    architecture = {'architecture': '.'.join(map(str, capability))}
    gpu = DeviceProperties(type='GPU', num_cores=80, frequency=1500, memory_size=2**34, environment=architecture)
    cpu = DeviceProperties(type='CPU', num_cores=8, frequency=2000, memory_size=2**34)
    cluster = Cluster(
        devices=[NamedDevice(name=f'{place}GPU:0', properties=gpu), NamedDevice(name=f'{place}CPU:0', properties=cpu)]
    )
    config = tf.ConfigProto()
    rewrite = config.graph_options.rewrite_options
    rewrite.optimizers.append('layout')
    rewrite.min_graph_nodes = -1
    rewrite.meta_optimizer_iterations = rewrite.ONE
    optimised = grappler.OptimizeGraph(config, meta_graph, cluster=cluster, verbose=False)
    return {node.attr['data_format'].s.decode() for node in optimised.node if node.op.startswith('Conv2D')}


@pytest.mark.parametrize('capability', CAPABILITIES, ids=str)
@pytest.mark.parametrize('precision', DTYPES)
def test_the_data_format_is_the_one_that_tensorflow_converts_to(
    grappler: ModuleType, precision: str, capability: Capability
) -> None:
    chosen, reason = choose_data_format(precision, [capability])
    assert precision in reason
    other = {'NCHW': 'NHWC', 'NHWC': 'NCHW'}[chosen]
    # Of what is in the chosen format nothing is converted, and of what is in the other one convolutions are.
    assert formats_after_the_layout_pass(grappler, DTYPES[precision], chosen, capability) == {chosen}
    assert chosen in formats_after_the_layout_pass(grappler, DTYPES[precision], other, capability)


def test_the_slowest_gpu_decides_and_unknown_ones_count_as_made_for_the_precision() -> None:
    assert choose_data_format('fp16', [(8, 0), (6, 1)])[0] == 'NCHW'
    assert choose_data_format('bf16', [(8, 0), (7, 5)]) == ('NCHW', 'bf16 on GPUs of compute capability 7.5')
    for precision, expected in (('fp32', 'NCHW'), ('fp16', 'NHWC'), ('bf16', 'NHWC')):
        assert choose_data_format(precision, [None])[0] == expected
        assert choose_data_format(precision, [None, (6, 1)])[0] == expected


def test_one_gpu_computes_fp32_in_tf32_where_it_can_and_an_unknown_one_may() -> None:
    assert uses_tf32('fp32', [(7, 5), (8, 6)], {}) is True
    assert uses_tf32('fp32', [(7, 5), None], {}) is None


def test_the_build_is_what_tensorflow_says() -> None:
    facts, build = tf.sysconfig.get_build_info(), tensorflow_build()
    assert build is not None
    assert (build.cuda_version, build.cudnn_version) == (facts.get('cuda_version'), facts.get('cudnn_version'))
    assert list(build.architectures) == (facts.get('cuda_compute_capabilities') or [])

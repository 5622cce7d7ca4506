"""GPUs get the data format that TensorFlow's own layout pass chooses, for GPUs that are not there;
TF32 follows from the GPUs and the environment.
"""

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties, NamedDevice
from tensorflow.python.grappler import cluster, tf_optimizer

from tests.step.gpu_graphs import build_on_gpus
from tf_cnn.machine.tensorflow_build import tensorflow_build
from tf_cnn.plan.devices import choose_data_format, uses_tf32

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
    environment = {'architecture': capability, 'cuda': '12050', 'cudnn': '90300'}
    gpu = DeviceProperties(
        type='GPU', num_cores=132, frequency=1700, memory_size=80 << 30, environment=environment
    )
    host = DeviceProperties(type='CPU', num_cores=16, frequency=2000, memory_size=64 << 30)
    task = '/job:localhost/replica:0/task:0/device:'
    devices = [
        NamedDevice(name=f'{task}{properties.type}:0', properties=properties)
        for properties in (gpu, host)
    ]
    for data_format in ('NHWC', 'NCHW'):
        gpu_graph = build_on_gpus(data_format=data_format, **flags)
        with gpu_graph.graph.as_default():
            meta_graph = tf.train.export_meta_graph()
        fetches = tf.nest.flatten(gpu_graph.step_graph.fetches.as_dict())
        meta_graph.collection_def['train_op'].node_list.value.extend(
            fetch.name if isinstance(fetch, tf.Operation) else fetch.op.name for fetch in fetches
        )
        config = tf.ConfigProto(graph_options=gpu_graph.plan.session.config.graph_options)
        rewrites = config.graph_options.rewrite_options
        # Small graphs are optimized, too, also by the layout pass, which a run does not have.
        rewrites.min_graph_nodes = -1
        rewrites.layout_optimizer = rewrites.ON
        nodes = tf_optimizer.OptimizeGraph(
            config, meta_graph, verbose=False, cluster=cluster.Cluster(devices=devices)
        ).node
        formats = {node.attr['data_format'].s.decode() for node in nodes if 'Conv2D' in node.op}
        assert formats == {default}, data_format


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

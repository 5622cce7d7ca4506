"""Flags about TensorFlow take effect; test_flag_walk.py has the flags of the original program."""

import pytest
import tensorflow.compat.v1 as tf

from tests.support.outputs import check_line, refused
from tests.support.runs import params_of
from tf_cnn.graph.onednn import ONEDNN_VARIABLE
from tf_cnn.machine.tensorflow_build import TensorFlowBuild
from tf_cnn.machine.this_process import ProcessEnvironment, ProcessSettings, ThisProcess
from tf_cnn.machine.visible_gpus import choose_visible_gpus
from tf_cnn.plan.cluster_role import find_cluster_role
from tf_cnn.plan.devices import Devices
from tf_cnn.plan.params import RuleContext
from tf_cnn.plan.process_settings import choose_start
from tf_cnn.plan.session_config import configure_session

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('same_environment')]


def config_of(flags: str = '') -> tf.ConfigProto:
    params = params_of(f'--device=cpu --data_format=NHWC {flags}')
    towers = tuple(f'/cpu:{number}' for number in range(params.devices.num_gpus or 1))
    devices = Devices(towers, ('/cpu:0',), data_format=params.devices.layout)
    environment = ProcessEnvironment({})
    processes = find_cluster_role(params, environment, [])
    return configure_session(params, environment, processes, devices, ProcessSettings(), []).config


def test_the_graph_is_rewritten_as_the_flags_say():
    plain, without = (config_of(flags).graph_options for flags in ('', '--noenable_optimizations'))
    on, off = plain.rewrite_options.DEFAULT, plain.rewrite_options.OFF
    assert (plain.rewrite_options.remapping, without.rewrite_options.remapping) == (on, off)
    assert without.optimizer_options.opt_level == tf.OptimizerOptions.L0
    text = "--rewriter_config='remapping: OFF constant_folding: AGGRESSIVE'"
    rewrites = config_of(text).graph_options.rewrite_options
    assert (rewrites.remapping, rewrites.constant_folding) == (off, rewrites.AGGRESSIVE)
    # Other passes stay on, except the layout pass, which would change the data format.
    assert (rewrites.arithmetic_optimization, rewrites.layout_optimizer) == (on, off)
    # Kernels of the CPU need NHWC in any case.
    flags = '--data_format=NCHW --noenable_optimizations'
    options = config_of(flags).graph_options.rewrite_options
    assert options.cpu_layout_conversion == options.NCHW_TO_NHWC
    with refused('--rewriter_config=remaping: OFF', 'remapping: OFF'):
        config_of("--rewriter_config='remaping: OFF'")


@pytest.mark.parametrize(
    ('flags', 'fuses'),
    [
        ('--forward_only --num_gpus=2', True),
        ('', True),
        ('--noenable_optimizations', False),
        # Several towers train without graph passes, unless the flag asks for some.
        ('--num_gpus=2', False),
        ("--num_gpus=2 --rewriter_config='min_graph_nodes: -1'", True),
    ],
)
def test_tensorflow_fuses_operations_unless_this_only_delays_the_start(flags, fuses):
    config, metadata = config_of(flags), tf.RunMetadata()
    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        images, kernel = (
            tf.random.uniform(shape, seed=1) for shape in ([2, 8, 8, 4], [3, 3, 4, 4])
        )
        result = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, kernel, 1, 'SAME'), tf.ones([4])))
    with tf.Session(graph=graph, config=config) as session:
        session.run(
            result, options=tf.RunOptions(output_partition_graphs=True), run_metadata=metadata
        )
    op_types = {node.op for partition in metadata.partition_graphs for node in partition.node}
    assert any('FusedConv2D' in op for op in op_types) is fuses, op_types


def test_settings_of_openmp_need_a_tensorflow_with_openmp(tmp_path, monkeypatch):
    build = TensorFlowBuild(tmp_path / 'site-packages' / 'tensorflow', None, None, ())
    monkeypatch.setattr('tf_cnn.machine.tensorflow_build.tensorflow_build', lambda: build)
    params, environment = (
        params_of('--kmp_blocktime=0'),
        ProcessEnvironment({'KMP_BLOCKTIME': '200'}),
    )
    processes = find_cluster_role(params, environment, [])
    warnings: list[str] = []
    assert choose_start(params, environment, processes, None, warnings).values == {
        ONEDNN_VARIABLE: None
    }
    check_line(*warnings, '--kmp_blocktime=0', 'OpenMP', '--num_intra_threads')
    # Bazel puts the library of a build with --config=mkl here.
    library = tmp_path / 'site-packages' / '_solib_k8' / '_U_S_Sthird_Uparty_Smkl' / 'libiomp5.so'
    library.parent.mkdir(parents=True)
    library.touch()
    warnings.clear()
    values = choose_start(params, environment, processes, None, warnings).values
    assert (values['KMP_BLOCKTIME'], values['KMP_AFFINITY'], warnings) == ('0', None, [])


@pytest.mark.parametrize(
    ('listed', 'indices', 'local_rank', 'visible'),
    [
        ('0,1,2,3', (2, 0), (0, 1), '2,0'),
        # The numbers count the GPUs of CUDA_VISIBLE_DEVICES.
        ('7,5,GPU-3a', (2, 1), (0, 1), 'GPU-3a,5'),
        # Workers of one host share them.
        ('0,1,2,3', (3, 2, 1, 0), (1, 2), '1,0'),
    ],
)
def test_gpu_indices_decide_on_the_visible_gpus_and_their_order(
    monkeypatch, listed, indices, local_rank, visible
):
    monkeypatch.setattr('tf_cnn.machine.visible_gpus.has_nvidia_gpu', lambda environ: True)
    environ = {'CUDA_VISIBLE_DEVICES': listed}
    process = ThisProcess(environ)
    for _ in range(2):
        # In a later run of the process the numbers mean the same.
        value = choose_visible_gpus(2, local_rank, process.environment, indices)
        assert value == visible
        process.show_gpus(value)
        assert environ['CUDA_VISIBLE_DEVICES'] == visible
    with refused('--gpu_indices=0,9', f'CUDA_VISIBLE_DEVICES={listed}'):
        choose_visible_gpus(2, local_rank, process.environment, (0, 9))


def test_gpu_indices_are_checked_if_the_run_uses_gpus():
    for text in ('0,x', '1,1', '-1'):
        with refused(f'--gpu_indices={text}', '0,1'):
            params_of(f'--gpu_indices={text}')
    alone = RuleContext(is_single_process=True, is_residual=False)
    assert len(params_of('--gpu_indices=0,x --device=cpu').ignored_flag_warnings(alone)) == 1
    with refused('--gpu_indices=3,1', '--num_gpus=4', '--num_gpus=2'):
        params_of('--gpu_indices=3,1 --num_gpus=4')
    assert params_of('--gpu_indices=3,1,0 --num_gpus=2').tensorflow.gpu_indices == '3,1,0'

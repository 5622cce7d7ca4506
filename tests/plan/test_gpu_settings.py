"""Settings of runs on GPUs: variables that TensorFlow reads, threads, data format, TF32, banner and
document.

TensorFlow only claims to see GPUs; the tests open none.
"""

import os
from collections.abc import Callable, Iterator

import psutil
import pytest
import tensorflow.compat.v1 as tf

from tests.support.outputs import check_line, refused
from tests.support.runs import params_of
from tf_cnn.machine.missing_gpu import explain_missing_gpu
from tf_cnn.machine.this_process import THIS_PROCESS, ProcessEnvironment
from tf_cnn.plan.plan import Plan, make_plan
from tf_cnn.run.banner import make_banner

pytestmark = pytest.mark.graph

MODE, COUNT = 'TF_GPU_THREAD_MODE', 'TF_GPU_THREAD_COUNT'
BATCH_NORM = 'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT'
NUM_CORES = 16


@pytest.fixture
def set_gpus(monkeypatch: pytest.MonkeyPatch, fresh_process: None) -> Iterator[Callable[..., None]]:
    """Makes TensorFlow see GPUs of these compute capabilities; without arguments none."""

    def set_to(*capabilities: tuple[int, int]) -> None:
        monkeypatch.setattr(
            tf.config, 'list_physical_devices', lambda kind: capabilities if kind == 'GPU' else []
        )

    monkeypatch.setattr(
        tf.config.experimental, 'get_device_details', lambda gpu: {'compute_capability': gpu}
    )
    monkeypatch.setattr(psutil.Process, 'cpu_affinity', lambda _: list(range(NUM_CORES)))
    for name in (MODE, COUNT, BATCH_NORM, 'NVIDIA_TF32_OVERRIDE'):
        # Set first, so that monkeypatch restores them after the run has set them.
        monkeypatch.setenv(name, '')
        monkeypatch.delenv(name)
    was_on = tf.config.experimental.tensor_float_32_execution_enabled()
    set_to((8, 0), (8, 0))
    yield set_to
    tf.config.experimental.enable_tensor_float_32_execution(was_on)


def plan_of(flags: str = '') -> Plan:
    plan = make_plan(params_of(f'--model=lenet {flags}'), ProcessEnvironment())
    assert isinstance(plan, Plan)
    THIS_PROCESS.apply(plan.session.process)
    return plan


def threads_of(plan: Plan) -> tuple[int, int]:
    config = plan.session.config
    return config.intra_op_parallelism_threads, config.inter_op_parallelism_threads


@pytest.mark.parametrize(
    ('flags', 'mode', 'count', 'batch_norm', 'threads'),
    [
        # As many operations as cores without the threads of the GPUs.
        ('', 'gpu_private', '2', '1', (1, 14)),
        ('--num_gpus=2 --per_gpu_thread_count=3', 'gpu_private', '3', '1', (1, 10)),
        ('--num_gpus=2 --gpu_thread_mode=gpu_shared', 'gpu_shared', '4', '1', (1, 12)),
        ('--gpu_thread_mode=global --nobatchnorm_persistent', 'global', None, '0', (0, 0)),
        ('--num_intra_threads=0 --num_inter_threads=5', 'gpu_private', '2', '1', (0, 5)),
        # The host updates the variables.
        ('--local_parameter_device=cpu', 'gpu_private', '2', '1', (0, 14)),
        # Half of the cores decode images.
        ('--num_gpus=2 --per_gpu_thread_count=7', 'gpu_private', '7', '1', (1, 8)),
        ('--device=cpu', None, None, None, (0, 0)),
    ],
)
def test_gpus_have_their_own_threads_and_persistent_batch_norm_by_default(
    set_gpus, flags, mode, count, batch_norm, threads
):
    plan = plan_of(flags)
    names, values = (MODE, COUNT, BATCH_NORM), [mode, count, batch_norm]
    assert [os.environ.get(name) for name in names] == values
    assert threads_of(plan) == threads
    # The document has both.
    environment = plan.environment
    assert [environment.get(name) for name in names] == values
    if threads[1]:
        assert plan.machine['threads']['inter_op'] == threads[1]


REPLICATED = '--variable_update=replicated'


@pytest.mark.parametrize(
    ('num_gpus', 'flags', 'tensors'),
    [
        (8, REPLICATED, 8),
        (16, f'{REPLICATED} --variable_consistency=relaxed --local_parameter_device=cpu', 8),
        (8, f'{REPLICATED} --hierarchical_copy --exchange_only', 8),
        (7, REPLICATED, 0),
        (8, f'{REPLICATED} --gradient_repacking=3', 3),
        (8, f'{REPLICATED} --all_reduce_spec=psgpu', 0),
        (8, f'{REPLICATED} --agg_small_grads_max_bytes=4096', 0),
        # One tensor would become eight.
        (8, f'{REPLICATED} --exchange_only --exchange_bytes=4096', 0),
        (8, f'{REPLICATED} --device=cpu', 0),
        (8, '--variable_update=parameter_server', 0),
    ],
)
def test_by_default_eight_gpus_repack_gradients_that_they_would_copy_one_by_one(
    set_gpus, num_gpus, flags, tensors
):
    set_gpus(*[(8, 0)] * num_gpus)
    plan = plan_of(f'--num_gpus={num_gpus} {flags}')
    assert plan.params.values()['gradient_repacking'] == tensors
    assert not [line for line in plan.warnings if 'repacking' in line]


def test_the_users_variables_win_and_a_contradicting_flag_is_named(set_gpus, monkeypatch):
    monkeypatch.setenv(MODE, 'GLOBAL')
    monkeypatch.setenv(BATCH_NORM, 'false')
    plan = plan_of('--gpu_thread_mode=gpu_shared')
    (line,) = plan.warnings
    check_line(line, '--gpu_thread_mode=gpu_shared', 'TF_GPU_THREAD_MODE=GLOBAL')
    assert (os.environ[MODE], os.environ[BATCH_NORM]) == ('GLOBAL', 'false')
    assert threads_of(plan) == (0, 0)


def test_a_flag_for_gpus_is_named_as_ignored_where_the_run_finds_none(set_gpus):
    set_gpus()
    (line,) = plan_of('--notf32').warnings
    check_line(line, '--tf32=False', 'CPU')


@pytest.mark.parametrize('flag', ['--device=gpu', '--num_gpus=2'])
def test_a_refusal_explains_why_tensorflow_sees_no_gpu(set_gpus, monkeypatch, flag):
    set_gpus()
    # As if a GPU of NVIDIA were in this machine.
    monkeypatch.setattr('tf_cnn.machine.missing_gpu.has_nvidia_gpu', lambda *_: True)
    with refused(flag, '--device=cpu', explain_missing_gpu()):
        plan_of(flag)


@pytest.mark.parametrize(
    ('capability', 'flags', 'data_format', 'tf32'),
    [
        ((8, 0), '', 'NCHW (fp32 on GPUs)', True),
        ((8, 0), '--notf32', 'NCHW (fp32 on GPUs)', False),
        (
            (8, 0),
            '--forward_only',
            'NHWC (TF32 without training on GPUs of compute capability 8.0)',
            True,
        ),
        ((7, 0), '--precision=bf16', 'NCHW (bf16 on GPUs of compute capability 7.0)', False),
        ((8, 0), '--precision=bf16 --data_format=NCHW', 'NCHW', False),
        ((8, 0), '--device=cpu', 'NHWC', False),
    ],
)
def test_the_banner_gives_the_data_format_with_its_reason_and_tf32(
    set_gpus, capability, flags, data_format, tf32
):
    set_gpus(capability)
    plan = plan_of(flags)
    banner, devices = make_banner(plan), plan.params.devices
    assert f'\nData format: {data_format}\n' in banner
    assert (devices.data_format, plan.devices.tf32) == (data_format.split()[0], tf32)
    assert ('TF32' in banner) == tf32
    # The layout pass leaves the format as it is.
    rewrite = plan.session.config.graph_options.rewrite_options
    assert rewrite.layout_optimizer == rewrite.OFF
    if devices.device == 'gpu':
        assert (
            tf.config.experimental.tensor_float_32_execution_enabled() == plan.params.numerics.tf32
        )


def test_the_environment_may_forbid_tf32(set_gpus, monkeypatch):
    monkeypatch.setenv('NVIDIA_TF32_OVERRIDE', '0')
    plan = plan_of()
    assert (plan.devices.tf32, 'TF32' in make_banner(plan)) == (False, False)
    assert plan.environment['NVIDIA_TF32_OVERRIDE'] == '0'

"""The machine's GPUs and the flags decide on devices, data format and session settings."""

import os
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.files import quoted
from tests.support.outputs import check_line, refused
from tests.support.programs import run, run_in_fork
from tests.support.runs import params_of, plan_of
from tf_cnn.machine.missing_gpu import explain_missing_gpu
from tf_cnn.machine.this_process import ProcessEnvironment, ProcessSettings
from tf_cnn.plan.cluster_role import ClusterRole, find_cluster_role
from tf_cnn.plan.devices import Devices, choose_devices
from tf_cnn.plan.params import Params, RuleContext
from tf_cnn.plan.plan import make_plan
from tf_cnn.plan.session_config import configure_session

pytestmark = [pytest.mark.graph, pytest.mark.long, pytest.mark.usefixtures('same_environment')]


@pytest.fixture(params=[0, 2])
def num_gpus_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The number of GPUs that TensorFlow claims to see."""
    monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: [object()] * request.param)
    return request.param


ENVIRONMENT = ProcessEnvironment({})
ALONE = find_cluster_role(params_of(), ENVIRONMENT, [])


def devices_of(params: Params, processes: ClusterRole = ALONE) -> Devices:
    """Returns the devices of a run of one process, or of a process of a cluster."""
    gpus = ENVIRONMENT.process.start_tensorflow(ProcessSettings())
    return choose_devices(params, ENVIRONMENT, processes, None, gpus)


def in_cluster_of(params: Params) -> ClusterRole:
    """Returns this process's role in a cluster of two workers: the controller, or else worker 0."""
    job = {'job_name': 'worker'}
    if params.variables.variable_update == 'distributed_all_reduce':
        job = {'job_name': 'controller', 'controller_host': '10.0.0.3:1'}
    clustered = params.with_values(worker_hosts='10.0.0.1:1,10.0.0.2:1', **job)
    return find_cluster_role(clustered, ENVIRONMENT, [])


def config_of(params: Params, processes: ClusterRole = ALONE) -> tf.ConfigProto:
    devices = devices_of(params, processes)
    return configure_session(params, ENVIRONMENT, processes, devices, ProcessSettings(), []).config


def test_a_run_is_on_gpus_by_default_if_there_are_any(num_gpus_here):
    devices = devices_of(params_of())
    assert devices.towers == (('/gpu:0',) if num_gpus_here else ('/cpu:0',))
    assert devices.parameter_devices == devices.towers
    assert devices.data_format == ('NCHW' if num_gpus_here else 'NHWC')
    # The CPU has as many virtual devices as asked for.
    params = params_of('--device=cpu --num_gpus=3')
    devices = devices_of(params)
    assert devices.towers == ('/cpu:0', '/cpu:1', '/cpu:2')
    assert devices.parameter_devices == ('/cpu:0',)
    assert config_of(params).device_count == {'CPU': 3, 'GPU': 0}


@pytest.mark.parametrize('device', [None, 'cpu'])
def test_a_warning_explains_why_tensorflow_sees_no_gpu_unless_a_flag_asks_for_the_cpu(
    num_gpus_here, device, monkeypatch
):
    monkeypatch.setattr('tf_cnn.plan.devices.has_nvidia_gpu', lambda *_: True)
    monkeypatch.setattr('tf_cnn.machine.missing_gpu.has_nvidia_gpu', lambda *_: True)
    plan = make_plan(params_of('--model=lenet', device=device), ProcessEnvironment({}))
    lines = [line for line in plan.warnings if 'NVIDIA' in line]
    assert len(lines) == (device is None and not num_gpus_here)
    for line in lines:
        check_line(line, explain_missing_gpu(), '--device=cpu')


@pytest.mark.parametrize(
    ('features', 'faster_precision'),
    [
        ('sse2 avx2 f16c', '--precision=fp32'),
        ('sse2 avx512f avx512_bf16', '--precision=bf16'),
        ('fp asimd asimdhp fphp', None),
        ('amx_bf16 avx512_fp16', None),
    ],
)
def test_fp16_on_a_processor_without_its_arithmetic_names_the_faster_precision(
    features, faster_precision, tmp_path
):
    (tmp_path / 'proc').mkdir()
    (tmp_path / 'proc/cpuinfo').write_text(f'flags\t\t: {features}\n')
    for precision in ('fp32', 'bf16', 'fp16'):
        params = params_of(f'--model=lenet --device=cpu --precision={precision}')
        plan = make_plan(params, ProcessEnvironment({}, root=tmp_path))
        lines = [line for line in plan.warnings if 'arithmetic' in line]
        assert len(lines) == (precision == 'fp16' and faster_precision is not None)
        for line in lines:
            check_line(line, '--precision=fp16', f'use {faster_precision}')


@pytest.mark.parametrize('device', [None, 'gpu'])
def test_more_gpus_than_there_are_is_wrong_use(num_gpus_here, device):
    # The line has the number of GPUs; without GPUs it names the flag that asks for them.
    facts = ['--device=gpu' if device else '--num_gpus=4']
    if num_gpus_here:
        facts = ['--num_gpus=4', '--num_gpus=2']
    with refused(*facts, '--device=cpu'):
        devices_of(params_of('--num_gpus=4', device=device))


def test_all_gpus_are_those_that_the_process_sees_and_none_is_named(monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '2,GPU-7c')
    params = params_of('--num_gpus=all')
    assert params.devices.num_gpus == 2
    with refused('--num_gpus=all', '--device=cpu'):
        params_of('--num_gpus=all --device=cpu')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    for flags, facts in (('', ['--num_gpus=all', '--num_gpus=1']), ('--device=gpu', [])):
        with refused('no GPU', *facts):
            make_plan(params_of(f'--num_gpus=all {flags}'), ProcessEnvironment(os.environ))


@pytest.mark.parametrize('variable_update', ['parameter_server', 'replicated'])
def test_a_flag_spreads_parameters_or_sums_over_the_virtual_devices_of_a_cpu(variable_update):
    kinds = {}
    for kind, devices in ((None, '/cpu:0'), ('cpu', '/cpu:0'), ('gpu', '/cpu:0 /cpu:1 /cpu:2')):
        flags = f'--num_gpus=3 --variable_update={variable_update}'
        plan = plan_of(flags, local_parameter_device=kind)
        assert plan.devices.parameter_devices == tuple(devices.split())
        size_ranges = plan.params.variables.size_ranges(plan.params)
        assert size_ranges is not None
        kinds[kind] = [part.algorithm for part in size_ranges]
    assert kinds == {None: ['pscpu'], 'cpu': ['pscpu'], 'gpu': ['psgpu']}


def test_ignored_flags_may_ask_for_missing_gpus(num_gpus_here):
    alone, in_a_cluster = (
        RuleContext(is_single_process=is_single, is_residual=False) for is_single in (True, False)
    )
    on_cpu = '--device=cpu --num_gpus=2'
    expected = devices_of(params_of(on_cpu))
    ignored = params_of(f'{on_cpu} --all_reduce_spec=nccl --horovod_device=gpu')
    assert len(ignored.ignored_flag_warnings(alone)) == 2
    assert devices_of(ignored) == expected
    # NCCL is for GPUs.
    assert devices_of(params_of(f'{on_cpu} --variable_update=replicated --use_nccl')) == expected
    mode = '--variable_update=collective_all_reduce --local_parameter_device=gpu'
    in_cluster = params_of(f'{on_cpu} {mode}')
    assert len(in_cluster.ignored_flag_warnings(in_a_cluster)) == 1
    used = in_cluster.without_ignored(in_a_cluster)
    assert devices_of(used, in_cluster_of(in_cluster)) == expected
    plain = params_of(f'{on_cpu} --variable_update=distributed_all_reduce')
    controller, nccl = in_cluster_of(plain), plain.with_values(all_reduce_spec='nccl')
    assert devices_of(nccl, controller) == devices_of(plain, controller)


def test_a_controller_has_the_devices_of_its_workers(num_gpus_here):
    mode = '--variable_update=distributed_all_reduce --num_gpus=2'
    # More GPUs than this machine has.
    params = params_of(f'{mode} --device=gpu')
    controller, workers = in_cluster_of(params), ['/job:worker/task:0', '/job:worker/task:1']
    devices = devices_of(params, controller)
    assert devices.towers == tuple(f'{worker}/gpu:{i}' for worker in workers for i in range(2))
    assert devices.hosts == tuple(f'{worker}/cpu:0' for worker in workers)
    # A worker uses the GPUs of this machine.
    assert config_of(params, controller).device_count == {'CPU': 1, 'GPU': 0}
    facts = ('--variable_update=distributed_all_reduce', 'pscpu', 'psgpu', 'xring')
    with refused('--all_reduce_spec=nccl', *facts):
        devices_of(params_of(f'{mode} --device=gpu --all_reduce_spec=nccl'), controller)
    if not num_gpus_here:
        with refused('--device=gpu', '--device=cpu'):
            devices_of(params_of(mode), controller)


@pytest.mark.parametrize('device', [None, 'cpu'])
@pytest.mark.usefixtures('num_gpus_here')
def test_zero_gpus_mean_one_device_of_the_cpu(device):
    assert plan_of('--model=lenet --num_gpus=0', device=device).devices.towers == ('/cpu:0',)


@pytest.mark.distributed
def test_xla_compiles(tmp_path):
    # A separate process, since TensorFlow decides once.
    flags = '--model=lenet --device=cpu --batch_size=2 --num_batches=2 --num_warmup_batches=1 --xla'
    process = run(f'{flags} --partitioned_graph_file_prefix={quoted(tmp_path)}/part')
    assert process.code == 0, process.err
    assert '_XlaRun' in (tmp_path / 'part0.pbtxt').read_text()


@pytest.mark.distributed
def test_xla_is_refused_after_tensorflow_has_started(tmp_path):
    code = (
        'import tensorflow as tf; tf.config.list_physical_devices(); tf.constant(1) + 1\n'
        'from tf_cnn_benchmarks import BenchmarkCNN, UsageError, make_params\n'
        'try:\n    BenchmarkCNN(make_params(device="cpu", xla=True))\n'
        'except UsageError as error:\n    print(error)\n'
    )
    out = run_in_fork(code, tmp_path, TF_XLA_FLAGS=None)
    check_line(out.strip(), '--xla', 'TF_XLA_FLAGS=')

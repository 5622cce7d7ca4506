"""The checks of `doctor` that use the program: on virtual devices, and with wrong sums."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from tests.support.outputs import check_line
from tests.support.runs import plan_of
from tf_cnn.doctor import checks as doctor_checks
from tf_cnn.doctor import program as doctor_program
from tf_cnn.doctor.checks import OK, SKIPPED, WARNING, WRONG
from tf_cnn.managers.all_reduce import copy_algorithm
from tf_cnn.managers.all_reduce_spec import COLLECTIVE

pytestmark = pytest.mark.graph

TOWERS = ('/cpu:0', '/cpu:1', '/cpu:2')


def test_a_gpu_for_which_the_driver_cannot_compile_kernels_is_wrong(monkeypatch):
    # Users of TensorFlow 2.20 report this for an RTX 5080.
    message = "'cuLaunchKernel(function, gridX, ...)' failed with 'CUDA_ERROR_INVALID_HANDLE'"
    fault = mock.Mock(side_effect=tf.errors.InternalError(None, None, message))
    monkeypatch.setattr(doctor_checks, '_check_arithmetic', fault)
    finding = doctor_checks.check_devices()
    assert (finding.outcome, finding.advice) == (WRONG, 'see docs/gpu.md')
    check_line(finding.found, '/cpu:0: ', 'CUDA_ERROR_INVALID_HANDLE', 'TensorFlow 2.21')


def test_arithmetic_is_checked_by_a_product_and_an_elementwise_kernel():
    with mock.patch.object(tf, 'Session', side_effect=tf.Session) as session:
        doctor_checks._check_arithmetic(tf, '/cpu:0')
    graphs = [call.kwargs['graph'] for call in session.call_args_list]
    ops = {op.type: op.device for graph in graphs for op in graph.get_operations()}
    assert {'MatMul', 'Abs'} <= {*ops}
    assert {*ops.values()} == {'/device:CPU:0'}


@pytest.mark.parametrize('dtype', [tf.float32, tf.float16, tf.bfloat16])
def test_sums_of_every_type_are_exact(dtype):
    assert doctor_program.list_wrong_sums(TOWERS, copy_algorithm(TOWERS), dtype) == []


def test_a_sum_that_misses_a_tower_is_found_on_its_device():
    def forgets_the_last(tensors: Sequence[Any], index: int) -> list[Any]:
        right = copy_algorithm(TOWERS)(tensors, index)
        return right if index else [*right[:-1], tf.add_n(tensors[:-1])]

    (fault,) = doctor_program.list_wrong_sums(TOWERS, forgets_the_last, tf.float32)
    check_line(fault, '1 of 1 sums', TOWERS[-1])


@pytest.mark.parametrize('algorithm', ['nccl', COLLECTIVE])
def test_sums_that_nccl_does_not_support_are_skipped(algorithm):
    finding = doctor_program.check_sums(algorithm, 'bf16')
    assert (finding.outcome, 'bfloat16' in finding.found) == (SKIPPED, True)


@pytest.mark.skipif(len(tf.config.list_physical_devices('GPU')) > 1, reason='needs fewer GPUs')
def test_without_a_second_gpu_no_sum_is_checked():
    (check,) = doctor_program.FAMILIES['all_reduce'].values()
    assert check().outcome == SKIPPED


def test_sums_leave_nccl_the_memory_that_a_run_leaves_it():
    with mock.patch.object(tf, 'Session', side_effect=tf.Session) as session:
        doctor_program.list_wrong_sums(TOWERS, copy_algorithm(TOWERS), tf.float32)
    (call,) = session.call_args_list
    assert call.kwargs['config'].gpu_options == plan_of('--model=lenet').session.config.gpu_options


def test_a_sum_for_which_memory_is_missing_is_wrong_and_names_the_guide(monkeypatch):
    fault = tf.errors.UnknownError(None, None, 'Error invoking NCCL: unhandled cuda error')
    monkeypatch.setattr(doctor_program, 'list_wrong_sums', mock.Mock(side_effect=fault))
    monkeypatch.setattr(doctor_program, '_num_gpus', lambda: 2)
    finding = doctor_program.check_sums('nccl', 'fp32')
    assert finding.outcome == WRONG
    check_line(f'{finding.found} {finding.advice}', '2 GPUs', 'unhandled cuda', 'docs/gpu.md')


def test_training_with_xla_is_tried_where_there_is_a_gpu():
    assert doctor_program.check_xla(count_gpus=lambda: 0).outcome == SKIPPED
    flags = [*doctor_program._XLA_FLAGS, '--device=cpu']
    assert doctor_program.check_xla(flags, lambda: 1).outcome == OK
    finding = doctor_program.check_xla([*flags, '--num_gpus=2'], lambda: 1)
    assert finding.outcome == WRONG
    check_line(f'{finding.found} {finding.advice}', '--xla', 'docs/gpu.md')


def test_collective_sums_have_the_order_of_a_run():
    with tf.Graph().as_default() as graph:
        reduce = doctor_program.algorithm_for_towers(TOWERS, COLLECTIVE)
        for index in range(2):
            reduce([tf.ones([1])] * len(TOWERS), index)
    ops = [op for op in graph.get_operations() if op.type == 'CollectiveReduce']
    first, second = ops[: len(TOWERS)], ops[len(TOWERS) :]
    key = first[0].get_attr('instance_key')
    assert [op.get_attr('wait_for') for op in second] == [[key]] * len(TOWERS)


def test_onednn_is_measured_with_both_values_where_tensorflow_leaves_it_off(monkeypatch):
    monkeypatch.setattr(doctor_program, '_ONEDNN_ROUNDS', 1)
    flags = '--model=trivial --device=cpu --batch_size=2 --num_batches=2 --num_warmup_batches=1'
    finding = doctor_program.check_onednn(lambda: False, flags.split())
    assert finding.outcome in (OK, WARNING)
    rates = finding.figures['images_per_second']
    assert isinstance(rates, dict)
    assert [*map(len, rates.values())] == [1, 1]
    assert doctor_program.check_onednn(lambda: True).outcome == OK
    assert doctor_program.check_onednn(lambda: None).outcome == SKIPPED


def test_a_large_gain_by_onednn_is_a_warning_with_the_flag_and_a_longer_measurement():
    rates = {'false': [2.44, 2.4], 'true': [3.8, 4.0]}
    finding = doctor_program.compare_onednn(rates, None)
    assert finding.outcome == WARNING
    check_line(finding.found, '2.44', '4.00', 'TensorFlow leaves it off on this processor')
    check_line(finding.advice, '--onednn=true', "--run='--model=resnet50 --onednn=false'")
    advice = doctor_program.compare_onednn(rates, '0').advice
    check_line(advice, 'unset TF_ENABLE_ONEDNN_OPTS and use --onednn=true')


def test_a_small_gain_by_onednn_is_fine():
    finding = doctor_program.compare_onednn({'false': [2.44], 'true': [2.5]}, '0')
    assert (finding.outcome, finding.advice) == (OK, None)
    check_line(finding.found, 'TF_ENABLE_ONEDNN_OPTS=0 turns it off')

"""The checks of `doctor` on TensorFlow: on virtual devices, and with wrong sums."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from tests.support.outputs import check_line
from tests.support.runs import plan_of
from tf_cnn.doctor import checks as doctor_checks
from tf_cnn.doctor import sums
from tf_cnn.machine.findings import SKIPPED, WRONG
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
    assert sums.list_wrong_sums(TOWERS, copy_algorithm(TOWERS), dtype) == []


def test_a_sum_that_misses_a_tower_is_found_on_its_device():
    def forgets_the_last(tensors: Sequence[Any], index: int) -> list[Any]:
        right = copy_algorithm(TOWERS)(tensors, index)
        return right if index else [*right[:-1], tf.add_n(tensors[:-1])]

    (fault,) = sums.list_wrong_sums(TOWERS, forgets_the_last, tf.float32)
    check_line(fault, '1 of 1 sums', TOWERS[-1])


@pytest.mark.parametrize('algorithm', ['nccl', COLLECTIVE])
def test_sums_that_nccl_does_not_support_are_skipped(algorithm):
    finding = sums.check_sums(algorithm, 'bf16')
    assert (finding.outcome, 'bfloat16' in finding.found) == (SKIPPED, True)


@pytest.mark.skipif(len(tf.config.list_physical_devices('GPU')) > 1, reason='needs fewer GPUs')
def test_without_a_second_gpu_no_sum_is_checked():
    (check,) = sums.FAMILIES['all_reduce'].values()
    assert check().outcome == SKIPPED


def test_sums_leave_nccl_the_memory_that_a_run_leaves_it():
    with mock.patch.object(tf, 'Session', side_effect=tf.Session) as session:
        sums.list_wrong_sums(TOWERS, copy_algorithm(TOWERS), tf.float32)
    (call,) = session.call_args_list
    assert call.kwargs['config'].gpu_options == plan_of('--model=lenet').session.config.gpu_options


def test_a_sum_for_which_memory_is_missing_is_wrong_and_names_the_guide(monkeypatch):
    fault = tf.errors.UnknownError(None, None, 'Error invoking NCCL: unhandled cuda error')
    monkeypatch.setattr(sums, 'list_wrong_sums', mock.Mock(side_effect=fault))
    monkeypatch.setattr(sums, '_num_gpus', lambda: 2)
    finding = sums.check_sums('nccl', 'fp32')
    assert finding.outcome == WRONG
    check_line(f'{finding.found} {finding.advice}', '2 GPUs', 'unhandled cuda', 'docs/gpu.md')


def test_collective_sums_have_the_order_of_a_run():
    with tf.Graph().as_default() as graph:
        reduce = sums.algorithm_for_towers(TOWERS, COLLECTIVE)
        for index in range(2):
            reduce([tf.ones([1])] * len(TOWERS), index)
    ops = [op for op in graph.get_operations() if op.type == 'CollectiveReduce']
    first, second = ops[: len(TOWERS)], ops[len(TOWERS) :]
    key = first[0].get_attr('instance_key')
    assert [op.get_attr('wait_for') for op in second] == [[key]] * len(TOWERS)

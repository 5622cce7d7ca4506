"""The tasks of a cluster start in any order. If the cluster cannot start, each task names the
faulty task or flag.
"""

import hashlib
import os
import re
import socket

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.distributed.clusters import (
    ENDLESS,
    STEP_LINE,
    assert_each_names,
    training,
)
from tests.support.files import quoted
from tests.support.graphs import open_session
from tests.support.images import write_mnist
from tests.support.outputs import failed
from tf_cnn.cluster.server import start_server
from tf_cnn.cluster.topology import Cluster

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures('forget_modes', 'forget_models')]

WRONG_USE = 2
MANAGER = """\
from tf_cnn_benchmarks import VariableMgrDistributedFetchFromPS, register_variable_mgr
@register_variable_mgr('mine', summary='Ours.', topologies=['parameter_servers'])
class VariableMgrMine(VariableMgrDistributedFetchFromPS):
    pass
"""
MODEL = """\
from tf_cnn_benchmarks import register_model
def network(cnn, x, num_classes):
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')
register_model('mine', network, data_set='cifar10')
"""


def test_worker_0_may_start_last(tmp_path):
    """tests/cluster/test_rendezvous.py has every order."""
    with training('collective_all_reduce', '--target_seconds=0.2', tmp_path) as tasks:
        tasks['worker 1'].start()
        tasks['worker 1'].await_line(', waiting for ')
        tasks['worker 0'].start()
        tasks.assert_end(0)
        assert not any(task.errors for task in tasks.values())
        # All tasks have agreed on a number of steps for these seconds.
        [num_steps] = {trainer.lines(STEP_LINE)[-1][0] for trainer in tasks.trainers}
        assert int(num_steps) > 0


def test_all_tasks_name_a_host_that_never_comes(tmp_path):
    flag = '--connect_timeout_secs=8'
    with training('parameter_server', f'{ENDLESS} {flag}', tmp_path) as tasks:
        absent = tasks.pop('worker 1')
        tasks.start()
        tasks.assert_end(1)
        assert_each_names([*tasks.values()], absent.title, flag)


def test_a_port_in_use_is_named():
    with socket.create_server(('127.0.0.1', 0)) as stranger:
        host = f'127.0.0.1:{stranger.getsockname()[1]}'
        with failed(f'ps 0 ({host})'):
            start_server(Cluster((host,), ('node1:1',), 'ps', 0, 'the flags'), tf.ConfigProto())
    # Tasks use no proxy between each other, since it would leave them waiting.
    assert {'127.0.0.1', 'node1'} <= {*dict(os.environ)['no_grpc_proxy'].split(',')}


def test_asynchronous_workers_end_when_worker_0_fails_before_there_are_variables(tmp_path):
    with tf.Graph().as_default(), open_session() as session:
        of_another_model = {
            'tensor_names': ['other'],
            'shape_and_slices': [''],
            'tensors': [tf.zeros([1])],
        }
        session.run(tf.raw_ops.SaveV2(prefix=f'{tmp_path}/model.ckpt-7', **of_another_model))
    with training('asynchronous', f'{ENDLESS} --train_dir={quoted(tmp_path)}', tmp_path) as tasks:
        tasks.start()
        tasks.assert_end(1)
        assert_each_names(tasks.all_but('worker 0'), tasks['worker 0'].title, 'model.ckpt-7')


def test_processes_with_different_flags_all_end_and_name_both(tmp_path):
    """tests/cluster/test_topology.py has other differences."""
    with training('parameter_server', ENDLESS, tmp_path) as tasks:
        server = tasks['ps 0']
        server.argv.append('--nocross_replica_sync')
        tasks.start()
        tasks.assert_end(WRONG_USE)
        assert_each_names([*tasks.values()], f'--cross_replica_sync=False in {server.title}')


def test_processes_with_different_versions_of_a_file_all_end_and_name_both(tmp_path):
    first, second = tmp_path / 'first.py', tmp_path / 'second.py'
    first.write_text(MODEL)
    second.write_text(f'{MODEL}# Changed.\n')
    digest = hashlib.sha256(second.read_bytes()).hexdigest()[:12]
    flags = f'{ENDLESS} --model=mine --model_file={quoted(first)}'
    with training('parameter_server', flags, tmp_path) as tasks:
        tasks['worker 1'].argv.append(f'--model_file={second}')
        tasks.start()
        tasks.assert_end(WRONG_USE)
        fact = f'--model_file with SHA-256 {digest}... in {tasks["worker 1"].title}'
        assert_each_names([*tasks.values()], fact)


def test_servers_need_not_have_the_file_of_a_users_mode(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(MANAGER)
    with training('parameter_server', '--num_batches=2', tmp_path) as tasks:
        for task in tasks.of('worker'):
            task.argv += [f'--variable_mgr_file={path}', '--variable_update=mine']
        tasks.start()
        tasks.assert_end(0)
        assert tasks['worker 0'].lines(r'^Variables: +mine$')


def test_the_other_tasks_name_the_fault_of_a_manager_that_fails_in_one_worker(tmp_path):
    path = tmp_path / 'mine.py'
    body = """\
    def __init__(self, parts):
        super().__init__(parts)
        1 // (1 - parts.worker)
"""
    path.write_text(MANAGER.replace('    pass\n', body))
    flags = f'{ENDLESS} --variable_mgr_file={quoted(path)} --variable_update=mine'
    with training('parameter_server', flags, tmp_path) as tasks:
        tasks.start()
        tasks.assert_end(1)
        assert tasks['worker 1'].lines(f'File "{re.escape(str(path))}", line 6, in __init__')
        assert_each_names(tasks.all_but('worker 1'), 'ZeroDivisionError')


def test_workers_with_different_numbers_of_images_are_refused_if_epochs_count(tmp_path):
    for name, count in (('a', 16), ('b', 24)):
        for subset in ('train', 'validation'):
            images = np.zeros([count, 28, 28], np.uint8)
            write_mnist(tmp_path / name, images, np.zeros([count], np.uint8), subset)
    flags = f'--model=lenet --data_name=mnist --num_epochs=1 --data_dir={quoted(tmp_path)}/a'
    with training('collective_all_reduce', flags, tmp_path) as tasks:
        tasks['worker 1'].argv.append(f'--data_dir={tmp_path}/b')
        tasks.start()
        tasks.assert_end(WRONG_USE)
        facts = '--data_dir', '16 training images in worker 0', '24 training images in worker 1'
        assert_each_names([*tasks.values()], *facts)

"""A cluster starts in any order of its tasks, or each task names the one, or the flag, because of
which it does not.
"""

import hashlib
import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.distributed.milestones import WAITING
from tests.distributed.processes import DEADLINE_SECS, await_line
from tests.distributed.scenarios import (
    ENDLESS,
    FAILED,
    MODES,
    assert_all_end,
    assert_each_names,
    cluster_of,
    errors_of,
    others_of,
    scenarios,
)
from tests.distributed.whole_batch import STEP_LINE
from tests.support.graphs import open_session
from tests.support.images import write_mnist
from tests.support.outputs import failed
from tf_cnn.cluster.server import start_server
from tf_cnn.cluster.topology import Cluster

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures('forget_modes', 'forget_models')]

WRONG_USE = 2


@pytest.mark.parametrize(
    ('mode', 'last'),
    scenarios(
        ['collective_all_reduce: worker 0'],
        [
            *(
                'two_servers: ps 0',
                'parameter_server: worker 0',
                'asynchronous: ps 0',
                'asynchronous: worker 1',
            ),
            *('distributed_replicated: worker 1', 'distributed_replicated: ps 1'),
            *('distributed_all_reduce: worker 0', 'distributed_all_reduce: controller 0'),
        ],
    ),
)
def test_any_task_may_start_last(mode: str, last: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, '--target_seconds=0.2') as processes:
        for task in others_of(processes, last):
            task.start()
        for task in others_of(processes, last):
            if task in processes.trainers:
                await_line(task, WAITING)
        processes.tasks[last].start()
        assert_all_end(processes, 0)
        assert not any(errors_of(task) for task in processes.tasks.values())
        if MODES[mode].together:
            # They agreed on a number of steps for these seconds.
            [num_steps] = {
                re.findall(STEP_LINE, trainer.out)[-1][0] for trainer in processes.trainers
            }
            assert int(num_steps) > 0


def test_a_host_that_never_comes_is_named_by_all(tmp_path: Path) -> None:
    with cluster_of('parameter_server', tmp_path, ENDLESS, '--connect_timeout_secs=8') as processes:
        present = others_of(processes, 'worker 1')
        for task in present:
            task.start()
        for task in present:
            assert task.has_ended(DEADLINE_SECS), task.name
            assert (task.exit_code, task.left_others) == (FAILED, False), task.name
        assert_each_names(present, processes.described('worker 1'), '--connect_timeout_secs=8')
        assert not processes.listening()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(('127.0.0.1', 0)) as stranger:
        host = f'127.0.0.1:{stranger.getsockname()[1]}'
        with failed(f'ps 0 ({host})'):
            start_server(Cluster((host,), ('node1:1',), 'ps', 0, 'the flags'), tf.ConfigProto())
    # Tasks connect to each other past a proxy, which would leave them waiting.
    assert {'127.0.0.1', 'node1'} <= {*dict(os.environ)['no_grpc_proxy'].split(',')}


def test_a_port_that_another_process_takes_after_the_check_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it is when the same task is started twice at once."""
    with socket.create_server(('', 0), family=socket.AF_INET6, dualstack_ipv6=True) as other:
        host = f'127.0.0.1:{other.getsockname()[1]}'
        # The check finds nothing, as if the other process came a moment later.
        with monkeypatch.context() as patch, failed(f'ps 0 ({host})', 'Address already in use'):
            patch.setattr(socket, 'create_server', lambda *_, **__: socket.socket())
            start_server(Cluster((host,), ('node1:1',), 'ps', 0, 'the flags'), tf.ConfigProto())


def test_workers_that_do_not_wait_end_when_worker_0_fails_before_there_are_variables(
    tmp_path: Path,
) -> None:
    with cluster_of('asynchronous', tmp_path, ENDLESS, f'--train_dir={tmp_path}') as processes:
        with tf.Graph().as_default(), open_session() as session:
            of_another_model = {
                'tensor_names': ['other'],
                'shape_and_slices': [''],
                'tensors': [tf.zeros([1])],
            }
            session.run(
                tf.raw_ops.SaveV2(prefix=str(tmp_path / 'model.ckpt-7'), **of_another_model)
            )
        processes.start()
        assert_all_end(processes, FAILED)
        assert_each_names(
            others_of(processes, 'worker 0'), processes.described('worker 0'), 'model.ckpt-7'
        )


@pytest.mark.parametrize(
    ('mode', 'task', 'flag', 'expected'),
    [
        ('collective_all_reduce', 'worker 1', '--num_batches=7', '--num_batches=7'),
        ('parameter_server', 'ps 0', '--nocross_replica_sync', '--cross_replica_sync=False'),
        pytest.param(
            'asynchronous',
            'worker 1',
            '--model=trivial',
            '--model=trivial',
            marks=pytest.mark.all_modes,
        ),
    ],
)
def test_processes_with_different_flags_all_end_and_name_both(
    mode: str, task: str, flag: str, expected: str, tmp_path: Path
) -> None:
    with cluster_of(mode, tmp_path, ENDLESS) as processes:
        processes.tasks[task].add_flags(flag)
        processes.start()
        assert_all_end(processes, WRONG_USE)
        assert_each_names(processes.tasks.values(), f'{expected} in {processes.described(task)}')


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
register_model('mine', network)
"""


@pytest.mark.parametrize(
    ('flag', 'other', 'text', 'task'),
    [
        ('variable_mgr_file', '--variable_update=mine', MANAGER, 'worker 1'),
        ('variable_mgr_file', '--variable_update=mine', MANAGER, 'ps 0'),
        ('model_file', '--model=mine', MODEL, 'worker 1'),
    ],
)
def test_processes_with_different_versions_of_a_file_all_end_and_name_both(
    flag: str, other: str, text: str, task: str, tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ('first.py', 'second.py')]
    for path, end in zip(paths, ('', '# Changed.\n'), strict=True):
        path.write_text(text + end)
    flags = [ENDLESS, other, f'--{flag}={paths[0]}']
    with cluster_of('parameter_server', tmp_path, *flags) as processes:
        processes.tasks[task].add_flags(f'--{flag}={paths[1]}')
        processes.start()
        assert_all_end(processes, WRONG_USE)
        digest = hashlib.sha256(paths[1].read_bytes()).hexdigest()[:12]
        described = processes.described(task)
        assert_each_names(
            processes.tasks.values(), f'--{flag} with SHA-256 {digest}... in {described}'
        )


@pytest.mark.parametrize('servers_have_it', [True, False])
def test_a_mode_of_a_user_trains_with_servers_that_have_its_file_or_not(
    servers_have_it: bool, tmp_path: Path
) -> None:
    path = tmp_path / 'mine.py'
    path.write_text(MANAGER)
    with cluster_of('parameter_server', tmp_path, '--num_batches=2') as processes:
        for name, task in processes.tasks.items():
            if servers_have_it or name != 'ps 0':
                task.add_flags(f'--variable_mgr_file={path}', '--variable_update=mine')
        processes.start()
        assert_all_end(processes, 0)
        assert re.search(r'^Variables: +mine$', processes.tasks['worker 0'].out, flags=re.MULTILINE)


def test_a_worker_whose_manager_fails_ends_all_which_name_its_line(tmp_path: Path) -> None:
    path = tmp_path / 'mine.py'
    body = (
        '    def __init__(self, parts):\n        super().__init__(parts)\n        1 // (1 - '
        'parts.worker)\n'
    )
    path.write_text(MANAGER.replace('    pass\n', body))
    flags = [ENDLESS, f'--variable_mgr_file={path}', '--variable_update=mine']
    with cluster_of('parameter_server', tmp_path, *flags) as processes:
        processes.start()
        assert_all_end(processes, WRONG_USE)
        assert_each_names(
            processes.tasks.values(), f'--variable_mgr_file={path}, line 6: ZeroDivisionError'
        )


def test_a_worker_without_the_file_of_the_mode_is_told_which_flag_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / 'mine.py'
    path.write_text(MANAGER)
    with cluster_of('parameter_server', tmp_path, ENDLESS, '--connect_timeout_secs=8') as processes:
        for name, task in processes.tasks.items():
            own = [] if name == 'worker 1' else [f'--variable_mgr_file={path}']
            task.add_flags('--variable_update=mine', *own)
        processes.start()
        assert_all_end(processes, FAILED, **{'worker 1': WRONG_USE})
        assert_each_names(
            [processes.tasks['worker 1']], '--variable_update=mine', '--variable_mgr_file=FILE'
        )


def test_workers_with_other_numbers_of_images_end_where_an_epoch_counts(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ('a', 'b')]
    for number, folder in enumerate(folders):
        for subset in ('train', 'validation'):
            images = np.zeros([16 + 8 * number, 28, 28], np.uint8)
            write_mnist(folder, images, np.zeros([len(images)], np.uint8), subset)
    with cluster_of(
        'collective_all_reduce', tmp_path, '--num_epochs=1', f'--data_dir={folders[0]}'
    ) as processes:
        processes.tasks['worker 1'].add_flags(f'--data_dir={folders[1]}')
        processes.start()
        assert_all_end(processes, WRONG_USE)
        facts = '--data_dir', '16 training images in worker 0', '24 training images in worker 1'
        assert_each_names(processes.tasks.values(), *facts)

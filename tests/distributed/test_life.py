"""How a cluster starts, lives and ends: any order, a host that never comes, kill -9, signals. Real processes."""

import contextlib
import functools
import os
import re
import signal
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracles import MOMENTUM, Weights
from processes import DEADLINE_SECS, Process, Processes, await_line, make_cluster
from sessions import open_session
from whole_batch import SEED, STEP_LINE, TOTAL_LINE, WholeBatch, one_tower_graph, values_of

from cluster.members import Cluster
from cluster.server import start_server
from errors import RunError
from training.optimizers import Momentum

pytestmark = pytest.mark.distributed

# NUM_STEPS are all of a run, those of the warm-up included. Where workers do not wait for each other there are more:
# one that starts late, too, shall take some.
NUM_WORKERS, BATCH, NUM_WARMUP, NUM_STEPS = 2, 4, 2, 100
NUM_STEPS_APART = 300
# A learning rate at which rounding, other in each mode, does not grow: 1e-6 after all steps, relative to the largest
# magnitude of each weight. Even the last step moves all by 2e-5 and more.
LEARNING_RATE, WEIGHT_DECAY = 0.002, 0.01
TOLERANCE = 1e-5
FLAGS = (
    *('--model=lenet', '--device=cpu', f'--batch_size={BATCH}', f'--num_warmup_batches={NUM_WARMUP}'),
    *('--display_every=10', '--connect_timeout_secs=120'),
    *('--optimizer=momentum', f'--momentum={MOMENTUM}', f'--init_learning_rate={LEARNING_RATE}'),
    *(f'--weight_decay={WEIGHT_DECAY}', f'--tf_random_seed={SEED}'),
)
# More than there is time for.
ENDLESS = '--num_batches=1000000'
# How long lost tasks are waited for: where they do not return, and where they do.
PEER_SECS = 5
IMPATIENT, PATIENT = f'--peer_timeout_secs={PEER_SECS}', '--peer_timeout_secs=120'
# What a loaded machine may add to that.
MARGIN_SECS = 30.0
WAITING, BEGUN, UNDER_WAY = r'^Waiting for the other', r'^1\timages/sec', r'^20\timages/sec'
KILLED, FAILED = -int(signal.SIGKILL), 1


@dataclass(frozen=True)
class Mode:
    """A way to train. together: the workers wait for each other. is_exact: the weights do not tell what was lost."""

    flags: tuple[str, ...]
    num_ps: int = 1
    num_controllers: int = 0
    together: bool = True
    is_exact: bool = True

    @property
    def num_steps(self) -> int:
        """Those of each worker, in a run that ends."""
        return NUM_STEPS if self.together else NUM_STEPS_APART

    @property
    def limited(self) -> str:
        """The flag that lets a run end."""
        return f'--num_batches={self.num_steps - NUM_WARMUP}'


MODES = {
    'parameter_server': Mode(('--variable_update=parameter_server',)),
    'two_servers': Mode(('--variable_update=parameter_server',), num_ps=2),
    'asynchronous': Mode(
        ('--variable_update=parameter_server', '--nocross_replica_sync'), together=False, is_exact=False
    ),
    # The first step after an interruption computes with variables that lack no update.
    'staged': Mode(('--variable_update=parameter_server', '--staged_vars'), is_exact=False),
    'distributed_replicated': Mode(('--variable_update=distributed_replicated',), num_ps=2),
    'collective_all_reduce': Mode(('--variable_update=collective_all_reduce',), num_ps=0),
    'distributed_all_reduce': Mode(('--variable_update=distributed_all_reduce',), num_ps=0, num_controllers=1),
}


def scenarios(usual: Iterable[str], others: Iterable[str]) -> Sequence[object]:
    """Pairs of parameters, written 'mode: task': those of every test run, and those of --all_modes."""
    return [pytest.param(*text.split(': '), id=text) for text in usual] + [
        pytest.param(*text.split(': '), id=text, marks=pytest.mark.all_modes) for text in others
    ]


@contextlib.contextmanager
def cluster_of(mode: str, folder: Path, *flags: str) -> Iterator[Processes]:
    """A cluster, none of whose tasks is started yet."""
    kind = MODES[mode]
    run_flags = [*FLAGS, *kind.flags, *flags]
    with make_cluster(
        run_flags, folder, num_ps=kind.num_ps, num_workers=NUM_WORKERS, num_controllers=kind.num_controllers
    ) as processes:
        yield processes


def kill_under_way(processes: Processes, name: str) -> float:
    """Starts all and kills one as kill -9 does when all have taken steps. Returns when that was."""
    processes.start()
    for trainer in processes.trainers:
        await_line(trainer, UNDER_WAY)
    lost = processes.tasks[name]
    lost.kill()
    assert lost.exit_code == KILLED
    return lost.ended_at


@contextlib.contextmanager
def paused(tasks: Sequence[Process]) -> Iterator[None]:
    """Tasks that do nothing during the block."""
    for task in tasks:
        task.send(signal.SIGSTOP)
    yield
    for task in tasks:
        task.send(signal.SIGCONT)


def assert_all_end(processes: Processes, exit_code: int, deadline_secs: float = DEADLINE_SECS, **others: int) -> None:
    """Asserts that all tasks end in time, all with the same exit code but for others={'ps 0': 1}, and leave nothing."""
    overdue = processes.still_running(deadline_secs)
    assert not overdue
    expected = dict.fromkeys(processes.tasks, exit_code) | others
    assert {name: task.exit_code for name, task in processes.tasks.items()} == expected
    assert not [name for name, task in processes.tasks.items() if task.left_others]
    assert not processes.listening()


def errors_of(task: Process) -> list[str]:
    return re.findall(r'^tf_cnn_benchmarks: error: (.*)$', task.err, re.MULTILINE)


def others_of(processes: Processes, name: str) -> list[Process]:
    return [task for other, task in processes.tasks.items() if other != name]


def assert_each_names(tasks: Iterable[Process], *words: str) -> None:
    """Asserts that each of them has told why it ended, in one line with all these words."""
    for task in tasks:
        assert len(errors_of(task)) == 1, task.name
        assert all(word in errors_of(task)[0] for word in words), task.name


def saved(train_dir: Path) -> Weights:
    """What the last checkpoint holds."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(train_dir)))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@functools.cache
def undisturbed(num_steps: int) -> Weights:
    """What a checkpoint holds when one tower of this process has taken so many steps with the images of all workers."""
    with tf.Graph().as_default(), open_session() as session:
        images = WholeBatch(tuple(range(NUM_WORKERS)), 1, BATCH)
        graph = one_tower_graph(images, Momentum(MOMENTUM), LEARNING_RATE, WEIGHT_DECAY)
        session.run([graph.initializers, graph.pipeline.initializers])
        for _ in range(num_steps):
            session.run(graph.fetches)
        return session.run(values_of(graph))


def differences(weights: Weights, expected: Weights) -> dict[str, float]:
    """Of each weight the largest difference, relative to its largest magnitude."""
    assert weights.keys() == expected.keys()
    # The optimizer's variables shrink, and with them what theirs would be relative to.
    return {
        name: float(np.abs(weights[name] - value).max() / np.abs(value).max())
        for name, value in expected.items()
        if name.endswith(('/kernel', '/bias'))
    }


def assert_trained(weights: Weights, num_steps: int) -> None:
    """Asserts that they are those of so many steps, none of which was lost or taken twice."""
    assert weights['global_step'] == num_steps
    for name, difference in differences(weights, undisturbed(num_steps)).items():
        assert difference < TOLERANCE, name


def test_a_step_more_or_less_would_be_seen_in_the_weights() -> None:
    """What the other tests rely on."""
    assert min(differences(undisturbed(NUM_STEPS - 1), undisturbed(NUM_STEPS)).values()) > TOLERANCE


@pytest.mark.parametrize(
    ('mode', 'last'),
    scenarios(
        ['two_servers: ps 0'],
        [
            'distributed_replicated: worker 1',
            *('parameter_server: ps 0', 'parameter_server: worker 0', 'two_servers: ps 1'),
            *('asynchronous: ps 0', 'asynchronous: worker 1', 'distributed_replicated: ps 1'),
            *('collective_all_reduce: worker 0', 'collective_all_reduce: worker 1'),
            *('distributed_all_reduce: worker 0', 'distributed_all_reduce: controller 0'),
        ],
    ),
)
def test_any_task_may_start_last(mode: str, last: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, '--num_batches=3') as processes:
        for task in others_of(processes, last):
            task.start()
        for task in others_of(processes, last):
            if task in processes.trainers:
                await_line(task, WAITING)
        processes.tasks[last].start()
        assert_all_end(processes, 0)
        assert not any(errors_of(task) for task in processes.tasks.values())


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


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        ['parameter_server: worker 1', 'collective_all_reduce: worker 1'],
        [
            *('parameter_server: worker 0', 'two_servers: worker 1', 'staged: worker 1', 'staged: worker 0'),
            *(
                'distributed_replicated: worker 1',
                'distributed_replicated: worker 0',
                'collective_all_reduce: worker 0',
                'distributed_all_reduce: controller 0',
            ),
        ],
    ),
)
def test_the_others_end_when_a_worker_is_killed_and_name_it(mode: str, lost: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, ENDLESS, IMPATIENT) as processes:
        killed_at = kill_under_way(processes, lost)
        assert_all_end(processes, FAILED, **{lost: KILLED})
        others = others_of(processes, lost)
        assert max(task.ended_at for task in others) - killed_at < PEER_SECS + MARGIN_SECS
        assert_each_names(others, processes.described(lost), f'--peer_timeout_secs={PEER_SECS}')


@pytest.mark.parametrize(('mode', 'lost'), scenarios(['asynchronous: worker 0'], ['asynchronous: worker 1']))
def test_workers_that_do_not_wait_go_on_when_one_is_killed(mode: str, lost: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, MODES[mode].limited, IMPATIENT, f'--train_dir={tmp_path}') as processes:
        kill_under_way(processes, lost)
        assert_all_end(processes, 0, **{lost: KILLED})
        [left] = [worker for worker in processes.of('worker') if worker.name != lost]
        assert 'total images/sec' in left.out
        assert processes.described(lost) in processes.tasks['ps 0'].err
        if lost == 'worker 1':
            # They take the steps of the one that was lost.
            assert saved(tmp_path)['global_step'] >= NUM_WORKERS * MODES[mode].num_steps


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        ['distributed_replicated: worker 0', 'collective_all_reduce: worker 1'],
        [
            'asynchronous: worker 1',
            *('parameter_server: worker 0', 'parameter_server: worker 1', 'two_servers: worker 0'),
            *('two_servers: worker 1', 'staged: worker 0', 'staged: worker 1', 'asynchronous: worker 0'),
            *('distributed_replicated: worker 1', 'collective_all_reduce: worker 0'),
        ],
    ),
)
def test_a_killed_worker_that_is_started_again_costs_no_step(mode: str, lost: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, MODES[mode].limited, PATIENT, f'--train_dir={tmp_path / "train"}') as processes:
        kill_under_way(processes, lost)
        left = [worker for worker in processes.of('worker') if worker.name != lost]
        # Those that do not wait for it would have taken all steps before it is there.
        with paused([] if MODES[mode].together else left):
            processes.tasks[lost].start()
            await_line(processes.tasks[lost], BEGUN, times=2)
        assert_all_end(processes, 0)
        assert_recovered(mode, processes, tmp_path / 'train')


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        ['two_servers: ps 0', 'distributed_replicated: ps 1', 'distributed_all_reduce: worker 1'],
        [
            *('parameter_server: ps 0', 'two_servers: ps 1', 'staged: ps 0', 'asynchronous: ps 0'),
            *(
                'distributed_replicated: ps 0',
                'distributed_all_reduce: worker 0',
                'distributed_all_reduce: controller 0',
            ),
        ],
    ),
)
def test_training_goes_on_from_the_last_checkpoint_when_a_task_that_held_some_of_it_is_started_again(
    mode: str, lost: str, tmp_path: Path
) -> None:
    keeping = (f'--train_dir={tmp_path / "train"}', '--save_model_steps=10')
    with cluster_of(mode, tmp_path, MODES[mode].limited, PATIENT, *keeping) as processes:
        kill_under_way(processes, lost)
        processes.tasks[lost].start()
        assert_all_end(processes, 0)
        assert_recovered(mode, processes, tmp_path / 'train')


def assert_recovered(mode: str, processes: Processes, train_dir: Path) -> None:
    """Asserts that the run ended as one would have in which nothing was lost."""
    assert not any(errors_of(task) for task in processes.tasks.values())
    # Also of those that started themselves anew.
    assert all('total images/sec' in trainer.out for trainer in processes.trainers)
    weights = saved(train_dir)
    if MODES[mode].is_exact:
        assert_trained(weights, NUM_STEPS)
    elif not MODES[mode].together:
        # Each worker may be within a step when the last one is counted.
        assert 0 <= weights['global_step'] - NUM_WORKERS * MODES[mode].num_steps <= 2 * (NUM_WORKERS - 1)
    else:
        assert weights['global_step'] == NUM_STEPS


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        ['parameter_server: ps 0', 'distributed_all_reduce: worker 1'],
        [
            *('two_servers: ps 0', 'two_servers: ps 1', 'staged: ps 0', 'asynchronous: ps 0'),
            *('distributed_replicated: ps 0', 'distributed_replicated: ps 1', 'distributed_all_reduce: worker 0'),
        ],
    ),
)
def test_without_checkpoints_all_end_when_a_task_that_keeps_variables_is_killed_and_name_it(
    mode: str, lost: str, tmp_path: Path
) -> None:
    """Also where it would be waited for: its variables are lost."""
    with cluster_of(mode, tmp_path, ENDLESS, PATIENT) as processes:
        killed_at = kill_under_way(processes, lost)
        assert_all_end(processes, FAILED, **{lost: KILLED})
        others = others_of(processes, lost)
        assert max(task.ended_at for task in others) - killed_at < PEER_SECS + MARGIN_SECS
        assert_each_names(others, processes.described(lost), '--train_dir')


@pytest.mark.parametrize(
    ('mode', 'name'),
    scenarios(
        ['parameter_server: SIGTERM', 'collective_all_reduce: SIGINT'],
        [
            *('parameter_server: SIGINT', 'collective_all_reduce: SIGTERM'),
            *('distributed_replicated: SIGTERM', 'distributed_replicated: SIGINT'),
            'distributed_all_reduce: SIGTERM',
        ],
    ),
)
def test_a_signal_to_all_ends_them_and_the_chief_saves_its_last_step(mode: str, name: str, tmp_path: Path) -> None:
    number = signal.Signals[name]
    with cluster_of(mode, tmp_path, ENDLESS, PATIENT, f'--train_dir={tmp_path / "train"}') as processes:
        processes.start()
        for trainer in processes.trainers:
            await_line(trainer, UNDER_WAY)
        for task in processes.tasks.values():
            task.send(number)
        assert_all_end(processes, 128 + number)
        for task in processes.tasks.values():
            assert f'stopped by {name}' in task.err, task.name
        told = re.search(r'the run is incomplete: (\d+) of', processes.trainers[0].err)
        assert told
        assert_trained(saved(tmp_path / 'train'), NUM_WARMUP + int(told[1]))


@pytest.mark.all_modes
def test_workers_that_do_not_wait_tell_the_rate_of_all_when_a_signal_ends_them(tmp_path: Path) -> None:
    with cluster_of('asynchronous', tmp_path, ENDLESS, PATIENT) as processes:
        processes.start()
        for worker in processes.trainers:
            await_line(worker, UNDER_WAY)
        for task in processes.tasks.values():
            task.send(signal.SIGTERM)
        assert_all_end(processes, 128 + signal.SIGTERM)
        totals = [float(*re.findall(TOTAL_LINE, worker.out, re.MULTILINE)) for worker in processes.trainers]
        own = [float(re.findall(STEP_LINE, worker.out)[-1][1]) for worker in processes.trainers]
        # The one that started later saw the other take steps all the time.
        assert max(total / rate for total, rate in zip(totals, own, strict=True)) > 1.3


@pytest.mark.all_modes
def test_a_worker_that_warmed_up_while_others_took_all_steps_tells_the_total(tmp_path: Path) -> None:
    with cluster_of('asynchronous', tmp_path, '--num_batches=10', PATIENT) as processes:
        processes.start()
        first, late = processes.trainers
        await_line(late, '^Running')
        with paused([late]):
            await_line(first, TOTAL_LINE)
        assert_all_end(processes, 0)
        [total] = re.findall(TOTAL_LINE, first.out, re.MULTILINE)
        assert re.findall(TOTAL_LINE, late.out, re.MULTILINE) == [total]


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        # The first server, or without any worker 0, is where the others find how a task ended, itself included.
        ['parameter_server: worker 1', 'collective_all_reduce: worker 0'],
        [
            *('parameter_server: worker 0', 'distributed_replicated: worker 1', 'distributed_replicated: worker 0'),
            *('collective_all_reduce: worker 1', 'parameter_server: ps 0', 'two_servers: ps 1', 'asynchronous: ps 0'),
            'distributed_all_reduce: worker 0',
        ],
    ),
)
def test_the_others_end_at_once_when_a_signal_ends_a_task_they_need(mode: str, lost: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, ENDLESS, PATIENT, f'--train_dir={tmp_path / "train"}') as processes:
        processes.start()
        for trainer in processes.trainers:
            await_line(trainer, UNDER_WAY)
        processes.tasks[lost].send(signal.SIGTERM)
        exit_code = 128 + signal.SIGTERM
        assert_all_end(processes, FAILED, **{lost: exit_code})
        others = others_of(processes, lost)
        assert max(task.ended_at for task in others) - processes.tasks[lost].ended_at < MARGIN_SECS
        assert_each_names(others, f'{processes.described(lost)} ended with exit code {exit_code}: stopped by SIGTERM')


def test_the_others_end_at_once_when_the_reader_of_a_workers_output_leaves(tmp_path: Path) -> None:
    with cluster_of('parameter_server', tmp_path, ENDLESS, PATIENT) as processes:
        fifo = tmp_path / 'worker-0.out'
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        processes.start()
        fifo.unlink()
        await_line(processes.tasks['worker 1'], UNDER_WAY)
        os.close(reader)
        assert_all_end(processes, FAILED)
        others = others_of(processes, 'worker 0')
        assert_each_names(
            others, f'{processes.described("worker 0")} ended with exit code 1: whoever read its standard '
        )


def test_a_port_is_looked_at_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    # A family that this kernel lacks stands for it.
    monkeypatch.setattr(socket, 'AF_INET6', 63)
    with socket.create_server(('127.0.0.1', 0)) as stranger:
        host = f'127.0.0.1:{stranger.getsockname()[1]}'
        with pytest.raises(RunError, match=f'of ps 0 .{host}. is not free'):
            start_server(Cluster((host,), ('127.0.0.1:1',), 'ps', 0, 'the flags'), tf.ConfigProto())


@pytest.mark.parametrize(
    ('mode', 'gone'),
    scenarios(['collective_all_reduce: worker 1'], ['parameter_server: worker 1', 'distributed_replicated: worker 1']),
)
def test_a_signal_has_the_chief_save_also_when_its_step_will_never_end(mode: str, gone: str, tmp_path: Path) -> None:
    """As when all are told to end, and one of them is faster."""
    # Less than a step may take to its end after a signal.
    flags = (ENDLESS, '--peer_timeout_secs=1', f'--train_dir={tmp_path / "train"}')
    with cluster_of(mode, tmp_path, *flags) as processes:
        processes.start()
        for worker in processes.of('worker'):
            await_line(worker, UNDER_WAY)
        chief = processes.tasks['worker 0']
        processes.tasks[gone].send(signal.SIGSTOP)
        chief.send(signal.SIGTERM)
        processes.tasks[gone].kill()
        exit_code = 128 + signal.SIGTERM
        assert_all_end(processes, FAILED, **{'worker 0': exit_code, gone: KILLED})
        told = re.search(r'the run is incomplete: (\d+) of', chief.err)
        assert told
        assert_trained(saved(tmp_path / 'train'), NUM_WARMUP + int(told[1]))


def test_workers_that_do_not_wait_end_when_worker_0_fails_before_there_are_variables(tmp_path: Path) -> None:
    with cluster_of('asynchronous', tmp_path, ENDLESS, PATIENT, f'--train_dir={tmp_path}') as processes:
        with tf.Graph().as_default(), open_session() as session:
            of_another_model = {'tensor_names': ['other'], 'shape_and_slices': [''], 'tensors': [tf.zeros([1])]}
            session.run(tf.raw_ops.SaveV2(prefix=str(tmp_path / 'model.ckpt-7'), **of_another_model))
        processes.start()
        assert_all_end(processes, FAILED)
        assert_each_names(others_of(processes, 'worker 0'), processes.described('worker 0'), 'model.ckpt-7')


def test_a_parameter_server_lingers_when_asked_until_a_signal_ends_it(tmp_path: Path) -> None:
    with cluster_of('parameter_server', tmp_path, '--num_batches=3', '--ps_linger_secs=600') as processes:
        processes.start()
        for worker in processes.of('worker'):
            assert worker.has_ended(DEADLINE_SECS)
        server = processes.tasks['ps 0']
        # By itself it would end in less.
        assert not server.has_ended(6)
        server.send(signal.SIGTERM)
        exit_code = 128 + signal.SIGTERM
        assert_all_end(processes, 0, MARGIN_SECS, **{'ps 0': exit_code})


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with cluster_of('parameter_server', tmp_path, ENDLESS) as processes, socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, port = processes.described('worker 1').removesuffix(')').split('(')[1].split(':')
        stranger.bind((host, int(port)))
        stranger.listen()
        worker = processes.tasks['worker 1']
        worker.start()
        assert worker.has_ended(DEADLINE_SECS)
        assert (worker.exit_code, worker.left_others) == (FAILED, False)
        assert_each_names([worker], f'port {port} of {processes.described("worker 1")}')

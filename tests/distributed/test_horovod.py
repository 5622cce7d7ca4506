"""Processes that train with the real Horovod take the same steps as one tower with all images.

Skipped where Horovod is not installed; docs/launchers.md says what it takes to build it.
"""

import contextlib
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.distributed.clusters import (
    ENDLESS,
    STEP_LINE,
    TOTAL_LINE,
    UNDER_WAY,
)
from tests.distributed.whole_batch import (
    NUM_EARLIER_STEPS,
    NUM_STEPS,
    Row,
    assert_trained_alike,
    one_tower,
)
from tests.support.files import quoted
from tests.support.outputs import check_warning
from tests.support.programs import PROGRAM, Task, Tasks, processes
from tests.support.runs import values_in
from tf_cnn.launch.hosts import Command

REASON = 'it has no wheel for this TensorFlow; docs/launchers.md tells how to build it'
pytest.importorskip('horovod.tensorflow', reason=REASON)
gloo_run = pytest.importorskip('horovod.runner.gloo_run', reason=REASON)
hosts = pytest.importorskip('horovod.runner.common.util.hosts', reason=REASON)
http_server = pytest.importorskip('horovod.runner.http.http_server', reason=REASON)

pytestmark = pytest.mark.distributed

MODE = '--variable_update=horovod'
RUN = '--model=lenet --device=cpu --batch_size=4 --num_warmup_batches=0'
ROWS = {
    'plain': Row('', 0, 'momentum'),
    'repacked': Row('--gradient_repacking=3 --horovod_device=cpu', 0, 'adam', goes_on=True),
}


@contextlib.contextmanager
def horovod_processes(flags: str, folder: Path) -> Iterator[Tasks]:
    """Yields two processes that are ready to start as horovodrun --gloo would start them.

    RANK in a flag stands for the number of the process.
    """
    server = http_server.RendezvousServer()
    port = server.start()
    plan = hosts.get_host_assignments(hosts.parse_hosts('localhost:2'), 2)
    server.init(plan)
    common = gloo_run.create_run_env_vars('127.0.0.1', ['lo'], port)
    commands = []
    for slot in plan:
        variables = {**common, **gloo_run.create_slot_env_vars(slot)}
        argv = [*PROGRAM, MODE, *shlex.split(flags.replace('RANK', str(slot.rank)))]
        environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        commands.append(Command(f'worker {slot.rank}', argv, environ))
    try:
        with processes(*(Task(command, folder) for command in commands)) as tasks:
            yield tasks
    finally:
        server.stop()


@pytest.mark.parametrize('name', ROWS)
def test_the_weights_equal_the_weights_of_one_tower_with_the_whole_batch(name, tmp_path):
    row, folders = ROWS[name], [tmp_path / 'train-0', tmp_path / 'train-1']
    start = row.take_earlier_steps(folders[0])
    flags = f'{row.train_flags(1, tmp_path / "train-RANK")} {row.flags} --num_batches={NUM_STEPS}'
    with horovod_processes(flags, tmp_path) as tasks:
        tasks.start()
        tasks.assert_end(0)
    expected, after = one_tower(row.optimizer, num_towers=1, start=start), values_in(folders[0])
    assert after['global_step'] == NUM_EARLIER_STEPS * row.goes_on + NUM_STEPS
    assert_trained_alike(after, expected)
    # Each process has its own images, and the total counts them all.
    losses = [[float(loss) for _, _, loss in task.lines(STEP_LINE)] for task in tasks.values()]
    assert losses[0][0] != losses[1][0]
    # Losses are printed with three decimals.
    assert np.mean(losses, 0) == pytest.approx(expected.losses, abs=1e-3)
    [total] = tasks['worker 0'].lines(TOTAL_LINE)
    assert tasks['worker 1'].lines(TOTAL_LINE) == [total]
    *_, (_, rate, _) = tasks['worker 0'].lines(STEP_LINE)
    # Step lines count the images of all processes; the total includes the time between steps.
    assert 0.7 < float(total) / float(rate) < 1.01
    # Process 0 alone saves checkpoints.
    assert not [*folders[1].glob('*ckpt*')]
    if name != 'plain':
        return
    size = sum(value.size for key, value in one_tower('sgd').after.items() if key != 'global_step')
    for task in tasks.values():
        assert f'Step moves:  {2 * size * 4 / 1e6:.1f} MB\n' in task.out


def test_a_signal_ends_all_when_process_0_has_saved_its_step(tmp_path):
    flags = f'{RUN} {ENDLESS} --display_every=1 --train_dir={quoted(tmp_path)}/train'
    with horovod_processes(flags, tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        # Worker 1 first, which is the harder case.
        for task in reversed(tasks.of('worker')):
            task.send(signal.SIGTERM)
        tasks.assert_end(128 + signal.SIGTERM)
    steps = max(int(number) for number, _, _ in tasks['worker 0'].lines(STEP_LINE))
    assert tf.train.load_checkpoint(f'{tmp_path}/train').get_tensor('global_step') == steps


def test_a_process_that_is_lost_ends_the_others_in_one_line(tmp_path):
    with horovod_processes(f'{RUN} {ENDLESS} --display_every=1', tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        tasks['worker 1'].kill()
        first = tasks['worker 0']
        assert first.has_ended()
    assert first.exit_code == 1
    [error] = first.errors
    assert 'Horovod' in error
    assert 'Traceback' not in first.err
    # Scripts would take a total for the result of a whole run.
    assert not first.lines(TOTAL_LINE)
    check_warning(first.err, 'the run is incomplete', 'steps of 1000000')

"""Processes that the real Horovod brings together take the steps of one tower with all their
images.

Skipped where Horovod is not installed; docs/launchers.md says what it takes to build it.
"""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from tests.distributed.milestones import SKIPPED, UNDER_WAY
from tests.distributed.processes import DEADLINE_SECS, Process, Processes, await_line
from tests.distributed.whole_batch import (
    NUM_STEPS,
    STEP_LINE,
    TOTAL_LINE,
    Row,
    Trained,
    assert_trained_alike,
    one_tower,
    take_earlier_steps,
    train_flags,
)
from tests.support.images import write_noise
from tests.support.oracles import Weights
from tests.support.runs import values_in
from tf_cnn.launch.hosts import Command
from tf_cnn.run.parsing import make_params

REASON = 'it has no wheel for this TensorFlow; docs/launchers.md tells how to build it'
pytest.importorskip('horovod.tensorflow', reason=REASON)
gloo_run = pytest.importorskip('horovod.runner.gloo_run', reason=REASON)
hosts = pytest.importorskip('horovod.runner.common.util.hosts', reason=REASON)
http_server = pytest.importorskip('horovod.runner.http.http_server', reason=REASON)

pytestmark = pytest.mark.distributed

PROGRAM = str(Path(__file__).resolve().parent.parent.parent / 'tf_cnn_benchmarks.py')
MODE = '--variable_update=horovod'
NUM_PROCESSES = 2
# As the operating system and a shell tell it.
KILLED, STOPPED = -int(signal.SIGKILL), 128 + int(signal.SIGTERM)
ENDLESS = (
    *('--model=lenet', '--device=cpu', '--batch_size=4', '--num_warmup_batches=0'),
    *('--num_batches=1000000', '--display_every=1'),
)


@contextlib.contextmanager
def brought_together(run_flags: Sequence[str], folder: Path) -> Iterator[Processes]:
    """Processes as horovodrun --gloo starts them, each with logs of its own. None is started yet.

    RANK in a flag stands for the number of the process.
    """
    server = http_server.RendezvousServer()
    port = server.start()
    plan = hosts.get_host_assignments(
        hosts.parse_hosts(f'localhost:{NUM_PROCESSES}'), NUM_PROCESSES
    )
    server.init(plan)
    common = gloo_run.create_run_env_vars('127.0.0.1', ['lo'], port)
    commands = [
        Command(
            f'worker {slot.rank}',
            (
                sys.executable,
                PROGRAM,
                MODE,
                *(flag.replace('RANK', str(slot.rank)) for flag in run_flags),
            ),
            {
                **os.environ,
                **{k: str(v) for k, v in {**common, **gloo_run.create_slot_env_vars(slot)}.items()},
            },
        )
        for slot in plan
    ]
    processes = Processes(commands, (), folder)
    try:
        with processes.ending():
            yield processes
    finally:
        server.stop()


def run(flags: Sequence[str], folder: Path) -> list[Process]:
    """The processes, which have ended by themselves with exit code 0."""
    with brought_together(flags, folder) as processes:
        processes.run()
    return processes.of('worker')


COMPACT = '--compact_gradient_transfer'
ROWS = {
    'plain': Row((), 0, 'momentum'),
    'repacked': Row(('--gradient_repacking=3', '--horovod_device=cpu'), 0, 'adam', goes_on=True),
    'compact': Row((COMPACT,), 0, 'sgd', 1e-2),
}


@dataclass(frozen=True)
class Finished:
    """A run that is over. folders are the --train_dir of each process; start what the first went on
    from.
    """

    row: Row
    tasks: list[Process]
    folders: list[Path]
    start: str | None

    def checkpoint(self) -> Weights:
        """What process 0 saved at the end."""
        return values_in(self.folders[0])

    def expected(self, workers: tuple[int, ...] = tuple(range(NUM_PROCESSES))) -> Trained:
        """What one tower makes of the images of these processes."""
        return one_tower(
            self.row.optimizer, staged=False, workers=workers, num_towers=1, start=self.start
        )


@pytest.fixture(scope='module', name='finish')
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """Runs a row once for all tests."""

    def finish(name: str) -> Finished:
        row, folder, start = ROWS[name], tmp_path_factory.mktemp(name), None
        folders = [folder / f'train-{rank}' for rank in range(NUM_PROCESSES)]
        if row.goes_on:
            start = take_earlier_steps(train_flags(row.optimizer, 2, folders[0]), folders[0])
        flags = [
            *train_flags(row.optimizer, 1, folder / 'train-RANK'),
            *row.flags,
            f'--num_batches={NUM_STEPS}',
        ]
        return Finished(row, run(flags, folder), folders, start)

    return functools.cache(finish)


@pytest.fixture(name='finished')
def finished_run(name: str, finish: Callable[[str], Finished]) -> Finished:
    return finish(name)


@pytest.mark.parametrize('name', ROWS)
def test_the_weights_are_those_of_one_tower_with_the_whole_batch(finished: Finished) -> None:
    row, after = finished.row, finished.checkpoint()
    expected, partial = finished.expected(), finished.expected(workers=(0,))
    assert after['global_step'] == row.start + NUM_STEPS
    names = expected.after.keys() - {'global_step'}
    assert_trained_alike(
        after, expected, partial, names, row.tolerance, is_compact=COMPACT in row.flags
    )
    # Processes see other images, and the total counts those of all.
    losses = [
        [float(loss) for _, _, loss in re.findall(STEP_LINE, task.out)] for task in finished.tasks
    ]
    assert losses[0][0] != losses[1][0]
    # They are printed with three decimals.
    assert np.mean(losses, 0) == pytest.approx(expected.losses, rel=row.tolerance, abs=1e-3)
    totals = [re.findall(TOTAL_LINE, task.out, re.MULTILINE) for task in finished.tasks]
    assert totals == [totals[0]] * NUM_PROCESSES
    [total] = totals[0]
    *_, (_, rate, _) = re.findall(STEP_LINE, finished.tasks[0].out)
    # The step lines are of the images of all; the total also has the time between the steps.
    assert 1 / NUM_PROCESSES < 0.7 < float(total) / float(rate) < 1.01


def moves(dtype: type) -> str:
    """The line of the banner about a step that sends gradients of this type."""
    size = sum(
        value.size
        for name, value in one_tower('sgd', staged=False).after.items()
        if name != 'global_step'
    )
    return (
        f'Step moves:  {2 * (NUM_PROCESSES - 1) * size * np.dtype(dtype).itemsize / 1e6:.1f} MB\n'
    )


@pytest.mark.parametrize('name', ['plain'])
def test_process_0_alone_saves_checkpoints_and_all_print_what_a_step_moves(
    finished: Finished,
) -> None:
    first, *others = ([path.name for path in folder.glob('*ckpt*')] for folder in finished.folders)
    assert f'model.ckpt-{NUM_STEPS}.index' in first
    assert others == [[]] * (NUM_PROCESSES - 1)
    for task in finished.tasks:
        assert moves(np.float32) in task.out


def test_all_processes_skip_the_same_steps(tmp_path: Path) -> None:
    flags = [
        '--model=lenet',
        '--device=cpu',
        '--batch_size=4',
        '--num_warmup_batches=0',
        '--num_batches=6',
    ]
    scale = ['--precision=fp16', '--fp16_enable_auto_loss_scale', '--fp16_inc_loss_scale_every_n=1']
    tasks = run([*flags, *scale, f'--fp16_loss_scale={2**24}', f'--train_dir={tmp_path}'], tmp_path)
    reported = [re.findall(SKIPPED, task.err, re.MULTILINE) for task in tasks]
    num_skipped = int(
        tf.train.load_checkpoint(str(tmp_path)).get_tensor('loss_scale/skipped_steps')
    )
    assert reported == [[str(num_skipped)]] * NUM_PROCESSES
    assert num_skipped > 0
    assert moves(np.float16) in tasks[0].out


def start(processes: Processes) -> list[Process]:
    """Starts all, and waits until they have taken steps."""
    processes.start()
    tasks = processes.of('worker')
    for task in tasks:
        await_line(task, UNDER_WAY)
    return tasks


def test_a_signal_ends_all_when_process_0_has_saved_its_step(tmp_path: Path) -> None:
    with brought_together([*ENDLESS, f'--train_dir={tmp_path / "train"}'], tmp_path) as processes:
        # The others first, which is the harder case.
        for task in reversed(start(processes)):
            task.send(signal.SIGTERM)
        assert not processes.still_running(DEADLINE_SECS)
    first, second = processes.of('worker')
    assert (first.exit_code, second.exit_code) == (STOPPED, STOPPED)
    steps = max(int(number) for number, _, _ in re.findall(STEP_LINE, first.out))
    assert tf.train.load_checkpoint(str(tmp_path / 'train')).get_tensor('global_step') == steps


def test_a_process_that_is_lost_ends_the_others_in_one_line(tmp_path: Path) -> None:
    with brought_together(ENDLESS, tmp_path) as processes:
        first, lost = start(processes)
        lost.kill()
        assert first.has_ended(DEADLINE_SECS)
    assert (lost.exit_code, first.exit_code) == (KILLED, 1)
    assert len(re.findall(r'^tf_cnn_benchmarks: error: .*Horovod', first.err, re.MULTILINE)) == 1
    assert 'Traceback' not in first.err
    assert len(re.findall(TOTAL_LINE, first.out, re.MULTILINE)) == 1


def test_under_horovodrun_each_validation_image_counts_once(tmp_path: Path) -> None:
    # Not a multiple of a batch, nor of that of all.
    num_validation, train_dir, data_dir = 11, tmp_path / 'train', tmp_path / 'data'
    data_dir.mkdir()
    write_noise(data_dir, num_validation)
    trace = tmp_path / 'trace.json'
    program = [PROGRAM, MODE, '--model=lenet', '--device=cpu', '--batch_size=2', '--num_batches=3']
    flags = [
        f'--data_dir={data_dir}',
        f'--train_dir={train_dir}',
        '--eval_during_training_every_n_steps=2',
    ]
    found = subprocess.run(
        [
            *(sys.executable, '-m', 'horovod.runner.launch', '--gloo', '-np', str(NUM_PROCESSES)),
            *(
                sys.executable,
                *program,
                '--num_warmup_batches=1',
                '--precision=bf16',
                *flags,
                f'--trace_file={trace}',
            ),
        ],
        env={**os.environ, 'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}'},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
    )
    print(found.stdout, found.stderr)
    assert found.returncode == 0
    assert trace.stat().st_size > 0
    # Horovod sums no bfloat16.
    assert moves(np.float32) in found.stdout
    evaluate = make_params(
        eval=True,
        model='lenet',
        device='cpu',
        precision='bf16',
        train_dir=str(train_dir),
        data_dir=str(data_dir),
    )
    (alone,) = BenchmarkCNN(evaluate).run().evaluations
    assert alone.num_images == num_validation
    for rank in range(NUM_PROCESSES):
        lines = re.findall(rf'^\[{rank}\]<stdout>:(Accuracy @ 1 = .*)$', found.stdout, re.MULTILINE)
        assert len(lines) == 2
        assert lines[-1] == (
            f'Accuracy @ 1 = {alone.top_1:.4f} Accuracy @ 5 = {alone.top_5:.4f} [{num_validation} '
            f'examples]'
        )

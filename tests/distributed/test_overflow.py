"""Workers of real processes skip the same steps, and end together when the loss of one is not finite."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from tests.distributed.milestones import SKIPPED
from tests.distributed.processes import DEADLINE_SECS, Processes, make_cluster

pytestmark = pytest.mark.distributed

NUM_WORKERS, NUM_STEPS = 2, 8


def run(flags: Sequence[str], folder: Path, num_ps: int) -> Processes:
    """The processes of a cluster that has ended by itself."""
    common = ['--model=lenet', '--device=cpu', '--batch_size=8', '--num_warmup_batches=0', f'--num_batches={NUM_STEPS}']
    train_dir = f'--train_dir={folder / "train"}'
    with make_cluster([*common, train_dir, *flags], folder, num_ps=num_ps, num_workers=NUM_WORKERS) as processes:
        processes.start()
        overdue = processes.still_running(DEADLINE_SECS)
    assert not overdue
    return processes


def test_all_workers_skip_the_same_steps_and_the_scale_is_saved(tmp_path: Path) -> None:
    start = 2**30
    flags = ['--precision=fp16', '--fp16_enable_auto_loss_scale', f'--fp16_loss_scale={start}']
    processes = run(
        [*flags, '--fp16_inc_loss_scale_every_n=1', '--variable_update=collective_all_reduce'], tmp_path, num_ps=0
    )
    assert [worker.exit_code for worker in processes.of('worker')] == [0] * NUM_WORKERS
    reported = [re.findall(SKIPPED, worker.err, re.MULTILINE) for worker in processes.of('worker')]
    reader = tf.train.load_checkpoint(str(tmp_path / 'train'))
    num_skipped = int(reader.get_tensor('loss_scale/skipped_steps'))
    assert reported == [[str(num_skipped)]] * NUM_WORKERS
    assert reader.get_tensor('global_step') == NUM_STEPS
    assert reader.get_tensor('loss_scale/scale') == start * 2.0 ** (NUM_STEPS - 2 * num_skipped)
    assert num_skipped > 0


@pytest.mark.all_modes
def test_every_process_ends_when_the_loss_of_one_is_not_finite(tmp_path: Path) -> None:
    processes = run(['--init_learning_rate=1e30', '--precision=bf16'], tmp_path, num_ps=1)
    for task in processes.tasks.values():
        assert task.exit_code == 1
        assert re.search(r'^tf_cnn_benchmarks: error: .*\b(nan|inf)\b.*\b\d+\b', task.err, re.MULTILINE)

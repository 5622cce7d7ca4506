"""Workers of one host sum gradients in memory that they share, or send them if there is none."""

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.distributed.processes import DEADLINE_SECS, make_cluster
from tests.distributed.whole_batch import STEP_LINE

pytestmark = pytest.mark.distributed

NUM_STEPS = 4
FLAGS = (
    '--variable_update=collective_all_reduce',
    *('--model=lenet', '--device=cpu', '--batch_size=4', '--optimizer=momentum', '--tf_random_seed=3'),
    # Large, so that it shows in the losses.
    '--weight_decay=0.05',
    *('--num_warmup_batches=0', f'--num_batches={NUM_STEPS}', '--display_every=1'),
)
# Less than the gradients of lenet take, and more than any log.
FEW_BYTES = 1 << 20


@contextmanager
def limited_files() -> Iterator[None]:
    """The processes that are started in the block cannot make files as large as the memory."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FEW_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def losses_of(folder: Path, *more: str, is_limited: bool) -> tuple[list[list[str]], str, list[str]]:
    """The losses that each worker printed, the chief's output, and its warnings about memory."""
    folder.mkdir()
    with make_cluster([*FLAGS, f'--result_file={folder / "result.json"}', *more], folder, num_ps=0) as processes:
        if is_limited:
            with limited_files():
                processes.start()
        else:
            processes.start()
        assert not processes.still_running(DEADLINE_SECS)
        assert {task.exit_code for task in processes.tasks.values()} == {0}
        chief, *others = processes.trainers
        losses = [[loss for _, _, loss in re.findall(STEP_LINE, trainer.out)] for trainer in (chief, *others)]
        assert {len(own) for own in losses} == {NUM_STEPS}
        transfer = json.loads((folder / 'result.json').read_text())['transfer']
        assert transfer['in_shared_memory'] is not is_limited
        idle = [line for line in chief.err.splitlines() if '--compact_gradient_transfer' in line]
        assert len(idle) == len(more)
        warnings = [line for task in processes.tasks.values() for line in task.err.splitlines() if 'one host' in line]
        return losses, chief.out, warnings


def test_where_memory_cannot_be_had_one_line_says_so_and_the_same_steps_are_taken(tmp_path: Path) -> None:
    # What is shared is not rounded.
    compact = '--compact_gradient_transfer'
    shared, shown, warnings = losses_of(tmp_path / 'shared', compact, is_limited=False)
    assert re.search(r'^Step moves: .*shared memory', shown, re.MULTILINE)
    assert not warnings
    sent, shown, warnings = losses_of(tmp_path / 'sent', is_limited=True)
    assert 'shared memory' not in shown
    [warning] = warnings
    assert 'MB' in warning
    assert sent == shared

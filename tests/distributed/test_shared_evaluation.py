"""Workers of real processes share an evaluation: each image counts once, and all print the same accuracy."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmark_cnn import BenchmarkCNN
from params import parse_argv
from records.layout import LABELS_FILE
from results.result import Accuracy
from tests.distributed.milestones import EVALUATING, STOPPING
from tests.distributed.processes import DEADLINE_SECS, Processes, make_cluster
from tests.support.images import write_noise
from training.checkpoint_files import latest_checkpoint, step_of

pytestmark = pytest.mark.distributed

# Divided by no number of workers, towers or images of a batch.
NUM_VALIDATION, NUM_LABELS, NUM_STEPS = 23, 8, 4
FLAGS = ('--device=cpu', '--batch_size=4', '--num_warmup_batches=0', '--init_learning_rate=0.05')
PS, REPLICATED, COLLECTIVE = (
    f'--variable_update={mode}' for mode in ('parameter_server', 'distributed_replicated', 'collective_all_reduce')
)
EVERY_2, EVERY_3 = (f'--eval_during_training_every_n_steps={steps}' for steps in (2, 3))
# Any accuracy is as good, so that training ends long before its last step.
STOP = ('--stop_at_top_1_accuracy=0', '--num_batches=200')
ACCURACY = re.compile(r'^Accuracy @ 1 = (\d\.\d{4}) Accuracy @ 5 = (\d\.\d{4}) \[(\d+) examples\]$', re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """A way to train, and after which steps all workers evaluate. The last of these ends the training."""

    flags: tuple[str, ...]
    num_ps: int
    steps: tuple[int, ...]
    model: str = 'lenet'


# Moving averages, which one worker keeps, are what an evaluation computes with.
ROWS = {
    'ps': Row((PS, EVERY_2), 2, (2, 4), 'resnet20'),
}
OTHER_ROWS = {
    'collective-stops': Row((COLLECTIVE, EVERY_3, *STOP), 0, (3,)),
    'ps-stops': Row((PS, EVERY_3, *STOP), 1, (3,)),
    'ps-staged': Row((PS, EVERY_2, '--staged_vars', '--num_gpus=2'), 1, (2, 4)),
    'replicated': Row((REPLICATED, EVERY_2, '--num_gpus=2'), 1, (2, 4), 'resnet20'),
    'collective': Row((COLLECTIVE, EVERY_2, '--num_gpus=2'), 0, (2, 4), 'resnet20'),
}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('data')
    write_noise(folder, NUM_VALIDATION, NUM_LABELS)
    # A folder with classes of its own, on which every model trains.
    (folder / LABELS_FILE).write_text(''.join(f'class{number}\n' for number in range(NUM_LABELS)))
    return folder


def run(flags: Sequence[str], data_dir: Path, folder: Path, num_ps: int) -> tuple[Processes, list[list[str]]]:
    """A cluster of two workers that has ended well, and the accuracies that each worker printed."""
    all_flags = [*FLAGS, f'--num_batches={NUM_STEPS}', f'--data_dir={data_dir}', f'--train_dir={folder}/train', *flags]
    with make_cluster(all_flags, folder, num_ps=num_ps) as processes:
        processes.start()
        overdue = processes.still_running(DEADLINE_SECS)
    assert not overdue
    assert {name: task.exit_code for name, task in processes.tasks.items()} == dict.fromkeys(processes.tasks, 0)
    return processes, [[found[0] for found in ACCURACY.finditer(task.out)] for task in processes.of('worker')]


def evaluate(model: str, data_dir: Path, folder: Path) -> Accuracy:
    """What one process finds in the last checkpoint."""
    flags = ['--eval', f'--model={model}', '--device=cpu', f'--data_dir={data_dir}', f'--train_dir={folder}/train']
    [found] = BenchmarkCNN(parse_argv(flags).params).run().evaluations
    return found


def line_of(found: Accuracy) -> str:
    assert found.num_images == NUM_VALIDATION
    return f'Accuracy @ 1 = {found.top_1:.4f} Accuracy @ 5 = {found.top_5:.4f} [{NUM_VALIDATION} examples]'


@pytest.mark.parametrize(
    'row',
    [
        *(pytest.param(row, id=name) for name, row in ROWS.items()),
        *(pytest.param(row, id=name, marks=pytest.mark.all_modes) for name, row in OTHER_ROWS.items()),
    ],
)
def test_all_workers_print_what_one_process_finds_in_the_checkpoint(row: Row, data_dir: Path, tmp_path: Path) -> None:
    processes, printed = run([*row.flags, f'--model={row.model}'], data_dir, tmp_path, row.num_ps)
    found = evaluate(row.model, data_dir, tmp_path)
    assert found.step == row.steps[-1]
    assert printed[0][-1] == line_of(found)
    assert printed[1] == printed[0]
    for worker in processes.of('worker'):
        steps = re.findall(EVALUATING, worker.err, re.MULTILINE)
        assert tuple(map(int, steps)) == row.steps
        stops = [str(row.steps[-1])] if STOP[0] in row.flags else []
        assert re.findall(STOPPING, worker.err, re.MULTILINE) == stops


@pytest.mark.all_modes
def test_the_chief_evaluates_alone_where_workers_do_not_wait(data_dir: Path, tmp_path: Path) -> None:
    _, (of_chief, of_other) = run(
        [PS, '--nocross_replica_sync', EVERY_3, '--model=lenet'], data_dir, tmp_path, num_ps=1
    )
    assert of_chief
    assert not of_other
    assert all(line.endswith(f'[{NUM_VALIDATION} examples]') for line in of_chief)


@pytest.mark.parametrize(
    ('mode', 'num_ps'), [(PS, 1), pytest.param(COLLECTIVE, 0, marks=pytest.mark.all_modes)], ids=['ps', 'collective']
)
def test_a_cluster_evaluates_as_one_process_does(mode: str, num_ps: int, data_dir: Path, tmp_path: Path) -> None:
    own = ['--model=lenet', f'--data_dir={data_dir}', f'--train_dir={tmp_path}/train']
    BenchmarkCNN(parse_argv([*FLAGS, *own, f'--num_batches={NUM_STEPS}']).params).run()
    before = latest_checkpoint(f'{tmp_path}/train')
    assert before
    assert step_of(before) == NUM_STEPS
    _, printed = run([mode, '--model=lenet', '--eval', '--num_eval_epochs=1'], data_dir, tmp_path, num_ps)
    assert printed == [[line_of(evaluate('lenet', data_dir, tmp_path))]] * 2
    assert latest_checkpoint(f'{tmp_path}/train') == before

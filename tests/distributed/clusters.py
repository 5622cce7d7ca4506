"""What clusters of tests run, and the lines that tests wait for or read.

with training('parameter_server', ENDLESS, tmp_path) as tasks:
    tasks.start(UNDER_WAY)
    tasks['worker 1'].kill()
    tasks.assert_end(1, {'worker 1': -9})
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.support.outputs import check_line
from tests.support.programs import Task, Tasks, cluster

# More steps than there is time for.
ENDLESS = '--num_batches=1000000'

# Two workers train a network with cheap steps. Modes round differently; with this learning rate and
# optimizer the differences stay small.
TRAIN = (
    '--model=trivial --data_name=cifar10 --device=cpu --batch_size=4 --num_warmup_batches=2 '
    '--display_every=10 --connect_timeout_secs=120 --optimizer=momentum --nonesterov '
    '--momentum=0.9 --init_learning_rate=0.002 --weight_decay=0.01 --tf_random_seed=7'
)
# The flags of each mode, and how many tasks it has besides the workers.
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    'parameter_server': ('--variable_update=parameter_server', {'ps': 1}),
    'two_servers': ('--variable_update=parameter_server', {'ps': 2}),
    'asynchronous': ('--variable_update=parameter_server --nocross_replica_sync', {'ps': 1}),
    'staged': ('--variable_update=parameter_server --staged_vars', {'ps': 1}),
    'distributed_replicated': ('--variable_update=distributed_replicated', {'ps': 2}),
    'collective_all_reduce': ('--variable_update=collective_all_reduce', {}),
    'distributed_all_reduce': ('--variable_update=distributed_all_reduce', {'controllers': 1}),
}

STEP_LINE = r'(\d+)\timages/sec: (\d+\.\d) \+/- \d+\.\d \(jitter = \d+\.\d\)\t(\d+\.\d{3})\n'
TOTAL_LINE = r'^total images/sec: (\d+\.\d\d)$'
# A step that a worker reaches after all workers have begun.
UNDER_WAY = r'^20\timages/sec'
# The warning about steps with overflowed gradients, with the number of these steps.
SKIPPED = r'^tf_cnn_benchmarks: warning: (\d+) steps?, .* changed no variable'


def assert_each_names(tasks: Sequence[Task], *facts: object) -> None:
    """Asserts that each task wrote one error, which names all of these facts."""
    for task in tasks:
        assert len(task.errors) == 1, task.name
        check_line(task.errors[0], *facts)


def training(mode: str, flags: str, folder: Path, **options: Any) -> AbstractContextManager[Tasks]:
    """Yields the tasks of a cluster of MODES without starting them."""
    mode_flags, jobs = MODES[mode]
    return cluster(f'{TRAIN} {mode_flags} {flags}', folder, **jobs, **options)

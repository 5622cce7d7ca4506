"""Which steps a process takes, as a table; and the step loop, with a clock and steps that the tests
control.
"""

from typing import Any

import pytest

from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Step
from tf_cnn.run.schedule import Schedule, make_schedule
from tf_cnn.run.step_loop import run_steps

pytestmark = pytest.mark.unit


class Clock:
    """A clock that moves only when a test moves it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_warm_ups_come_first_and_the_seconds_of_a_step_are_not_those_of_the_consumer() -> None:
    clock, steps = Clock(), []
    calls: list[object] = []

    def take_step(phase: Phase, indices: range) -> list[None]:
        calls.append((phase, *indices))
        clock.now += 2
        return [None]

    loop = run_steps(take_step, 1, 2, clock=clock, begin_timed=lambda: calls.append('begin'))
    assert calls == []
    for (step,) in loop:
        calls.append('used')
        steps.append(step)
        clock.now += 1000
    assert calls == [
        (Phase.WARMUP, 1),
        'used',
        'begin',
        (Phase.TIMED, 1),
        'used',
        (Phase.TIMED, 2),
        'used',
    ]
    starts = [(Phase.WARMUP, 1, 100), (Phase.TIMED, 1, 1102), (Phase.TIMED, 2, 2104)]
    assert steps == [Step(phase, index, 2.0, None, start) for phase, index, start in starts]


def test_a_step_that_fails_ends_the_loop_after_those_before_it() -> None:
    def take_step(phase: Phase, indices: range) -> range:
        if indices[0] == 3:
            raise OSError('disk')
        return indices

    done: list[int] = []
    with pytest.raises(OSError, match='disk'):
        done.extend(step.values for (step,) in run_steps(take_step, 0, 5, clock=Clock()))
    assert done == [1, 2]


def test_the_steps_of_a_run_have_equal_parts_of_its_time() -> None:
    clock = Clock()

    def take_steps(phase: Phase, indices: range) -> range:
        clock.now += 12
        return indices

    runs = list(run_steps(take_steps, 3, 5, steps_per_run=3, clock=clock))
    assert [[step.index for step in steps] for steps in runs] == [[1, 2, 3], [1, 2, 3], [4, 5]]
    assert [[step.values for step in steps] for steps in runs] == [[1, 2, 3], [1, 2, 3], [4, 5]]
    assert [[(step.start, step.seconds) for step in steps] for steps in runs] == [
        [(100, 4), (104, 4), (108, 4)],
        [(112, 4), (116, 4), (120, 4)],
        [(124, 6), (130, 6)],
    ]


# Settings of 2 warm-up steps and 5 timed ones. Each row: the steps taken so far, the step at which
# training ends if it had begun before; then the first step, the last one, this worker's share of
# those before, and its steps to come.
TOGETHER = {
    'a fresh run': (0, None, Schedule(0, 7, 0, 2, 5, is_fresh=True)),
    'a run that resumes from a checkpoint': (30, None, Schedule(30, 37, 30, 2, 5, is_fresh=True)),
    'a cluster that starts again before the first step': (
        30,
        37,
        Schedule(30, 37, 30, 2, 5, is_fresh=True),
    ),
    'gone on in the middle of warm-up': (31, 37, Schedule(31, 37, 31, 1, 5, is_fresh=False)),
    'gone on in the middle of the timed steps': (
        34,
        37,
        Schedule(34, 37, 34, 1, 2, is_fresh=False),
    ),
    'gone on with one step left': (36, 37, Schedule(36, 37, 36, 0, 1, is_fresh=False)),
    'gone on when all was done': (37, 37, Schedule(37, 37, 37, 0, 0, is_fresh=False)),
    'gone on from a checkpoint before the first step': (
        29,
        37,
        Schedule(29, 37, 29, 3, 5, is_fresh=False),
    ),
}
# The same for three workers that count by themselves: any of them may take all the steps that are
# left.
APART = {
    'a fresh run': (0, None, Schedule(0, 21, 0, 2, 19, is_fresh=True)),
    'a run that resumes from a checkpoint': (31, None, Schedule(31, 52, 10, 2, 19, is_fresh=True)),
    'gone on in the middle of warm-up': (3, 21, Schedule(3, 21, 1, 1, 17, is_fresh=False)),
    'gone on in the middle of the timed steps': (12, 21, Schedule(12, 21, 4, 1, 8, is_fresh=False)),
    'gone on with one step for each': (18, 21, Schedule(18, 21, 6, 0, 3, is_fresh=False)),
    'gone on with one step left': (20, 21, Schedule(20, 21, 6, 0, 1, is_fresh=False)),
}


@pytest.mark.parametrize(('table', 'num_counting'), [(TOGETHER, 1), (APART, 3)])
def test_workers_share_the_steps_that_are_left(table: dict[str, Any], num_counting: int) -> None:
    for case, (start, end, expected) in table.items():
        assert (
            make_schedule(start, end, num_warmup=2, num_timed=5, num_counters=num_counting)
            == expected
        ), case


def test_without_warm_up_only_an_interruption_adds_one() -> None:
    assert make_schedule(0, None, num_warmup=0, num_timed=5) == Schedule(
        0, 5, 0, 0, 5, is_fresh=True
    )
    assert make_schedule(2, 5, num_warmup=0, num_timed=5) == Schedule(2, 5, 2, 1, 2, is_fresh=False)


def test_training_is_over_when_all_workers_together_have_taken_the_steps() -> None:
    schedule = make_schedule(10, None, num_warmup=1, num_timed=2, num_counters=2)
    assert [schedule.is_over(taken) for taken in (10, 15, 16, 17)] == [False, False, True, True]

"""Which steps a process takes: every situation, as a table."""

import pytest

from run.schedule import Schedule, make_schedule

pytestmark = pytest.mark.unit

# Settings of 2 warm-up steps and 5 timed ones. Each row: the steps taken so far, the step at which training ends if it
# had begun before; then the first step, the last one, this worker's share of those before, and its steps to come.
TOGETHER = {
    'a fresh run': (0, None, Schedule(0, 7, 0, 2, 5, is_fresh=True)),
    'a run that resumes from a checkpoint': (30, None, Schedule(30, 37, 30, 2, 5, is_fresh=True)),
    'a cluster that starts again before the first step': (30, 37, Schedule(30, 37, 30, 2, 5, is_fresh=True)),
    'gone on in the middle of warm-up': (31, 37, Schedule(31, 37, 31, 1, 5, is_fresh=False)),
    'gone on when warm-up was over': (32, 37, Schedule(32, 37, 32, 1, 4, is_fresh=False)),
    'gone on in the middle of the timed steps': (34, 37, Schedule(34, 37, 34, 1, 2, is_fresh=False)),
    'gone on with two steps left': (35, 37, Schedule(35, 37, 35, 1, 1, is_fresh=False)),
    'gone on with one step left': (36, 37, Schedule(36, 37, 36, 0, 1, is_fresh=False)),
    'gone on when all was done': (37, 37, Schedule(37, 37, 37, 0, 0, is_fresh=False)),
    'gone on from a checkpoint before the first step': (29, 37, Schedule(29, 37, 29, 3, 5, is_fresh=False)),
}
# The same for three workers that count by themselves: any of them may take all the steps that are left.
APART = {
    'a fresh run': (0, None, Schedule(0, 21, 0, 2, 19, is_fresh=True)),
    'a run that resumes from a checkpoint': (31, None, Schedule(31, 52, 10, 2, 19, is_fresh=True)),
    'gone on in the middle of warm-up': (3, 21, Schedule(3, 21, 1, 1, 17, is_fresh=False)),
    'gone on with less than a warm-up step for each': (4, 21, Schedule(4, 21, 1, 1, 16, is_fresh=False)),
    'gone on in the middle of the timed steps': (12, 21, Schedule(12, 21, 4, 1, 8, is_fresh=False)),
    'gone on with one step more than workers': (17, 21, Schedule(17, 21, 5, 1, 3, is_fresh=False)),
    'gone on with one step for each': (18, 21, Schedule(18, 21, 6, 0, 3, is_fresh=False)),
    'gone on with one step left': (20, 21, Schedule(20, 21, 6, 0, 1, is_fresh=False)),
}


@pytest.mark.parametrize('case', TOGETHER)
def test_workers_that_take_their_steps_together_share_them(case: str) -> None:
    start, end, expected = TOGETHER[case]
    assert make_schedule(start, end, num_warmup=2, num_timed=5) == expected


@pytest.mark.parametrize('case', APART)
def test_workers_that_count_by_themselves_have_as_many_steps_each(case: str) -> None:
    start, end, expected = APART[case]
    assert make_schedule(start, end, num_warmup=2, num_timed=5, num_counting=3) == expected


def test_without_warm_up_only_an_interruption_adds_one() -> None:
    assert make_schedule(0, None, num_warmup=0, num_timed=5) == Schedule(0, 5, 0, 0, 5, is_fresh=True)
    assert make_schedule(2, 5, num_warmup=0, num_timed=5) == Schedule(2, 5, 2, 1, 2, is_fresh=False)


def test_training_is_over_when_all_workers_together_have_taken_the_steps() -> None:
    schedule = make_schedule(10, None, num_warmup=1, num_timed=2, num_counting=2)
    assert [schedule.is_over(taken) for taken in (10, 15, 16, 17)] == [False, False, True, True]

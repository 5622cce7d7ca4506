"""The schedule of a process, and the step loop, with a clock and steps that tests control."""

from collections.abc import Sequence
from dataclasses import astuple

import pytest

from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Step
from tf_cnn.run.step_loop import Hook, TargetSeconds, make_schedule, run_steps

pytestmark = pytest.mark.unit


class Clock:
    """A clock that moves only when a test moves it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Diary(Hook[int]):
    """Writes down its calls; its work takes 1000 s. Asks to end after step `last` of a phase."""

    def __init__(self, clock: Clock, phase: Phase = Phase.TIMED, last: int = 99) -> None:
        self.calls: list[object] = []
        self._clock = clock
        self._end = phase, last

    def begin(self, phase: Phase) -> bool:
        self.calls.append(phase)
        return False

    def after(self, steps: Sequence[Step[int]]) -> bool:
        self.calls.append([step.index for step in steps])
        self._clock.now += 1000
        return (steps[-1].phase, steps[-1].index) == self._end


def take_steps(
    clock: Clock,
    hooks: Sequence[Hook[int]],
    num_warmup: int,
    num_timed: int,
    steps_per_run: int = 1,
) -> list[Step[int]]:
    """Takes steps; each session call takes 12 s."""

    def session_call(phase: Phase, indices: range) -> range:
        clock.now += 12
        return indices

    return list(run_steps(session_call, hooks, num_warmup, num_timed, steps_per_run, clock=clock))


def test_the_seconds_of_a_step_exclude_the_work_of_hooks():
    clock = Clock()
    steps = take_steps(clock, [Diary(clock)], 1, 2)
    assert steps == [
        Step(Phase.WARMUP, 1, 12.0, 1, 100.0),
        Step(Phase.TIMED, 1, 12.0, 1, 1112.0),
        Step(Phase.TIMED, 2, 12.0, 2, 2124.0),
    ]


def test_hooks_see_each_phase_and_each_session_call_with_its_steps():
    clock = Clock()
    diary = Diary(clock)
    take_steps(clock, [diary], 1, 5, 3)
    assert diary.calls == [Phase.WARMUP, [1], Phase.TIMED, [1, 2, 3], [4, 5]]


def test_the_steps_of_a_session_call_have_equal_parts_of_its_time():
    steps = take_steps(Clock(), [], 0, 5, 3)
    assert [(step.start, step.seconds) for step in steps] == [
        (100, 4),
        (104, 4),
        (108, 4),
        (112, 6),
        (118, 6),
    ]


def test_the_loop_asks_all_hooks_before_it_ends_the_timed_steps():
    clock = Clock()
    hooks = [Diary(clock, last=2), Diary(clock)]
    assert [step.index for step in take_steps(clock, hooks, 0, 5)] == [1, 2]
    assert hooks[0].calls == hooks[1].calls == [Phase.WARMUP, Phase.TIMED, [1], [2]]


def test_a_reason_to_end_does_not_cut_the_warm_up():
    clock = Clock()
    diary = Diary(clock, phase=Phase.WARMUP, last=2)
    steps = take_steps(clock, [diary], 3, 5)
    assert [(step.phase, step.index) for step in steps] == [
        (Phase.WARMUP, 1),
        (Phase.WARMUP, 2),
        (Phase.WARMUP, 3),
    ]


def test_the_first_hook_is_nearest_to_the_steps():
    calls: list[object] = []

    class Named(Hook[int]):
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self, phase: Phase) -> bool:
            calls.append((self.name, phase))
            return False

        def after(self, steps: Sequence[Step[int]]) -> bool:
            calls.append((self.name, steps[0].index))
            return False

    take_steps(Clock(), [Named('first'), Named('last')], 0, 1)
    assert calls[2:] == [('last', Phase.TIMED), ('first', Phase.TIMED), ('first', 1), ('last', 1)]


def test_a_step_that_fails_ends_the_loop_after_the_steps_before():
    def session_call(phase: Phase, indices: range) -> range:
        if indices[0] == 3:
            raise OSError('disk')
        return indices

    indices: list[int] = []
    with pytest.raises(OSError, match='disk'):
        indices.extend(step.values for step in run_steps(session_call, [], 0, 5))
    assert indices == [1, 2]


@pytest.mark.parametrize(('target', 'num_steps'), [(1, 1), (12, 1), (13, 2), (36, 3)])
def test_target_seconds_end_the_steps_by_the_clock(target, num_steps):
    clock = Clock()
    steps = take_steps(clock, [TargetSeconds[int](target, clock=clock)], 2, 9)
    assert len(steps) == 2 + num_steps


def test_excluded_seconds_do_not_count_for_target_seconds():
    clock = Clock()
    diary = Diary(clock)

    def excluded_seconds() -> float:
        return 1000.0 * sum(isinstance(call, list) for call in diary.calls[1:])

    target = TargetSeconds[int](36, excluded_seconds=excluded_seconds, clock=clock)
    assert len(take_steps(clock, [diary, target], 0, 9)) == 3


def test_synchronous_workers_agree_on_the_steps_that_the_slowest_takes_in_the_target():
    paces: list[float] = []

    def gather(pace: float) -> list[float]:
        paces.append(pace)
        return [pace, 2 * pace]

    clock = Clock()
    steps = take_steps(clock, [TargetSeconds[int](100, gather, clock=clock)], 3, 9)
    assert paces == [12.0]
    assert len(steps) == 3 + 5


Row = tuple[int, int | None, tuple[int, int, int, int, int, bool]]
# Runs of 2 warm-up steps and 5 timed steps: the global step, the last step of a training that began
# before, and the fields of Schedule.
SCHEDULES: dict[str, Row] = {
    'a fresh run': (0, None, (0, 7, 0, 2, 5, True)),
    'from a checkpoint': (30, None, (30, 37, 30, 2, 5, True)),
    'a cluster again, before its first step': (30, 37, (30, 37, 30, 2, 5, True)),
    'goes on within the warm-up': (31, 37, (31, 37, 31, 1, 5, False)),
    'goes on within the timed steps': (34, 37, (34, 37, 34, 1, 2, False)),
    'goes on with one step': (36, 37, (36, 37, 36, 0, 1, False)),
    'goes on after the last step': (37, 37, (37, 37, 37, 0, 0, False)),
    'goes on from before the first step': (29, 37, (29, 37, 29, 3, 5, False)),
}
# Three asynchronous workers: each may take all the remaining steps.
ASYNCHRONOUS: dict[str, Row] = {
    'a fresh run': (0, None, (0, 21, 0, 2, 19, True)),
    'from a checkpoint': (31, None, (31, 52, 10, 2, 19, True)),
    'goes on within the warm-up': (3, 21, (3, 21, 1, 1, 17, False)),
    'goes on within the timed steps': (12, 21, (12, 21, 4, 1, 8, False)),
    'goes on with one step for each': (18, 21, (18, 21, 6, 0, 3, False)),
    'goes on with one step': (20, 21, (20, 21, 6, 0, 1, False)),
}


@pytest.mark.parametrize('case', SCHEDULES)
def test_synchronous_workers_take_the_remaining_steps_together(case):
    start, end, schedule = SCHEDULES[case]
    assert astuple(make_schedule(start, end, num_warmup=2, num_timed=5)) == schedule


@pytest.mark.parametrize('case', ASYNCHRONOUS)
def test_asynchronous_workers_share_the_remaining_steps(case):
    start, end, schedule = ASYNCHRONOUS[case]
    assert astuple(make_schedule(start, end, 2, 5, num_counters=3)) == schedule


def test_an_interruption_adds_a_warm_up_step_to_a_run_without_any():
    fresh = make_schedule(0, None, num_warmup=0, num_timed=5)
    resumed = make_schedule(2, 5, num_warmup=0, num_timed=5)
    assert astuple(fresh) == (0, 5, 0, 0, 5, True)
    assert astuple(resumed) == (2, 5, 2, 1, 2, False)


def test_training_is_over_when_all_workers_together_have_taken_the_steps():
    schedule = make_schedule(10, None, num_warmup=1, num_timed=2, num_counters=2)
    assert [schedule.is_over(num_steps) for num_steps in (10, 15, 16, 17)] == [
        False,
        False,
        True,
        True,
    ]

"""The step loop, with a clock and steps that the tests control."""

import itertools

import pytest

from reporting.result import Phase, Step
from run.step_loop import run_steps

pytestmark = pytest.mark.unit


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_warm_ups_come_first_and_are_labelled() -> None:
    calls: list[tuple[Phase, int]] = []

    def run_step(phase: Phase, index: int) -> int:
        calls.append((phase, index))
        return len(calls)

    done = list(run_steps(run_step, 2, 3, clock=Clock()))
    expected = [(Phase.WARMUP, 1), (Phase.WARMUP, 2), (Phase.TIMED, 1), (Phase.TIMED, 2), (Phase.TIMED, 3)]
    assert calls == expected
    assert done == [
        Step(phase, index, 0.0, number, start=100.0) for number, (phase, index) in enumerate(expected, start=1)
    ]


def test_seconds_are_those_of_the_step_and_not_of_the_consumer() -> None:
    clock = Clock()
    durations = itertools.count(1)

    def run_step(phase: Phase, index: int) -> None:
        clock.now += next(durations)

    seconds = []
    for step in run_steps(run_step, 1, 3, clock=clock):
        seconds.append(step.seconds)
        clock.now += 1000
    assert seconds == [1, 2, 3, 4]


def test_no_step_runs_before_it_is_asked_for() -> None:
    calls: list[int] = []
    loop = run_steps(lambda phase, index: calls.append(index), 0, 5, clock=Clock())
    assert calls == []
    next(loop)
    assert calls == [1]


def test_a_step_that_fails_ends_the_loop_after_those_before_it() -> None:
    def run_step(phase: Phase, index: int) -> int:
        if index == 3:
            raise OSError('disk')
        return index

    done: list[int] = []
    with pytest.raises(OSError, match='disk'):
        done.extend(step.values for step in run_steps(run_step, 0, 5, clock=Clock()))
    assert done == [1, 2]


def test_without_warm_up_the_first_step_is_timed() -> None:
    assert [step.phase for step in run_steps(lambda phase, index: None, 0, 2)] == [Phase.TIMED, Phase.TIMED]

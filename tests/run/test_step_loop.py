"""The step loop, with a clock and steps that the tests control."""

import itertools

import pytest

from results.result import Step
from results.sections import Phase
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

    def take_step(phase: Phase, indices: range) -> list[int]:
        calls.extend((phase, index) for index in indices)
        return [len(calls)]

    done = [step for (step,) in run_steps(take_step, 2, 3, clock=Clock())]
    expected = [(Phase.WARMUP, 1), (Phase.WARMUP, 2), (Phase.TIMED, 1), (Phase.TIMED, 2), (Phase.TIMED, 3)]
    assert calls == expected
    assert done == [
        Step(phase, index, 0.0, number, start=100.0) for number, (phase, index) in enumerate(expected, start=1)
    ]


@pytest.mark.parametrize('num_warmup', [0, 2])
def test_the_timed_steps_begin_once_when_the_consumer_is_done_with_the_warm_up(num_warmup: int) -> None:
    calls: list[object] = []
    for steps in run_steps(lambda phase, indices: [phase], num_warmup, 2, begin_timed=lambda: calls.append('begin')):
        calls.extend(step.values for step in steps)
    assert calls == [*[Phase.WARMUP] * num_warmup, 'begin', Phase.TIMED, Phase.TIMED]


def test_seconds_are_those_of_the_step_and_not_of_the_consumer() -> None:
    clock = Clock()
    durations = itertools.count(1)

    def take_step(phase: Phase, indices: range) -> list[None]:
        clock.now += next(durations)
        return [None]

    seconds = []
    for (step,) in run_steps(take_step, 1, 3, clock=clock):
        seconds.append(step.seconds)
        clock.now += 1000
    assert seconds == [1, 2, 3, 4]


def test_no_step_runs_before_it_is_asked_for() -> None:
    calls: list[int] = []

    def take_step(phase: Phase, indices: range) -> list[None]:
        calls.extend(indices)
        return [None]

    loop = run_steps(take_step, 0, 5, clock=Clock())
    assert calls == []
    next(loop)
    assert calls == [1]


def test_a_step_that_fails_ends_the_loop_after_those_before_it() -> None:
    def take_step(phase: Phase, indices: range) -> range:
        if indices[0] == 3:
            raise OSError('disk')
        return indices

    done: list[int] = []
    with pytest.raises(OSError, match='disk'):
        done.extend(step.values for (step,) in run_steps(take_step, 0, 5, clock=Clock()))
    assert done == [1, 2]


def test_without_warm_up_the_first_step_is_timed() -> None:
    runs = run_steps(lambda phase, indices: indices, 0, 2)
    assert [step.phase for (step,) in runs] == [Phase.TIMED, Phase.TIMED]


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

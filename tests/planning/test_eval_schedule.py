"""After which steps training waits for an evaluation."""

from collections.abc import Sequence
from fractions import Fraction

import pytest

from planning.plan import EvalSchedule
from tests.support.outputs import check_line

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ('every', 'due'), [('3', [3, 6, 9]), ('2.5', [3, 5, 8, 10]), ('0.5', list(range(1, 11))), ('100', [])]
)
def test_an_evaluation_comes_with_the_step_that_reaches_its_time(every: str, due: Sequence[int]) -> None:
    schedule = EvalSchedule(every=Fraction(every))
    assert [step for step in range(1, 11) if schedule.is_due(step, step - 1)] == due


def test_a_schedule_names_the_evaluations_that_the_run_does_not_reach() -> None:
    every, at = EvalSchedule(every=Fraction('2.5')), EvalSchedule(at=frozenset([3, 8, 12]))
    assert every.warning(0, 3) is None
    # From step 3 to step 4; the next evaluation would be after step 5.
    check_line(every.warning(3, 4), '3', '4', '5')
    assert at.warning(5, 12) is None
    # Two of its evaluations are after the last step, 7.
    assert '3' not in check_line(at.warning(0, 7), '7', '8, 12')


def test_an_evaluation_is_due_though_another_worker_took_its_step() -> None:
    for schedule in (EvalSchedule(every=Fraction(4)), EvalSchedule(at=frozenset([4, 8]))):
        assert [step for step in (3, 6, 7, 9, 11) if schedule.is_due(step, step - 3)] == [6, 9]

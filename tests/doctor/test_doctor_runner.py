"""Whatever happens to the process of a check is a verdict about that check, and the others go on."""

import contextlib
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from doctor import check_runner
from doctor.check_runner import run_checks
from doctor.check_table import Check
from doctor.verdicts import Finding, Outcome
from tests.doctor import failing_checks
from tests.doctor.failing_checks import check
from tests.support.programs import Watched

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _find_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_runner, '_PROCESS', failing_checks.__file__)
    monkeypatch.setenv('PYTHONPATH', str(Path(check_runner.__file__).parent.parent))


def findings_of(*checks: Check) -> list[Finding]:
    return list(run_checks(checks))


def outcomes(findings: Sequence[Finding]) -> list[str]:
    return [finding.verdict.outcome.value for finding in findings]


def test_each_check_has_a_process_of_its_own() -> None:
    first, second = findings_of(check('fine'), check('fine', 'again'))
    assert outcomes([first, second]) == ['ok', 'ok']
    assert first.verdict.figures['pid'] != second.verdict.figures['pid']
    assert (first.name, second.name) == ('fine/', 'fine/again')
    assert first.seconds > 0


def test_what_a_check_is_told_and_what_it_finds_are_passed_on() -> None:
    (found,) = run_checks([check('fine')], num_gpus=3, time_limit=2.0)
    assert (found.verdict.figures['num_gpus'], found.verdict.figures['time_limit']) == (3, 2.0)
    (found,) = run_checks([check('fine')], time_limit=2.0, patience=8.0)
    assert found.verdict.figures['time_limit'] == 16.0
    (found,) = findings_of(check('slow'))
    assert (found.verdict.outcome, found.verdict.found, found.verdict.advice) == (Outcome.WARNING, 'it is slow', 'wait')


def test_checks_share_a_process_until_one_is_wrong() -> None:
    names = [('fine', 'a'), ('slow', 'b'), ('fine', 'c'), ('bad', 'd'), ('fine', 'e'), ('crashes', 'f'), ('fine', 'g')]
    found = findings_of(*(check(function, name, shares='group') for function, name in names))
    assert outcomes(found) == ['ok', 'warning', 'ok', 'wrong', 'ok', 'wrong', 'ok']
    pids = {finding.name[-1]: finding.verdict.figures.get('pid') for finding in found}
    assert pids['a'] == pids['c'] != pids['e'] != pids['g']
    # The log is that of the check alone.
    assert list(found[3].log) == ['why it is bad']


@pytest.mark.parametrize(
    ('function', 'facts'),
    [
        ('raises', ['ArithmeticError', 'two and two']),
        ('refuses', ['disk: it is full; make room']),
        ('crashes', ['signal 11', 'reading address 0']),
        ('executes_what_the_processor_does_not_know', ['signal 4']),
        ('leaves', ['exit code 7']),
        ('crashes_at_its_end', ['all is well', 'signal 6']),
    ],
)
def test_a_check_that_fails_or_crashes_is_wrong_and_the_next_one_runs(function: str, facts: list[str]) -> None:
    failed, after = findings_of(check(function), check('fine'))
    assert outcomes([failed, after]) == ['wrong', 'ok']
    assert [fact for fact in facts if fact not in failed.verdict.found] == []
    assert '\n' not in failed.verdict.found


def test_a_crash_has_advice_and_the_stack_in_its_log() -> None:
    (found,) = findings_of(check('crashes'))
    assert found.verdict.advice == 'turn it off and on'
    assert any('failing_checks.py' in line and 'crashes' in line for line in found.log)
    (found,) = findings_of(check('executes_what_the_processor_does_not_know'))
    assert 'processor' in (found.verdict.advice or '')


def test_a_check_that_hangs_is_wrong_and_its_log_says_where() -> None:
    # On a loaded machine a check needs seconds to begin.
    for limit_secs in (1.0, 4.0, 16.0):
        hung, after = findings_of(check('hangs', limit_secs=limit_secs), check('fine'))
        assert outcomes([hung, after]) == ['wrong', 'ok']
        assert f'{limit_secs:g} s' in hung.verdict.found
        if 'waiting for a library' in hung.verdict.found:
            break
    assert 'waiting for a library' in hung.verdict.found
    assert '--time_limit' in (hung.verdict.advice or '')
    assert any('hangs' in line and 'failing_checks.py' in line for line in hung.log)


def test_a_limit_is_as_patient_as_the_gpus_need_and_the_flag_to_write_is_the_users_alone() -> None:
    (hung,) = run_checks([check('hangs', limit_secs=0.25)], time_limit=2.0, patience=3.0)
    assert '1.5 s' in hung.verdict.found
    assert (hung.verdict.advice or '').endswith('--time_limit=8')


@pytest.mark.parametrize(('own', 'expected'), [(None, '4294967296'), ('1000', '1000')])
def test_compiled_kernels_are_kept_for_the_next_check(
    monkeypatch: pytest.MonkeyPatch, own: str | None, expected: str
) -> None:
    monkeypatch.delenv('CUDA_CACHE_MAXSIZE', raising=False)
    if own:
        monkeypatch.setenv('CUDA_CACHE_MAXSIZE', own)
    (found,) = findings_of(check('tells_its_environment'))
    assert found.verdict.figures['CUDA_CACHE_MAXSIZE'] == expected


def test_nothing_is_left_of_a_check_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    with contextlib.ExitStack() as stack:
        children: list[Watched] = []

        def show(name: str, doing: str) -> None:
            if doing:
                children.append(Watched(stack, [int(doing)]))

        # Longer than a busy machine takes to start the child.
        (hung,) = run_checks([check('hangs_with_a_child', limit_secs=4.0)], show=show)
        assert hung.verdict.outcome is Outcome.WRONG
        children[0].assert_all_end()
    assert list(tmp_path.iterdir()) == []


def test_a_check_ends_with_an_interrupt() -> None:
    with contextlib.ExitStack() as stack:
        children: list[Watched] = []

        def show(name: str, doing: str) -> None:
            if doing:
                children.append(Watched(stack, [int(doing)]))
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            list(run_checks([check('hangs_with_a_child')], show=show))
        children[0].assert_all_end()

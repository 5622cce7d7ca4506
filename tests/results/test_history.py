"""The history keeps results in one file, and the last runs of a setting judge the next one."""

import json
import math
import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comparison.regression import MULTIPLES, expectation, judge
from results.document import Record
from results.history import add, read, read_setting, setting_key
from tests.support.outputs import check_line, failed, refused
from tests.support.sample_results import cut_off, sample_document, sample_record

pytestmark = pytest.mark.unit


def a_run(number: int, rate: float = 100.0, **changes: Any) -> dict[str, Any]:
    document = sample_document(rate=rate, seed=number, started_at=f'2026-10-01T{number:02}:00:00Z', **changes)
    return {**document, 'id': f'run-{number}'}


def as_records(documents: list[dict[str, Any]]) -> list[Record]:
    return [Record('sample', document) for document in documents]


def test_results_are_kept_whole_and_in_the_order_of_their_runs(tmp_path: Path) -> None:
    path = str(tmp_path / 'history.sqlite')
    runs = [a_run(2), a_run(1), a_run(3, **cut_off('stopped by SIGTERM'))]
    for run in runs:
        add(path, run)
    found = read(path)
    assert [dict(record.document) for record in found.records] == [runs[1], runs[0], runs[2]]
    with sqlite3.connect(path) as database:
        rows = database.execute(
            'SELECT id, model, images_per_second, complete, setting FROM runs ORDER BY id'
        ).fetchall()
    assert [row[:2] for row in rows] == [('run-1', 'lenet'), ('run-2', 'lenet'), ('run-3', 'lenet')]
    assert rows[0][2] == runs[1]['throughput']['images_per_second']
    assert [row[3] for row in rows] == [1, 1, 0]
    assert {row[4] for row in rows} == {setting_key(found.records[0])}


def test_a_result_that_is_added_twice_is_there_once(tmp_path: Path) -> None:
    path = str(tmp_path / 'history.sqlite')
    add(path, a_run(1))
    add(path, a_run(1))
    assert len(read(path).records) == 1


def test_the_key_of_a_setting_ignores_what_changes_no_step() -> None:
    same = [sample_record(flags={'num_batches': count, 'max_ckpts_to_keep': count}) for count in (10, 20)]
    assert setting_key(same[0]) == setting_key(same[1]) != setting_key(sample_record(flags={'batch_size': 64}))


def test_a_history_looks_up_the_runs_of_one_setting_on_one_machine(tmp_path: Path) -> None:
    path = str(tmp_path / 'history.sqlite')
    for run in (a_run(1), a_run(2, flags={'batch_size': 64}), a_run(3, machine={'hostname': 'beta'}), a_run(4)):
        add(path, run)
    found = read_setting(path, Record('new.json', a_run(5)))
    assert [record.document['id'] for record in found.records] == ['run-1', 'run-4']
    assert found.problems == []


def test_a_damaged_row_hides_no_other(tmp_path: Path) -> None:
    path = str(tmp_path / 'history.sqlite')
    for number in range(4):
        add(path, a_run(number))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE runs SET document = '{\"schema' WHERE id = 'run-0'")
        database.execute("UPDATE runs SET document = CAST(x'ff7b' AS TEXT) WHERE id = 'run-1'")
        database.execute("UPDATE runs SET document = json_remove(document, '$.machine.versions') WHERE id = 'run-2'")
        database.execute("UPDATE runs SET document = json_set(document, '$.run', 5) WHERE id = 'run-3'")
    database.close()
    add(path, a_run(5))
    found = read(path)
    assert [record.document['id'] for record in found.records] == ['run-5']
    assert len(found.problems) == 4
    for number, line in enumerate(found.problems):
        check_line(line, path, f'run-{number}')


def _add_many(path: str, first: int) -> None:
    for number in range(first, first + 10):
        add(path, a_run(number))


def test_several_processes_add_to_a_new_history_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / 'history.sqlite')
    context = multiprocessing.get_context('spawn')
    processes = [context.Process(target=_add_many, args=(path, first)) for first in (0, 10)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert len(read(path).records) == 20


def test_a_locked_history_is_an_error_that_loses_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / 'history.sqlite')
    add(path, a_run(1))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute('BEGIN EXCLUSIVE')
    with failed('--history', path):
        add(path, a_run(2), timeout_secs=0.1)
    with failed(path):
        read(path, timeout_secs=0.1)
    other.execute('ROLLBACK')
    other.close()
    assert len(read(path).records) == 1
    add(path, a_run(2))
    assert len(read(path).records) == 2


def test_a_file_that_is_no_history_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / 'notes.txt'
    text.write_text('no database, but long enough for the header of one. ' * 10)
    other = tmp_path / 'other.sqlite'
    with sqlite3.connect(other) as database:
        database.execute('CREATE TABLE pictures (name TEXT)')
    database.close()
    for path in (text, other):
        before = path.read_bytes()
        with refused(path):
            read(str(path))
        with refused(path):
            add(str(path), a_run(1))
        assert path.read_bytes() == before
    with refused(tmp_path / 'missing.sqlite'):
        read(str(tmp_path / 'missing.sqlite'))
    assert not (tmp_path / 'missing.sqlite').exists()
    with failed('--history', tmp_path / 'missing'):
        add(str(tmp_path / 'missing' / 'history.sqlite'), a_run(1))


def test_a_history_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / 'history.sqlite')
    add(path, a_run(1))
    with sqlite3.connect(path) as database:
        database.execute('PRAGMA user_version = 7')
    database.close()
    with refused(path, 7):
        read(path)
    with refused(path, 7):
        add(path, a_run(2))


def false_alarms(count: int, noise: float, num_histories: int = 4000) -> float:
    """The share of histories of so many equal runs whose next run is called slower or faster."""
    draw = np.random.default_rng(count)
    found = 0
    for rates in 100 * np.exp(draw.normal(0, noise, (num_histories, count + 1))):
        *earlier, rate = rates.tolist()
        expected = expectation(earlier)
        assert expected
        low, high = expected.interval or (0, math.inf)
        found += not low <= rate <= high
    return found / num_histories


@pytest.mark.parametrize('count', [*MULTIPLES, 30])
def test_at_most_one_in_20_of_equal_runs_is_called_slower_or_faster(count: int) -> None:
    # 3 standard errors of 5 % in 4000 are 1 %.
    assert false_alarms(count, 0.03) <= 0.06
    # What differs by less than the least tolerance is as before.
    assert false_alarms(count, 0.005) <= 0.01 or count < 6


def test_a_shift_is_seen_at_once_and_becomes_the_new_level() -> None:
    draw = np.random.default_rng(1)
    hits = np.zeros(20)
    for _ in range(200):
        rates = np.repeat([100.0, 90.0], [10, 20]) * np.exp(draw.normal(0, 0.01, 30))
        # One run that another program disturbed.
        rates[4] = 40.0
        for run in range(20):
            expected = expectation(rates[: 10 + run].tolist())
            assert expected
            hits[run] += expected.interval is not None and rates[10 + run] < expected.interval[0]
    assert hits[0] >= 195
    # By then the last 10 runs are all of the new level: false alarms remain.
    assert hits[10:].max() <= 20


def test_equal_runs_still_tolerate_2_percent() -> None:
    runs = as_records([a_run(number, seconds=[0.32, 0.32]) for number in range(6)])
    assert judge(runs[5:], runs).verdict == 'as before'
    for rate, verdict in ((98.5, 'as before'), (97.5, 'slower than the 5 runs before')):
        new = as_records([a_run(6, seconds=[32 / rate] * 2)])
        assert judge(new, runs[:5]).verdict == verdict


def test_a_run_is_judged_by_the_last_runs_of_its_setting_on_its_machine() -> None:
    draw = np.random.default_rng(2)
    history = []
    for number in range(17):
        run = a_run(number, (100 if number < 7 else 90) * math.exp(draw.normal(0, 0.005)))
        run['program']['git_commit'] = 'abc' if number < 9 else 'def'
        run['machine']['versions']['tensorflow'] = '2.20.0'
        history.append(run)
    # These do not count.
    history += [
        a_run(17, 10, flags={'batch_size': 64}),
        a_run(18, 10, machine={'hostname': 'beta'}),
        a_run(19, 10, **cut_off('interrupted')),
    ]
    found = judge(as_records([a_run(20, 90.2)]), as_records(history))
    assert found.verdict == 'as before'
    assert (found.num_earlier, found.num_compared) == (17, 10)
    assert found.expectation
    assert found.expectation.median == pytest.approx(90, rel=0.01)
    assert found.changes['versions.tensorflow'] == ('2.20.0', '2.21.0')
    assert found.changes['program.git_commit'] == ('abc', 'def')
    slower = judge(as_records([a_run(20, 86)]), as_records(history))
    assert (slower.verdict, slower.is_slower) == ('slower than the 10 runs before', True)
    assert judge(as_records([a_run(20, 96)]), as_records(history)).verdict == 'faster than the 10 runs before'


def test_too_few_runs_give_no_verdict() -> None:
    runs = as_records([a_run(number) for number in range(3)])
    found = judge(runs[2:], runs)
    assert found.verdict == 'too few runs: 2 of 3'
    assert (found.interval, found.is_slower, found.is_faster) == (None, False, False)


def test_a_history_of_runs_that_differ_too_much_gives_no_verdict() -> None:
    runs = as_records([a_run(number, rate) for number, rate in enumerate((20, 400, 90, 1500, 5, 700))])
    found = judge(runs[5:], runs)
    assert (found.verdict, found.interval) == ('history too noisy to judge', None)


def test_later_runs_do_not_judge_earlier_ones() -> None:
    runs = as_records([a_run(number) for number in range(8)])
    assert judge(runs[:1], runs).num_earlier == 0
    assert json.dumps(dict(runs[0].document))

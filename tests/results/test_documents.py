"""Damaged result files: each is checked once against the schema, named and passed over, and none is a traceback.

A damaged file is one that a user copied, cut off or edited, or that somebody sent.
"""

import copy
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparison.changes import make_document, make_notes, make_rows, make_table
from comparison.ratios import Clock
from comparison.regression import judge
from comparison.report_rows import summarize_collection
from comparison.sides import read_side, side_of
from comparison.tables import as_csv
from errors import UsageError
from results.collection import Collection, collect
from results.document import Failure, Record, read_document
from results.schema import FILE
from tests.support.outputs import check_line
from tests.support.sample_results import (
    cut_off,
    sample_document,
    sample_failure,
    sample_record,
    step_seconds,
    write_sample,
)

pytestmark = pytest.mark.unit

NESTED = '[' * 200_000 + ']' * 200_000


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    document = sample_document(seconds=step_seconds(num_steps=8))
    change(document)
    return json.dumps(document)


def steps(document: dict[str, Any]) -> dict[str, Any]:
    return document['workers'][0]['steps']


DAMAGED = {
    'deep': (edited(lambda it: it.update(run=None)).replace('"run": null', f'"run": {NESTED}'), 'nested'),
    'flags': (edited(lambda it: it['command']['flags'].update(x=json.loads('[' * 50 + ']' * 50))), 'command.flags['),
    'integer': (edited(lambda it: it['run'].update(batch_size=10**400)), 'run.batch_size'),
    'infinity': (edited(lambda it: steps(it)['seconds'].__setitem__(3, float('inf'))), 'workers[0].steps.seconds[3]'),
    'null': (edited(lambda it: steps(it)['start'].__setitem__(0, None)), 'workers[0].steps.start[0]'),
    'text': (edited(lambda it: steps(it).update(seconds='fast')), 'workers[0].steps.seconds'),
    'surrogate': (edited(lambda it: it['machine'].update(hostname='\ud800')), 'surrogate'),
    'short': (edited(lambda it: steps(it)['seconds'].pop()), 'workers[0].steps', '9 of seconds'),
    'negative': (edited(lambda it: steps(it)['seconds'].__setitem__(2, -1.0)), 'seconds[2]', '>= 0'),
    'lacking': (edited(lambda it: it['machine'].pop('versions')), 'machine', 'versions'),
    'time': (edited(lambda it: it.update(started_at='yesterday')), 'times'),
    'failure': (json.dumps(sample_failure() | {'reason': 5}), 'reason', 'int'),
}


def test_each_damaged_file_is_named_with_what_is_wrong_and_the_others_are_compared(tmp_path: Path) -> None:
    for name, (text, *_) in DAMAGED.items():
        (tmp_path / f'{name}.json').write_text(text)
    write_sample(tmp_path / 'good.json')
    found = collect([str(tmp_path)])
    assert [Path(good.source).name for good in found.records] == ['good.json']
    assert len(found.problems) == len(DAMAGED)
    problems = {Path(line.partition(':')[0]).stem: line for line in found.problems}
    for name, (_, *facts) in DAMAGED.items():
        check_line(problems[name], f'{name}.json', *facts)
    assert len(max(problems.values(), key=len)) < 1000
    assert read_side(str(tmp_path)).problems == found.problems


def test_results_of_other_versions_are_read() -> None:
    """Keys that this version does not know are ignored."""
    assert read_document(edited(lambda it: it.update(new={'depth': [1, {'more': None}]})), 'new.json')
    assert read_document(edited(lambda it: it['run'].update(new_fact=10**400)), 'new.json')


# Values that are of the wrong kind or out of bounds somewhere.
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2, 3.5, 1e308, 1e-310, 1e-90, 1e90, 10**400, 2**63 - 1, float('inf'), float('nan')),
    *('', 'x', '\ud800', '\x00\x1b[31m', '1*1', 'timed', '2026-13-45', '0001-01-01T00:00:00+23:00', 'x' * 5000),
    *([], {}, [None], ['x'], [-1e50], [1e-99] * 3, {'a': {'b': []}}),
)
BASES = (
    sample_document(seconds=step_seconds(num_steps=8, seed=9)),
    sample_document(seconds=step_seconds(num_steps=7, seed=8), cluster={'num_workers': 2, 'num_ps': 1}),
    sample_document(seconds=step_seconds(num_steps=3), **cut_off('stopped')),
    sample_failure(),
)
GOOD = [sample_record(f'{number}.json', seconds=step_seconds(num_steps=8, seed=number)) for number in range(3)]


def paths(value: object) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (key,)
        # Two of the steps are as good as all.
        if not (isinstance(value, list) and key > 1):
            yield from ((key, *path) for path in paths(inner))


PATHS = [[*paths(base)] for base in BASES]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(0, len(BASES) - 1))
    document = copy.deepcopy(BASES[number])
    for path in draw(st.lists(st.sampled_from(PATHS[number]), min_size=1, max_size=2, unique=True)):
        holder: Any = document
        try:
            for key in path[:-1]:
                holder = holder[key]
            old = holder[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue
        if isinstance(holder, str):
            # The other change put a text here.
            continue
        change = draw(st.sampled_from(('replace', 'replace', 'remove', 'fill', 'scale')))
        value = copy.deepcopy(draw(st.sampled_from(VALUES)))
        if change == 'remove':
            del holder[path[-1]]
        elif change == 'fill' and isinstance(old, list):
            holder[path[-1]] = [value] * len(old)
        elif change == 'scale' and isinstance(old, float):
            holder[path[-1]] = old * draw(st.sampled_from((0.0, -1.0, 1e-60, 1e60)))
        else:
            holder[path[-1]] = value
    return document


READER = jsonschema.Draft202012Validator(json.loads(FILE.read_text()))


@given(documents())
@settings(max_examples=200)
def test_a_changed_result_is_refused_in_one_line_or_compared_and_reported(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    try:
        found = read_document(text, 'changed.json')
    except UsageError as refusal:
        line = check_line(refusal, 'changed.json')
        assert line.isprintable()
        return
    assert not list(READER.iter_errors(json.loads(text)))
    records, failures = ([found], []) if isinstance(found, Record) else ([], [found])
    assert all(isinstance(failure, Failure) for failure in failures)
    for clock in Clock:
        for first, second in ((records, GOOD), (GOOD, records), (GOOD[:1], records), (records * 3, GOOD)):
            sides = [side_of('a', first, failures if first is records else [], []), side_of('b', second, [], [])]
            rows = make_rows(sides, clock, force=True)
            document = make_document(rows, [], clock)
            as_json = json.dumps(document)
            json.loads(as_json, parse_constant=lambda name: pytest.fail(f'{name} in JSON'))
            table = make_table(rows)
            texts = [as_csv(document['rows']), table.as_text(io.StringIO(), 100), table.as_markdown()]
            for out in (*texts, as_json, *make_notes(rows, [])):
                out.encode()
    if records and records[0].images_per_second > 0:
        judge(records, GOOD)
        judge(GOOD[:1], [*records * 4, *GOOD])
    summarize_collection(Collection((*records, *GOOD), tuple(failures), ()))


def test_what_would_be_read_for_ever_is_named_and_passed_over(tmp_path: Path) -> None:
    write_sample(tmp_path / 'good.json')
    os.mkfifo(tmp_path / 'pipe.json')
    (tmp_path / 'zeros.json').symlink_to('/dev/zero')
    with (tmp_path / 'large.json').open('wb') as file:
        file.truncate(1 << 40)
    found = collect([str(tmp_path)])
    assert len(found.records) == 1
    assert len(found.problems) == 3
    for name, problem in zip(('large', 'pipe', 'zeros'), sorted(found.problems), strict=True):
        check_line(problem, tmp_path / f'{name}.json')
    for argument in ('pipe.json', 'zeros.json'):
        with pytest.raises(UsageError):
            read_side(str(tmp_path / argument))

"""Result documents: their schema, what is read, and damaged files, which are named and passed over.

A damaged file is one that a user copied, cut off or edited, or that somebody sent.
"""

import copy
import functools
import io
import json
import math
import operator
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.outputs import check_line
from tests.support.sample_results import (
    cut_off,
    record_of,
    sample_document,
    sample_failure,
    sample_record,
    step_seconds,
    write_sample,
)
from tf_cnn.compare.changes import COMPARISON_COLUMNS, make_document, make_notes, make_rows
from tf_cnn.compare.regression import check_regression
from tf_cnn.compare.report_rows import summarize_collection
from tf_cnn.compare.run_sets import make_run_set, read_run_set
from tf_cnn.results import schema
from tf_cnn.results.collection import Collection, collect
from tf_cnn.results.document import Failure, Result, as_json, read_document
from tf_cnn.results.sections import ComputeSection, partial_section
from tf_cnn.results.tables import Table, as_csv
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.unit

SCHEMA = json.loads(schema.FILE.read_text(encoding='utf-8'))
READER = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_made_from_the_classes_and_allows_their_documents() -> None:
    assert schema.FILE.read_text(encoding='utf-8') == schema.make_schema(), (
        'python -m tf_cnn.results.schema writes it'
    )
    page = schema.make_page()
    assert '| `input_wait` | list of number or null or null | Seconds at the end of' in page
    assert '| `workers` | list of [WorkerSection](#workersection) | The chief first.' in page
    assert (
        '## Phase\n\nThe phase of a step: WARMUP steps are kept, but do not count in any '
        'rate.\n\n`timed` or `warmup`' in page
    )
    for document in (sample_document(), sample_failure()):
        READER.validate(document)
    assert SCHEMA['$defs']['Result']['properties'].keys() == sample_document().keys()
    assert SCHEMA['$defs']['StageRow']['properties']['stage']['pattern'].startswith('^(read|parse|')
    assert SCHEMA['$defs']['ComputeSection']['properties']['peak_flops_per_second']['description']


def test_a_document_is_what_was_read_and_what_is_not_finite_is_unknown() -> None:
    assert as_json(sample_record()) == sample_document()
    assert list(as_json(sample_record())) == list(sample_document())
    unknown = partial_section(ComputeSection, flops_per_second=math.nan, share_of_peak=math.inf)
    assert {*as_json(unknown).values()} == {None}
    assert as_json({'loss': [1.0, math.nan], 'path': '\udcff'}) == {
        'loss': [1.0, None],
        'path': '\udcff',
    }


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    document = sample_document(seconds=step_seconds(num_steps=8))
    change(document)
    return json.dumps(document)


def test_results_of_other_versions_are_read() -> None:
    """Keys that this version does not know are ignored; those that older results lack have
    defaults.
    """
    assert read_document(
        edited(lambda it: it.update(new={'depth': [1, {'more': None}]})), 'new.json'
    )
    assert read_document(edited(lambda it: it['run'].update(new_fact=10**400)), 'new.json')
    document = sample_document()
    for name in ('tf32', 'steps_per_run', 'input_pipeline'):
        del document['run'][name]
    del (
        document['input']['stages'],
        document['input']['memory'],
        document['machine']['threads']['reason'],
    )
    found = record_of(document)
    assert (found.run.tf32, found.run.steps_per_run, found.run.input_pipeline) == (False, 1, None)
    assert (found.input.stages, found.input.memory) == (None, None)


def steps(document: dict[str, Any]) -> dict[str, Any]:
    return document['workers'][0]['steps']


NESTED = '[' * 200_000 + ']' * 200_000
STAGE = {'stage': 'other', **dict.fromkeys(('images_per_second', 'share'), 1.0)}
DAMAGED = {
    'deep': (
        edited(lambda it: it.update(run=None)).replace('"run": null', f'"run": {NESTED}'),
        'nested',
    ),
    'flags': (
        edited(lambda it: it['command']['flags'].update(x=json.loads('[' * 50 + ']' * 50))),
        'command.flags[',
    ),
    'integer': (edited(lambda it: it['run'].update(batch_size=10**400)), 'run.batch_size'),
    'infinity': (edited(lambda it: steps(it)['seconds'].__setitem__(3, float('inf'))), 'malformed'),
    'null': (
        edited(lambda it: steps(it)['start'].__setitem__(0, None)),
        'workers[0].steps.start[0]',
    ),
    'text': (edited(lambda it: steps(it).update(seconds='fast')), 'workers[0].steps.seconds'),
    'surrogate': (edited(lambda it: it['machine'].update(hostname='\ud800')), 'damaged'),
    'short': (edited(lambda it: steps(it)['seconds'].pop()), 'workers[0].steps', '9 of seconds'),
    'negative': (
        edited(lambda it: steps(it)['seconds'].__setitem__(2, -1.0)),
        'seconds[2]',
        '>= 0',
    ),
    'lacking': (edited(lambda it: it['machine'].pop('versions')), 'machine', 'versions'),
    'stage': (
        edited(lambda it: it['input'].update(stages=[STAGE])),
        'input.stages[0].stage',
        'read|parse',
    ),
    'time': (edited(lambda it: it.update(started_at='yesterday')), 'times'),
    'failure': (json.dumps(sample_failure() | {'reason': 5}), 'reason', 'int'),
    'cut-off': ('{"schema": ', 'not a complete JSON document'),
}


def test_each_damaged_file_is_named_with_what_is_wrong_and_the_others_are_compared(
    tmp_path: Path,
) -> None:
    for name, (text, *_) in DAMAGED.items():
        (tmp_path / f'{name}.json').write_text(text)
    # What would be read for ever is passed over, too.
    os.mkfifo(tmp_path / 'pipe.json')
    (tmp_path / 'zeros.json').symlink_to('/dev/zero')
    with (tmp_path / 'large.json').open('wb') as file:
        file.truncate(1 << 40)
    write_sample(tmp_path / 'good.json')
    found = collect([str(tmp_path)])
    assert [Path(good.source).name for good in found.results] == ['good.json']
    problems = {Path(line.partition(':')[0]).stem: line for line in found.problems}
    assert len(found.problems) == len(problems)
    assert problems.keys() == {*DAMAGED, 'pipe', 'zeros', 'large'}
    for name, (_, *facts) in DAMAGED.items():
        check_line(problems[name], f'{name}.json', *facts)
    assert len(max(problems.values(), key=len)) < 1000
    assert read_run_set(str(tmp_path)).problems == found.problems
    for argument in ('pipe.json', 'zeros.json'):
        with pytest.raises(UsageError):
            read_run_set(str(tmp_path / argument))


# Values that are of the wrong kind or out of bounds somewhere.
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        2,
        3.5,
        1e308,
        1e-45,
        1e90,
        10**400,
        2**63 - 1,
        float('inf'),
        float('nan'),
    ),
    *(
        '',
        'x',
        '\ud800',
        '\x00\x1b[31m',
        '1*1',
        'timed',
        '2026-13-45',
        '0001-01-01T00:00:00+23:00',
        'x' * 5000,
    ),
    *([], {}, [None], ['x'], [-1e50], [1e-49] * 3, {'a': {'b': []}}),
)
BASES = (
    sample_document(seconds=step_seconds(num_steps=8, seed=9)),
    sample_document(
        seconds=step_seconds(num_steps=7, seed=8), cluster={'num_workers': 2, 'num_ps': 1}
    ),
    sample_document(seconds=step_seconds(num_steps=3), **cut_off('stopped')),
    sample_failure(),
)
GOOD = [
    sample_record(f'{number}.json', seconds=step_seconds(num_steps=8, seed=number))
    for number in range(3)
]


def paths(value: object) -> Iterator[tuple[Any, ...]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield (key,)
        # Two of the steps are as good as all.
        if not (isinstance(value, list) and key > 1):
            yield from ((key, *path) for path in paths(inner))


PATHS = [[*paths(base)] for base in BASES]


@given(st.data())
@settings(max_examples=200)
def test_a_changed_result_is_refused_in_one_line_or_compared_and_reported(
    data: st.DataObject,
) -> None:
    number = data.draw(st.integers(0, len(BASES) - 1))
    document = copy.deepcopy(BASES[number])
    *path, last = data.draw(st.sampled_from(PATHS[number]))
    holder: Any = functools.reduce(operator.getitem, path, document)
    change, value = (
        data.draw(st.sampled_from(('replace', 'remove', 'fill'))),
        data.draw(st.sampled_from(VALUES)),
    )
    if change == 'remove':
        del holder[last]
    else:
        is_filled = change == 'fill' and isinstance(holder[last], list)
        holder[last] = [value] * len(holder[last]) if is_filled else value
    text = json.dumps(document)
    try:
        found = read_document(text, 'changed.json')
    except UsageError as refusal:
        line = check_line(refusal, 'changed.json')
        assert line.isprintable()
        return
    assert not list(READER.iter_errors(json.loads(text)))
    results, failures = ([found], []) if isinstance(found, Result) else ([], [found])
    assert all(isinstance(failure, Failure) for failure in failures)
    for first, second in (
        (results, GOOD),
        (GOOD, results),
        (GOOD[:1], results),
        (results * 3, GOOD),
    ):
        sides = [
            make_run_set('a', first, failures if first is results else [], []),
            make_run_set('b', second, [], []),
        ]
        rows = make_rows(sides, force=True)
        compared = make_document(rows, [])
        in_json, table = json.dumps(compared), Table(COMPARISON_COLUMNS, rows)
        json.loads(in_json, parse_constant=lambda name: pytest.fail(f'{name} in JSON'))
        for out in (
            as_csv(compared['rows']),
            table.as_text(io.StringIO()),
            table.as_markdown(),
            in_json,
        ):
            out.encode()
        assert all(line.encode() for line in make_notes(rows, []))
    if results and results[0].images_per_second > 0:
        check_regression(results, GOOD)
        check_regression(GOOD[:1], [*results * 4, *GOOD])
    summarize_collection(Collection((*results, *GOOD), tuple(failures), ()))

"""Result documents: their schema, how they are read, and damaged ones, which are named.

A damaged file is one that a user copied, cut off or edited, or that somebody sent.
"""

import contextlib
import copy
import functools
import io
import json
import math
import operator
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging import version

from tests.support.outputs import check_line, refused
from tests.support.sample_results import (
    command_document,
    cut_off,
    partial_section,
    record_of,
    sample_document,
    sample_failure,
    sample_record,
    write_sample,
)
from tf_cnn.lab.against import same_setting
from tf_cnn.lab.earlier import earlier
from tf_cnn.lab.rows import Row, make_rows
from tf_cnn.lab.show import show
from tf_cnn.lab.sides import Side, read_side
from tf_cnn.results import schema
from tf_cnn.results.collection import collect
from tf_cnn.results.document import AnyResult, Failure, read_document
from tf_cnn.results.sections import ComputeSection
from tf_cnn.system.documents import as_json
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.unit

SCHEMA = json.loads(schema.FILE.read_text(encoding='utf-8'))
READER = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.skipif(
    version.parse(msgspec.__version__) < version.parse('0.22'),
    reason='older versions of msgspec nest unions in the schema',
)
def test_the_schema_and_its_page_are_up_to_date():
    assert schema.FILE.read_text(encoding='utf-8') == schema.make_schema(), (
        'python -m tf_cnn.results.schema writes it'
    )
    page = schema.FILE.parents[2] / 'docs' / 'result_file.md'
    assert page.read_text(encoding='utf-8') == schema.make_page(), 'run: make docs'


def test_the_schema_is_made_from_the_classes():
    sections = SCHEMA['$defs']
    assert sections['Result']['properties'].keys() == sample_document().keys()
    assert sections['StageRow']['properties']['stage']['pattern'].startswith('^(read|parse|')
    assert sections['ComputeSection']['properties']['peak_flops_per_second']['description']
    for document in (sample_document(), sample_failure()):
        READER.validate(document)


def test_the_page_of_the_schema_has_types_and_meanings():
    page = schema.make_page()
    assert '| `input_wait` | list of number or null or null | Seconds at the end of' in page
    assert '| `workers` | list of [WorkerSection](#workersection) | The chief first.' in page
    assert re.search('## Phase\n\n.*WARMUP steps are kept.*\n\n`timed` or `warmup`', page)


def test_a_document_is_written_as_it_was_read():
    assert as_json(sample_record()) == sample_document()
    assert list(as_json(sample_record())) == list(sample_document())


def test_numbers_that_are_not_finite_are_null_in_a_document():
    unknown = partial_section(ComputeSection, flops_per_second=math.nan, share_of_peak=math.inf)
    assert {*as_json(unknown).values()} == {None}
    document = as_json({'loss': [1.0, math.nan], 'path': '\udcff'})
    assert document == {'loss': [1.0, None], 'path': '\udcff'}


def holder_in(document: Any, path: Iterable[Any]) -> Any:
    return functools.reduce(operator.getitem, path, document)


def edited(value: object, *path: str | int) -> str:
    """The text of a result with another value at this path."""
    document = sample_document(num_steps=8)
    *outer, last = path
    holder_in(document, outer)[last] = value
    return json.dumps(document)


def test_keys_that_this_version_does_not_know_are_ignored():
    read_document(edited({'depth': [1, {'more': None}]}, 'new'), 'new.json')
    read_document(edited(10**400, 'run', 'new_fact'), 'new.json')


def test_keys_that_older_results_lack_have_defaults():
    document = sample_document()
    run, inputs = document['run'], document['input']
    del run['tf32'], run['steps_per_run'], run['input_pipeline']
    del inputs['stages'], inputs['memory'], document['machine']['threads']['reason']
    old = record_of(document)
    assert (old.run.tf32, old.run.steps_per_run, old.run.input_pipeline) == (False, 1, None)
    assert (old.input.stages, old.input.memory) == (None, None)


NESTED = '[' * 200_000 + ']' * 200_000
STEPS = ('workers', 0, 'steps')
SECONDS = (*STEPS, 'seconds')
STAGE = {'stage': 'other', 'images_per_second': 1.0, 'share': 1.0}


def test_each_damaged_file_is_named_with_what_is_wrong_and_the_others_are_compared(tmp_path):
    # By name: the text of a file, and what the line about it names.
    damaged = {
        'deep': (edited(0, 'run').replace('"run": 0', f'"run": {NESTED}'), 'nested'),
        'flags': (
            edited(json.loads('[' * 50 + ']' * 50), 'command', 'flags', 'x'),
            'command.flags[',
        ),
        'integer': (edited(10**400, 'run', 'batch_size'), 'run.batch_size'),
        'infinity': (edited(math.inf, *SECONDS, 3), 'malformed'),
        'null': (edited(None, *STEPS, 'start', 0), 'workers[0].steps.start[0]'),
        'text': (edited('fast', *SECONDS), 'workers[0].steps.seconds'),
        'surrogate': (edited('\ud800', 'machine', 'hostname'), 'damaged'),
        'short': (edited([1.0] * 9, *SECONDS), 'workers[0].steps', '9 of seconds'),
        'negative': (edited(-1.0, *SECONDS, 2), 'seconds[2]', '>= 0'),
        'lacking': (edited({'hostname': 'alpha'}, 'machine'), '$.machine', 'os'),
        'stage': (edited([STAGE], 'input', 'stages'), 'input.stages[0].stage', 'read|parse'),
        'time': (edited('yesterday', 'started_at'), 'times'),
        'failure': (json.dumps(sample_failure() | {'reason': 5}), 'reason', 'int'),
        'cut-off': ('{"schema": ', 'not a complete JSON document'),
    }
    for name, (text, *_) in damaged.items():
        (tmp_path / f'{name}.json').write_text(text)
    write_sample(tmp_path / 'good.json')
    side = read_side(str(tmp_path))
    assert [Path(good.source).name for good in side.runs] == ['good.json']
    problems = {Path(path).stem: f'{path}: {reason}' for path, reason, _ in side.missing}
    assert len(side.missing) == len(damaged)
    for name, (_, *facts) in damaged.items():
        check_line(problems[name], f'{name}.json', *facts)
    assert len(max(problems.values(), key=len)) < 1000


def test_endless_files_are_not_read(tmp_path):
    os.mkfifo(tmp_path / 'pipe.json')
    (tmp_path / 'zeros.json').symlink_to('/dev/zero')
    with (tmp_path / 'large.json').open('wb') as file:
        file.truncate(1 << 40)
    write_sample(tmp_path / 'good.json')
    collection = collect([str(tmp_path)])
    assert [Path(good.source).name for good in collection.results] == ['good.json']
    assert sorted(Path(line.partition(':')[0]).stem for line in collection.problems) == [
        'large',
        'zeros',
    ]
    with refused('zeros.json'):
        read_side(str(tmp_path / 'zeros.json'))


# Values that are of the wrong kind or out of bounds somewhere.
NUMBERS = (True, -1, 0, 2, 3.5, 1e308, 1e-45, 1e90, 10**400, 2**63 - 1, math.inf, math.nan)
TEXTS = ('', 'x', '\ud800', '\x00\x1b[31m', '1*1', 'timed', '2026-13-45', 'x' * 5000)
OTHERS: tuple[Any, ...] = (None, [], {}, [None], ['x'], [-1e50], [1e-49] * 3, {'a': {'b': []}})
VALUES = (*NUMBERS, *TEXTS, '0001-01-01T00:00:00+23:00', *OTHERS)
GOOD = [
    record_of(sample_document(num_steps=8, seed=number), f'{number}.json') for number in range(3)
]


def paths(value: object) -> Iterator[tuple[Any, ...]]:
    items: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        items = [*value.items()]
    elif isinstance(value, list):
        # Two steps stand for all.
        items = [*enumerate(value[:2])]
    for key, inner in items:
        yield (key,)
        yield from ((key, *path) for path in paths(inner))


@given(
    st.sampled_from(
        (
            sample_document(num_steps=8),
            sample_document(num_steps=7, cluster={'num_workers': 2, 'num_ps': 1}),
            sample_document(num_steps=3, **cut_off('stopped')),
            sample_failure(),
            command_document(3.0, 10.0),
            command_document(3.0, None),
        )
    ).flatmap(lambda base: st.tuples(st.just(base), st.sampled_from([*paths(base)]))),
    st.sampled_from(('replace', 'remove', 'fill')),
    st.sampled_from(VALUES),
)
@settings(max_examples=200)
def test_a_changed_result_is_refused_in_one_line_or_compared_and_reported(
    tmp_path_factory, place, change, value
):
    document = copy.deepcopy(place[0])
    *path, last = place[1]
    holder = holder_in(document, path)
    if change == 'remove':
        del holder[last]
    else:
        is_filled = change == 'fill' and isinstance(holder[last], list)
        holder[last] = [value] * len(holder[last]) if is_filled else value
    text = json.dumps(document)
    try:
        outcome = read_document(text, 'changed.json')
    except UsageError as refusal:
        line = check_line(refusal, 'changed.json')
        assert line.isprintable()
        return
    assert not list(READER.iter_errors(json.loads(text)))
    results = [] if isinstance(outcome, Failure) else [outcome]
    failures = [outcome] if isinstance(outcome, Failure) else []
    check_comparison(results, failures, GOOD)
    check_comparison(GOOD, [], results)
    check_comparison(GOOD[:1], [], results)
    check_comparison(results * 3, failures, GOOD)
    if results:
        folder = tmp_path_factory.mktemp('runs')
        (folder / 'changed.json').write_text(text)
        for runs in (results, GOOD):
            check_rows(make_rows([Side('new', runs)], earlier(str(folder))))


def check_comparison(
    first: Sequence[AnyResult], failures: list[Failure], second: Sequence[AnyResult]
) -> None:
    try:
        rows = make_rows(
            [
                Side('a', first, [(f.source, f.reason, f.given_flags) for f in failures]),
                Side('b', second),
            ],
            same_setting,
            force=True,
        )
    except UsageError as refusal:
        check_line(refusal, 'wall times', 'different work')
        return
    check_rows(rows)


def check_rows(rows: Sequence[Row]) -> None:
    """Shows rows in every format; fails if a format is damaged."""
    for form in ('text', 'markdown', 'csv', 'json'):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            show(rows, form)
        # A lone surrogate cannot be encoded.
        out.getvalue().encode()
    json.loads(out.getvalue(), parse_constant=lambda name: pytest.fail(f'{name} in JSON'))

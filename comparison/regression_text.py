"""How results stand against a history, as text, Markdown, CSV or JSON. docs/compare.md describes the formats."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comparison.ratios import Clock
from comparison.regression import Change, Judgement
from comparison.text import as_csv, make_table, plain, table_of_markdown

SCHEMA = 'tf_cnn_benchmarks.regression'
SCHEMA_VERSION = 1

_TITLES = ('run', 'shape', 'runs', 'images/sec', 'median before', 'expected, 95 %', 'ratio', 'verdict')
_LEFT = ('run', 'shape', 'verdict')


@dataclass(frozen=True)
class Judged:
    """A row: the runs of one setting of one argument, and how they stand against the history."""

    name: str
    shape: str
    judgement: Judgement


def format_text(rows: Sequence[Judged], width: int | None) -> str:
    """The table and a line about each last change, for people."""
    return '\n'.join([make_table(_TITLES, _LEFT, [_cells(row) for row in rows], width), *_notes(rows)])


def format_markdown(rows: Sequence[Judged]) -> str:
    """A table of Markdown, and a list of the last changes."""
    table = table_of_markdown(_TITLES, _LEFT, [_cells(row) for row in rows])
    return '\n'.join([table, *(f'- {line}' if line else '' for line in _notes(rows))])


def format_csv(rows: Sequence[Judged]) -> str:
    """One line for each row, with the keys of the JSON; what is no number or text is JSON."""
    return as_csv([_as_object(row) for row in rows])


def format_json(rows: Sequence[Judged], clock: Clock) -> str:
    """The document."""
    document = {'schema': SCHEMA, 'schema_version': SCHEMA_VERSION, 'clock': clock.value}
    return json.dumps({**document, 'rows': [_as_object(row) for row in rows]}, indent=2)


def _cells(row: Judged) -> tuple[str, ...]:
    found = row.judgement
    low, high = found.expected or (None, None)
    return (
        plain(row.name),
        plain(row.shape),
        str(found.num_new),
        f'{found.rate:.2f}',
        '' if found.median is None else f'{found.median:.2f}',
        '' if low is None else f'{low:.2f} to {high:.2f}',
        '' if found.ratio is None else f'{found.ratio:.3f}',
        found.verdict,
    )


def _notes(rows: Sequence[Judged]) -> list[str]:
    lines = []
    for row in rows:
        change = row.judgement.last_change
        if change:
            differing = ', '.join(f'{name} {before} -> {after}' for name, (before, after) in change.changes.items())
            lines.append(
                f'{plain(row.name)}: the last change was {change.started_at}, to {change.ratio:.3f} of the runs before'
                + (f', at commit {change.git_commit}' if change.git_commit else '')
                + (f'; what differs: {plain(differing)}' if differing else '; nothing known of the machine differs')
            )
    return ['', *lines] if lines else []


def _as_object(row: Judged) -> dict[str, Any]:
    found = row.judgement
    low, high = found.expected or (None, None)
    return {
        'name': row.name,
        'shape': row.shape,
        'num_runs': found.num_new,
        'images_per_second': found.rate,
        'num_earlier_runs': found.num_earlier,
        'num_runs_of_level': found.num_level,
        'median': found.median,
        'expected_low': low,
        'expected_high': high,
        'ratio': found.ratio,
        'verdict': found.verdict,
        'is_regression': found.is_slower,
        'last_change': _change(found.last_change),
    }


def _change(change: Change | None) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        'started_at': change.started_at,
        'git_commit': change.git_commit,
        'ratio': change.ratio,
        'changes': {name: list(pair) for name, pair in change.changes.items()},
    }

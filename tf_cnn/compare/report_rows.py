"""Makes the rows of the report, one for each setting, and short names for settings.

Does not import TensorFlow or matplotlib.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tf_cnn.compare.differences import format_property
from tf_cnn.compare.measured import Measured, find_baselines
from tf_cnn.compare.ratios import Significance
from tf_cnn.compare.repeats import differing_limits, group_by_workload, repeat_key
from tf_cnn.compare.settings import default_setting, environment_of, is_setting, settings_of
from tf_cnn.plan.params import SPECS
from tf_cnn.results.advice import doubtful_note
from tf_cnn.results.collection import Collection, ResultSource
from tf_cnn.results.document import AnyResult, Failure, Result
from tf_cnn.results.tables import (
    abbreviate,
    escape_unprintable,
    format_interval,
    format_number,
    format_setting,
)

# The columns of every table of settings, in this order.
MODE, BATCH_SIZE, SHAPE = 'variable_update', 'batch size', 'W*G+P'
STANDARD = (MODE, BATCH_SIZE, SHAPE)
FOLDER = 'folder'
# Flags that have a standard column, or a column of the work.
_FLAGS_WITH_COLUMNS = frozenset(
    {'model', 'variable_update', 'batch_size', 'num_gpus', 'shape', 'forward_only', 'eval'}
)
# The GPUs that a process saw. Only the first one is shown, since the shape gives their number.
_GPUS = 'CUDA_VISIBLE_DEVICES'
# In names of settings: the first columns, the columns shown as values without their name, and the
# longest name.
_FIRST_COLUMNS = ('model', 'command', *STANDARD)
_SELF_EXPLANATORY = (FOLDER, MODE, SHAPE, 'model', 'command', 'machine', 'data set', 'role')
_MAX_NAME_LENGTH = 48
# Longer values are shortened in names; longer than the name of each mode.
_LONG_VALUE = 24


@dataclass(frozen=True)
class ReportRow(Measured):
    """One setting on one machine.

    Attributes:
      properties: text by column name; a failure has only the flags that were given.
      reason: why the run failed or is incomplete; None if it is complete.
      baseline: the row of the same folder that speed-ups refer to, see find_baselines; None if
        this row is not shown.
      label: a short name that is unique among the rows; see name_settings.
    """

    properties: Mapping[str, str]
    source_file: ResultSource
    reason: str | None
    label: str = ''

    @property
    def status(self) -> str:
        if not self.runs:
            return 'failed'
        return 'complete' if self.reason is None else 'incomplete'

    @property
    def num_devices(self) -> int:
        """Workers * devices per worker; 0 for failures."""
        cluster = self.benchmark_results[0].cluster if self.benchmark_results else None
        return cluster.num_workers * cluster.devices_per_worker if cluster else 0

    @property
    def is_shown(self) -> bool:
        return self.status == 'complete' and math.isfinite(self.rate)


@dataclass(frozen=True)
class Summary:
    """All rows.

    Attributes:
      rows: by folder; the rows of a sweep in its order, others in the order of measurement, then
        failures.
      columns: the names of the shown properties: the standard columns, and what differs between
        rows.
      problems: a line for each file that could not be read.
    """

    rows: tuple[ReportRow, ...]
    columns: tuple[str, ...]
    problems: tuple[str, ...]

    def values(self, column: str) -> list[str]:
        """The values of a standard column or of the folder, in the order of the rows."""
        return list(dict.fromkeys(row.properties[column] for row in self.rows))

    @property
    def shown(self) -> list[ReportRow]:
        """The rows that the plots show."""
        return [row for row in self.rows if row.is_shown]

    @functools.cached_property
    def works(self) -> list[list[ReportRow]]:
        """The shown rows that may be compared with each other, in the order of the rows."""
        groups = group_by_workload([row.runs[0] for row in self.shown])
        return [[self.shown[index] for index in indices] for indices in groups]

    @functools.cached_property
    def color_column(self) -> str:
        """The column that decides the colour of a row: the folder, if folders share a work."""
        shares_work = any(len({row.properties[FOLDER] for row in rows}) > 1 for rows in self.works)
        return FOLDER if shares_work else MODE

    @property
    def runs(self) -> list[AnyResult]:
        return [run for row in self.rows for run in row.results]


def summarize_collection(collection: Collection) -> Summary:
    """Groups the repeats of each setting on each machine; see Summary."""
    groups: dict[tuple[str, str], list[AnyResult]] = {}
    for result in collection.results:
        # Each incomplete run has a separate row.
        key = repeat_key(result) if result.is_complete else result.source
        groups.setdefault((collection.source_of(result).folder, key), []).append(result)
    limits = differing_limits(collection.results)
    rows = []
    for results in groups.values():
        first, source_file = results[0], collection.source_of(results[0])
        reason = None if first.is_complete else first.reason or 'it did not take all of its steps'
        properties = {
            FOLDER: escape_unprintable(source_file.folder),
            **_result_properties(first, limits),
        }
        rows.append(
            ReportRow(
                tuple(results),
                properties,
                source_file,
                reason,
                published_speed_up=source_file.published_speed_up,
            )
        )
    for failure in collection.failures:
        source_file = collection.source_of(failure)
        rows.append(
            ReportRow(
                (),
                {FOLDER: escape_unprintable(source_file.folder), **_failure_properties(failure)},
                source_file,
                failure.reason,
                published_speed_up=source_file.published_speed_up,
            )
        )
    folders = list(dict.fromkeys(row.source_file.folder for row in rows))

    def table_order(row: ReportRow) -> tuple[int, int, bool]:
        position = row.source_file.position
        return (
            folders.index(row.source_file.folder),
            len(rows) if position is None else position,
            not row.runs,
        )

    rows.sort(key=table_order)
    columns = _columns(rows)
    labels = name_settings([row.properties for row in rows], columns)
    rows = [replace(row, label=label) for row, label in zip(rows, labels, strict=True)]
    baselines: dict[int, Measured] = {}
    for folder in folders:
        baselines |= find_baselines(
            [row for row in rows if row.is_shown and row.source_file.folder == folder]
        )
    compared = tuple(replace(row, baseline=baselines.get(id(row))) for row in rows)
    return Summary(compared, columns, collection.problems)


def describe_fastest(summary: Summary) -> list[str]:
    """Returns a sentence about each work: its fastest row, or the throughput of its only row."""
    return [
        _describe_fastest_of_work(sorted(rows, key=lambda row: -row.rate))
        if len(rows) > 1
        else _describe_only_row(*rows)
        for rows in summary.works
    ]


def _describe_only_row(row: ReportRow) -> str:
    """Gives the throughput, with its interval if there is one."""
    interval = f' ({format_interval(row.interval_in_unit)})' if row.interval else ''
    rate = f'{row.format_rate(row.rate)} {row.unit}{interval}'
    if not row.benchmark_results:
        return f'{row.label}: {rate}{doubtful_note(row.results)}.'
    setting = ', '.join(
        [row.properties[MODE], f'batch {row.properties[BATCH_SIZE]}', row.properties[SHAPE]]
    )
    model = row.properties.get('model', '')
    return f'{model}: {rate} with {setting}{doubtful_note(row.results)}.'


def _describe_fastest_of_work(rows: Sequence[ReportRow]) -> str:
    """Compares the first row, which has the highest throughput, with the others.

    The sentence says that it leads only if it is significantly faster than each of them.
    """
    best, *other_rows = rows
    by_verdict: dict[Significance, list[ReportRow]] = {}
    for row in other_rows:
        by_verdict.setdefault(best.ratio_to(row).verdict, []).append(row)
    faster_than = by_verdict.pop(Significance.FASTER, [])
    if by_verdict:
        parts = [
            f'{best.label} with {best.format_rate(best.rate)} {best.unit}, '
            f'{abbreviate([f"{row.label} with {row.format_rate(row.rate)}" for row in compared])}: '
            f'{verdict.value}'
            for verdict, compared in by_verdict.items()
        ]
        if Significance.FEW_RUNS in by_verdict:
            parts.append('three or more runs of each would show which is faster')
        text, named_rows = '; '.join(parts), [best, *itertools.chain(*by_verdict.values())]
    else:
        second = faster_than[0]
        times = (
            f'{format_number(best.ratio_to(second).value)} times {second.label} with '
            f'{second.format_rate(second.rate)}'
        )
        text, named_rows = (
            f'{best.label} leads with {best.format_rate(best.rate)} {best.unit}, {times}',
            [best, second],
        )
    return f'{text}{doubtful_note([run for row in named_rows for run in row.results])}.'


def name_settings(settings: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
    """Names each setting by the columns that distinguish them.

    The folder is in a name only if model, mode, batch size and shape do not distinguish it.
    If a name would be too long or not unique, all names begin with '#1', '#2', ...: then short
    values come first, and long values are shortened to the part that differs.
    """
    candidates = [name for name in (*_FIRST_COLUMNS, FOLDER) if name in columns]
    candidates += [name for name in columns if name not in candidates]
    name_columns: list[str] = []
    num_groups = 1
    for column in candidates:
        num_distinct = len(
            {tuple(setting.get(name) for name in (*name_columns, column)) for setting in settings}
        )
        # The shape is always shown, because it gives the size of a setting.
        is_shape = column == SHAPE and len({setting.get(SHAPE) for setting in settings}) > 1
        if num_distinct > num_groups or is_shape or column == 'command':
            name_columns.append(column)
            num_groups = num_distinct
    name_columns = name_columns or [name for name in candidates if name in _FIRST_COLUMNS]
    name_columns.sort(key=lambda name: name != FOLDER)

    def join_parts(values: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
        return [
            ' · '.join(_format_part(name, row[name]) for name in columns if row.get(name))
            for row in values
        ]

    names = join_parts(settings, name_columns)
    if len(set(names)) == len(names) and all(0 < len(name) <= _MAX_NAME_LENGTH for name in names):
        return names
    short = [
        {name: _shorten(setting.get(name, ''), name, settings) for name in name_columns}
        for setting in settings
    ]
    by_length = sorted(
        name_columns, key=lambda name: max(len(_format_part(name, row[name])) for row in short)
    )
    return [
        text if len(text) <= _MAX_NAME_LENGTH else f'{text[: _MAX_NAME_LENGTH - 1].rstrip()}…'
        for text in (
            f'#{position} {name}' for position, name in enumerate(join_parts(short, by_length), 1)
        )
    ]


def _shorten(value: str, column: str, settings: Sequence[Mapping[str, str]]) -> str:
    """Shortens a long value: drops the common prefix of its column, then its middle."""
    if len(value) <= _LONG_VALUE:
        return value
    letters = zip(*{setting[column] for setting in settings if setting.get(column)}, strict=False)
    same = next(
        (index for index, column_letters in enumerate(letters) if len({*column_letters}) > 1), 0
    )
    end = f'…{value[same:]}' if same else value
    return (
        end if len(end) <= _LONG_VALUE else f'{end[: _LONG_VALUE // 2]}…{end[-_LONG_VALUE // 2 :]}'
    )


def format_percent(share: float | None, digits: int = 2) -> str:
    return format_number(None) if share is None else f'{format_number(100 * share, digits)} %'


def _format_part(column: str, value: str) -> str:
    return (
        value
        if column in _SELF_EXPLANATORY
        else f'batch {value}'
        if column == BATCH_SIZE
        else format_setting(column, value)
    )


def _as_text(value: object) -> str:
    """Formats a value as on a command line."""
    if value is None:
        return 'none'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _failure_properties(failure: Failure) -> dict[str, str]:
    flag_texts = {
        str(name): str(text).partition('=')[2] or 'true'
        for name, text in failure.given_flags.items()
    }
    mode = flag_texts.get('variable_update', str(SPECS['variable_update'].default))
    properties = {MODE: mode, BATCH_SIZE: flag_texts.get('batch_size', ''), SHAPE: failure.shape}
    if 'model' in flag_texts:
        properties['model'] = flag_texts['model']
    properties |= {
        name: text for name, text in flag_texts.items() if name not in _FLAGS_WITH_COLUMNS
    }
    return {escape_unprintable(name): escape_unprintable(text) for name, text in properties.items()}


def _result_properties(result: AnyResult, limits: Iterable[str]) -> dict[str, str]:
    """Returns the properties of a row; limits are the names of the limits that differ."""
    work, versions = result.workload, result.machine['versions']
    properties: dict[str, Any] = dict.fromkeys(STANDARD, '')
    # A version without a flag behaves as with the flag's default.
    defaults = {name: default_setting(name) for name in SPECS if is_setting(name)}
    if isinstance(result, Result):
        properties |= {
            MODE: result.run.variable_update,
            BATCH_SIZE: result.run.batch_size,
            SHAPE: result.shape,
            'model': result.model.name,
            'data set': f'{work["data_set"]}{", synthetic" if work["is_synthetic"] else ""}',
            'image size': work['image_size'],
            'role': work['role'],
        }
    else:
        defaults = {}
    properties |= {
        'machine': result.machine['hostname'],
        **({'TensorFlow': versions.get('tensorflow')} if versions else {}),
        **{name: version for name, version in versions.items() if name != 'tensorflow'},
        **{name: format_property(result.limits.get(name)) for name in sorted(limits)},
    }
    settings = {
        name: value
        for name, value in (defaults | settings_of(result)).items()
        if name not in _FLAGS_WITH_COLUMNS
    }
    environment = environment_of(result)
    if _GPUS in environment:
        environment[_GPUS] = environment[_GPUS].partition(',')[0]
    return {
        escape_unprintable(name): escape_unprintable(_as_text(value))
        for name, value in (properties | settings | environment).items()
    }


def _columns(rows: Sequence[ReportRow]) -> tuple[str, ...]:
    with_results = [row for row in rows if row.runs] or rows
    varying_columns = []
    for name in dict.fromkeys(
        name for row in with_results for name in row.properties if name not in STANDARD
    ):
        # A flag that is missing in a failure is unknown, not different.
        values = {row.properties.get(name) for row in with_results} | {
            row.properties.get(name) for row in rows
        } - {None}
        if len(values) > 1 or name == 'command':
            varying_columns.append(name)
    return (*STANDARD, *varying_columns)

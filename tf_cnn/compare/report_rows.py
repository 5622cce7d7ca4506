"""Makes the rows of the report, one for each setting, and short names for settings.

Does not import TensorFlow or matplotlib.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tf_cnn.compare.measured import Measured, find_baselines
from tf_cnn.lab.differences import format_property
from tf_cnn.lab.ratios import Significance
from tf_cnn.lab.repeats import differing_limits, group_by_workload, repeat_key
from tf_cnn.lab.settings import default_setting, environment_of, is_setting, settings_of
from tf_cnn.plan.params import SPECS
from tf_cnn.results.advice import doubtful_note
from tf_cnn.results.collection import Collection, ResultSource
from tf_cnn.results.document import Failure, Result
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
_WORK_COLUMNS = ('model', 'data set', 'image size', 'role')
# Flags that have a standard column, or a column of the work.
_FLAGS_WITH_COLUMNS = frozenset(
    {'model', 'variable_update', 'batch_size', 'num_gpus', 'shape', 'forward_only', 'eval'}
)
# The GPUs that a process saw. Only the first one is shown, since the shape gives their number.
_GPUS = 'CUDA_VISIBLE_DEVICES'
# In names of settings: the first columns, the columns shown as values without their name, and the
# longest name.
_FIRST_COLUMNS = ('model', 'precision', *STANDARD)
_SELF_EXPLANATORY = (FOLDER, MODE, SHAPE, 'model', 'machine', 'data set', 'role', 'precision')
_MAX_NAME_LENGTH = 58
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
      number: its place among all rows, from 1.
      name_columns: the columns in its name.
      label: a short name that is unique among the rows; see name_settings.
    """

    properties: Mapping[str, str]
    source_file: ResultSource
    reason: str | None
    number: int = 0
    name_columns: tuple[str, ...] = ()
    label: str = ''

    @property
    def status(self) -> str:
        if not self.runs:
            return 'failed'
        return 'complete' if self.reason is None else 'incomplete'

    @property
    def num_devices(self) -> int:
        """Workers * devices per worker; 0 for failures."""
        cluster = self.results[0].cluster if self.results else None
        return cluster.num_workers * cluster.devices_per_worker if cluster else 0

    @property
    def is_shown(self) -> bool:
        return self.status == 'complete' and math.isfinite(self.rate)


@dataclass(frozen=True)
class Summary:
    """All rows.

    Attributes:
      rows: by folder, in the order of the arguments; the rows of a sweep in its order, others in
        the order of measurement, then failures.
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

    @functools.cached_property
    def usual_properties(self) -> dict[str, str]:
        """The values that most rows have and do not have in their names."""
        usual = {}
        for name in self.columns:
            values = [row.properties.get(name) for row in self.rows if name not in row.name_columns]
            for value, count in Counter(values).most_common(1):
                if value and 2 * count > len(values):
                    usual[name] = value
        return usual

    def other_properties(self, row: ReportRow) -> dict[str, str]:
        """The values of a row that are neither usual nor in its name."""
        other = {
            name: value
            for name in self.columns
            if name not in row.name_columns
            and (value := row.properties.get(name))
            and value != self.usual_properties.get(name)
        }
        # The folder may have the name of the machine.
        if other.get('machine') == row.properties[FOLDER]:
            del other['machine']
        return other

    def name_rows(self, rows: Sequence[ReportRow], columns: Sequence[str] = ()) -> list[str]:
        """Names rows by what distinguishes them from each other, numbered as in the table."""
        return name_settings(
            [row.properties for row in rows],
            columns or self.columns,
            [row.number for row in rows],
        )

    @property
    def shown(self) -> list[ReportRow]:
        """The rows that the plots show."""
        return [row for row in self.rows if row.is_shown]

    @functools.cached_property
    def works(self) -> list[list[ReportRow]]:
        """The shown rows that may be compared with each other, in the order of the rows."""
        groups = group_by_workload([row.runs[0] for row in self.shown])
        return [[self.shown[index] for index in indices] for indices in groups]

    @property
    def work_names(self) -> list[str]:
        """The names of the works; empty if all rows have the same."""
        columns = [name for name in self.columns if name in _WORK_COLUMNS]
        firsts = [rows[0] for rows in self.works]
        return self.name_rows(firsts, columns) if columns else [''] * len(firsts)

    @functools.cached_property
    def color_column(self) -> str:
        """The column that decides the colour of a row: the folder, if folders share a work."""
        shares_work = any(len({row.properties[FOLDER] for row in rows}) > 1 for rows in self.works)
        return FOLDER if shares_work else MODE

    @property
    def runs(self) -> list[Result]:
        return [run for row in self.rows for run in row.results]


def summarize_collection(collection: Collection) -> Summary:
    """Groups the repeats of each setting on each machine; see Summary."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in collection.results:
        # Each incomplete run has a separate row.
        key = repeat_key(result) if result.is_complete else result.source
        groups.setdefault((collection.source_of(result).folder, key), []).append(result)
    limits = differing_limits(collection.results)
    rows = []
    for results in groups.values():
        first, source_file = results[0], collection.source_of(results[0])
        reason = None if first.is_complete else first.reason or 'it did not take all of its steps'
        rows.append(
            ReportRow(
                tuple(results),
                _result_properties(first, limits),
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
                _failure_properties(failure),
                source_file,
                failure.reason,
                published_speed_up=source_file.published_speed_up,
            )
        )
    sources = (*collection.sources.values(), *(row.source_file for row in rows))
    folders = list(dict.fromkeys(source_file.folder for source_file in sources))

    def table_order(row: ReportRow) -> tuple[int, int, bool]:
        position = row.source_file.position
        return (
            folders.index(row.source_file.folder),
            len(rows) if position is None else position,
            not row.runs,
        )

    rows.sort(key=table_order)
    short_name = short_names(folders)
    rows = [
        replace(
            row,
            properties={
                FOLDER: escape_unprintable(short_name[row.source_file.folder]),
                **row.properties,
            },
            number=number,
        )
        for number, row in enumerate(rows, start=1)
    ]
    columns = _columns(rows)
    settings = [row.properties for row in rows]
    baselines: dict[int, Measured] = {}
    for folder in folders:
        baselines |= find_baselines(
            [row for row in rows if row.is_shown and row.source_file.folder == folder]
        )
    compared = tuple(
        replace(row, baseline=baselines.get(id(row)), name_columns=name_columns, label=label)
        for row, name_columns, label in zip(
            rows,
            _find_name_columns(settings, columns),
            name_settings(settings, columns),
            strict=True,
        )
    )
    return Summary(compared, columns, collection.problems)


def short_names(folders: Sequence[str]) -> Mapping[str, str]:
    """Returns the last part of each folder's path; the whole paths if two have the same."""
    ends = [folder.rstrip('/').rpartition('/')[2] for folder in folders]
    return dict(zip(folders, ends if len({*ends}) == len(folders) else folders, strict=True))


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
    setting = ', '.join(
        [row.properties[MODE], f'batch {row.properties[BATCH_SIZE]}', row.properties[SHAPE]]
    )
    interval = f' ({format_interval(row.interval)})' if row.interval else ''
    model = row.properties.get('model', '')
    rate = f'{format_number(row.rate)} images/sec{interval} with {setting}'
    return f'{model}: {rate}{doubtful_note(row.results)}.'


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
            f'{best.label} with {format_number(best.rate)} images/sec, '
            f'{abbreviate([f"{row.label} with {format_number(row.rate)}" for row in compared])}: '
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
            f'{format_number(second.rate)}'
        )
        text, named_rows = (
            f'{best.label} leads with {format_number(best.rate)} images/sec, {times}',
            [best, second],
        )
    return f'{text}{doubtful_note([run for row in named_rows for run in row.results])}.'


def _find_name_columns(
    settings: Sequence[Mapping[str, str]], columns: Sequence[str]
) -> list[tuple[str, ...]]:
    """Returns the columns that distinguish each setting from the others.

    These are the first columns that vary, the folder if they do not distinguish all settings, and
    further columns only for settings that would be equal without. The folder comes first.
    """

    def count(names: Sequence[str]) -> int:
        return len({tuple(setting.get(name) for name in names) for setting in settings})

    first_columns = [name for name in _FIRST_COLUMNS if name in columns]
    name_columns = [name for name in first_columns if count([name]) > 1]
    for name in (FOLDER, *columns):
        if name in columns and count([*name_columns, name]) > count(name_columns):
            name_columns.append(name)
    name_columns = name_columns or first_columns or [*columns]
    name_columns.sort(key=lambda name: name != FOLDER)
    # The values of a column by the values of all columns before it.
    values: dict[tuple[str | None, ...], set[str | None]] = {}
    rows = [tuple(setting.get(name) for name in name_columns) for setting in settings]
    for row in rows:
        for index, value in enumerate(row):
            values.setdefault(row[:index], set()).add(value)
    return [
        tuple(
            name
            for index, name in enumerate(name_columns)
            if name in (*_FIRST_COLUMNS, FOLDER) or len(values[row[:index]]) > 1
        )
        or tuple(name_columns)
        for row in rows
    ]


def name_settings(
    settings: Sequence[Mapping[str, str]],
    columns: Sequence[str],
    numbers: Iterable[int] | None = None,
) -> list[str]:
    """Names each setting by the columns that distinguish it.

    If a name would be too long or not unique, all names begin with their numbers, '#1', '#2', ...:
    then short values come first, and long values are shortened to the part that differs.
    """
    name_columns = _find_name_columns(settings, columns)
    names = [*map(format_properties, settings, name_columns)]
    if len(set(names)) == len(names) and all(0 < len(name) <= _MAX_NAME_LENGTH for name in names):
        return names
    short = [
        {name: _shorten(setting[name], name, settings) for name in names if setting.get(name)}
        for setting, names in zip(settings, name_columns, strict=True)
    ]
    by_length = sorted(
        {name: None for row in short for name in row},
        key=lambda name: max(len(_format_part(name, row[name])) for row in short if name in row),
    )
    return [
        text if len(text) <= _MAX_NAME_LENGTH else f'{text[: _MAX_NAME_LENGTH - 1].rstrip()}…'
        for text in (
            f'#{number} {format_properties(row, by_length)}'
            for number, row in zip(numbers or itertools.count(1), short, strict=False)
        )
    ]


def format_properties(properties: Mapping[str, str], columns: Iterable[str]) -> str:
    """Joins the values of these columns for a name; missing ones are left out."""
    return ' · '.join(
        _format_part(name, properties[name]) for name in columns if properties.get(name)
    )


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


def _result_properties(result: Result, limits: Iterable[str]) -> dict[str, str]:
    """Returns the properties of a row; limits are the names of the limits that differ."""
    work, versions = result.workload, result.machine['versions']
    properties = {
        MODE: result.run.variable_update,
        BATCH_SIZE: result.run.batch_size,
        SHAPE: result.shape,
    }
    properties |= {
        'model': result.model.name,
        'data set': f'{work["data_set"]}{", synthetic" if work["is_synthetic"] else ""}',
        'image size': work['image_size'],
        'role': work['role'],
        'machine': result.machine['hostname'],
        'TensorFlow': versions.get('tensorflow'),
        **{name: version for name, version in versions.items() if name != 'tensorflow'},
        **{name: format_property(result.limits.get(name)) for name in sorted(limits)},
    }
    # A version without a flag behaves as with the flag's default.
    defaults = {name: default_setting(name) for name in SPECS if is_setting(name)}
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
        if len(values) > 1:
            varying_columns.append(name)
    return (*STANDARD, *varying_columns)

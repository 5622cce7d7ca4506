"""Compares two folders of results setting by setting, such as the results of two machines, for the
report.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tf_cnn.compare.changes import make_rows, work_notes
from tf_cnn.compare.differences import find_varying_names
from tf_cnn.compare.measured import Measured
from tf_cnn.compare.ratios import Significance
from tf_cnn.compare.report_rows import Summary
from tf_cnn.compare.run_sets import Group, make_run_set
from tf_cnn.results.advice import doubtful_note
from tf_cnn.results.document import AnyResult, Result
from tf_cnn.results.tables import Column, Table, format_interval, format_number
from tf_cnn.system.errors import UsageError, format_flag, plural

UNKNOWN = '—'
# Sentences before the table; the table has all settings.
_MAX_SENTENCES = 3
_SECONDS_PER_HOUR, _MILLION = 3600, 1e6


def compare_folders(summary: Summary) -> tuple[Sequence[str], Table | None, Sequence[str]]:
    """Returns what `compare` says about two folders: sentences, a table with a row for each setting
    that both have, and a line for each difference in work.

    Nothing unless there are two folders with results.
    """
    runs_by_folder: dict[str, list[AnyResult]] = {}
    for setting in summary.rows:
        if setting.results:
            runs_by_folder.setdefault(setting.source_file.folder, []).extend(setting.results)
    if len(runs_by_folder) != 2:
        return [], None, []
    run_sets = [make_run_set(folder, runs) for folder, runs in runs_by_folder.items()]
    rows = make_rows(run_sets, force=True)
    # `compare` has a folder of one setting as the baseline of all others; here settings are paired.
    varying = {
        name
        for run_set in run_sets
        for name in find_varying_names([group.flag_values for group in run_set.groups])
    }
    pairs = [
        row
        for row in rows
        if row.ratio and not row.work_changes and not varying & {*row.flag_changes}
    ]
    names = short_names([*runs_by_folder])
    sentences = [_describe(row, names) for row in pairs[:_MAX_SENTENCES]]
    if len(pairs) > _MAX_SENTENCES:
        sentences.append(f'{plural(len(pairs) - _MAX_SENTENCES, "more setting")}: see the table.')
    table = Table([*_columns(*names.values())], pairs, unknown=UNKNOWN)
    return sentences, table if pairs else None, work_notes(rows)


def short_names(folders: Sequence[str]) -> Mapping[str, str]:
    """Returns the last part of each folder's path; the whole paths if two have the same."""
    ends = [folder.rstrip('/').rpartition('/')[2] for folder in folders]
    return dict(zip(folders, ends if len({*ends}) == len(folders) else folders, strict=True))


def prices_per_hour(text: str | None, folders: Sequence[str]) -> Mapping[str, float]:
    """Reads --price_per_hour: one price for all folders, or NAME=PRICE for each, where a name is a
    folder or the last part of its path.

    Raises UsageError for an unknown folder and for anything but a positive number.
    """
    if text is None:
        return {}
    flag_text, name_of = format_flag('price_per_hour', text), short_names(folders)
    entries = [entry.rpartition('=') for entry in text.split(',')]
    if len(entries) > 1 and not all(equals for _, equals, _ in entries):
        raise UsageError(
            f'{flag_text}: an entry has no name; use one number with a point, such as 1.20, or '
            'NAME=1.20 for each folder'
        )
    prices: dict[str, float] = {}
    for name, equals, number in entries:
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not 0 < price < math.inf:
            raise UsageError(
                f'{flag_text}: {number or "nothing"} is not a positive number; use a price such as '
                '1.20, or NAME=1.20 for each folder'
            )
        matches = [folder for folder in folders if not equals or name in (folder, name_of[folder])]
        if not matches:
            raise UsageError(
                f'{flag_text}: no folder is named {name}; use {" or ".join(name_of.values())}'
            )
        if twice := [folder for folder in matches if folder in prices]:
            raise UsageError(f'{flag_text}: {twice[0]} has two prices; remove one of them')
        prices |= dict.fromkeys(matches, price)
    return prices


def mean(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return statistics.fmean(known_values) if known_values else None


def joules_per_image(results: Iterable[Result]) -> float | None:
    return mean(result.energy.joules_per_image for result in results)


def price_of_a_million(row: Measured, price_per_hour: float | None) -> str | None:
    """Formats the price of a million images, with the interval of the throughput, if it has one."""
    if price_per_hour is None or row.unit != Result.unit or not row.rate > 0:
        return None
    price, *interval = (
        format_number(_MILLION / rate / _SECONDS_PER_HOUR * price_per_hour)
        for rate in (row.rate, *reversed(row.interval or ()))
    )
    return f'{price} ({" to ".join(interval)})' if interval else price


def _describe(row: Group, names: Mapping[str, str]) -> str:
    """Says which folder is faster for a setting, and how much energy it takes."""
    assert row.baseline
    slow, fast = row.baseline, row
    if row.ratio and row.ratio.verdict is Significance.SLOWER:
        slow, fast = fast, slow
    ratio, work = fast.ratio_to(slow), _model(row)
    if setting := _setting(row):
        work += f' ({setting})'
    value, first, second = format_number(ratio.value), names[fast.argument], names[slow.argument]
    interval = format_interval(ratio.interval)
    doubts = doubtful_note([*fast.results, *slow.results])
    if not ratio.is_significant:
        of_value = f'{value} ({interval})' if interval else value
        return f'{first} / {second} for {work}: {of_value}, {ratio.verdict.value}{doubts}.'
    joules, slow_joules = (joules_per_image(side.benchmark_results) for side in (fast, slow))
    # RAPL measures processors, NVML GPUs.
    sources = {result.energy.source for side in (slow, fast) for result in side.benchmark_results}
    energy = (
        f', and takes {format_number(joules / slow_joules, 2)} times the energy per image'
        if joules and slow_joules and len(sources) == 1
        else ''
    )
    return f'{first} is {value} ({interval}) times as fast as {second} for {work}{energy}{doubts}.'


def _model(row: Group) -> str:
    return str(row.first.workload['model'] or 'the command')


def _setting(row: Group) -> str:
    """Returns the values that distinguish the setting from others of its folder; empty if it is the
    only one.
    """
    return row.name.removeprefix(row.argument).removeprefix(': ')


def _columns(first: str, second: str) -> Iterator[Column[Group]]:
    yield Column('setting', lambda row: _setting(row) or _model(row))
    yield Column(first, lambda row: row.baseline and row.baseline.rate_text, is_number=True)
    yield Column(second, lambda row: row.rate_text, is_number=True)
    yield Column('ratio', lambda row: row.ratio and format_number(row.ratio.value), is_number=True)
    yield Column(
        '95 %', lambda row: row.ratio and format_interval(row.ratio.interval), is_number=True
    )
    yield Column('verdict', lambda row: row.verdict)

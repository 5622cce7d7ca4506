"""Compares two folders of results for the report, and reads the prices of their machines."""

import math
from collections.abc import Mapping, Sequence

from tf_cnn.compare.changes import ComparisonTable, compare_run_sets
from tf_cnn.compare.measured import Measured
from tf_cnn.compare.report_rows import short_names
from tf_cnn.compare.run_sets import make_run_set
from tf_cnn.results.collection import Collection
from tf_cnn.results.document import AnyResult, Failure
from tf_cnn.results.tables import format_number
from tf_cnn.system.errors import UsageError, format_flag

UNKNOWN = '—'
_SECONDS_PER_HOUR, _MILLION = 3600, 1e6


def compare_folders(collection: Collection) -> ComparisonTable | None:
    """Returns what `compare` says about two folders; None unless there are two with results."""
    # In the order of the arguments: the first folder is the baseline.
    folders: dict[str, tuple[list[AnyResult], list[Failure]]] = {
        source.folder: ([], []) for source in collection.sources.values()
    }
    results: list[AnyResult] = [*collection.results, *collection.commands]
    for result in results:
        folders.setdefault(collection.source_of(result).folder, ([], []))[0].append(result)
    for failure in collection.failures:
        folders.setdefault(collection.source_of(failure).folder, ([], []))[1].append(failure)
    run_sets = [
        make_run_set(folder, *documents) for folder, documents in folders.items() if documents[0]
    ]
    if len(run_sets) != 2:
        return None
    return compare_run_sets(run_sets, force=True)


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


def price_of_a_million(row: Measured, price_per_hour: float | None) -> str | None:
    """Formats the price of a million images, with the interval of the throughput, if it has one."""
    if price_per_hour is None or not row.rate > 0:
        return None
    price, *interval = (
        format_number(_MILLION / rate / _SECONDS_PER_HOUR * price_per_hour)
        for rate in (row.rate, *reversed(row.interval or ()))
    )
    return f'{price} ({" to ".join(interval)})' if interval else price

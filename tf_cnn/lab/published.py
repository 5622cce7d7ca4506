"""Holds speed-ups against the speed-ups of a published table, for --published."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tf_cnn.lab.ratios import Ratio, compare
from tf_cnn.lab.rows import Against, Reference, Row
from tf_cnn.system.errors import UsageError

# The table of the sweep seed_table.
_SHIPPED = Path(__file__).with_name('seed_table.csv')
_RATE, _SPEED_UP = 'images_per_second', 'speed_up'

# The published speed-up of each setting: (name, value) of each column.
_SpeedUps = Mapping[frozenset[tuple[str, str]], float]


def published(path: str | None, otherwise: Against) -> Against:
    """Holds the speed-up of each row against the published one.

    The baseline of all speed-ups is the setting with the published speed-up 1.

    Args:
      path: the table; None for the shipped one, if the rows have most of its settings.
      otherwise: holds the rows if they have not.
    """
    table = _read_table(Path(path or _SHIPPED))
    names = [*dict.fromkeys(name for setting in table for name, _ in setting)]

    def hold(rows: Sequence[Row]) -> Iterator[Row]:
        settings = [frozenset((name, str(row.facts.get(name))) for name in names) for row in rows]
        speed_ups = [table.get(setting) for setting in settings]
        bases = [row for row, speed_up in zip(rows, speed_ups, strict=True) if speed_up == 1]
        if path is None and (not bases or 2 * len({*settings} & {*table}) < len(table)):
            yield from otherwise(rows)
            return
        if not bases:
            raise UsageError(
                f'--published={path}: no result has the setting of its speed-up 1; measure '
                f'{" ".join(value for _, value in sorted(next(iter(table))))}'
            )
        for row, speed_up in zip(rows, speed_ups, strict=True):
            if row is bases[0]:
                yield row
            elif speed_up is None:
                yield replace(row, remark=row.remark or 'not published')
            else:
                yield _compare(row, bases[0], speed_up)

    return hold


def _compare(row: Row, base: Row, speed_up: float) -> Row:
    ratio = compare(base.estimate, row.estimate)
    low_high = ratio.interval and (ratio.interval[0] / speed_up, ratio.interval[1] / speed_up)
    reference = Reference('published', base.rate * speed_up, speed_up=speed_up)
    return replace(
        row, reference=reference, ratio=Ratio(ratio.value / speed_up, low_high, ratio.is_short)
    )


def _read_table(path: Path) -> _SpeedUps:
    """Reads a CSV with columns of settings, and images_per_second or speed_up or both; without
    speed-ups, they are over the first row.
    """
    try:
        with path.open(encoding='utf-8', newline='') as file:
            entries = [*csv.DictReader(file)]
        values = [float(entry.get(_SPEED_UP) or entry[_RATE]) for entry in entries]
        base = 1.0 if _SPEED_UP in entries[0] else values[0]
        return {
            frozenset((n, v) for n, v in entry.items() if n not in (_RATE, _SPEED_UP)): value / base
            for entry, value in zip(entries, values, strict=True)
        }
    except OSError as error:
        reason = f'it cannot be read ({error.strerror})'
    except (ValueError, KeyError, IndexError, TypeError, csv.Error):
        reason = 'it is not a table'
    raise UsageError(
        f'--published={path}: {reason}; use a CSV with columns of settings, such as batch_size, '
        f'and {_RATE}'
    )

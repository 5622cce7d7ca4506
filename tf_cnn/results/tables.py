"""Tables of results as text for a terminal, as Markdown, and as CSV. Does not import TensorFlow."""

import csv
import io
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TextIO, TypeVar

from tf_cnn.system.documents import as_json

Row = TypeVar('Row')

# The width of printed tables if standard output is not a terminal.
_COLUMNS = 100
_GAP = 2
# Larger numbers are written with an exponent.
_LARGEST_IN_DIGITS = 1e12
# Flag values that have a usual name.
_USUAL_NAMES = {
    ('cross_replica_sync', 'false'): 'async',
    ('cross_replica_sync', 'true'): 'sync',
    ('staged_vars', 'false'): 'not staged',
    ('staged_vars', 'true'): 'staged',
}


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table, and a key of the objects that JSON and CSV have for its rows.

    Attributes:
      title: empty if there is only a key: a value that only JSON and CSV have.
      value: the value of a row; None, an empty cell, if it is unknown.
      key: empty for a column that JSON and CSV lack.
      text: the cell of a row; None if the value is its own text.
      wraps: whether a cell may take several lines on a narrow terminal.
      is_optional: whether the column disappears if all of its cells are empty.
      is_extra: whether the column disappears from a terminal that is too narrow for the table.
    """

    title: str
    value: Callable[[Row], object]
    key: str = ''
    text: Callable[[Row], object] | None = None
    is_number: bool = False
    wraps: bool = False
    is_optional: bool = False
    is_extra: bool = False


class Table:
    """The cells of rows as text; `unknown` stands for a missing value.

    Unprintable characters are escaped.
    """

    def __init__(
        self, columns: Sequence[Column[Row]], rows: Sequence[Row], unknown: str = ''
    ) -> None:
        shown = []
        for column in columns:
            values = map(column.text or column.value, rows)
            texts = [unknown if value is None else escape_unprintable(value) for value in values]
            is_shown = not column.is_optional or {*texts} - {'', unknown}
            if is_shown and (column.title or not column.key):
                shown.append((column, texts))
        self.columns: list[Column[Any]] = [column for column, _ in shown]
        self.rows = [*zip(*(texts for _, texts in shown), strict=True)]
        # The rows in JSON and CSV.
        self.objects: list[dict[str, Any]] = as_json(
            [{column.key: column.value(row) for column in columns if column.key} for row in rows]
        )

    def as_text(self, stream: TextIO) -> str:
        """Formats the table for people, without a final newline: cells take several lines where the
        terminal is narrow, and rows become lists where that is not enough.
        """
        # Imported here, because the other formats do not need rich.
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as Drawing

        # A table needs no height, but with TERM=dumb rich ignores a width without one.
        width = None if stream.isatty() else _COLUMNS
        console = Console(file=stream, width=width, height=25, markup=False, highlight=False)
        widths = self._fit(console.width)
        if sum(widths) + _GAP * (len(widths) - 1) > console.width:
            if any(column.is_extra for column in self.columns):
                self._remove_extra_columns()
                return self.as_text(stream)
            return self._as_stacked_rows()
        drawing = Drawing(
            box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0)
        )
        for column, column_width in zip(self.columns, widths, strict=True):
            drawing.add_column(
                column.title,
                justify='right' if column.is_number else 'left',
                overflow='fold',
                width=column_width,
            )
        for row in self.rows:
            drawing.add_row(*row)
        with console.capture() as captured:
            console.print(drawing)
        return '\n'.join(line.rstrip() for line in captured.get().splitlines() if line.strip())

    def _remove_extra_columns(self) -> None:
        kept = [not column.is_extra for column in self.columns]
        self.rows = [tuple(itertools.compress(row, kept)) for row in self.rows]
        self.columns = [*itertools.compress(self.columns, kept)]

    def _fit(self, max_width: int) -> list[int]:
        """Returns the widths of the columns: cells that wrap are made narrower, those of the last
        column first, until the table fits or each is as wide as its longest word.
        """
        from rich.cells import cell_len

        texts = [
            [column.title, *(row[index] for row in self.rows)]
            for index, column in enumerate(self.columns)
        ]
        widths = [max(map(cell_len, cells)) for cells in texts]
        for index in reversed(range(len(widths))):
            excess = sum(widths) + _GAP * (len(widths) - 1) - max_width
            if excess > 0 and self.columns[index].wraps:
                longest_word = max(cell_len(word) for text in texts[index] for word in text.split())
                widths[index] = max(longest_word, widths[index] - excess)
        return widths

    def _as_stacked_rows(self) -> str:
        """Formats each row as lines of a title and a cell, below its first cell."""
        titles = [column.title for column in self.columns]
        return '\n'.join(
            line
            for first, *cells in self.rows
            for line in (
                f'{titles[0]}: {first}',
                *(
                    f'    {title}: {cell}'
                    for title, cell in zip(titles[1:], cells, strict=True)
                    if cell
                ),
            )
        )

    def as_markdown(self) -> str:
        titles = [column.title for column in self.columns]
        cells = [[escape_markdown(cell) for cell in row] for row in (titles, *self.rows)]
        widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
        rules = [
            f'{"-" * (width - 1)}:' if column.is_number else '-' * width
            for width, column in zip(widths, self.columns, strict=True)
        ]
        lines = [
            [
                f'{cell:>{width}}' if column.is_number else f'{cell:<{width}}'
                for cell, width, column in zip(row, widths, self.columns, strict=True)
            ]
            for row in cells
        ]
        return '\n'.join(f'| {" | ".join(line)} |' for line in (lines[0], rules, *lines[1:]))


def format_number(value: float | None, digits: int = 3) -> str:
    """Formats a number with `digits` significant digits, or more before the point, and commas; a
    dash if unknown.
    """
    if value is None or not math.isfinite(value):
        return '—'
    if value == 0:
        return '0'
    if abs(value) >= _LARGEST_IN_DIGITS:
        return f'{value:.{digits - 1}e}'
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f'{value:,.{min(decimals, 6)}f}'


def format_interval(
    interval: Sequence[float] | None, form: Callable[[float], str] = format_number
) -> str | None:
    """Formats the ends of an interval; None if there is none (unknown)."""
    return ' to '.join(map(form, interval)) if interval else None


def format_known(form: str, *values: object) -> str | None:
    """Formats values; None if one of them is None (unknown)."""
    return None if None in values else form.format(*values)


def print_table(
    table: Table,
    form: str,
    document: Mapping[str, Any],
    notes: Sequence[str] = (),
    heading: Sequence[str] = (),
) -> None:
    """Prints results on standard output.

    Args:
      table: the table for forms text and markdown, which print nothing of it without rows.
      form: text or markdown: the heading, the table, and the notes; csv: the objects in
        document['rows'], nothing if there are none; json: the document.
    """
    if form == 'json':
        texts = [json.dumps(document, indent=2)]
    elif form == 'csv':
        texts = [as_csv(document['rows'])] if document['rows'] else []
    else:
        in_markdown = form == 'markdown'
        blocks = ['\n'.join(heading)] if not in_markdown else [*map(escape_markdown, heading)]
        if table.rows:
            blocks.append(table.as_markdown() if in_markdown else table.as_text(sys.stdout))
        lines = [f'- {escape_markdown(note)}' for note in notes] if in_markdown else notes
        texts = ['\n\n'.join(filter(None, [*blocks, '\n'.join(lines)]))]
    print(''.join(f'{text}\n' for text in texts if text), end='', flush=True)


def as_csv(objects: Sequence[Mapping[str, Any]]) -> str:
    """Formats at least one object, all with the same keys, as CSV with a header; lists and objects
    become JSON.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(objects[0]), lineterminator='\n')
    writer.writeheader()
    for row in objects:
        cells = {
            name: json.dumps(value) if isinstance(value, dict | list | bool) else value
            for name, value in row.items()
        }
        writer.writerow(cells)
    return out.getvalue().rstrip('\n')


def escape_markdown(text: str) -> str:
    """Escapes what Markdown would read as HTML, a link, an image, code, or the end of a cell."""
    return re.sub(r'[\\`\[\]<&|]', r'\\\g<0>', text)


def escape_unprintable(text: object) -> str:
    """Escapes unprintable characters, so that the text cannot control the terminal or break its
    line.
    """
    return ''.join(
        char if char.isprintable() else char.encode('unicode_escape').decode() for char in str(text)
    )


def format_setting(name: str, value: object) -> str:
    """Formats the value of a flag or a variable for a label: 'xla=True', or by its usual name:
    'async'.
    """
    return _USUAL_NAMES.get((name, str(value).lower()), f'{name}={value}')


def abbreviate(names: Sequence[str]) -> str:
    text = ', '.join(names[:3])
    return text if len(names) <= 3 else f'{text} and {len(names) - 3} more'

"""Tables of results as text for a terminal, as Markdown, and as CSV. Does not import TensorFlow."""

import csv
import io
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

# The width of printed tables if standard output is not a terminal: each row stays one line, for grep and the like.
_COLUMNS = 10_000
_WRAPPED = 24
# A text, or parts of text, each with a style of rich such as 'bold red'.
CellText = str | Sequence[tuple[str, str]]


@dataclass(frozen=True)
class TableColumn:
    """A column of a table; `wraps` allows several lines in a cell on a narrow terminal."""

    title: str
    is_number: bool = False
    wraps: bool = False


@dataclass(frozen=True)
class ValueColumn(TableColumn):
    """A column of rows that are objects: the keys of its values there, and how they are written in a cell."""

    keys: tuple[str, ...] = ()
    form: str = '{}'


@dataclass(frozen=True)
class Table:
    """A table, with a title above it in a terminal. `rows` are the cells of each row, one for each column.

    `sums` are the indices of rows that sum up a group above them; a terminal shows them bold, with a gap below.
    """

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[CellText]]
    title: str = ''
    sums: Collection[int] = ()

    def as_text(self, stream: TextIO, width: int, *, is_dense: bool = False) -> str:
        """Formats the table for people, without a final newline; `width` counts where stream is no terminal.

        is_dense leaves out empty lines, and spaces at the ends of lines.
        """
        # Imported here, because the other formats do not need rich.
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as Drawing
        from rich.text import Text

        drawing = Drawing(box=SIMPLE_HEAD, title=self.title or None, title_justify='left')
        for column in self.columns:
            drawing.add_column(
                column.title,
                justify='right' if column.is_number else 'left',
                no_wrap=not column.wraps,
                overflow='fold' if column.wraps else 'ellipsis',
            )
        for number, row in enumerate(self.rows):
            is_sum = number in self.sums
            cells = [cell if isinstance(cell, str) else Text.assemble(*cell) for cell in row]
            drawing.add_row(*cells, style='bold' if is_sum else None, end_section=is_sum)
        console = Console(file=stream, width=None if stream.isatty() else width, markup=False, highlight=False)
        # A narrow terminal breaks lines itself; rich would leave out columns and digits.
        console.width = max(console.width, self._least_width())
        with console.capture() as captured:
            console.print(drawing)
        text = captured.get().removesuffix('\n')
        if is_dense:
            return '\n'.join(line.rstrip() for line in text.splitlines() if line.strip())
        return text

    def _least_width(self) -> int:
        """The width in which every cell is whole, and those that wrap have _WRAPPED or their longest word."""
        titles = [column.title for column in self.columns]
        every = zip(titles, *([_plain(cell) for cell in row] for row in self.rows), strict=True)
        widths = [
            min(_WRAPPED, max(len(word) for cell in column for word in cell.split() or ['']))
            if kind.wraps
            else max(map(len, column))
            for kind, column in zip(self.columns, every, strict=True)
        ]
        # rich puts a space before and after each cell, and one between two.
        return sum(widths) + 3 * len(widths) + 1

    def as_markdown(self) -> str:
        titles = [column.title for column in self.columns]
        cells = [[_plain(cell).replace('|', '\\|') for cell in row] for row in (titles, *self.rows)]
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


def table_of(columns: Sequence[ValueColumn], objects: Sequence[Mapping[str, Any]]) -> 'Table':
    """Makes a table of objects; a cell is empty where one of its values is unknown, None."""

    def cell(column: ValueColumn, found: Mapping[str, Any]) -> str:
        values = [found[key] for key in column.keys]
        return '' if None in values else printable(column.form.format(*values))

    return Table(columns, [[cell(column, found) for column in columns] for found in objects])


def print_table(
    table: Table, form: str, document: Mapping[str, Any], notes: Sequence[str] = (), *, is_dense: bool = True
) -> None:
    """Prints results on standard output.

    Args:
      table: what people read; with form text nothing of it is printed if it has no rows.
      form: text or markdown: the table with the notes below it; csv: the objects in document['rows'], nothing if there
        are none; json: the document.
    """
    parts = []
    if form == 'json':
        parts.append(json.dumps(document, indent=2))
    elif form == 'csv':
        parts += [as_csv(document['rows'])] if document['rows'] else []
    elif form == 'markdown':
        parts += [table.as_markdown(), *([''] if notes else []), *(f'- {note}' for note in notes)]
    else:
        if table.rows:
            parts += [table.as_text(sys.stdout, _COLUMNS, is_dense=is_dense), *([''] if notes else [])]
        parts += notes
    print(''.join(f'{part}\n' for part in parts), end='', flush=True)


def as_csv(objects: Sequence[Mapping[str, Any]]) -> str:
    """Formats at least one object, all with the same keys, as CSV with a line of keys; lists and objects are JSON."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(objects[0]), lineterminator='\n')
    writer.writeheader()
    for found in objects:
        cells = {
            name: json.dumps(value) if isinstance(value, dict | list | bool) else value for name, value in found.items()
        }
        writer.writerow(cells)
    return out.getvalue().rstrip('\n')


def printable(text: object) -> str:
    """Escapes unprintable characters, so that the text cannot control the terminal or break its line."""
    return ''.join(char if char.isprintable() else char.encode('unicode_escape').decode() for char in str(text))


def abbreviate(names: Sequence[str]) -> str:
    shown = ', '.join(names[:3])
    return shown if len(names) <= 3 else f'{shown} and {len(names) - 3} more'


def _plain(cell: CellText) -> str:
    return cell if isinstance(cell, str) else ''.join(text for text, _ in cell)

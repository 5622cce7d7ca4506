"""Tables of results as text. format_* functions return text without a final newline; others print it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comparison.intervals import Estimate

# What a table calls a flag whose name says too little.
_TITLES = {'batch_size': 'batch size', 'shape': 'W*G+P'}


@dataclass(frozen=True)
class TableRow:
    """One configuration of a table.

    Attributes:
      varied: the text of each flag that differs between rows, and the shape.
      work: what its runs did; only rows with the same are compared.
      estimate: the rate of the complete runs, None if there are none. problem: why there are fewer than there should
        be, or None.
    """

    varied: Mapping[str, str]
    estimate: Estimate | None = None
    problem: str | None = None
    work: str = ''


def format_results(columns: Sequence[str], rows: Sequence[TableRow]) -> str:
    """The table of configurations, in Markdown whose columns are aligned.

    Its columns: what differs between the rows, images/sec, its 95 % interval over repeats if there are any,
    the speed-up against the first row of the same work that has a rate, and what went wrong if anything did.
    """
    bases = {row.work: row.estimate.images_per_second for row in reversed(rows) if row.estimate}
    has_intervals = any(row.estimate and row.estimate.num_runs > 1 for row in rows)
    has_problems = any(row.problem for row in rows)
    header = [
        *(_TITLES.get(name, name) for name in columns),
        'images/sec',
        *(['95 % interval', 'runs'] if has_intervals else []),
        'speed-up',
        *(['status'] if has_problems else []),
    ]
    lines = []
    for row in rows:
        found = row.estimate
        rate = found.images_per_second if found else None
        lines.append(
            [
                *(row.varied.get(name, '') for name in columns),
                '' if rate is None else f'{rate:.2f}',
                *([_interval(found), str(found.num_runs if found else 0)] if has_intervals else []),
                '' if rate is None else f'{rate / bases[row.work]:.2f}',
                *([row.problem or 'ok'] if has_problems else []),
            ]
        )
    numbers = range(len(columns), len(header) - has_problems)
    return format_markdown(header, lines, right=numbers)


def format_markdown(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A Markdown table, aligned so that it can be read as plain text.

    Args:
      right: the columns that are flush right, by index.
    """
    cells = [[cell.replace('|', '\\|') for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]
    rule = [f'{"-" * (width - 1)}:' if column in right else '-' * width for column, width in enumerate(widths)]
    return '\n'.join(f'| {" | ".join(_aligned(row, widths, right))} |' for row in (cells[0], rule, *cells[1:]))


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> list[str]:
    return [
        f'{cell:>{width}}' if i in right else f'{cell:<{width}}'
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _interval(found: Estimate | None) -> str:
    if not found or found.basis != 'runs':
        return ''
    return f'{found.interval[0]:.2f} to {found.interval[1]:.2f}' if found.interval else 'too disturbed'

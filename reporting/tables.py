"""Tables of results as text. format_* functions return text without a final newline; others print it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reporting.intervals import mean_rate, rate_interval

# What a table calls a flag whose name says too little.
_TITLES = {'batch_size': 'batch size', 'shape': 'W*G+P'}


@dataclass(frozen=True)
class Row:
    """One configuration of a table.

    Attributes:
      varied: the text of each flag that differs between rows, and the shape.
      rates: images/sec of each complete run. problem: why there are fewer than there should be, or None.
    """

    varied: Mapping[str, str]
    rates: Sequence[float] = field(default=())
    problem: str | None = None

    @property
    def rate(self) -> float | None:
        """The rate of all runs, which do the same work."""
        return mean_rate(self.rates) if self.rates else None


def format_results(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """The table of configurations, in Markdown whose columns are aligned.

    Its columns: what differs between the rows, images/sec, its 95 % interval over repeats if there are any,
    the speed-up against the first row that has a rate, and what went wrong if anything did.
    """
    base = next((row.rate for row in rows if row.rate), None)
    has_intervals = any(len(row.rates) > 1 for row in rows)
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
        rate = row.rate
        lines.append(
            [
                *(row.varied.get(name, '') for name in columns),
                '' if rate is None else f'{rate:.2f}',
                *([_interval(row.rates), str(len(row.rates))] if has_intervals else []),
                '' if rate is None or base is None else f'{rate / base:.2f}',
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


def _interval(rates: Sequence[float]) -> str:
    if len(rates) < 2:
        return ''
    low, high = rate_interval(rates)
    return f'{low:.2f} to {high:.2f}'

"""Which link between hosts is slow: pairs of hosts, their sentence and matrix."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tf_cnn.lab.original_logs import Run
from tf_cnn.lab.rows import Against, Reference, Row
from tf_cnn.lab.runs import WITH, hosts_of
from tf_cnn.launch.config import SLOW_LINK
from tf_cnn.results.document import Result
from tf_cnn.results.ratios import Ratio, Significance
from tf_cnn.results.tables import Column, Table, format_number
from tf_cnn.system.errors import plural

Pair = frozenset[str]


@dataclass(frozen=True)
class LinkRatio(Ratio):
    """The rate of a pair of hosts over the others'. It has no interval: a rule decides.

    Attributes:
      rate: MB/s, or the rate of a command.
      blamed: the host with the slow link; None for another pair.
      limit: the ratio below which a link is slow.
    """

    rate: float = 0.0
    blamed: str | None = None
    is_slow: bool = False
    limit: float = SLOW_LINK

    @property
    def verdict(self) -> Significance:
        return Significance.SLOWER if self.is_slow else Significance.SAME


def are_pairs(runs: Iterable[Run]) -> bool:
    """Whether these are the runs of several pairs of hosts."""
    pairs = {frozenset(hosts_of(run)) for run in runs}
    return len(pairs) > 1 and all(len(pair) == 2 for pair in pairs)


def rate_of(run: Run) -> float:
    """Returns MB/s, with two workers what each sends; of other runs their rate."""
    if isinstance(run, Result) and run.run.role == 'exchange-only' and run.gradient_bytes:
        return run.gradient_bytes / float(run.step_seconds().mean()) / 1e6
    return run.images_per_second


def links(limit: float | None = None) -> Against:
    """A pair is slow if even its fastest run has less than `limit` times a reference.

    For the pairs of a host this is the median of the other hosts' best pairs, and the host's link
    is slow if more than half of its pairs are, not counting pairs with hosts that have slower
    links. For each pair that remains it is the median of the others.
    """

    def hold(rows: Sequence[Row]) -> Iterator[Row]:
        by_setting: dict[str, dict[Pair, Row]] = {}
        for row in rows:
            setting = str([v for name, v in row.setting.items() if name not in ('host', 'pair')])
            pair = frozenset(hosts_of(row.first))
            if pair in by_setting.setdefault(setting, {}):
                yield replace(row, remark='other limits than a pair of the same hosts')
            else:
                by_setting[setting][pair] = row
        for pairs in by_setting.values():
            yield from _compare(pairs, SLOW_LINK if limit is None else limit)

    return hold


def _compare(rows: Mapping[Pair, Row], limit: float) -> Iterator[Row]:
    rates = {pair: [*map(rate_of, row.runs)] for pair, row in rows.items()}
    medians = {pair: median(values) for pair, values in rates.items()}
    names = [*dict.fromkeys(name for row in rows.values() for name in hosts_of(row.first))]
    best = {name: max(medians[pair] for pair in medians if name in pair) for name in names}
    usual = {name: median(best[other] for other in names if other != name) for name in names}
    remaining, blamed = {*medians}, list[str]()

    def slow_share(name: str) -> float:
        pairs = [pair for pair in remaining if name in pair]
        return sum(max(rates[pair]) < limit * usual[name] for pair in pairs) / max(1, len(pairs))

    while len(names) > 2 and slow_share(worst := max(names, key=slow_share)) > 0.5:
        blamed.append(worst)
        remaining = {pair for pair in remaining if worst not in pair}
    for pair, row in rows.items():
        name = next((name for name in blamed if name in pair), None)
        others = [] if name else [medians[other] for other in remaining if other != pair]
        reference = usual[name] if name else median(others or [medians[pair]])
        ratio = LinkRatio(
            medians[pair] / reference,
            None,
            rate=medians[pair],
            blamed=name,
            is_slow=max(rates[pair]) < limit * reference,
            limit=limit,
        )
        yield replace(
            row,
            who=WITH.join(hosts_of(row.first)),
            label=row.label.replace(f'on {row.facts["host"]}', '').strip(),
            reference=Reference('the others', reference),
            ratio=ratio,
        )


def describe_links(rows: Sequence[Row]) -> list[str]:
    """Returns a clause for each host with a slow link and each other slow pair; [] without pairs of
    hosts.
    """
    ratios = [(row, row.ratio) for row in rows if isinstance(row.ratio, LinkRatio)]
    if not ratios:
        return []
    clauses = []
    blamed = dict.fromkeys(ratio.blamed for _, ratio in ratios if ratio.blamed)
    for name in blamed:
        pairs = [ratio for row, ratio in ratios if name in hosts_of(row.first)]
        slow = [ratio for ratio in pairs if ratio.is_slow]
        part = median(ratio.value for ratio in slow if ratio.blamed == name)
        count = f'{len(slow)} of {plural(len(pairs), "pair")}'
        clauses.append(f"{name}'s link is slow: {part:.2f} of the others' ({count})")
    clauses += [
        f'only {row.name}: {ratio.value:.2f} of the others'
        for row, ratio in ratios
        if ratio.is_slow and not ratio.blamed
    ]
    return clauses or [_describe_spread(ratios)]


def _describe_spread(ratios: Sequence[tuple[Row, LinkRatio]]) -> str:
    rates = [ratio.rate for _, ratio in ratios]
    low, high = min(rates), max(rates)
    interval = f'{format_number(low)} to {format_number(high)} {link_unit(ratios[0][0])}'
    if len(rates) <= 2:
        return f'{interval}: a slow link shows only among three hosts or more'
    if low < ratios[0][1].limit * high:
        return (
            f'no link stands out as slow, but {len(rates)} pairs differ by {high / low:.2g} '
            f'times ({interval})'
        )
    return f'all links agree within {100 * (high / low - 1):.0f} % ({len(rates)} pairs, {interval})'


def link_unit(row: Row) -> str:
    is_exchange = isinstance(row.first, Result) and row.first.run.role == 'exchange-only'
    return 'MB/s' if is_exchange else row.unit


def link_matrix(rows: Sequence[Row]) -> Table | None:
    """Returns the rates of all pairs of hosts as a table; None if there are other rows, and for
    several settings, which have several matrices.
    """
    pairs = [(row, row.ratio) for row in rows if isinstance(row.ratio, LinkRatio)]
    rates = {frozenset(row.who.split(WITH)): format_number(ratio.rate) for row, ratio in pairs}
    if not pairs or len(rates) < sum(row.is_pair for row in rows):
        return None
    failed = [row for row in rows if row.is_missing and row.who.count(WITH) == 1]
    for row in failed:
        rates.setdefault(frozenset(row.who.split(WITH)), 'failed')
    # A host is the first of its pairs with the hosts after it in --hosts.
    starts = Counter(row.who.split(WITH)[0] for row in rows)
    names = dict.fromkeys(
        name for row in (*(row for row, _ in pairs), *failed) for name in row.who.split(WITH)
    )
    hosts = sorted(names, key=lambda name: -starts[name])

    def cell(row: str, column: str) -> str | None:
        return None if row == column else rates.get(frozenset({row, column}))

    # Numbers, since a table with a name in each title is wide.
    title = f'{link_unit(pairs[0][0])} with'
    return Table(
        [
            Column[str](title, lambda name: f'{hosts.index(name) + 1} {name}'),
            *(
                Column[str](str(number), functools.partial(cell, column=name), is_number=True)
                for number, name in enumerate(hosts, 1)
            ),
        ],
        hosts,
    )

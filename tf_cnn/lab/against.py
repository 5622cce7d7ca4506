"""What each row is held against: a function of rows returns them with `reference` and `ratio`."""

import csv
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tf_cnn.lab.config import CompareOptions, ReportOptions, RowOptions
from tf_cnn.lab.earlier import earlier
from tf_cnn.lab.links import are_pairs, links
from tf_cnn.lab.losses import same_losses
from tf_cnn.lab.original_logs import Run
from tf_cnn.lab.rows import Against, Reference, Row, estimate, importance, make_rows
from tf_cnn.lab.runs import (
    MEASURED,
    equality_key,
    find_varying_names,
    group,
    hosts_of,
    non_default_settings,
    settings_of,
    workload_differences,
)
from tf_cnn.lab.sentence import NO_OTHER, NO_OTHER_HOST, OTHERS
from tf_cnn.lab.sides import Side, by_host, read_folders, read_sides
from tf_cnn.plan.params import SPECS
from tf_cnn.results.ratios import (
    Ratio,
    Significance,
    compare,
    compare_with_others,
    geometric_mean,
)
from tf_cnn.system.errors import UsageError, format_flag

# Two machines are two sides.
_MIN_HOSTS = 3
# How many others explain what is special about a host.
_MAX_PEERS = 100
# The table of the sweep seed_table.
_SHIPPED = Path(__file__).with_name('seed_table.csv')
_RATE, _SPEED_UP = 'images_per_second', 'speed_up'

# The published speed-up of each setting: (name, value) of each column.
_SpeedUps = Mapping[frozenset[tuple[str, str]], float]


def hold_against(row: Row, other: Row, name: str) -> Row:
    reference = Reference(name, other.rate, other.runs, other)
    remark = row.remark or (other.remark and f'{name} is {other.remark}')
    ratio = compare(other.estimate, row.estimate)
    return replace(row, reference=reference, ratio=ratio, remark=remark)


# ---- sides ---------------------------------------------------------------------------------------


def same_setting(rows: Sequence[Row]) -> Iterator[Row]:
    """Each row of the later sides against the row of its setting in the first one.

    What is constant within each side may differ: it is what is compared. If the first side has one
    setting, and another side none equal to it, it is held against all settings there.
    """
    first, *candidates = group(rows, lambda row: row.who) or [[]]
    paired = set[int]()
    for candidate in candidates:
        names = _pairing_names(first, candidate)

        def key(row: Row, names: Sequence[str] = names) -> str:
            return equality_key([row.facts.get(name) for name in names])

        partners = {key(row): row for row in reversed(first)}
        keys = [*map(key, candidate)]
        fallback = first[0] if len(first) == 1 and partners.keys().isdisjoint(keys) else None
        for row in candidate:
            if other := partners.get(key(row), fallback):
                paired.add(id(other))
                yield hold_against(row, other, other.who)
            else:
                yield replace(row, remark=row.remark or f'only in {row.who}')
    for row in first:
        if id(row) not in paired:
            yield replace(row, remark=row.remark or f'only in {row.who}')


def _pairing_names(*sides: Sequence[Row]) -> list[str]:
    """Returns the names whose values pairs share: those that vary within a side.

    A host that both sides have is its own counterpart. What changed on it, a limit or a version, is
    compared; only what varies on one host of a side, as the limits of two containers, is shared.
    """
    names = {name for side in sides for name in find_varying_names([row.facts for row in side])}
    if 'host' not in names:
        return sorted(names)
    hosts = [{str(row.facts['host']) for row in side} for side in sides]
    if not set.intersection(*hosts):
        # One machine stands against each of several.
        return sorted(names - {'host'} if min(map(len, hosts)) == 1 else names)
    machines = [rows for side in sides for rows in group(side, lambda row: row.facts['host'])]
    varying = [[row.facts for row in rows] for rows in machines]
    varying += [[settings_of(row.first) for row in side] for side in sides]
    return sorted({'host', *(name for facts in varying for name in find_varying_names(facts))})


def same_batch_size(rows: Sequence[Row]) -> Iterator[Row]:
    """In one folder: the first complete row of the same work, and of the same batch size if several
    have one. A baseline stays a row.
    """
    ordered = sorted(rows, key=lambda row: bool(row.remark))
    works: list[list[Row]] = []
    for row in ordered:
        equal = (work for work in works if not workload_differences(work[0].first, row.first))
        if work := next(equal, None):
            work.append(row)
        else:
            works.append([row])
    bases = {
        id(row): (peers if len(peers) > 1 else work)[0]
        for work in works
        for peers in group(work, lambda row: row.first.batch_size)
        for row in peers
    }
    counts = Counter(map(id, bases.values()))
    for row in ordered:
        base = bases[id(row)]
        if row is not base:
            yield hold_against(row, base, base.name)
        elif counts[id(row)] > 1 or len(rows) == 1:
            yield row
        else:
            yield replace(row, remark=row.remark or NO_OTHER)


def mean_of(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields the geometric mean of two sides, if all ratios have an interval and a different
    reference, and are of one kind of number.
    """
    pairs = [row for row in rows if row.is_pair and row.reference.row]
    sides = {(row.who, row.reference.name, row.facts.get(MEASURED)) for row in pairs}
    references = {id(row.reference.runs) for row in pairs}
    has_verdicts = all(row.ratio and row.ratio.interval and not row.ratio.is_short for row in pairs)
    if len(sides) != 1 or ('', '', None) in sides or len(pairs) < 2 or len(references) < len(pairs):
        return
    if has_verdicts and not any(
        workload_differences(row.compared_runs[0], row.first) for row in pairs
    ):
        estimates = [(estimate(row.compared_runs), row.estimate) for row in pairs]
        yield Row(ratio=geometric_mean(estimates), label=f'geometric mean of {len(pairs)}')


# ---- hosts ---------------------------------------------------------------------------------------


def median_of_others(rows: Sequence[Row]) -> Iterator[Row]:
    """Each host against the median of the others in the same setting; of two, the slower one.

    Hosts may differ in what a run chose for its machine, in limits and in versions.
    """
    hosts = group(rows, lambda row: row.who)
    names = {name for host in hosts for name in find_varying_names([row.facts for row in host])}
    keys = {
        id(row): equality_key((setting, [row.facts.get(name) for name in sorted(names)]))
        for row, setting in zip(rows, _chosen_settings([row.first for row in rows]), strict=True)
    }
    for peers in group(rows, lambda row: keys[id(row)]):
        compared = []
        for row in peers:
            if not row.remark and not row.estimate.is_short and row.estimate.interval:
                compared.append(row)
            else:
                why = Significance.TOO_SHORT if row.estimate.is_short else Significance.FEW_RUNS
                yield replace(row, remark=row.remark or why.value)
        if len(compared) == 1:
            yield replace(compared[0], remark=NO_OTHER_HOST)
        elif len(compared) == 2:
            fast, slow = sorted(compared, key=lambda row: -row.rate)
            yield hold_against(slow, fast, fast.who)
        elif compared:
            medians = [
                statistics.median(run.images_per_second for run in row.runs) for row in compared
            ]
            ratios = compare_with_others([row.estimate for row in compared], medians)
            sample = compared[:: max(1, len(compared) // _MAX_PEERS)]
            for row, (ratio, median) in zip(compared, ratios, strict=True):
                # Only what differs needs an explanation.
                peers = sample if ratio.is_significant else []
                others = [peer.first for peer in peers if peer is not row]
                yield replace(row, reference=Reference(OTHERS, median, others), ratio=ratio)


# ---- published numbers ---------------------------------------------------------------------------


def published(path: str | None, otherwise: Against) -> Against:
    """Holds the speed-up of each row against the published one.

    The baseline of all speed-ups is the setting with the published speed-up 1.

    Args:
      path: the table; None for the shipped one, if the rows have most of its settings.
      otherwise: holds the rows if they have not.
    """
    table = _read_published(Path(path or _SHIPPED))
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
                yield _compare_speed_up(row, bases[0], speed_up)

    return hold


def _compare_speed_up(row: Row, base: Row, speed_up: float) -> Row:
    ratio = compare(base.estimate, row.estimate)
    low_high = ratio.interval and (ratio.interval[0] / speed_up, ratio.interval[1] / speed_up)
    reference = Reference('published', base.rate * speed_up, speed_up=speed_up)
    return replace(
        row, reference=reference, ratio=Ratio(ratio.value / speed_up, low_high, ratio.is_short)
    )


def _read_published(path: Path) -> _SpeedUps:
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


# ---- all questions -------------------------------------------------------------------------------


def read_rows(paths: Sequence[str], options: CompareOptions | ReportOptions) -> list[Row]:
    """Returns the rows of compare and report; see compare_sides.

    Raises UsageError for arguments without a result, and for flags that conflict.
    """
    flags = {name: getattr(options, name) for name in ('across', 'against', 'published')}
    given = [format_flag(name, value) for name, value in flags.items() if value is not None]
    if options.across is not None and options.force:
        given.append('--force')
    if len(given) > 1:
        raise UsageError(
            f'{given[0]}: it conflicts with {given[1]}, since each of them says what a result is '
            'held against; remove one of them'
        )
    if options.published is not None and len(paths) > 1:
        raise UsageError(
            f'--published={options.published}: it compares the settings of one folder; give one'
        )
    if options.across is not None:
        return compare_sides(read_folders(paths), options)
    return compare_sides(read_sides(paths, by_name=options.against is not None), options)


def compare_sides(sides: Sequence[Side], options: CompareOptions | ReportOptions) -> list[Row]:
    """Returns the rows of compare and report, the most important ones first.

    Without flags, several sides are compared setting by setting, and a single side by what it has:
    pairs of hosts, hosts, or settings. Sides of different kinds are no A and B: each is then
    compared by itself.
    """
    across = options.across is not None
    hold: Against = same_setting
    kinds = set[str]() if across else {_kind(side) for side in sides}
    is_single = len(sides) == 1
    if options.against is not None:
        hold = earlier(options.against)
    elif (is_single and kinds == {'hosts'}) or (
        across and not any(are_pairs(side.runs) for side in sides)
    ):
        sides, hold = by_host(sides), median_of_others
    elif is_single and (across or kinds == {'pairs'}):
        sides, hold = by_host(sides), links(options.fail_below)
    elif is_single:
        hold = published(options.published, same_batch_size)
    elif across or _are_separate(sides, kinds, options):
        return [row for side in sides for row in compare_sides([side], options)]
    rows = make_rows(sides, same_losses(hold), force=options.force)
    rows = sorted(rows, key=importance)
    return [*rows, *mean_of(rows)]


def _are_separate(sides: Sequence[Side], kinds: set[str], options: RowOptions) -> bool:
    """Whether sides are of different kinds; a page also shows sides of different work."""
    works = [{equality_key(run.workload) for run in side.runs} for side in sides]
    if isinstance(options, ReportOptions) and not set.intersection(*works):
        return True
    return len(kinds) > 1 and kinds != {'hosts', 'settings'}


def _kind(side: Side) -> str:
    """Returns what the runs of a side differ in: pairs, clusters, hosts, or settings."""
    hosts = {hosts_of(run) for run in side.runs}
    if are_pairs(side.runs):
        return 'pairs'
    if any(len(names) > 1 for names in hosts) and len(hosts) > 1:
        return 'clusters'
    if len(hosts) < _MIN_HOSTS:
        return 'settings'
    settings = _chosen_settings(side.runs)
    keys = [*map(equality_key, settings)]
    both = {*zip(keys, map(hosts_of, side.runs), strict=True)}
    # Hosts that each ran most of the settings.
    return 'hosts' if 2 * len(both) > len(hosts) * len({*keys}) else 'settings'


def _chosen_settings(runs: Sequence[Run]) -> list[object]:
    """Returns the work and the settings of runs, without those that each chose for its machine; a
    flag that only some runs were given has the value that the others chose.
    """
    names = {'batch_size', *(name for run in runs for name in run.given_flags)}
    return [
        (
            run.workload,
            [
                (name, value)
                for name, value in non_default_settings(run)
                if name in names or name not in SPECS
            ],
        )
        for run in runs
    ]

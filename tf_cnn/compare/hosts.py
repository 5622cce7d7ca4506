"""`compare --across=hosts`: which host is slow. Does not import TensorFlow."""

import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tf_cnn.compare.config import CompareOptions
from tf_cnn.compare.run_sets import (
    Group,
    RunSet,
    make_run_set,
    name_groups,
    read_run_set,
    refuse_commands,
)
from tf_cnn.compare.verdicts import exit_code
from tf_cnn.lab.differences import (
    Differences,
    find_varying_names,
    flag_differences,
    format_differences,
    machine_differences,
)
from tf_cnn.lab.host_ratios import HostRatio, compare_with_others
from tf_cnn.lab.intervals import MIN_RUNS
from tf_cnn.lab.original_logs import Run
from tf_cnn.lab.ratios import Significance
from tf_cnn.lab.repeats import equality_key, workload_differences
from tf_cnn.lab.settings import non_default_settings
from tf_cnn.plan.params import SPECS
from tf_cnn.results.advice import DOUBTFUL, doubtful_note, noise_warnings
from tf_cnn.results.document import Result
from tf_cnn.results.tables import (
    Column,
    Table,
    abbreviate,
    escape_unprintable,
    format_interval,
    format_number,
    print_table,
)
from tf_cnn.system.errors import UsageError, plural

# A table has more rows only if more hosts are notable.
_MAX_ROWS = 12
_MAX_SENTENCES = 3
_GIBIBYTE = 1 << 30
_NOTHING = (
    f'nothing was compared: no two hosts have {MIN_RUNS} runs of one setting that are not too '
    'short; give more results'
)


@dataclass(frozen=True)
class HostRow:
    """A setting on a host, or a file that is left out.

    Attributes:
      group: the runs; None for a file.
      reason: why there is no ratio.
      explanation: flags and properties of the machine that only this host has, if its rate differs:
        name -> (the others' value, this host's value).
    """

    host: str
    setting: str = ''
    group: Group | None = None
    ratio: HostRatio | None = None
    reason: str = ''
    explanation: Differences = field(default_factory=dict)

    @property
    def results(self) -> Sequence[Result]:
        return self.group.results if self.group else ()

    @property
    def rate(self) -> float | None:
        if self.ratio:
            return self.ratio.rate
        return self.group.rate if self.group else None

    @property
    def verdict(self) -> str:
        return self.ratio.verdict.value if self.ratio else self.reason

    @property
    def is_notable(self) -> bool:
        return not self.ratio or self.ratio.is_significant or self.ratio.is_unsteady


def read_host_run_set(argument: str) -> RunSet:
    """Reads the results of one or several hosts; a folder without any is a problem of its host."""
    try:
        return read_run_set(argument)
    except UsageError as error:
        if not Path(argument).is_dir():
            raise
        return RunSet(argument, (), problems=error.lines)


def print_hosts(run_sets: Sequence[RunSet], options: CompareOptions) -> int:
    """Prints which hosts differ from the others; returns the exit code, 1 without a verdict.

    Results of one host lie in one folder, and the results of all hosts may lie in one.
    """
    refuse_commands(run_sets, 'across')
    rows = make_host_rows(run_sets)
    answer = summarize_hosts(rows)
    num_printed = max(_MAX_ROWS, sum(row.is_notable for row in rows))
    notes = _make_notes(rows)
    if num_omitted := len(rows[num_printed:]):
        notes.insert(0, f'{num_omitted} more without a significant difference: --format=json')
    document = {
        'schema': 'tf_cnn_benchmarks.hosts',
        'schema_version': 1,
        'answer': answer,
        'rows': Table(_COLUMNS, rows).objects,
    }
    table = Table(_COLUMNS, rows[:num_printed])
    print_table(table, options.format, document, notes, [escape_unprintable(answer)])
    ratios = {
        f'{row.host}{row.setting and f" for {row.setting}"}': row.ratio.value
        for row in rows
        if row.ratio and row.ratio.is_significant
    }
    compared = {row.host for row in rows if row.ratio}
    no_verdict = [
        f'{row.host}: {row.reason}' for row in rows if row.group and row.host not in compared
    ]
    code = exit_code(ratios, run_sets, options, no_verdict)
    return code if compared else 1


def make_host_rows(run_sets: Sequence[RunSet]) -> list[HostRow]:
    """Compares the hosts in each setting; the rows with the largest significant differences come
    first.
    """
    hosts = _split_by_host(run_sets)
    # Limits and versions may differ between hosts, but not what a host was tried with.
    names = {
        name
        for host in hosts
        for name in find_varying_names([group.properties for group in host.groups])
    }
    settings: dict[str, list[Group]] = {}
    for group in (group for host in hosts for group in host.groups):
        values = {name: group.properties.get(name) for name in names}
        settings.setdefault(
            equality_key([group.first.workload, _settings(group.first), values]), []
        ).append(group)
    (named,) = name_groups([RunSet('', tuple(groups[0] for groups in settings.values()))])
    rows = [
        row
        for first, groups in zip(named.groups, settings.values(), strict=True)
        for row in _compare_setting(
            first.name * (len(settings) > 1),
            groups,
            '' if len(groups) > 1 else _other_work(first, named.groups),
        )
    ]
    rows += [row for run_set in run_sets for row in _left_out_rows(run_set)]
    return sorted(rows, key=_row_order)


def summarize_hosts(rows: Sequence[HostRow]) -> str:
    """Says in one sentence which hosts differ, and how well the rest agrees."""
    pairs = [(row, row.ratio) for row in rows if row.ratio]
    hosts = dict.fromkeys(row.host for row, _ in pairs)
    if not hosts:
        return _NOTHING
    # Of two hosts, the faster one says the same.
    worst: dict[str, tuple[HostRow, HostRatio]] = {}
    for row, ratio in pairs:
        if ratio.is_significant and (len(hosts) > 2 or ratio.value < 1):
            worst.setdefault(row.host, (row, ratio))
    sentences = ['no host differs'] if not worst else []
    for host, (row, ratio) in worst.items():
        verdicts = [other.verdict for other_row, other in pairs if other_row.host == host]
        where = f' in {verdicts.count(ratio.verdict)} of {len(verdicts)} settings'
        interval = format_interval(ratio.interval, '{:.2f}'.format)
        sentences.append(
            f'{host} is {ratio.verdict.value}{where * (len(verdicts) > 1)}: {ratio.value:.2f} of '
            f'the other{"s" * (len(hosts) > 2)} ({interval})'
            + (row.setting and f' for {row.setting}')
        )
    if num_more := len(sentences[_MAX_SENTENCES:]):
        sentences[_MAX_SENTENCES:] = [f'{plural(num_more, "more host")} differ']
    unsteady = {row.host for row, ratio in pairs if ratio.is_unsteady} - {*worst}
    agreeing = {*hosts} - {*worst} - unsteady
    if len(agreeing) > 1:
        values = [ratio.value for row, ratio in pairs if row.host in agreeing]
        percent = format_number(100 * max(abs(value - 1) for value in values), 2)
        sentences.append(f'{len(agreeing)} hosts agree within {percent} %')
    no_verdict = {row.host for row in rows} - {*hosts}
    for title, names in (('unsteady', unsteady), ('no verdict', no_verdict)):
        if names:
            sentences.append(f'{title}: {abbreviate(sorted(names))}')
    return '; '.join(sentences) + doubtful_note([result for row in rows for result in row.results])


def _split_by_host(run_sets: Sequence[RunSet]) -> list[RunSet]:
    """Returns a run set for each host, with its name as the argument.

    Machines with the same name and hardware look the same in their results, so that results in
    another folder belong to another host.
    """
    # A run may lie in two folders, or in a folder and an argument above it.
    all_runs = {
        run.id: (run, _folder(run_set.argument, run.source))
        for run_set in run_sets
        for group in run_set.groups
        for run in group.runs
    }
    runs: dict[tuple[str, str], list[Run]] = {}
    for run, folder in all_runs.values():
        fingerprint = run.machine.get('fingerprint') or run.source
        runs.setdefault((folder, fingerprint), []).append(run)
    # The first of these names that no other host has.
    names = [
        (hostname, f'{hostname} ({Path(folder).name})', f'{hostname} ({folder}, {fingerprint})')
        for (folder, fingerprint), (first, *_) in runs.items()
        for hostname in [first.machine.get('hostname') or first.source]
    ]
    counts = Counter(name for candidates in names for name in candidates)
    return [
        make_run_set(next(name for name in candidates if counts[name] == 1), host_runs)
        for candidates, host_runs in zip(names, runs.values(), strict=True)
    ]


def _folder(argument: str, source: str) -> str:
    """Returns the folder of a host: the argument, or the folder below it that holds the file."""
    parts = Path(os.path.relpath(source, argument)).parts
    return os.path.join(argument, parts[0]) if len(parts) > 1 else os.path.dirname(source)


def _settings(run: Run) -> list[object]:
    """Returns the settings that two hosts must share: without those that a run chose for its
    machine.
    """
    return [
        (name, value)
        for name, value in non_default_settings(run)
        if name in run.given_flags or name not in SPECS or name == 'batch_size'
    ]


def _other_work(group: Group, groups: Sequence[Group]) -> str:
    """Returns how the work differs from the work of another group with the same settings."""
    for other in groups:
        work = workload_differences(other.first, group.first)
        if work and _settings(other.first) == _settings(group.first):
            return f'different work: {format_differences(work)}'
    return ''


def _compare_setting(setting: str, groups: Sequence[Group], other_work: str) -> Iterator[HostRow]:
    pairs = [
        (group, group.estimate)
        for group in groups
        if group.estimate and group.interval and not (group.reason or group.estimate.is_short)
    ]
    medians = [statistics.median(run.images_per_second for run in group.runs) for group, _ in pairs]
    compared = compare_with_others([throughput for _, throughput in pairs], medians)
    ratios = {id(group): ratio for (group, _), ratio in zip(pairs, compared, strict=False)}
    for group in groups:
        ratio = ratios.get(id(group))
        reason = other_work or 'no other host'
        if group.reason:
            reason = f'incomplete: {group.reason}'
        elif not group.interval:
            reason = Significance.FEW_RUNS.value
        elif not any(group is peer for peer, _ in pairs):
            reason = Significance.TOO_SHORT.value
        peers = [peer for peer, _ in pairs if peer is not group]
        yield HostRow(
            group.argument,
            setting,
            group,
            ratio,
            '' if ratio else reason,
            # Of two hosts, the slower one is explained.
            _explain(group, peers)
            if ratio and ratio.is_significant and (len(peers) > 1 or ratio.value < 1)
            else {},
        )


def _explain(group: Group, peers: Sequence[Group]) -> Differences:
    """Returns the properties that most of the others share, and that none shares with the host."""
    explanation = {}
    runs = [*(peer.first for peer in peers), group.first]
    for name, values in (flag_differences(runs) | machine_differences(runs)).items():
        if name == 'memory_bytes':
            # The kernel reserves a little, which differs with each start.
            name = 'memory_gib'
            values = tuple(value and round(value / _GIBIBYTE) for value in values)
        *keys, key = map(equality_key, values)
        common, count = Counter(keys).most_common(1)[0]
        if name != 'hostname' and 2 * count > len(keys) and key not in keys:
            explanation[name] = (values[keys.index(common)], values[-1])
    return explanation


def _left_out_rows(run_set: RunSet) -> Iterator[HostRow]:
    lines = [f'{group.name}: {group.reason}' for group in run_set.excluded_runs]
    for line in (*lines, *run_set.problems):
        source, _, reason = line.partition(': ')
        path = os.path.relpath(source, Path(run_set.argument).parent)
        yield HostRow(path, reason=f'left out: {reason}')


def _row_order(row: HostRow) -> tuple[bool, bool, float]:
    ratio = row.ratio.value if row.ratio else 1
    is_significant = row.ratio is not None and row.ratio.is_significant
    return not is_significant, not row.is_notable, -max(ratio, 1 / ratio)


def _make_notes(rows: Sequence[HostRow]) -> list[str]:
    texts = {row.host: format_differences(row.explanation) for row in rows if row.explanation}
    lines = [f'{host} alone: {text}' for host, text in texts.items()]
    lines += [f'{row.host}: {row.reason}' for row in rows if ': ' in row.reason]
    noise = noise_warnings([result for row in rows for result in row.results])
    return [*map(escape_unprintable, lines), *noise]


def _format_verdict(row: HostRow) -> str:
    """Formats a verdict in few words; a note has the whole reason of a missing one."""
    if row.ratio and row.ratio.is_unsteady and not row.ratio.is_significant:
        return 'unsteady'
    if row.ratio and row.ratio.verdict is Significance.SAME:
        return 'unclear'
    return row.verdict.partition(':')[0]


def _ratio_column(
    title: str, key: str, value: Callable[[HostRatio], object], form: Callable[..., object]
) -> Column[HostRow]:
    return Column(
        title,
        lambda row: row.ratio and value(row.ratio),
        key,
        lambda row: row.ratio and form(value(row.ratio)),
        is_number=True,
    )


_COLUMNS: tuple[Column[HostRow], ...] = (
    Column('host', lambda row: row.host, 'host'),
    Column('setting', lambda row: row.setting, 'setting', wraps=True, is_optional=True),
    Column('', lambda row: row.group and row.group.files, 'files'),
    Column(
        'images/sec',
        lambda row: row.rate,
        'images_per_second',
        lambda row: row.rate and format_number(row.rate),
        is_number=True,
    ),
    _ratio_column('others', 'median_of_others', lambda ratio: ratio.median, format_number),
    _ratio_column('ratio', 'ratio', lambda ratio: ratio.value, '{:.3f}'.format),
    _ratio_column(
        '95 %',
        'interval',
        lambda ratio: ratio.interval,
        lambda interval: format_interval(interval, '{:.3f}'.format),
    ),
    Column('verdict', lambda row: row.verdict, 'verdict', _format_verdict, wraps=True),
    Column('', lambda row: row.ratio and row.ratio.is_unsteady, 'is_unsteady'),
    Column('', lambda row: row.explanation, 'only_this_host'),
    DOUBTFUL,
)

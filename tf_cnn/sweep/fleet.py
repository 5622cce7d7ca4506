"""Measures many hosts, for `cluster --each` and `cluster --pairs`. Does not import TensorFlow."""

import functools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from tf_cnn.cluster.environments import environment_for_runs
from tf_cnn.lab.folder import Folder, Outcome
from tf_cnn.launch.commands import read_slots, ssh_target
from tf_cnn.launch.config import REMOTE_FLAGS, SLOW_LINK, ClusterOptions
from tf_cnn.launch.host_layout import format_host
from tf_cnn.launch.ssh import SshTarget, call_hosts
from tf_cnn.plan.params import SPECS, Params
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.plan.plan import check_launch
from tf_cnn.results.advice import doubtful_note, noise_warnings
from tf_cnn.results.document import Result
from tf_cnn.results.tables import Column, Table, abbreviate, format_number, print_table
from tf_cnn.sweep.run_plan import run_with_progress
from tf_cnn.sweep.runner import (
    PROGRAM,
    InterleavedRuns,
    RepeatedCommand,
    Runner,
    make_failure,
    succeeded,
)
from tf_cnn.system.errors import RunError, UsageError, format_flag, plural, warn
from tf_cnn.system.signals import SIGNALS

_FLAGS_OF_PAIRS = ('--exchange_only=true', '--variable_update=collective_all_reduce')

# The hosts of a run: one, or a pair.
Hosts = tuple[str, ...]


@dataclass(frozen=True)
class MeasuredHosts:
    """The folder of results, and the outcomes of each host or pair in the order of the rounds."""

    folder: Folder
    names: Sequence[str]
    outcomes: Mapping[Hosts, Sequence[Outcome]]

    @property
    def failures(self) -> list[str]:
        """A line for each reason of failed runs, with their hosts."""
        hosts_by_reason: dict[str, list[str]] = {}
        for hosts, outcomes in self.outcomes.items():
            for reason in {str(run.reason) for run in outcomes if not succeeded(run)}:
                hosts_by_reason.setdefault(reason, []).append(' with '.join(hosts))
        return [f'{abbreviate(hosts)}: {reason}' for reason, hosts in hosts_by_reason.items()]

    @property
    def results(self) -> dict[Hosts, list[Result]]:
        """The complete results."""
        return {
            hosts: [run for run in outcomes if isinstance(run, Result) and succeeded(run)]
            for hosts, outcomes in self.outcomes.items()
        }


def measure_hosts(options: ClusterOptions, run_flags: Sequence[str]) -> MeasuredHosts:
    """Runs the flags on each host, or with --exchange_only on each pair, in rounds.

    Raises:
      RunError: no run succeeded.
      UsageError: the flags cannot be used, or the names do not stand for different hosts.
    """
    flag = '--pairs' if options.pairs else '--each'
    names = [*read_slots(options)[1]]
    if len(names) < 2:
        raise UsageError(f'{flag}: it compares hosts; use --hosts with two hosts or more')
    argv = [*run_flags, *(_FLAGS_OF_PAIRS if options.pairs else ())]
    params = _check_flags(flag, run_flags, argv)
    environment = environment_for_runs(os.environ, f'cluster {flag}', warn)
    rounds: list[list[Hosts]] = [[(name,) for name in names]]
    if options.pairs:
        rounds = pair_up(names)
    target_flags = [
        format_flag(name, value) for name in REMOTE_FLAGS if (value := getattr(options, name))
    ]
    commands: dict[Hosts, RepeatedCommand] = {}
    for number, simultaneous in enumerate(rounds):
        for hosts in simultaneous:
            host_flag = format_flag('hosts', ','.join(map(format_host, hosts)))
            size_flags = [] if options.pairs else ['--workers=1', '--ps=0']
            commands[hosts] = RepeatedCommand(
                '+'.join(hosts) if options.pairs else f'{hosts[0]}/{hosts[0]}',
                ' with '.join(hosts),
                ['cluster', host_flag, *target_flags, *size_flags, '--', *argv],
                make_failure(
                    argv, params.given_flags, f'{len(hosts)}*{params.devices.num_gpus or 1}'
                ),
                is_remote=True,
                group=str(number),
            )
    default = time.strftime(f'{flag.strip("-")}-%Y%m%d-%H%M%S')
    problems = find_unusable_hosts(names, ssh_target(options))
    folder = Folder(Path(options.output or default))
    folder.create_or_resume({command.name: command.argv for command in commands.values()})
    try:
        with folder.locked(), SIGNALS.storing():
            warn(*problems.values())
            for hosts, command in commands.items():
                path = folder.results / f'{command.name}.1.json'
                reasons = [problems[name] for name in hosts if name in problems]
                if reasons and not path.exists():
                    folder.write_failure(path, replace(command.failure, reason='; '.join(reasons)))
            runner = Runner(PROGRAM, environment, options.timeout_secs)
            runs = InterleavedRuns([*commands.values()], options.rounds, folder, runner)
            run_with_progress(runs, sys.stderr)
    finally:
        print(f'The results and logs are in {folder.path}', file=sys.stderr)
    outcomes = {hosts: runs.outcomes[command.name] for hosts, command in commands.items()}
    measured = MeasuredHosts(folder, names, outcomes)
    if not any(measured.results.values()):
        raise RunError(*measured.failures)
    return measured


def _check_flags(flag: str, run_flags: Sequence[str], argv: Sequence[str]) -> Params:
    given = parse_argv(run_flags).params.given_flags
    for name in given:
        if flag == '--pairs' and name == 'variable_update':
            raise UsageError(
                f'{given[name]}: --pairs has its own ({_FLAGS_OF_PAIRS[1]}); remove it'
            )
        if name == 'repeat' or SPECS[name].output:
            raise UsageError(
                f'{given[name]}: {flag} stores the result of each run; remove it, and use --rounds '
                'and --output before --'
            )
    params = parse_argv(argv).params
    check_launch(params, is_single_process=flag == '--each', is_local=False)
    return params


def pair_up(names: Sequence[str]) -> list[list[Hosts]]:
    """Returns rounds in which each host meets another one at most once, and in all each pair once.

    This is the circle method for tournaments: the first name stays, the others move on by a place.
    """
    circle = [*names, *[''] * (len(names) % 2)]
    rounds: list[list[Hosts]] = []
    for _ in circle[1:]:
        pairs = zip(circle, reversed(circle[len(circle) // 2 :]), strict=False)
        rounds.append([tuple(sorted(pair, key=names.index)) for pair in pairs if all(pair)])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def find_unusable_hosts(names: Sequence[str], target: SshTarget) -> dict[str, str]:
    """Returns why hosts cannot be used: name -> reason.

    Raises UsageError if two of the names lead to hosts of one name: they would share the cores of
    one machine, or their results could not be told apart.
    """
    problems: dict[str, str] = {}
    names_by_hostname: dict[str, str] = {}
    for host, answer in [*call_hosts({name: [('worker', 0)] for name in names}, target)]:
        if isinstance(answer, RunError):
            problems[host.name] = str(answer)
            continue
        hostname = str(answer['hostname'])
        if (other := names_by_hostname.setdefault(hostname, host.name)) != host.name:
            raise UsageError(
                f'--hosts: {other} and {host.name} are both the host {hostname}; list each machine '
                'once, and give each its own host name'
            )
        if hostname.partition('.')[0] != host.name.rpartition('@')[2].partition('.')[0]:
            print(f'{host.name} is the host {hostname}', file=sys.stderr)
    return problems


# ---- pairs ---------------------------------------------------------------------------------------

Rates = Mapping[frozenset[str], Sequence[float]]


def print_pairs(measured: MeasuredHosts, fail_below: float | None) -> int:
    """Prints which links are slow, and the MB/s of all pairs. Returns the exit code."""
    names, limit = measured.names, SLOW_LINK if fail_below is None else fail_below
    rates = {
        frozenset(hosts): [*map(_megabytes_per_second, results)]
        for hosts, results in measured.results.items()
    }

    def cell(row: str, column: str) -> str | None:
        if row == column:
            return None
        values = rates[frozenset({row, column})]
        return format_number(median(values)) if values else 'failed'

    # Numbers, since a table with a name in each title is wide.
    columns = [Column[str]('MB/s with', lambda name: f'{names.index(name) + 1} {name}')]
    for number, name in enumerate(names, 1):
        columns.append(Column(str(number), functools.partial(cell, column=name), is_number=True))
    slow_links = [*find_slow_links(names, rates, limit)]
    runs = [run for results in measured.results.values() for run in results]
    print(('; '.join(slow_links) or describe_spread(rates, limit)) + doubtful_note(runs))
    print_table(Table(columns, names), 'text', {}, [*measured.failures, *noise_warnings(runs)])
    return int(bool(measured.failures or (fail_below is not None and slow_links)))


def _megabytes_per_second(result: Result) -> float:
    """Returns the bytes of the gradients over the seconds: with two workers, what each sends."""
    return (result.gradient_bytes or 0) / float(result.step_seconds().mean()) / 1e6


def find_slow_links(names: Sequence[str], rates: Rates, limit: float) -> Iterator[str]:
    """Yields a clause for each host with a slow link, then one for each other slow pair.

    A pair is slow if even its fastest run has less than `limit` times a reference. For the pairs of
    a host this is the median of the other hosts' best pairs, and the host's link is slow if more
    than half of its pairs are, not counting pairs with hosts that have slower links. For each pair
    that remains it is the median of the others.

    Args:
      rates: the rates of each pair's runs; empty if all failed.
    """
    medians = {pair: median(values) for pair, values in rates.items() if values}
    names = [name for name in names if any(name in pair for pair in medians)]
    best = {name: max(medians[pair] for pair in medians if name in pair) for name in names}
    references = {name: median(best[other] for other in names if other != name) for name in names}
    remaining = dict(medians)

    def slow_pairs(name: str, pairs: Iterable[frozenset[str]]) -> list[frozenset[str]]:
        pairs = [pair for pair in pairs if name in pair]
        return [pair for pair in pairs if max(rates[pair]) < limit * references[name]]

    def slow_share(name: str) -> float:
        return len(slow_pairs(name, remaining)) / max(1, sum(name in pair for pair in remaining))

    while slow_share(name := max(names, key=slow_share)) > 0.5:
        slow = slow_pairs(name, medians)
        part = median(medians[pair] for pair in slow) / references[name]
        count = f'{len(slow)} of {plural(sum(name in pair for pair in medians), "pair")}'
        yield f"{name}'s link is slow: {part:.2f} of the others' ({count})"
        remaining = {pair: rate for pair, rate in remaining.items() if name not in pair}
    for pair, rate in remaining.items():
        others = [remaining[other] for other in remaining if other != pair]
        if others and max(rates[pair]) < limit * median(others):
            hosts = ' with '.join(sorted(pair, key=names.index))
            yield f'only {hosts}: {rate / median(others):.2f}'


def describe_spread(rates: Rates, limit: float) -> str:
    medians = [median(values) for values in rates.values() if values]
    low, high = min(medians), max(medians)
    interval = f'{format_number(low)} to {format_number(high)} MB/s'
    if len(medians) <= 2:
        return f'{interval}: a slow link shows only among three hosts or more'
    if low < limit * high:
        return (
            f'no link stands out as slow, but {len(medians)} pairs differ by {high / low:.2g} '
            f'times ({interval})'
        )
    return (
        f'all links agree within {100 * (high / low - 1):.0f} % ({len(medians)} pairs, {interval})'
    )

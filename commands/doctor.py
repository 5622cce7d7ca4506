"""`tf_cnn_benchmarks.py doctor`: checks what works on this machine, and prints a table or a document.

Starts without TensorFlow.
"""

import contextlib
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TextIO

from cluster.signals import Interrupts
from commands.options import Arguments, Declaration
from comparison.tables import Table, TableColumn
from doctor.check_runner import examine, matching, unknown_names
from doctor.check_table import CHECKS, RESNET50, Check
from doctor.verdicts import Finding, Outcome
from errors import UsageError, counted, nearest, spelled
from machine.surroundings import environment_facts
from params.spec import flag
from results import VERSION
from results.live import LiveLine, can_redraw

SCHEMA = 'tf_cnn_benchmarks.doctor'
SCHEMA_VERSION = 1
# The width of the table if its stream is not a terminal.
_COLUMNS = 120
_COLORS = {Outcome.OK: 'green', Outcome.WARNING: 'yellow', Outcome.WRONG: 'bold red', Outcome.SKIPPED: 'dim'}


@dataclass(frozen=True)
class DoctorOptions:
    """The flags of the subcommand."""

    only: str | None = flag(
        None,
        'Which checks to run: names with shell wildcards, or families such as host, several with commas between. By '
        'default all. On a machine with GPUs, tensorflow/devices always runs.',
    )
    quick: bool = flag(
        False,
        'Leave out the checks that take long: rates, two processes, and precisions and variants of placement.',
    )
    device: str | None = flag(
        None,
        'cpu: check the CPU, and leave GPUs alone. gpu: it is wrong if there is none. By default GPUs are checked '
        'where there are any, else the CPU.',
        choices=('cpu', 'gpu'),
    )
    time_limit: float = flag(1.0, 'Factor of the time after which a check counts as hung.', lower_bound=0.01)
    json: bool = flag(
        False,
        'Print a document of JSON for a bug report, with everything that was measured and the last lines of what '
        'failed; the table then goes to standard error.',
    )
    list: bool = flag(False, 'List the checks instead of running them.')


DECLARATION = Declaration(
    'doctor',
    DoctorOptions,
    'Checks what works on this machine, and says what to do about the rest: the first thing to run on a new one.',
    examples=('', '--quick', "--only='host,all_reduce/nccl/*'", '--json > doctor.json'),
    details=(
        'Each check runs in a process of its own with a time limit, so that a crash or a hang is a verdict, too; quick '
        'ones share a process until one of them is wrong. Nothing else should run on the machine meanwhile.'
        '\n\n'
        'The exit code is 1 if something is wrong, else 0; warnings are about what is slower than it could be.'
    ),
)


def main(argv: Sequence[str]) -> int:
    """Runs `doctor` with the arguments in argv; returns the exit code.

    Raises:
      UsageError: an argument is wrong, no check has such a name, or this is not Linux.
      RunError: no process can be started.
    """
    return DECLARATION.run(argv, lambda arguments: _check(arguments, argv))


def _check(arguments: Arguments[DoctorOptions], argv: Sequence[str]) -> int:
    options = arguments.options
    checks = matching(options.only, with_long=not options.quick)
    if unknown := unknown_names(options.only):
        raise _no_such_check(options, unknown[0])
    if not checks:
        why = 'with --quick none of these is left; leave --quick out'
        raise UsageError(f'{spelled("only", options.only)}: {why}')
    if options.list:
        _print_list(checks, as_json=options.json)
        return 0
    if sys.platform != 'linux':
        raise UsageError(f'doctor: it needs Linux, and this is {sys.platform}; run a benchmark instead')
    started, started_at = time.monotonic(), datetime.now(timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')
    findings: list[Finding] = []
    is_complete = False
    try:
        with Interrupts().listening(), contextlib.closing(_Progress(sys.stderr, len(checks))) as progress:
            for finding in examine(checks, options.device, options.time_limit, progress.show):
                findings.append(finding)
                progress.ended(finding)
        is_complete = True
    finally:
        # The findings so far are printed even after Ctrl-C or SIGTERM.
        _print_table(findings, time.monotonic() - started, options)
        if options.json:
            environment = environment_facts(os.environ)
            document = make_document(
                findings, started_at=started_at, argv=argv, is_complete=is_complete, environment=environment
            )
            print(json.dumps(document, indent=2, default=str))
    return exit_code(findings)


def _no_such_check(options: DoctorOptions, word: str) -> UsageError:
    names = [check.name for check in CHECKS]
    near = nearest(word, [*names, *{name.partition('/')[0] for name in names}])
    which = 'such a name' if word == options.only else f'the name {word!r}'
    why = f'no check has {which}; {f"did you mean {near}?" if near else "see doctor --list"}'
    return UsageError(f'{spelled("only", options.only)}: {why}')


def _print_list(checks: Sequence[Check], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([{'name': check.name, 'asks': check.asks, 'runs': check.needs.value} for check in checks]))
        return
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f'{check.name:<{width}}  {check.asks} ({check.needs.value})')


def _print_table(findings: Sequence[Finding], seconds: float, options: DoctorOptions) -> None:
    stream = sys.stderr if options.json else sys.stdout
    # The document has the logs already.
    again = None if options.json else format_again(findings, list(_circumstances(options)))
    if findings:
        print(make_table(findings).as_text(stream, _COLUMNS), file=stream)
        for line in (format_fastest(findings), format_summary(findings, seconds), again):
            if line:
                print(line, file=stream)


def _circumstances(options: DoctorOptions) -> Iterator[str]:
    """Yields the given flags that change what a check finds."""
    if options.device is not None:
        yield spelled('device', options.device)
    if options.time_limit != 1:
        yield spelled('time_limit', f'{options.time_limit:g}')


class _Progress:
    """Shows what is being checked: on a terminal in one line that is redrawn, elsewhere in a line for each check."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self._stream = stream
        self._total = total
        self._done = 0
        self._live = LiveLine(stream)
        self._last = ''

    def show(self, name: str, doing: str) -> None:
        """Shows that a check has begun, or what it is doing."""
        # tensorflow/devices may run although it was not requested.
        self._total = max(self._total, self._done + 1)
        if can_redraw(self._stream):
            self._live.phase(f'{self._done + 1} of {self._total}: {name}{f", {doing}" if doing else ""}')
        elif name != self._last:
            print(f'check {self._done + 1} of {self._total}: {name}', file=self._stream, flush=True)
        self._last = name

    def ended(self, finding: Finding) -> None:
        """Counts a check that has ended."""
        if finding.verdict.outcome is Outcome.SKIPPED:
            self._total -= 1
        else:
            self._done += 1

    def close(self) -> None:
        self._live.close()


def exit_code(findings: Iterable[Finding]) -> int:
    """Returns 1 if something is wrong, else 0."""
    return int(any(finding.verdict.outcome is Outcome.WRONG for finding in findings))


def make_document(
    findings: Sequence[Finding],
    *,
    started_at: str,
    argv: Sequence[str],
    is_complete: bool,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Returns the document of --json, which doctor/report.schema.json describes.

    Args:
      findings: the findings so far.
      started_at: the time of the start, such as '2025-01-31T23:59:59Z'.
      argv: the arguments of the subcommand.
      is_complete: whether all checks have ended.
      environment: the variables that change how libraries compute.
    """
    return {
        'schema': SCHEMA,
        'schema_version': SCHEMA_VERSION,
        'program': VERSION,
        'started_at': started_at,
        'argv': list(argv),
        'complete': is_complete,
        'exit_code': exit_code(findings),
        'environment': dict(environment),
        'checks': [
            {
                'name': finding.name,
                'asks': finding.asks,
                **_finite(finding.verdict.as_document()),
                'seconds': round(finding.seconds, 3),
                'log': list(finding.log),
            }
            for finding in findings
        ],
    }


def make_table(findings: Sequence[Finding]) -> Table:
    """Returns the verdicts in the order of the checks: outcome, name, what was found and what to do.

    Checks that were skipped for the same reason share a row.
    """
    columns = (TableColumn('verdict'), TableColumn('check'), TableColumn('what was found, and what to do', wraps=True))
    return Table(
        columns,
        [
            (
                [(outcome.value, _COLORS[outcome])],
                name,
                [(found, ''), *([(f'\n-> {advice}', 'bold')] if advice else [])],
            )
            for outcome, name, found, advice in rows_of(findings)
        ],
    )


def rows_of(findings: Sequence[Finding]) -> list[tuple[Outcome, str, str, str | None]]:
    """Returns (outcome, name, found, advice) for each row of the table."""
    order = {check.name: index for index, check in enumerate(CHECKS)}
    shown = sorted(findings, key=lambda finding: order.get(finding.name, len(order)))
    rows: list[tuple[Outcome, str, str, str | None]] = [
        (finding.verdict.outcome, finding.name, finding.verdict.found, finding.verdict.advice)
        for finding in shown
        if finding.verdict.outcome is not Outcome.SKIPPED
    ]
    reasons: dict[str, list[str]] = {}
    for finding in shown:
        if finding.verdict.outcome is Outcome.SKIPPED:
            reasons.setdefault(finding.verdict.found, []).append(finding.name)
    for reason, names in reasons.items():
        name = names[0] if len(names) == 1 else counted(len(names), 'check')
        found = reason if len(names) == 1 else f'{reason}: {", ".join(_shortened(names))}'
        rows.append((Outcome.SKIPPED, name, found, None))
    return rows


def format_summary(findings: Sequence[Finding], seconds: float) -> str:
    """Returns one line, such as '12 checks in 93 s: 10 ok, 1 warning, 1 wrong; 9 more do not apply here'."""
    counts = Counter(finding.verdict.outcome for finding in findings)
    num_skipped = counts.pop(Outcome.SKIPPED, 0)
    listed = ', '.join(f'{counts[outcome]} {outcome.value}' for outcome in Outcome if counts[outcome])
    others = f'; {num_skipped} more do not apply here' if num_skipped else ''
    return f'{counted(len(findings) - num_skipped, "check")} in {seconds:.0f} s: {listed or "none"}{others}'


def format_again(findings: Sequence[Finding], flags: Sequence[str] = ()) -> str | None:
    """Returns the command that shows the logs of the checks that are wrong; None if none is.

    Args:
      findings: the findings.
      flags: the flags of this run that change what a check finds, such as ['--device=cpu'].
    """
    names = [finding.name for finding in findings if finding.verdict.outcome is Outcome.WRONG]
    if not names:
        return None
    command = ' '.join(['tf_cnn_benchmarks doctor', f'--only={",".join(names)}', *flags, '--json'])
    return f'with logs, for a bug report: {command}'


def format_fastest(findings: Sequence[Finding]) -> str | None:
    """Returns the fastest way to train ResNet-50 on one device here, beside fp32; None if it was not measured."""
    rates = {
        finding.name: finding.verdict.figures
        for finding in findings
        if finding.name.startswith(RESNET50) and 'images_per_second' in finding.verdict.figures
    }
    plain = [figures['images_per_second'] for name, figures in rates.items() if 'fp32' in name.split('/')]
    if len(rates) < 2 or not plain:
        return None
    name = max(rates, key=lambda name: float(rates[name]['images_per_second']))
    gain = rates[name]['images_per_second'] / max(plain)
    more = '' if gain == 1 else f', {gain:.2f} times the rate of fp32'
    return f'fastest for ResNet-50 here: {name.removeprefix(RESNET50)}{more}'


def _shortened(names: Sequence[str]) -> list[str]:
    """Replaces the names of a whole group by one: 'resnet50/fp32/*'. A group is the part before the last slash."""
    groups: dict[str, set[str]] = {}
    for check in CHECKS:
        groups.setdefault(check.name.rpartition('/')[0], set()).add(check.name)
    whole = {group for group, members in groups.items() if len(members) > 1 and members <= set(names)}
    return list(dict.fromkeys(f'{group}/*' if (group := name.rpartition('/')[0]) in whole else name for name in names))


def _finite(value: Any) -> Any:
    """Replaces numbers that JSON does not have (NaN, infinity) by text."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

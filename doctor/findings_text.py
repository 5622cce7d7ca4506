"""The output of `doctor`: a table of verdicts, and a document for a bug report. Does not import TensorFlow."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from comparison.tables import Table, TableColumn
from doctor.check_table import CHECKS, RESNET50
from doctor.verdicts import Finding, Outcome
from errors import counted
from results import VERSION

SCHEMA = 'tf_cnn_benchmarks.doctor'
SCHEMA_VERSION = 1

_COLORS = {Outcome.OK: 'green', Outcome.WARNING: 'yellow', Outcome.WRONG: 'bold red', Outcome.SKIPPED: 'dim'}


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

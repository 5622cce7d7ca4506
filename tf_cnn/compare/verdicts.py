"""Prints a comparison, or a check against earlier results, and returns the exit code."""

import sys
from collections.abc import Mapping, Sequence

from tf_cnn.compare.changes import (
    COMPARISON_COLUMNS,
    explain_missing_pairs,
    make_notes,
    make_rows,
)
from tf_cnn.compare.config import CompareOptions
from tf_cnn.compare.measured import name_rates
from tf_cnn.compare.ratios import Significance
from tf_cnn.compare.regression import REGRESSION_COLUMNS, check_regression, regression_notes
from tf_cnn.compare.run_sets import RunSet, name_groups
from tf_cnn.results.advice import LONGER_RUN_FLAG
from tf_cnn.results.collection import collect
from tf_cnn.results.tables import Table, abbreviate, print_table
from tf_cnn.system.errors import UsageError, format_flag, warn


def print_comparison(sides: Sequence[RunSet], options: CompareOptions) -> int:
    rows = make_rows(sides, force=options.force)
    problems = [problem for side in sides for problem in side.problems]
    table = Table(name_rates(COMPARISON_COLUMNS, rows), rows)
    document = {
        'schema': 'tf_cnn_benchmarks.comparison',
        'schema_version': 1,
        'rows': table.objects,
        'problems': problems,
    }
    notes = make_notes(rows, problems)
    no_pairs = [] if any(row.ratio for row in rows) else [explain_missing_pairs(sides)]
    if no_pairs:
        table, notes = Table(COMPARISON_COLUMNS, []), [*no_pairs, *notes]
    print_table(table, options.format, document, notes)
    no_verdict = (Significance.FEW_RUNS, Significance.TOO_SHORT)
    inconclusive = {
        row.name: row.ratio.verdict for row in rows if row.ratio and row.ratio.verdict in no_verdict
    }
    if options.fail_below is not None and inconclusive:
        flag_text = format_flag('fail_below', options.fail_below)
        names = abbreviate([*inconclusive])
        longer = f' {LONGER_RUN_FLAG}' * (Significance.TOO_SHORT in inconclusive.values())
        warn(
            f'{flag_text}: {names}: too few runs or too short for a verdict; use --repeat=3{longer}'
        )
    return _exit_code(
        {row.name: row.ratio.value for row in rows if row.ratio and row.ratio.is_significant},
        sides,
        options,
        no_pairs,
    )


def check_regressions(sides: Sequence[RunSet], options: CompareOptions, folder: str) -> int:
    sides, earlier = name_groups(sides), collect([folder])
    groups = [group for side in sides for group in side.groups]
    rows = [check_regression(group.runs, earlier.results, group.name) for group in groups]
    problems = [problem for side in sides for problem in (*side.problems, *earlier.problems)]
    problems += [
        f'{excluded.name}: left out: {excluded.reason}'
        for side in sides
        for excluded in side.excluded_runs
    ]
    problems += [
        f'{group.first.source}: incomplete: {group.reason}' for group in groups if group.reason
    ]
    warn(*dict.fromkeys(problems))
    if not rows:
        raise UsageError(
            f'{sides[0].argument}: it has no result with a throughput; give another one'
        )
    table = Table(name_rates(REGRESSION_COLUMNS, [row.new for row in rows]), rows)
    document = {
        'schema': 'tf_cnn_benchmarks.regression',
        'schema_version': 2,
        'rows': table.objects,
    }
    print_table(table, options.format, document, regression_notes(rows))
    if options.fail_below is not None:
        flag_text = format_flag('fail_below', options.fail_below)
        warn(
            *(
                f'{flag_text}: {row.name} has no verdict: {row.verdict}'
                for row in rows
                if not row.has_verdict
            )
        )
    slower = {row.name: row.ratio for row in rows if row.ratio and row.is_slower}
    return _exit_code(slower, sides, options, earlier.problems)


def _exit_code(
    ratios: Mapping[str, float],
    sides: Sequence[RunSet],
    options: CompareOptions,
    problems: Sequence[str] = (),
) -> int:
    """Returns 1, and prints why, if a ratio is below --fail_below or a throughput is unknown.

    Args:
      ratios: the significant ratios by the names of their rows.
      problems: the problems of results that belong to no side, and why there is no ratio.
    """
    if options.fail_below is None:
        return 0
    flag_text = format_flag('fail_below', options.fail_below)
    if unknown := [*(line for side in sides for line in side.unknown_throughputs), *problems]:
        more = f', and {len(unknown) - 1} more' if len(unknown) > 1 else ''
        print(f'{flag_text}: some results are unknown: {unknown[0]}{more}', file=sys.stderr)
    slow = [f'{name} ({ratio:.3f})' for name, ratio in ratios.items() if ratio < options.fail_below]
    if slow:
        print(f'{flag_text}: slower than that: {", ".join(slow)}', file=sys.stderr)
    return 1 if slow or unknown else 0

"""Prints a comparison, or a check against earlier results, and returns the exit code."""

import sys
from collections.abc import Mapping, Sequence

from tf_cnn.compare.changes import compare_run_sets
from tf_cnn.compare.config import CompareOptions
from tf_cnn.compare.regression import REGRESSION_COLUMNS, check_regression, regression_notes
from tf_cnn.compare.run_sets import RunSet, name_groups, refuse_commands
from tf_cnn.lab.ratios import Significance
from tf_cnn.results.advice import LONGER_RUN_FLAG
from tf_cnn.results.collection import collect
from tf_cnn.results.tables import Table, abbreviate, print_table
from tf_cnn.system.errors import UsageError, format_flag, warn


def print_comparison(sides: Sequence[RunSet], options: CompareOptions) -> int:
    comparison = compare_run_sets(sides, force=options.force)
    document = {
        'schema': 'tf_cnn_benchmarks.comparison',
        'schema_version': 2,
        'answer': comparison.answer,
        'common': comparison.common,
        'rows': comparison.table.objects,
        'notes': comparison.notes,
        'problems': [problem for side in sides for problem in side.problems],
    }
    # Without a pair, the rows say nothing more than the answer.
    print_table(
        comparison.table if comparison.pairs else Table((), []),
        options.format,
        document,
        comparison.first_notes,
        [comparison.answer, *([comparison.common_line] if comparison.pairs else [])],
    )
    ratios = {
        row.candidate.name: row.ratio for row in comparison.pairs if row.candidate and row.ratio
    }
    no_verdict = (Significance.FEW_RUNS, Significance.TOO_SHORT)
    inconclusive = {
        name: ratio.verdict for name, ratio in ratios.items() if ratio.verdict in no_verdict
    }
    if options.fail_below is not None and inconclusive:
        flag_text = format_flag('fail_below', options.fail_below)
        names = abbreviate([*inconclusive])
        longer = f' {LONGER_RUN_FLAG}' * (Significance.TOO_SHORT in inconclusive.values())
        warn(
            f'{flag_text}: {names}: too few runs or too short for a verdict; use --repeat=3{longer}'
        )
    return exit_code(
        {name: ratio.value for name, ratio in ratios.items() if ratio.is_significant},
        sides,
        options,
        [] if comparison.pairs else [comparison.answer],
    )


def check_regressions(sides: Sequence[RunSet], options: CompareOptions, folder: str) -> int:
    refuse_commands(sides, 'against')
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
    table = Table(REGRESSION_COLUMNS, rows)
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
    return exit_code(slower, sides, options, earlier.problems)


def exit_code(
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

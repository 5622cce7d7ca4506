"""`tf_cnn_benchmarks.py compare`: compares results. Does not import TensorFlow."""

import itertools
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.cli.options import Arguments, Declaration, warn
from tf_cnn.cluster.config import ROLE_FLAGS
from tf_cnn.cluster.environments import environment_for_runs
from tf_cnn.compare import changes, regression
from tf_cnn.compare.ratios import Significance
from tf_cnn.compare.regression import check_regression
from tf_cnn.compare.run_sets import STDIN, RunSet, group_names, make_run_set, read_run_set
from tf_cnn.flags.spec import flag
from tf_cnn.results.advice import LONGER_RUN_FLAG
from tf_cnn.results.collection import collect
from tf_cnn.results.document import Result
from tf_cnn.results.tables import Table, abbreviate, print_table
from tf_cnn.run.params import SPECS
from tf_cnn.run.parsing import parse_argv
from tf_cnn.run.plan import check_launch
from tf_cnn.sweep.folder import Folder
from tf_cnn.sweep.runner import (
    InterleavedRuns,
    Runner,
    command_of_flags,
    describe_outcome,
    succeeded,
)
from tf_cnn.system.errors import RunError, UsageError, format_flag, plural
from tf_cnn.system.signals import SIGNALS


@dataclass(frozen=True)
class CompareOptions:
    format: str = flag(
        'text', 'How to print the comparison.', choices=('text', 'markdown', 'csv', 'json')
    )
    force: bool = flag(
        False, 'Compare runs of different work: another model, data set, image size or role.'
    )
    fail_below: float | None = flag(
        None,
        'For scripts: exit with code 1 if the ratio of a result to its baseline is below this '
        'number, such as 0.95, and the difference is significant.',
        lower_bound=0,
    )
    against: str | None = flag(
        None,
        'Folder of earlier results. The baseline of each result is then the median of the last '
        'runs there with the same setting on the same machine.',
        is_path=True,
    )
    run: tuple[str, ...] = flag(
        (),
        "The flags of a run, in quotes, such as '--model=lenet --xla'. Give it twice: both "
        'runs alternate, each time in a fresh process, and are then compared; the first is the '
        'baseline.',
    )
    rounds: int = flag(5, 'With --run: how often each is run.', lower_bound=3, unit='rounds')
    output: str | None = flag(
        None,
        'With --run: a new folder for the results and logs, or the folder of the same runs, to '
        'continue them; by default a temporary folder, which is kept.',
        is_path=True,
    )


DECLARATION = Declaration(
    'compare',
    CompareOptions,
    examples=(
        'before.json after.json',
        'before/ after/ --fail_below=0.95',
        'sweep-results/ --format=markdown',
        'after.json --against=results/',
        "--run='--model=lenet --target_seconds=3' --run='--model=lenet --target_seconds=3 --xla' "
        '--rounds=10',
    ),
    details='The first argument is the baseline of all ratios. Two folders are compared setting by '
    'setting; in a single folder the first setting is the baseline. With three or more runs of a '
    'setting on both sides (--repeat) there is an interval, and a verdict.\n\n'
    'The exit code is 0, or 1 if --fail_below found a slower or unreadable result.',
    positional='A file that --result_file wrote, a folder of such files, or the printed output '
    'of a run, also of the original program; - is standard input.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[CompareOptions]) -> int:
    options = arguments.options
    if options.run:
        if arguments.positional or options.against is not None:
            raise UsageError(
                '--run: it conflicts with RESULT and --against, since it compares its runs; remove '
                'one of them'
            )
        return _compare_runs(options.run, options)
    if only_with_run := sorted(arguments.given_flags & {'rounds', 'output'}):
        raise UsageError(
            f'--{only_with_run[0]}: it has no effect without --run; use --run twice, each time '
            'with the flags of a run'
        )
    if not arguments.positional:
        raise UsageError('compare: it needs at least 1 RESULT, or --run twice; see compare --help')
    if arguments.positional.count(STDIN) > 1:
        raise UsageError(
            f'{STDIN}: standard input can be read only once; give the other result as a file'
        )
    sides = [read_run_set(argument) for argument in arguments.positional]
    if options.against is not None:
        return _check_regressions(sides, options, options.against)
    if len(sides) == 1 and len(sides[0].groups) < 2:
        raise UsageError(
            f'{sides[0].argument}: it has fewer than two settings with a throughput; give the '
            'baseline first and then the other results, or use --against=FOLDER'
        )
    runs = [{result.id for group in side.groups for result in group.results} for side in sides]
    for (side, run_ids), (other, other_run_ids) in itertools.combinations(
        zip(sides, runs, strict=True), 2
    ):
        if run_ids and run_ids == other_run_ids:
            raise UsageError(
                f'{side.argument} and {other.argument}: they have the same '
                f'{plural(len(run_ids), "run")}, so their ratio says nothing; give results of '
                'two settings'
            )
    return _print_comparison(sides, options)


def _compare_runs(flag_texts: Sequence[str], options: CompareOptions) -> int:
    if len(flag_texts) != 2:
        raise UsageError(
            f'--run={flag_texts[0]}: it appears {plural(len(flag_texts), "time")}; use it '
            'twice, for A and B'
        )
    # A folder of results for each run.
    commands = [
        command_of_flags(f'{name}/{name}', _read_run_flags(text))
        for name, text in zip('ab', flag_texts, strict=True)
    ]
    runner = Runner(environment=environment_for_runs(os.environ, 'compare --run'))
    folder = Folder(Path(options.output or tempfile.mkdtemp(prefix='tf_cnn_compare-')))
    folder.create_or_resume({command.name: command.argv for command in commands})
    interleaved_runs = InterleavedRuns(commands, options.rounds, folder, runner)
    names = [f'{letter}: {text}' for letter, text in zip('AB', flag_texts, strict=True)]

    def make_sides() -> list[RunSet]:
        results = [
            [run for run in runs if isinstance(run, Result)]
            for runs in interleaved_runs.outcomes.values()
        ]
        return [make_run_set(name, runs, (), ()) for name, runs in zip(names, results, strict=True)]

    try:
        with SIGNALS.storing(), folder.locked():
            for finished_run in interleaved_runs.run():
                first, second = interleaved_runs.outcomes.values()
                if not succeeded(finished_run.outcome):
                    break
                if len(first) != len(second):
                    continue
                ratio = changes.make_rows(make_sides(), force=options.force)[1].ratio
                rates = f'A {describe_outcome(first[-1])}, B {describe_outcome(second[-1])}'
                so_far = changes.format_ratio(ratio) if ratio else 'nothing to compare'
                print(
                    f'round {finished_run.round_number}: {rates}; so far {so_far}',
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        print(f'The results and logs are in {folder.path}', file=sys.stderr)
    for text, runs in zip(flag_texts, interleaved_runs.outcomes.values(), strict=True):
        if failed := next((run for run in runs if not succeeded(run)), None):
            raise RunError(
                f'{format_flag("run", text)}: {failed.reason}; to try this run again, delete '
                f'{failed.source}'
            )
    return _print_comparison(make_sides(), options)


def _read_run_flags(text: str) -> list[str]:
    """Returns the words of a --run; raises UsageError if the flags are not usable."""
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f'{format_flag("run", text)}: it is not a command line ({error}); close its quotes'
        ) from None
    params = parse_argv(argv).params
    forbidden_flags = [
        name
        for name in params.given_flags
        if name == 'repeat' or name in ROLE_FLAGS or SPECS[name].output
    ]
    if forbidden_flags:
        raise UsageError(
            f'{params.given_flags[forbidden_flags[0]]}: --run cannot have flags of '
            'clusters, repeats and output files; remove it, and use --output for the results and '
            '--rounds for the number of runs'
        )
    check_launch(params, is_single_process=True)
    return argv


def _print_comparison(sides: Sequence[RunSet], options: CompareOptions) -> int:
    rows = changes.make_rows(sides, force=options.force)
    problems = [problem for side in sides for problem in side.problems]
    notes = changes.make_notes(rows, problems)
    print_table(
        Table(changes.COMPARISON_COLUMNS, rows),
        options.format,
        changes.make_document(rows, problems),
        notes,
    )
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
    )


def _check_regressions(sides: Sequence[RunSet], options: CompareOptions, folder: str) -> int:
    names, earlier = group_names(sides), collect([folder])
    groups = [group for side in sides for group in side.groups]
    rows = [check_regression(group.results, earlier.results, names[id(group)]) for group in groups]
    problems = [problem for side in sides for problem in (*side.problems, *earlier.problems)]
    problems += [
        f'{excluded.name}: left out: {excluded.reason}'
        for side in sides
        for excluded in side.excluded_runs
    ]
    problems += [
        f'{group.first.source}: incomplete: {group.incomplete_reason}'
        for group in groups
        if group.incomplete_reason
    ]
    warn(*dict.fromkeys(problems))
    if not rows:
        raise UsageError(
            f'{sides[0].argument}: it has no result with a throughput; give another one'
        )
    document = regression.regression_document(rows)
    print_table(
        Table(regression.REGRESSION_COLUMNS, rows),
        options.format,
        document,
        regression.regression_notes(rows),
    )
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
      problems: the problems of results that belong to no side.
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

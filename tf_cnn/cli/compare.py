"""`tf_cnn_benchmarks.py compare`: compares results with 95 % intervals. Starts without
TensorFlow.
"""

import itertools
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.cli.options import Arguments, Declaration, warn
from tf_cnn.cluster.environments import environment_of_runs
from tf_cnn.compare import changes, regression
from tf_cnn.compare.ratios import Significance
from tf_cnn.compare.regression import judge
from tf_cnn.compare.sides import STDIN, Side, group_names, read_side, side_of
from tf_cnn.flags.spec import flag
from tf_cnn.params import parse_argv
from tf_cnn.params.table import SPECS
from tf_cnn.planning.make_plan import check_launch
from tf_cnn.results.advice import LONGER
from tf_cnn.results.collection import collect
from tf_cnn.results.document import Result
from tf_cnn.results.tables import abbreviate, print_table
from tf_cnn.sweep.folder import Folder
from tf_cnn.sweep.runner import Rounds, Starter, contestant_of_run, describe, succeeded
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
        'For scripts: exit with code 1 if a result is slower than this part of its baseline, such '
        'as 0.95. The difference must be significant, too: a lower ratio by chance does not fail.',
        lower_bound=0,
    )
    against: str | None = flag(
        None,
        'Folder of earlier results. Each result is judged by the median of the last runs there of '
        'the same setting on the same machine, instead of against the first one.',
        is_path=True,
    )
    run: tuple[str, ...] = flag(
        (),
        "The flags of a run, in quotes, such as '--model=lenet --xla'. Give it twice: both "
        'are run in turns, each time in a fresh process, and then compared; the first is the '
        'baseline.',
    )
    rounds: int = flag(5, 'With --run: how often each is run.', lower_bound=3, unit='rounds')
    output: str | None = flag(
        None,
        'With --run: a new folder for the results and logs, or that of the same runs, which then '
        'go on; by default a temporary one, which stays.',
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
    details='Ratios are to the first argument, the baseline. Two folders are compared setting by '
    'setting; the settings of a single folder with the first of them. With three or more runs of '
    'a setting on both sides (--repeat) there is an interval, and a verdict.\n\n'
    'The exit code is 0, or 1 if --fail_below found a slower result or one that cannot be read.',
    positional='a file that --result_file wrote, a folder of such files, or the text that a '
    'run, also of the original program, printed; - is standard input.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[CompareOptions]) -> int:
    options = arguments.options
    if options.run:
        if arguments.positional or options.against is not None:
            raise UsageError(
                '--run: it compares the runs that it makes; leave it, or RESULT and --against, out'
            )
        return _run(options.run, options)
    if only_with_run := sorted(arguments.given & {'rounds', 'output'}):
        raise UsageError(
            f'--{only_with_run[0]}: it is about runs; write --run twice, each with the flags of a '
            'run'
        )
    if not arguments.positional:
        raise UsageError(
            'compare: it takes at least 1 RESULT, or --run twice, none was given; see compare '
            '--help'
        )
    if arguments.positional.count(STDIN) > 1:
        raise UsageError(
            f'{STDIN}: standard input can be read only once; give the other result as a file'
        )
    sides = [read_side(argument) for argument in arguments.positional]
    if options.against is not None:
        return _judge(sides, options, options.against)
    if len(sides) == 1 and len(sides[0].groups) < 2:
        raise UsageError(
            f'{sides[0].argument}: it holds fewer than two settings with a throughput; write the '
            'baseline and then the others, or --against=FOLDER'
        )
    runs = [{result.id for group in side.groups for result in group.results} for side in sides]
    for (side, own), (other, others) in itertools.combinations(zip(sides, runs, strict=True), 2):
        if own and own == others:
            raise UsageError(
                f'{side.argument} and {other.argument}: they hold the same '
                f'{plural(len(own), "run")}, so that their ratio says nothing; give results of '
                'two settings'
            )
    return _show(sides, options)


def _run(texts: Sequence[str], options: CompareOptions) -> int:
    if len(texts) != 2:
        raise UsageError(
            f'--run={texts[0]}: it was given {plural(len(texts), "time")}; give it twice, A and B'
        )
    # The results of each have a folder of their own.
    contestants = [
        contestant_of_run(f'{name}/{name}', _flags_of(text))
        for name, text in zip('ab', texts, strict=True)
    ]
    starter = Starter(environment=environment_of_runs(os.environ, 'compare --run'))
    folder = Folder(Path(options.output or tempfile.mkdtemp(prefix='tf_cnn_compare-')))
    folder.begin({one.name: one.words for one in contestants})
    rounds = Rounds(contestants, options.rounds, folder, starter)
    names = [f'{letter}: {text}' for letter, text in zip('AB', texts, strict=True)]

    def sides() -> list[Side]:
        done = [
            [run for run in runs if isinstance(run, Result)] for runs in rounds.outcomes.values()
        ]
        return [side_of(name, runs, (), ()) for name, runs in zip(names, done, strict=True)]

    try:
        with SIGNALS.storing(), folder.locked():
            for turn in rounds.run():
                first, second = rounds.outcomes.values()
                if not succeeded(turn.outcome):
                    break
                if len(first) != len(second):
                    continue
                ratio = changes.make_rows(sides(), force=options.force)[1].ratio
                rates = f'A {describe(first[-1])}, B {describe(second[-1])}'
                so_far = changes.format_ratio(ratio) if ratio else 'nothing to compare'
                print(f'round {turn.number}: {rates}; so far {so_far}', file=sys.stderr, flush=True)
    finally:
        print(f'The results and logs are in {folder.path}', file=sys.stderr)
    for text, runs in zip(texts, rounds.outcomes.values(), strict=True):
        if failed := next((run for run in runs if not succeeded(run)), None):
            raise RunError(
                f'{format_flag("run", text)}: {failed.reason}; to try this run again, delete '
                f'{failed.source}'
            )
    return _show(sides(), options)


def _flags_of(text: str) -> list[str]:
    """Returns the words of a --run, checked as far as possible before a run."""
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f'{format_flag("run", text)}: it is no command line ({error}); close its quotes'
        ) from None
    params = parse_argv(argv).params
    taken = [
        name
        for name in params.given
        if name == 'repeat' or SPECS[name].names_process or SPECS[name].output
    ]
    if taken:
        raise UsageError(
            f'{params.given[taken[0]]}: --run takes the flags of one process that writes no '
            'files; leave it out, compare writes the results to --output, and --rounds says how '
            'many runs there are'
        )
    check_launch(params, alone=True)
    return argv


def _show(sides: Sequence[Side], options: CompareOptions) -> int:
    rows = changes.make_rows(sides, force=options.force)
    problems = [problem for side in sides for problem in side.problems]
    notes = changes.make_notes(rows, problems)
    print_table(
        changes.make_table(rows), options.format, changes.make_document(rows, problems), notes
    )
    no_verdict = (Significance.FEW_RUNS, Significance.TOO_SHORT)
    unjudged = {
        row.name: row.ratio.verdict for row in rows if row.ratio and row.ratio.verdict in no_verdict
    }
    if options.fail_below is not None and unjudged:
        written, names = format_flag('fail_below', options.fail_below), abbreviate([*unjudged])
        longer = f' {LONGER}' * (Significance.TOO_SHORT in unjudged.values())
        warn(f'{written}: {names}: too few runs or too short to judge; write --repeat=3{longer}')
    return _exit_code(
        {row.name: row.ratio.value for row in rows if row.ratio and row.ratio.is_significant},
        sides,
        options,
    )


def _judge(sides: Sequence[Side], options: CompareOptions, folder: str) -> int:
    names, earlier = group_names(sides), collect([folder])
    groups = [group for side in sides for group in side.groups]
    rows = [judge(group.results, earlier.results, names[id(group)]) for group in groups]
    problems = [problem for side in sides for problem in (*side.problems, *earlier.problems)]
    problems += [
        f'{left.name}: it is left out: {left.reason}' for side in sides for left in side.left_out
    ]
    problems += [
        f'{group.first.source}: it is incomplete: {group.reason}'
        for group in groups
        if group.reason
    ]
    warn(*dict.fromkeys(problems))
    if not rows:
        raise UsageError(
            f'{sides[0].argument}: it holds no result with a throughput; give another one'
        )
    document = regression.judgement_document(rows)
    print_table(
        regression.judgement_table(rows), options.format, document, regression.judgement_notes(rows)
    )
    if options.fail_below is not None:
        written = format_flag('fail_below', options.fail_below)
        warn(
            *(
                f'{written}: {row.name} is not judged: {row.verdict}'
                for row in rows
                if not row.is_judged
            )
        )
    slower = {row.name: row.ratio for row in rows if row.ratio and row.is_slower}
    return _exit_code(slower, sides, options, earlier.problems)


def _exit_code(
    ratios: Mapping[str, float],
    sides: Sequence[Side],
    options: CompareOptions,
    problems: Sequence[str] = (),
) -> int:
    """Returns 1, and prints why, if a significant ratio is below --fail_below or a throughput is
    not known; else 0.

    problems are those of results that are in no side.
    """
    if options.fail_below is None:
        return 0
    written = format_flag('fail_below', options.fail_below)
    if unknown := [*(line for side in sides for line in side.unknown), *problems]:
        more = f', and {len(unknown) - 1} more' if len(unknown) > 1 else ''
        print(f'{written}: not every result is known: {unknown[0]}{more}', file=sys.stderr)
    slow = [f'{name} ({ratio:.3f})' for name, ratio in ratios.items() if ratio < options.fail_below]
    if slow:
        print(f'{written}: slower than that: {", ".join(slow)}', file=sys.stderr)
    return 1 if slow or unknown else 0

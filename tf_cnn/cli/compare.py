"""`tf_cnn_benchmarks.py compare`: compares results. Does not import TensorFlow."""

import itertools

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.compare.config import CompareOptions
from tf_cnn.compare.hosts import print_hosts, read_host_run_set
from tf_cnn.compare.run_sets import read_run_set
from tf_cnn.compare.verdicts import check_regressions, print_comparison
from tf_cnn.lab.intervals import MIN_RUNS
from tf_cnn.sweep.compare_runs import measure_in_turns
from tf_cnn.system.errors import STDIO, UsageError, format_flag, plural

# From here on --fail_below is refused: it was probably meant in percent.
_PERCENT_FROM = 2

DECLARATION = Declaration(
    'compare',
    CompareOptions,
    usage='[RESULT ...] [--flag=value ...]',
    examples=(
        'before.json after.json',
        'before/ after/ --fail_below=0.95',
        'sweep-results/ --format=markdown',
        'after.json --against=results/',
        'fleet/ --across=hosts --fail_below=0.95',
        "--run='--model=lenet --target_seconds=3' --run='--model=lenet --target_seconds=3 --xla' "
        '--rounds=10',
        r"--command='python a.py' --command='python b.py' --rate='images/sec: (\S+)'",
    ),
    details='The first argument is the baseline of all ratios. Two folders are compared setting by '
    'setting; in a single folder the first setting is the baseline. With three or more runs of a '
    'setting on both sides (--repeat) there is an interval, and a verdict.\n\n'
    'The exit code is 0, or 1 if --fail_below found a slower or unreadable result, or nothing to '
    'compare.',
    positional='A file that --result_file wrote, a folder of such files, or the printed output '
    'of a run, also of the original program; - is standard input.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[CompareOptions]) -> int:
    options = arguments.options
    limit = options.fail_below or 0
    if limit >= _PERCENT_FROM:
        raise UsageError(
            f'--fail_below={limit:g}: it is a ratio; for {limit:g} % use '
            f'--fail_below={limit / 100:g}'
        )
    if options.run or options.command:
        _check_measuring(arguments)
        return print_comparison(measure_in_turns(options), options)
    measuring_flags = {'rounds', 'output', 'rate', 'timeout_secs'}
    if without_run := sorted(arguments.given_flags & measuring_flags):
        raise UsageError(
            f'--{without_run[0]}: it has no effect without --run or --command; use one of them '
            'twice, such as --run with the flags of a run'
        )
    if not arguments.positional:
        raise UsageError('compare: it needs at least 1 RESULT, or --run twice; see compare --help')
    if arguments.positional.count(STDIO) > 1:
        raise UsageError(
            f'{STDIO}: standard input can be read only once; give the other result as a file'
        )
    if options.across is not None:
        if conflicts := sorted(arguments.given_flags & {'against', 'force'}):
            raise UsageError(
                f'--across={options.across}: it conflicts with --{conflicts[0]}, since hosts are '
                'compared with each other, in equal work; remove one of them'
            )
        return print_hosts([*map(read_host_run_set, arguments.positional)], options)
    sides = [read_run_set(argument) for argument in arguments.positional]
    if options.against is not None:
        return check_regressions(sides, options, options.against)
    if len(sides) == 1 and len(sides[0].groups) < 2:
        raise UsageError(
            f'{sides[0].argument}: it has fewer than two settings with a throughput; give the '
            'baseline first and then the other results, or use --against=FOLDER'
        )
    runs = [{result.id for group in side.groups for result in group.runs} for side in sides]
    for (side, run_ids), (other, other_run_ids) in itertools.combinations(
        zip(sides, runs, strict=True), 2
    ):
        if run_ids and run_ids == other_run_ids:
            raise UsageError(
                f'{side.argument} and {other.argument}: they have the same '
                f'{plural(len(run_ids), "run")}, so their ratio says nothing; give results of '
                'two settings'
            )
    return print_comparison(sides, options)


def _check_measuring(arguments: Arguments[CompareOptions]) -> None:
    options = arguments.options
    if options.rounds < MIN_RUNS:
        raise UsageError(
            f'--rounds={options.rounds}: a comparison needs an interval, and an interval '
            f'{MIN_RUNS} runs or more of each side; use --rounds={MIN_RUNS}'
        )
    if arguments.positional or options.against is not None or options.across is not None:
        raise UsageError(
            '--run and --command: they conflict with RESULT, --against and --across, since '
            'they compare their runs; remove one of them'
        )
    if options.rate and not options.command:
        raise UsageError(
            f'{format_flag("rate", options.rate)}: it has no effect without --command; use both'
        )

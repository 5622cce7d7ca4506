"""`tf_cnn_benchmarks.py compare`: compares results. Does not import TensorFlow."""

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.lab.against import compare_sides, read_rows
from tf_cnn.lab.conclude import conclude
from tf_cnn.lab.config import CompareOptions
from tf_cnn.system.errors import UsageError

# Flags that need --run or --command.
_OF_RUNS = ('rounds', 'output', 'timeout_secs', 'grid')
_OF_COMMANDS = ('rate', 'secs', 'record')
_OF_RESULTS = ('against', 'across', 'published')

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
    details='The first argument is the reference of all ratios. Two folders are compared setting '
    'by setting; in a single folder the first setting is the reference. With three or more runs '
    'of a setting on both sides (--repeat) there is an interval, and a verdict.\n\n'
    'The exit code is 0. With --fail_below it is 1 if a result is slower than the limit, or '
    'missing, and 3 if the runs cannot tell.',
    positional='A file that --result_file wrote, a folder of such files, or the printed output '
    'of a run, also of the original program; - is standard input.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[CompareOptions]) -> int:
    options = arguments.options
    if options.run or options.command:
        if arguments.positional or arguments.given_flags & {*_OF_RESULTS}:
            raise UsageError(
                '--run and --command: they conflict with RESULT, --against, --across and '
                '--published, since they compare their runs; remove one of them'
            )
        from tf_cnn.lab.sources import measure_in_turns

        return conclude(compare_sides(measure_in_turns(options), options), options)
    if useless := sorted(arguments.given_flags & {*_OF_RUNS, *_OF_COMMANDS}):
        raise UsageError(
            f'--{useless[0]}: it has no effect without --run or --command; use one of them '
            'twice, such as --run with the flags of a run'
        )
    if not arguments.positional:
        raise UsageError('compare: it needs at least 1 RESULT, or --run twice; see compare --help')
    rows = read_rows(arguments.positional, options)
    asks = arguments.given_flags & {*_OF_RESULTS}
    if len(arguments.positional) == 1 and not asks and not any(row.ratio for row in rows):
        raise UsageError(
            f'{arguments.positional[0]}: it has fewer than two settings of one work; give '
            'the reference first and then the other results, or use --against=FOLDER'
        )
    has_nothing = not any(row.ratio for row in rows)
    is_fault = has_nothing and options.across is not None and options.fail_below is None
    return conclude(rows, options, failed=is_fault)

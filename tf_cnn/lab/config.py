"""The flags of the subcommands that measure, and of those that show rows."""

from dataclasses import dataclass

from tf_cnn.flags.spec import flag

# The exit codes of --fail_below: the limit is kept, it is broken, or the runs cannot tell.
KEPT, BROKEN, UNCLEAR = 0, 1, 3
FORMATS = ('text', 'markdown', 'csv', 'json', 'html')


@dataclass(frozen=True)
class ShowOptions:
    """How rows are judged."""

    fail_below: float | None = flag(
        None,
        'For scripts: exit with code 1 if a ratio is below this number, such as 0.95, and the '
        'difference is significant, or if a rate is missing; with --exit_unclear if the runs do '
        'not exclude such a loss.',
        # A larger number was probably meant in percent.
        upper_bound=1.9,
    )
    exit_unclear: int = flag(
        UNCLEAR,
        'With --fail_below: the exit code if the runs cannot tell. Use 0 to pass, and 125 for git '
        'bisect run.',
        upper_bound=255,
    )
    same_losses: bool = flag(
        False,
        'For scripts, of runs with --deterministic: exit with code 1 if equal machines computed '
        'different losses, and with --exit_unclear if no losses were compared.',
    )
    price_per_hour: str | None = flag(
        None,
        'The price of an hour of the machine, or NAME=PRICE for each side or host, such as '
        'a=1.20,b=0.50. Adds what a million images cost.',
    )


@dataclass(frozen=True)
class RowOptions:
    """What each row is held against."""

    force: bool = flag(
        False, 'Compare runs of different work: another model, data set, image size or role.'
    )
    against: str | None = flag(
        None,
        'Folder of earlier results. The reference of each result is then the median of the last '
        'runs there with the same setting on the same machine.',
        is_path=True,
    )
    across: str | None = flag(
        None,
        'hosts: compare each host with the median of the others, setting by setting. The results '
        'of a host lie in one folder; those of all hosts may lie in one.',
        choices=('hosts',),
    )
    published: str | None = flag(
        None,
        'Table of published rates, as CSV: columns of settings, and images_per_second or speed_up. '
        'Each speed-up is then compared with the published one. Without the flag, results of the '
        'sweep seed_table have those of its table.',
        is_path=True,
    )


@dataclass(frozen=True)
class MeasureOptions(ShowOptions):
    """How configurations are measured, and their rows printed."""

    format: str = flag('text', 'How to print; html is one page, as of report.', choices=FORMATS)
    command: tuple[str, ...] = flag(
        (),
        "A command of any program, in quotes, such as 'python train.py --bf16'. It runs by a shell "
        'in this folder.',
    )
    grid: tuple[str, ...] = flag(
        (),
        'NAME=VALUE,VALUE...: values to compare, once for each name. NAME is a flag of a run, '
        'shape, a {name} in --command, or in capitals an environment variable.',
    )
    rate: tuple[str, ...] = flag(
        (),
        'With --command: a regular expression with one group, such as '
        r"'images/sec: (\S+)'. Its last match in the output is the rate. Without it the wall times "
        'are compared.',
    )
    secs: tuple[str, ...] = flag(
        (), 'With --command: as --rate, for a time in seconds; less is better.'
    )
    record: tuple[str, ...] = flag(
        (),
        'With --command: a regular expression with named groups, such as '
        r"'torch (?P<torch>\S+)'. Its matches tell runs apart as versions do.",
    )
    timeout_secs: float | None = flag(
        None, 'End a run that takes longer, as a failure.', lower_bound=0.1, unit='seconds'
    )
    output: str | None = flag(
        None,
        'A new folder for the results and logs, or the folder of the same command, to continue it.',
        is_path=True,
    )


@dataclass(frozen=True)
class CompareOptions(MeasureOptions, RowOptions):
    """The flags of compare."""

    run: tuple[str, ...] = flag(
        (),
        "The flags of a run, in quotes, such as '--model=lenet --xla'. Give it twice: both "
        'runs alternate, each time in a fresh process, and are then compared; the first is the '
        'reference. --command may take the place of one or both.',
    )
    rounds: int = flag(
        5,
        'With --run or --command: how often each is run, 3 times or more.',
        lower_bound=3,
        unit='rounds',
    )


@dataclass(frozen=True)
class ReportOptions(RowOptions, ShowOptions):
    """The flags of report, which is compare as a page in a file."""

    output: str = flag(
        'report.html', 'The file to write; - is standard output.', is_path=True, may_be_stdio=True
    )
    title: str | None = flag(None, 'The heading of the page; by default the names of the models.')
    plots: str | None = flag(
        None, 'Folder for the plots as PNG and SVG; made if missing.', is_path=True
    )


@dataclass(frozen=True)
class SweepOptions(MeasureOptions):
    """The flags of sweep."""

    repeats: int = flag(1, 'Runs of each configuration.', lower_bound=1, unit='runs')
    dry_run: bool = flag(False, 'List the configurations and their commands; run nothing.')


@dataclass(frozen=True)
class FleetOptions(MeasureOptions):
    """The flags of cluster that measure many hosts."""

    each: bool = flag(
        False,
        'Run FLAGS or --command on each host by itself, on all hosts at once, and compare the '
        'hosts; numbers of workers have no effect.',
    )
    pairs: bool = flag(
        False,
        'Measure the link of each pair of hosts: two workers exchange the gradients of the model '
        '(--exchange_only, collective_all_reduce), or --command runs on both. Pairs without a '
        'common host run at once.',
    )
    rounds: int = flag(
        3, 'With --each or --pairs: how often each is run.', lower_bound=1, unit='rounds'
    )

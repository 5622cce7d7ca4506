"""The flags of the subcommands compare and report."""

import math
from dataclasses import dataclass

from tf_cnn.flags.spec import flag


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
    across: str | None = flag(
        None,
        'hosts: compare each host with the median of the others, setting by setting. The results '
        'of a host lie in one folder; those of all hosts may lie in one.',
        choices=('hosts',),
    )
    run: tuple[str, ...] = flag(
        (),
        "The flags of a run, in quotes, such as '--model=lenet --xla'. Give it twice: both "
        'runs alternate, each time in a fresh process, and are then compared; the first is the '
        'baseline.',
    )
    command: tuple[str, ...] = flag(
        (),
        "A command of any program, in quotes, such as 'python train.py --bf16'. It runs by a shell "
        'in this folder, in the place of the second --run, or of both.',
    )
    rate: str | None = flag(
        None,
        'With --command: a regular expression with one group, such as '
        r"'images/sec: (\S+)'. Its last match in the output of a command is the rate. Without it "
        'the wall times are compared.',
    )
    rounds: int = flag(
        5,
        'With --run or --command: how often each is run, 3 times or more.',
        lower_bound=-math.inf,
        unit='rounds',
    )
    timeout_secs: float | None = flag(
        None,
        'With --run or --command: end a run that takes longer, as a failure.',
        lower_bound=0.1,
        unit='seconds',
    )
    output: str | None = flag(
        None,
        'With --run or --command: a new folder for the results and logs, or the folder of the same '
        'runs, to continue them; by default a temporary folder, which is kept.',
        is_path=True,
    )


@dataclass(frozen=True)
class ReportOptions:
    output: str = flag(
        'report.html', 'The file to write; - is standard output.', is_path=True, may_be_stdio=True
    )
    title: str | None = flag(None, 'The heading of the page; by default the names of the models.')
    price_per_hour: str | None = flag(
        None,
        'The price of an hour of each machine, for the price of a million images: one number, or '
        'A=1.20,B=0.80 for the folders A and B.',
    )
    plots: str | None = flag(
        None, 'Folder for the plots as PNG and SVG; made if missing.', is_path=True
    )

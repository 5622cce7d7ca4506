"""`tf_cnn_benchmarks.py sweep`: measures many configurations. Does not import TensorFlow."""

import shlex
import time
from pathlib import Path

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.lab import against
from tf_cnn.lab.conclude import conclude
from tf_cnn.lab.config import SweepOptions
from tf_cnn.lab.configurations import PROBE, Configuration
from tf_cnn.lab.losses import same_losses
from tf_cnn.lab.measure import make_laboratory, run_all
from tf_cnn.lab.rows import make_rows
from tf_cnn.lab.sides import read_side
from tf_cnn.lab.sources import format_left_out, plan_sweep, read_sweep
from tf_cnn.lab.sweep_file import list_shipped_sweeps
from tf_cnn.system.errors import plural, warn
from tf_cnn.system.place import PROGRAM

DECLARATION = Declaration(
    'sweep',
    SweepOptions,
    usage='[FILE] [--flag=value ...] [-- FLAGS]',
    examples=(
        'batch_sizes -- --model=resnet50',
        "--grid='--batch_size=32,64' --grid='--shape=1*1,1*2' --repeats=3 -- --model=lenet "
        '--device=cpu',
        'exchange -- --hosts=node1,node2',
        r"--grid=bs=32,64 --command='python train.py --batch={bs}' --rate='images/sec: (\S+)'",
    ),
    details=f'Sweeps that come with the program: {", ".join(list_shipped_sweeps())}. '
    'docs/compare.md explains how to write a file.\n\n'
    'A shape is W*G+P: workers * devices of each + parameter servers. 1*2 is one process with two '
    'devices. 2*1+1 is a cluster: two workers with one device each, and a parameter server. It '
    'runs on this machine, or on other hosts if --hosts=a,b is among FLAGS. Combinations that '
    'cannot run are left out and named.\n\n'
    'Repeats are interleaved, so a drift of the machine affects all configurations alike. If a '
    'run fails, its row of the table says why, and the sweep goes on; then the exit code is 1.',
    positional='A TOML file, or the name of a sweep that comes with the program.',
    takes_paths=True,
    removed={
        'resume': 'use the command that began the sweep, with --output=FOLDER',
        'find_batch_size': 'use --grid=batch_size=32,64,128: a batch that does not fit is a failed '
        'row',
    },
)


def _describe(configuration: Configuration) -> str:
    """Returns the command line, which can be pasted."""
    words = configuration.argv
    if PROBE not in words:
        own = shlex.join(words).replace(shlex.join(PROGRAM), 'tf_cnn_benchmarks')
        return own.removesuffix(' --result_file=-')
    variables = [f'{n}={shlex.quote(v)}' for n, v in configuration.setting.items() if n.isupper()]
    return ' '.join([*variables, words[words.index(PROBE) + 2]])


@DECLARATION.main
def main(arguments: Arguments[SweepOptions]) -> int:
    """Returns the exit code: 1 if a run failed. No run has started if it raises UsageError."""
    name = next(iter(arguments.positional), '')
    file = read_sweep(name, arguments.options.grid)
    options = file.fill(arguments.options, arguments.given_flags)
    where = f'{name}:' if name else '--grid'
    configurations, left_out = plan_sweep(file, options, arguments.run_argv, where)
    if options.dry_run:
        print(
            f'{file.title or "Grid"}: {plural(len(configurations), "configuration")}, '
            f'{plural(options.repeats, "run")} of each'
        )
        for configuration in configurations:
            print(f'  {configuration.name}: {configuration.caption}')
            print(f'    {_describe(configuration)}')
        print(*format_left_out(left_out), sep='\n')
        return 0
    warn(*format_left_out(left_out))
    default = time.strftime(f'sweep-{Path(name or "grid").stem}-%Y%m%d-%H%M%S')
    laboratory = make_laboratory('sweep', options.output or default, options.timeout_secs)
    failures = run_all(laboratory, configurations, options.repeats)
    hold = same_losses(against.published(None, against.same_batch_size))
    rows = make_rows([read_side(str(laboratory.results))], hold)
    # The names of files begin with the number of the configuration.
    rows.sort(key=lambda row: (not row.runs, row.runs[0].source if row.runs else ''))
    return conclude(rows, options, bool(failures))

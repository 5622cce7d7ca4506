"""`tf_cnn_benchmarks.py report`: compare as a page in a file. Does not import TensorFlow."""

import os
import sys
from pathlib import Path

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.lab.against import read_rows
from tf_cnn.lab.conclude import add_prices, print_verdict
from tf_cnn.lab.config import ReportOptions
from tf_cnn.lab.page import make_page
from tf_cnn.lab.rows import settings_with_references
from tf_cnn.lab.sentence import answer
from tf_cnn.plan.outputs import check_file
from tf_cnn.system.atomic import write_atomically
from tf_cnn.system.errors import STDIO, RunError, UsageError, plural

DECLARATION = Declaration(
    'report',
    ReportOptions,
    usage='DIR ... [--flag=value ...]',
    examples=(
        'results',
        'results --output=page.html --plots=figures',
        'machine_a machine_b --price_per_hour=machine_a=1.20,machine_b=0.80',
    ),
    details='The page has the sentence and the table of compare, plots, machines and warnings. It '
    'needs no network. Making it needs jinja2 and matplotlib, which the extra [report] installs.',
    positional='A folder of results that --result_file or sweep wrote, or one result file.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[ReportOptions]) -> int:
    options = arguments.options
    if os.path.isfile(options.output):
        start = Path(options.output).read_bytes()[:99].lower()
        if start and b'<!doctype html' not in start:
            raise UsageError(
                f'--output={options.output}: the existing file is not an HTML page; use another '
                'path, or remove the file'
            )
    check_file('output', options.output)
    if options.plots:
        check_file('plots', f'{options.plots}/steps.png')
    rows = add_prices(read_rows(arguments.positional, options), options.price_per_hour)
    html, plots = make_page(rows, options.title)
    files: dict[Path, str | bytes] = {}
    if options.output == STDIO:
        print(html)
    else:
        files[Path(options.output)] = html
    for plot in plots if options.plots else ():
        files |= {Path(str(options.plots), name): content for name, content in plot.files()}
    for path, content in files.items():
        try:
            write_atomically(content, path)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RunError(f'{path}: it cannot be written ({reason})') from None
    num_runs = sum(len(row.runs) for row in settings_with_references(rows))
    size = f'{len(html.encode()) / 1000:.0f} kB'
    # A page on standard output stands there alone.
    stream = sys.stderr if options.output == STDIO else sys.stdout
    counts = f'{plural(num_runs, "result")} in {plural(len(plots), "plot")}'
    print(answer(rows), f'{options.output}: {counts}, {size}', sep='\n', file=stream)
    return print_verdict(rows, options)

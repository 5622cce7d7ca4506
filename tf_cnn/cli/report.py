"""`tf_cnn_benchmarks.py report`: makes an HTML page of results. Does not import TensorFlow."""

import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.compare.config import ReportOptions
from tf_cnn.results.collection import collect
from tf_cnn.run.outputs import check_file
from tf_cnn.system.atomic import write_atomically
from tf_cnn.system.errors import (
    RunError,
    UsageError,
    format_flag,
    missing_package_message,
    plural,
    warn,
)

DECLARATION = Declaration(
    'report',
    ReportOptions,
    examples=(
        'results',
        'results --output=page.html --plots=figures',
        'machine_a machine_b --price_per_hour=machine_a=1.20,machine_b=0.80',
    ),
    details='The page has a table with speed-ups, three plots, machines and warnings. It needs no '
    'network. Making it needs jinja2 and matplotlib, which the extra [report] installs.',
    positional='A folder of results that --result_file or sweep wrote, or one result file.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[ReportOptions]) -> int:
    # Otherwise matplotlib would leave its list of fonts in the home directory.
    with tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks-') as folder:
        os.environ.setdefault('MPLCONFIGDIR', folder)
        return _make_report(arguments.options, arguments.positional)


def _make_report(options: ReportOptions, paths: Sequence[str]) -> int:
    # matplotlib also warns about the user's settings, which the plots do not use.
    logging.getLogger('matplotlib').setLevel(logging.ERROR)
    for name in ('jinja2', 'matplotlib'):
        try:
            importlib.import_module(name)
        except ImportError:
            raise UsageError(
                f'report draws with jinja2 and matplotlib: {missing_package_message(name)}'
            ) from None
    from tf_cnn.compare.report_page import make_page
    from tf_cnn.compare.report_plots import plot_warnings

    output = Path(options.output)
    if (
        output.is_file()
        and (start := output.read_bytes()[:99])
        and b'<!doctype html' not in start.lower()
    ):
        raise UsageError(
            f'{format_flag("output", output)}: the existing file is not an HTML page; use another '
            'path, or remove the file'
        )
    check_file('output', options.output)
    if options.plots:
        check_file('plots', f'{options.plots}/steps.png')
    collection = collect(paths)
    target = output
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always', UserWarning)
        page = make_page(
            collection,
            now=datetime.now(UTC),
            title=options.title,
            price_per_hour=options.price_per_hour,
        )
        try:
            write_atomically(page.html, target)
            for plot in page.plots if options.plots else ():
                for name, content in plot.files():
                    target = Path(str(options.plots), name)
                    write_atomically(content, target)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RunError(f'{target}: it cannot be written ({reason})') from None
    warn(
        *collection.problems,
        *plot_warnings([str(warning.message) for warning in caught], options.plots),
    )
    size = output.stat().st_size / 1000
    results, plots = plural(len(collection.results), 'result'), plural(len(page.plots), 'plot')
    print(*page.answers, sep='\n')
    print(f'{output}: {results} in {plots}, {size:.0f} kB')
    return 0

"""`tf_cnn_benchmarks.py report`: makes an HTML page of results. Does not import TensorFlow."""

import importlib
import logging
import os
import sys
import tempfile

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.compare.config import ReportOptions
from tf_cnn.system.errors import STDIO, UsageError, missing_package_message, warn

DECLARATION = Declaration(
    'report',
    ReportOptions,
    usage='DIR ... [--flag=value ...]',
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
        # matplotlib also warns about the user's settings, which the plots do not use.
        logging.getLogger('matplotlib').setLevel(logging.ERROR)
        for name in ('jinja2', 'matplotlib'):
            try:
                importlib.import_module(name)
            except ImportError:
                raise UsageError(
                    f'report draws with jinja2 and matplotlib: {missing_package_message(name)}'
                ) from None
        from tf_cnn.compare.report_files import write_report

        warning_lines, lines = write_report(arguments.options, arguments.positional)
    warn(*warning_lines)
    # A page on standard output stands there alone.
    stream = sys.stderr if arguments.options.output == STDIO else sys.stdout
    print(*lines, sep='\n', file=stream)
    return 0

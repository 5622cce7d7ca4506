"""`tf_cnn_benchmarks.py report`: results as one HTML page. Starts without TensorFlow and matplotlib."""

import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from commands.options import Arguments, Declaration, Positional
from errors import RunError, UsageError, format_flag, format_warning, not_installed, plural
from machine.atomic import write_whole
from params.spec import flag
from results.collection import collect

if TYPE_CHECKING:
    from comparison.report_page import Page

_NEEDED = ('jinja2', 'matplotlib')
# How many unreadable results are named; the page lists all.
_MOST_NAMED = 5


@dataclass(frozen=True)
class ReportOptions:
    output: str = flag('report.html', 'The file to write.', is_path=True)
    title: str | None = flag(None, 'The heading of the page; by default it names the models.')
    plots: str | None = flag(None, 'Folder for the plots as PNG and SVG; made if missing.', is_path=True)


DECLARATION = Declaration(
    'report',
    ReportOptions,
    'Makes one HTML page of results, which needs no network: a table with speed-ups, three plots, machines and '
    'warnings.',
    examples=('results', 'results --output=page.html --plots=figures'),
    details='It needs jinja2 and matplotlib, which the extra [report] installs.',
    positional=Positional(
        'DIR', 'A folder with results that --result_file or sweep wrote, or one such file.', at_most=None, is_path=True
    ),
)


def main(argv: Sequence[str]) -> int:
    return DECLARATION.run(argv, _report)


def _report(arguments: Arguments[ReportOptions]) -> int:
    # Otherwise matplotlib leaves its list of fonts in the home directory, and settings there change the plots.
    with tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks-') as folder:
        os.environ.setdefault('MPLCONFIGDIR', folder)
        return _make_report(arguments)


def _make_report(arguments: Arguments[ReportOptions]) -> int:
    options = arguments.options
    _check_installed()
    from comparison.report_page import make_page

    output = Path(options.output)
    _check_output(output)
    if options.plots:
        _make_folder('plots', Path(options.plots))
    collection = collect(arguments.positional)
    page = make_page(collection, now=datetime.now(UTC), title=options.title)
    _write(page, output, options.plots)
    _warn_of_problems(collection.problems)
    size = output.stat().st_size / 1000
    results, plots = plural(len(collection.records), 'result'), plural(len(page.plots), 'plot')
    print(f'{output}: {results} in {plots}, {size:.0f} kB')
    return 0


def _check_installed() -> None:
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            raise UsageError(f'report draws with jinja2 and matplotlib: {not_installed(name)}') from None


def _check_output(output: Path) -> None:
    """Raises UsageError, before the work is done, if the file cannot be written."""
    if output.is_dir():
        raise UsageError(f'{format_flag("output", output)}: it is a folder; write the name of a file in it')
    if output.is_file() and (start := output.read_bytes()[:99]) and b'<!doctype html' not in start.lower():
        raise UsageError(
            f'{format_flag("output", output)}: the file there is not a page; write another path, or remove it'
        )
    _make_folder('output', output.parent)
    if not os.access(output.resolve().parent, os.W_OK):
        raise UsageError(f'{format_flag("output", output)}: its folder cannot be written to; write another path')


def _make_folder(flag: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f'{format_flag(flag, folder)}: a file is where a folder must be; write another path') from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f'{format_flag(flag, folder)}: it cannot be made ({reason}); write another path') from None


def _write(page: 'Page', output: Path, folder: str | None) -> None:
    try:
        write_whole(page.html, str(output))
    except OSError as error:
        raise RunError(f'{output}: it could not be written ({(error.strerror or str(error)).lower()})') from None
    if not folder:
        return
    try:
        for plot in page.plots:
            plot.save(Path(folder))
    except OSError as error:
        raise RunError(f'{error.filename or folder}: it could not be written ({error.strerror or error})') from None


def _warn_of_problems(problems: Sequence[str]) -> None:
    lines = list(problems[:_MOST_NAMED])
    if (others := len(problems) - len(lines)) > 0:
        lines.append(f'{plural(others, "more result")} could not be read; the page lists them')
    for line in lines:
        print(format_warning(line), file=sys.stderr)

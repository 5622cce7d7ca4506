"""Writes the page of the report, and its plots. Needs the extra `report`."""

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tf_cnn.compare.config import ReportOptions
from tf_cnn.compare.report_page import Page, make_page
from tf_cnn.compare.report_plots import plot_warnings
from tf_cnn.plan.outputs import check_file
from tf_cnn.results.collection import collect
from tf_cnn.results.tables import escape_unprintable
from tf_cnn.system.atomic import write_atomically
from tf_cnn.system.errors import STDIO, RunError, UsageError, format_flag, plural


def write_report(options: ReportOptions, paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Writes the files; returns the warnings, and the lines for standard output.

    Raises UsageError for wrong flags and paths, and RunError if a file cannot be written.
    """
    _check_outputs(options)
    collection = collect(paths)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always', UserWarning)
        page = make_page(
            collection,
            now=datetime.now(UTC),
            title=options.title,
            price_per_hour=options.price_per_hour,
        )
        _write_files(page, options)
    num_results = len(collection.results) + len(collection.commands)
    results, plots = plural(num_results, 'result'), plural(len(page.plots), 'plot')
    return (
        [
            *collection.problems,
            *plot_warnings([str(warning.message) for warning in caught], options.plots),
        ],
        [
            *map(escape_unprintable, page.answers),
            f'{options.output}: {results} in {plots}, {len(page.html.encode()) / 1000:.0f} kB',
        ],
    )


def _check_outputs(options: ReportOptions) -> None:
    """Raises UsageError if the outputs cannot be written, or if another file would be lost."""
    output = Path(options.output)
    if (
        options.output != STDIO
        and output.is_file()
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


def _write_files(page: Page, options: ReportOptions) -> None:
    target = Path(options.output)
    if options.output == STDIO:
        print(page.html)
    try:
        if options.output != STDIO:
            write_atomically(page.html, target)
        for plot in page.plots if options.plots else ():
            for name, content in plot.files():
                target = Path(str(options.plots), name)
                write_atomically(content, target)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunError(f'{target}: it cannot be written ({reason})') from None

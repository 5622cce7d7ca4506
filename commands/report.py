"""`tf_cnn_benchmarks.py report`: results as one HTML page. Starts without TensorFlow and matplotlib."""

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from commands.options import Arguments, Declaration, Positional
from errors import RunError, UsageError, counted, spelled
from params.spec import flag
from reporting import history
from reporting.change_points import change_points
from reporting.collection import Collection, collect
from reporting.console import format_warning
from reporting.history import History
from reporting.measured import measured, read_measured

if TYPE_CHECKING:
    from reporting.figures import Plot
    from reporting.page import Page

_NEEDED = ('jinja2', 'matplotlib')
_MOST_TOLD = 5


@dataclass(frozen=True)
class Options:
    """The flags of the subcommand."""

    output: str = flag(
        'report.html', 'The file to write. With --serve none is written unless it is given.', is_path=True
    )
    title: str | None = flag(None, 'The heading of the page; by default it names the models.')
    history: str | None = flag(None, 'A file of --history; its rates over the months are shown, too.', is_path=True)
    plots: str | None = flag(None, 'Folder for each plot as PNG and SVG, for papers; made if missing.', is_path=True)
    serve: bool = flag(
        False, 'Serve the page on this machine until Ctrl-C, and make it again when results come; needs no file.'
    )
    port: int = flag(8000, 'Port of --serve; 0: any that is free.', lower_bound=0, upper_bound=65535)


DECLARATION = Declaration(
    'report',
    Options,
    'Makes one HTML page of results, which needs no network: a table with speed-ups, plots, machines, flags and '
    'warnings.',
    examples=('results', 'results --output=page.html --plots=figures', 'results --serve'),
    details="It needs jinja2 and matplotlib: pip install 'tf_cnn_benchmarks[report]'.",
    positional=Positional(
        'DIR', 'A folder with results that --result_file or sweep wrote, or one such file.', at_most=None, is_path=True
    ),
)


def main(argv: Sequence[str]) -> int:
    """Runs `report` with the arguments in argv; returns the exit code.

    Raises:
      UsageError: an argument is wrong, there are no results, or the extra `report` is not installed.
      RunError: a file could not be written.
    """
    return DECLARATION.run(argv, _report)


def _report(arguments: Arguments[Options]) -> int:
    options = arguments.options
    _check_installed()
    if 'port' in arguments.given and not options.serve:
        raise UsageError(f'--port={options.port}: only --serve opens a port; add it, or leave this out')
    output = None if options.serve and 'output' not in arguments.given else Path(options.output)
    if output:
        _check_output(output)
    if options.plots:
        _make_folder(options.plots)
    if options.serve:
        return _serve(arguments.positional, options, output)
    collection, past = collect(arguments.positional, read_measured), _past(options)
    page = _made(collection, past, options)
    assert output
    _write(page, output, options.plots)
    _tell_problems([*collection.problems, *past.problems])
    size = output.stat().st_size / 1000
    results, plots = counted(len(collection.records), 'result'), counted(len(page.plots), 'plot')
    print(f'{output}: {results} in {plots}, {size:.0f} kB')
    return 0


def _serve(paths: Sequence[str], options: Options, output: Path | None) -> int:
    from cluster.signals import Interrupts
    from reporting.page import make_waiting_page
    from reporting.serve import NotNowError, PageServer

    for path in paths:
        if not Path(path).exists():
            raise UsageError(f'{path}: there is no such file or folder; make it, or give another one')

    def make(version: str) -> str:
        try:
            collection = collect(paths, read_measured)
        except UsageError as error:
            return make_waiting_page(str(error), version)
        try:
            past = _past(options)
        except RunError as error:
            # The history is locked. The server looks again.
            print(format_warning(str(error)), file=sys.stderr)
            raise NotNowError(make_waiting_page(str(error), '')) from error
        page = _made(collection, past, options, version)
        if output:
            _write(_made(collection, past, options), output, options.plots)
        elif options.plots:
            _save_plots(page.plots, options.plots)
        _tell_problems([*collection.problems, *past.problems])
        return page.html

    watched = [Path(path) for path in (*paths, *([options.history] if options.history else []))]
    with Interrupts().listening():
        server = PageServer(watched, make, options.port)
        print(f'The report is at {server.address} until Ctrl-C.', flush=True)
        server.run(lambda: print('Made the page again, there are other results.', flush=True))
    return 0


def _past(options: Options) -> History:
    return history.read(options.history, check=measured) if options.history else History([], [])


def _made(collection: Collection, past: History, options: Options, version: str | None = None) -> 'Page':
    from reporting.page import make_page

    return make_page(
        replace(collection, problems=(*collection.problems, *past.problems)),
        now=datetime.now(timezone.utc),
        title=options.title,
        history=past.records,
        change_points=change_points,
        version=version,
    )


def _check_installed() -> None:
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            raise UsageError(
                f"report needs {name}, which is not installed: pip install 'tf_cnn_benchmarks[report]'"
            ) from None


def _check_output(output: Path) -> None:
    """Refuses a file that cannot be written, before the work is done."""
    if output.is_dir():
        raise UsageError(f'{spelled("output", output)}: it is a folder; write the name of a file in it')
    if not output.parent.is_dir():
        raise UsageError(f'{spelled("output", output)}: there is no folder {output.parent}; make it first')
    if not os.access(output.resolve().parent, os.W_OK):
        raise UsageError(f'{spelled("output", output)}: its folder cannot be written to; write another path')


def _make_folder(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f'{spelled("plots", folder)}: a file is where a folder must be; write another path') from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f'{spelled("plots", folder)}: it cannot be made ({reason}); write another path') from None


def _write(page: 'Page', output: Path, folder: str | None) -> None:
    """Writes the page as a whole or not at all, then the plots."""
    target = output.resolve()
    unfinished = target.with_name(f'.{target.name}.{os.getpid()}')
    try:
        unfinished.write_text(page.html, encoding='utf-8')
        unfinished.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise RunError(f'{output}: it could not be written ({(error.strerror or str(error)).lower()})') from None
    if folder:
        _save_plots(page.plots, folder)


def _save_plots(plots: Sequence['Plot'], folder: str) -> None:
    try:
        for plot in plots:
            plot.save(Path(folder))
    except OSError as error:
        raise RunError(f'{error.filename or folder}: it could not be written ({error.strerror or error})') from None


def _tell_problems(problems: Sequence[str]) -> None:
    told = list(problems[:_MOST_TOLD])
    if (others := len(problems) - len(told)) > 0:
        told.append(f'{counted(others, "more result")} could not be read; the page lists them')
    for line in told:
        print(format_warning(line), file=sys.stderr)

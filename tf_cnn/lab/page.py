"""Makes one self-contained HTML page of rows: what compare prints, with plots, machines and
commands. Needs the extra `report`.
"""

import base64
import importlib
import logging
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tf_cnn.lab.original_logs import documents
from tf_cnn.lab.rows import Row, settings_with_references
from tf_cnn.lab.sentence import answer
from tf_cnn.lab.show import common_line, make_table
from tf_cnn.results.document import Result
from tf_cnn.results.summary import format_limits, format_machine
from tf_cnn.results.tables import abbreviate, escape_unprintable
from tf_cnn.system.errors import UsageError, missing_package_message

if TYPE_CHECKING:
    from tf_cnn.lab.plots import Plot

_TEMPLATES = Path(__file__).parent / 'templates'


def make_page(rows: Sequence[Row], title: str | None = None) -> 'tuple[str, Sequence[Plot]]':
    """Returns the page, and its plots for files of their own. The default title names the models.

    Raises UsageError if a package is missing.
    """
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
                    f'a page needs jinja2 and matplotlib: {missing_package_message(name)}'
                ) from None
        return _render(rows, title)


def _render(rows: Sequence[Row], title: str | None) -> 'tuple[str, Sequence[Plot]]':
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    from tf_cnn.lab.plots import make_plots

    plots, settings = make_plots(rows), settings_with_references(rows)
    table, notes = make_table(rows)
    models = [*dict.fromkeys(run.model.name for row in rows for run in row.results)]
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Documents may contain control characters, also ones that reverse the text direction.
        finalize=lambda value: value if isinstance(value, Markup) else escape_unprintable(value),
    )
    # A long name may break after an underscore.
    environment.filters['breakable'] = lambda text: escape(escape_unprintable(text)).replace(
        '_', Markup('_<wbr>')
    )
    html = environment.get_template('rows.html.jinja').render(
        title=title or (f'Images per second: {abbreviate(models)}' if models else 'Results'),
        answer=answer(rows),
        common=common_line(rows),
        table=table,
        notes=notes,
        left_out=[row for row in rows if row.remark.startswith('left out')],
        plots=[(plot, base64.b64encode(plot.image()).decode()) for plot in plots],
        machines=_machines(settings),
        commands=_commands(settings),
        css=Markup((_TEMPLATES / 'report.css').read_text(encoding='utf-8')),
    )
    return html, plots


def _machines(rows: Sequence[Row]) -> Mapping[str, Mapping[str, None]]:
    """Returns the names of machines by their description."""
    machines: dict[str, dict[str, None]] = {}
    for run in (run for row in rows for run in documents(row.runs)):
        description = '; '.join([*format_machine(run.machine), *format_limits(run.machine)])
        machines.setdefault(description, {})[str(run.machine['hostname'])] = None
    return machines


def _commands(rows: Sequence[Row]) -> Mapping[str, str]:
    """Returns the settings by command line: each flag once, with the value that was used."""
    commands: dict[str, str] = {}
    for row in rows:
        for run in documents(row.runs[:1]):
            flags = run.given_flags
            words = [text for name, text in flags.items() if name not in ('repeat', 'result_file')]
            command = shlex.join(['tf_cnn_benchmarks', *words])
            if not isinstance(run, Result):
                command = ' '.join(f'{name}={text}' for name, text in flags.items())
            commands.setdefault(command, row.name)
    return commands

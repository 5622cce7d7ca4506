"""What README.md and docs/ quote is the program's: QUOTATIONS and OUTPUTS list it."""

import ast
import fnmatch
import functools
import importlib
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commands.options import Declaration
from commands.subcommands import SUBCOMMANDS
from machine.doctor_process import FAMILIES
from models.costs import format_docs, list_costs
from params import SPECS
from params.older_names import OLDER_NAMES
from params.original import TABLE
from params.spec import specs_of
from results.advice import ADVICE
from tests.support.documents import PAGES, ROOT, shell_lines, split_line
from tests.support.sample_results import sample_document, write_sample

DECLARATIONS: list[Declaration[Any]] = [importlib.import_module(f'commands.{name}').DECLARATION for name in SUBCOMMANDS]
OTHER_PROGRAMS = ('chromium', 'docker', 'horovodrun', 'kubectl', 'mpirun', 'pip', 'pytest', 'srun', 'tensorboard')
# Flags of every subcommand, of a sweep's table and of scripts; then those of these tests, Docker and Slurm.
OTHER_FLAGS = (
    *('help', 'version', 'shape', 'num_images', 'leave_one_out', 'clusters', 'protocol'),
    *('all_modes', 'combinations', 'combinations_seed', 'cpus', 'gpus', 'hostname', 'time', 'user', 'distribution'),
)

# ---- what the pages quote --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quotation:
    """What a page quotes from the program.

    Attributes:
      page: its path in the project; README.md and every page of docs/ if it is empty.
      what: the name of what is quoted.
      pattern: finds the quoted texts: its group, or all of it without a group.
      faults: returns what is wrong with the quoted texts.
      at_least: how many of them there must be.
    """

    page: str
    what: str
    pattern: str
    faults: Callable[[Sequence[str]], Iterable[str]]
    at_least: int = 1


def all_of(names: Callable[[], Iterable[str]]) -> Callable[[Sequence[str]], Iterable[str]]:
    """The page must quote all of these, and may quote others."""
    return lambda quoted: {*names()} - {*quoted}


def none_but(is_known: Callable[[str], bool]) -> Callable[[Sequence[str]], Iterable[str]]:
    """The page must quote nothing else."""
    return lambda quoted: {one for one in quoted if not is_known(one)}


@functools.cache
def _strings_of_the_program() -> list[str]:
    """All strings in its source; neighbours are joined, and what is computed in them is left out."""
    rooms = [path.parent for path in ROOT.glob('*/__init__.py') if path.parent.name not in ('benchmarks', 'tests')]
    found = []
    for path in [*ROOT.glob('*.py'), *(path for room in rooms for path in room.rglob('*.py'))]:
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else '\0' for part in node.values]
                found.append(''.join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def _is_message(text: str) -> bool:
    """Whether its parts between dots stand in one string of the program, in this order."""
    parts = [re.escape(part.strip()) for part in text.split('...') if part.strip(' :;,')]
    pattern = re.compile('.*?'.join(parts), flags=re.DOTALL)
    return bool(parts) and any(pattern.search(string) for string in _strings_of_the_program())


@functools.cache
def _flags() -> set[str]:
    return {
        *SPECS,
        *OLDER_NAMES,
        *TABLE,
        *OTHER_FLAGS,
        *(flag for one in DECLARATIONS for flag in specs_of(one.options)),
    }


def _is_file(path: str) -> bool:
    # make docs makes this one.
    return path == 'docs/flags.md' or any((ROOT / folder / path).exists() for folder in ('', 'tests', 'docs'))


def _is_python(block: str) -> bool:
    return bool(ast.parse(textwrap.dedent(block)).body)


def _steps_of_ci() -> list[str]:
    return re.findall(r'^make \w+$', (ROOT / '.ci' / 'run').read_text(), flags=re.MULTILINE)


@functools.cache
def _checks() -> list[str]:
    # Imported here, because it imports TensorFlow.
    from machine import doctor_checks, doctor_program

    families = {**doctor_checks.FAMILIES, **doctor_program.FAMILIES}
    return [f'{family}/{name}' for family in FAMILIES for name in families[family]]


def _is_check(pattern: str) -> bool:
    # Capitals stand for any word.
    return bool(fnmatch.filter(_checks(), re.sub(r'\b[A-Z]{3,}\b', '*', pattern)))


def _is_default(quoted: str) -> bool:
    name, _, value = quoted.partition('` (')
    return f'{SPECS[name].default:g}' == value


QUOTATIONS = (
    Quotation(
        '',
        'flags',
        r'(?<![\w-])--([a-z]\w*)(?![\w-])',
        none_but(lambda name: name.removeprefix('no') in _flags()),
        at_least=150,
    ),
    Quotation(
        '',
        'paths',
        r'(?<![\w/.=-])((?:[a-z_]+/)+[a-z_0-9.]+\.(?:py|md|toml|json|csv|txt|sh|jinja))\b',
        none_but(_is_file),
        at_least=90,
    ),
    Quotation(
        'docs/troubleshooting.md',
        'messages',
        r'^\| `(.+?)` \|(?=(?:.*\n)*## No message)',
        none_but(_is_message),
        at_least=30,
    ),
    Quotation('', 'timeouts', r'`--(\w+_timeout_secs` \([\d.]+)\)', none_but(_is_default), at_least=1),
    Quotation('docs/gpu.md', 'checks', rf'`((?:{"|".join(FAMILIES)})/[\w/*]+)`', none_but(_is_check), at_least=8),
    Quotation('docs/gpu.md', 'families of checks', r'`(\w+)/', all_of(lambda: FAMILIES)),
    Quotation('docs/models.md', 'costs', r'^(\|.*)$', all_of(lambda: format_docs(list_costs()).strip().split('\n'))),
    Quotation('docs/contributing.md', 'steps of .ci/run', r'`(make \w+)`', all_of(_steps_of_ci)),
    Quotation(
        '',
        'Python',
        r'(^ {4}(?:import \w+\n {4})?from tf_cnn_benchmarks import .*\n(?:\n?^ {4}.*\n)*)',
        none_but(_is_python),
    ),
    Quotation('docs/results.md', 'warnings', r'`(\w+)`', all_of(lambda: ADVICE)),
    Quotation('docs/results.md', 'parts of a document', r'`(\w+)`', all_of(sample_document)),
)


@pytest.mark.unit
@pytest.mark.parametrize('row', QUOTATIONS, ids=lambda row: f'{row.page or "all pages"}-{row.what}')
def test_what_a_page_quotes_is_the_programs(row: Quotation) -> None:
    pages = [ROOT / row.page] if row.page else PAGES
    quoted = [one for page in pages for one in re.findall(row.pattern, _own_text(page), flags=re.MULTILINE)]
    assert len({*quoted}) >= row.at_least
    assert sorted(row.faults(quoted)) == []


def _own_text(page: Path) -> str:
    """The text of a page without the examples of extending.md and the command lines of other programs."""
    text = page.read_text(encoding='utf-8').replace('\\\n', ' ')
    if page.name == 'extending.md':
        text = re.sub(r'^```(\w+)\n.*?^```$|--logit_temperature', '', text, flags=re.MULTILINE | re.DOTALL)
    of_others = rf'^ *(#SBATCH|([A-Z_]+=\S+ )*({"|".join(OTHER_PROGRAMS)}) )((?!tf_cnn_benchmarks).)*'
    return re.sub(of_others, '', text, flags=re.MULTILINE)


# ---- what they show of outputs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownOutput:
    """A block of a page with what a command prints.

    Attributes:
      page: its path in the project.
      command: the words after the name of the program; empty for those of the first shell line of the page.
      begins: the first word of the block.
      prepare: writes what the command reads into its folder.
    """

    page: str
    command: str
    begins: str
    prepare: Callable[[Path], object] = lambda folder: None


def _write_before_and_after(folder: Path) -> None:
    for name, version, rate in (('before', '2.20.0', 100), ('after', '2.21.0', 92)):
        for seed in range(5):
            document = sample_document(rate=rate + seed / 2, seed=seed, flags={'xla': name == 'after'})
            document['machine']['versions']['tensorflow'] = version
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f'{seed}.json').write_text(json.dumps(document))


def _write_earlier(folder: Path) -> None:
    for day in range(10):
        document = sample_document(rate=100 + day % 2, seed=day, started_at=f'2026-10-{day + 1:02}T08:00:00Z')
        document['machine']['versions']['tensorflow'] = '2.20.0'
        (folder / 'results').mkdir(exist_ok=True)
        (folder / 'results' / f'{day}.json').write_text(json.dumps(document))
    write_sample(folder / 'after.json', rate=92)


OUTPUTS = (
    pytest.param(ShownOutput('README.md', '', 'TensorFlow:'), marks=pytest.mark.distributed),
    pytest.param(
        ShownOutput('docs/compare.md', 'compare before after', 'run', _write_before_and_after), marks=pytest.mark.unit
    ),
    pytest.param(
        ShownOutput('docs/compare.md', 'compare after.json --against=results', 'run ', _write_earlier),
        marks=pytest.mark.unit,
    ),
)


@pytest.mark.parametrize('row', OUTPUTS, ids=lambda row: f'{row.page}-{row.command or "first"}')
def test_a_command_prints_what_a_page_shows(row: ShownOutput, tmp_path: Path) -> None:
    row.prepare(tmp_path)
    lines = [split_line(line.text) for line in shell_lines() if line.page == row.page]
    argv = row.command.split() or next([*line.argv] for line in lines if line)
    ran = subprocess.run(
        [sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), *argv],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    printed = _without_figures(ran.stdout)
    blocks = re.findall(r'(?:^ {4}.*\n(?:\n(?= {4}))?)+', (ROOT / row.page).read_text(), flags=re.MULTILINE)
    shown = [_without_figures(block) for block in blocks if block.lstrip().startswith(row.begins)]
    found = next((block for block in shown if block[: len(printed)] == printed), shown[0])
    assert found[: len(printed)] == printed
    # What a page shows below it is of standard error. Whether there are warnings depends on the machine.
    labels = {line.partition(':')[0] for line in found[len(printed) :]}
    assert labels <= {line.partition(':')[0] for line in ran.stderr.splitlines()} | {'tf_cnn_benchmarks'}


def _without_figures(text: str) -> list[str]:
    """The lines that are not empty, without measured figures, widths of columns, and facts of the machine."""
    lines = [' '.join(line.split()) for line in text.splitlines() if line.strip()]
    lines = [re.sub(r'^(TensorFlow|Devices|Data format|Machine):.*', r'\1', line) for line in lines]
    return [re.sub('[─=-]{5,}', '-', re.sub(r'\d+\.\d\d?\d?(?![\d.])', 'N', line)) for line in lines]

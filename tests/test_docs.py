"""Every shell line of README.md and docs/ works: see "Shell lines in the documentation" in contributing.md.

It must be possible to plan a line that runs this program on this machine. A block that needs more has a comment above
it, `<!-- needs: 8 GPUs -->`; its lines are adapted to this machine first (documents.fit).
"""

import importlib
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tf_cnn_benchmarks
from commands.options import Declaration
from commands.subcommands import SUBCOMMANDS
from errors import UsageError
from models.registry import MODELS, load_model_file
from params import Params, RunFacts, find_idle, parse_argv
from planning.environment import Environment
from planning.make_plan import make_plan
from planning.plan import Plan, ServerPlan
from tests.support.documents import PAGES, ROOT, CommandLine, ShellLine, fit, python_block, shell_lines, split_line
from tests.support.images import write_noise, write_photos

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('same_environment')]

LINES = list(shell_lines())
MODULES = {name: importlib.import_module(f'commands.{name}') for name in SUBCOMMANDS}
DECLARATIONS: dict[str, Declaration[Any]] = {
    name: module.DECLARATION for name, module in MODULES.items() if hasattr(module, 'DECLARATION')
}
# Pages whose lines are all run by another test.
RUN_ELSEWHERE = {'docs/extending.md': 'test_extending.py'}
SETUP = (ROOT / 'setup.py').read_text()


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('data')
    (folder / 'imagenet').mkdir()
    write_noise(folder / 'imagenet', num_validation=12)
    return folder


def test_lines_are_found_in_every_kind_of_block() -> None:
    pages = {line.page for line in LINES}
    assert {'README.md', 'docs/training.md', 'docs/distributed.md', 'docs/extending.md'} <= pages
    assert len(LINES) > 80
    assert any(line.needs for line in LINES)


def test_every_line_of_this_program_is_planned(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget_models: None
) -> None:
    (tmp_path / 'tiny_resnet.py').write_text(python_block('models.md'))
    monkeypatch.chdir(tmp_path)
    wrong = []
    for line in LINES:
        found = split_line(line.text)
        if found and line.page not in RUN_ELSEWHERE and (fault := fault_of(line, list(found.argv), data, tmp_path)):
            wrong.append(f'{line}\n  {fault}')
    assert not wrong, '\n'.join(wrong)


def fault_of(line: ShellLine, argv: list[str], data: Path, outputs: Path) -> str | None:
    """Returns what is wrong with the arguments of this program, or None."""
    if not argv or argv[0].startswith('-'):
        if {*argv} & {'--version', '--help'} or any(word.startswith('--help=') for word in argv):
            return None
        return _fault_of_run(line, argv, data, outputs)
    if argv[0] not in DECLARATIONS:
        return None if argv[0] in MODULES else 'there is no such subcommand'
    try:
        rest = DECLARATIONS[argv[0]].parse(argv[1:]).rest
        parsed = parse_argv(MODULES['sweep'].split_hosts(rest)[0] if argv[0] == 'sweep' else rest)
        # Other sweeps need files of the reader.
        if argv[0] == 'sweep' and not {'--resume', 'modes.toml'} & {*argv}:
            words = [str(ROOT / word) if word.startswith('benchmarks/') else word for word in argv[1:]]
            MODULES['sweep'].main(['--dry_run', *words, *(['--device=cpu'] if line.needs else [])])
    except UsageError as error:
        return str(error)
    return '; '.join([*parsed.warnings, *_idle(parsed.params, alone=False)]) or None


def _idle(params: Params, *, alone: bool) -> list[str]:
    # Lines of clusters are those of several parameter servers, for which no flag about them is idle.
    facts = RunFacts(alone=alone, residual=MODELS.find_model(params.model).residual, num_ps=0 if alone else 2)
    return find_idle(params, facts)


def _fault_of_run(line: ShellLine, argv: list[str], data: Path, outputs: Path) -> str | None:
    launcher = (split_line(line.text) or CommandLine((), ())).launcher
    try:
        parsed = parse_argv(argv)
        if parsed.params.model_file:
            load_model_file(parsed.params.model_file)
        is_alone = launcher not in ('mpirun', 'srun', 'horovodrun') and '_hosts=' not in line.text
        if faults := [*parsed.warnings, *_idle(parsed.params, alone=is_alone)]:
            return '; '.join(faults)
        if parsed.params.eval or parsed.params.backbone_model_path or launcher in ('mpirun', 'srun', 'horovodrun'):
            # Checkpoints and other processes are missing here; other tests cover them.
            return None
        plan = make_plan(parse_argv(fit(argv, data, outputs, keep_devices=not line.needs)).params, Environment({}))
    except UsageError as error:
        return str(error)
    assert isinstance(plan, Plan | ServerPlan)
    return None


def _make(words: list[str]) -> bool:
    targets = [word for word in words[1:] if '=' not in word]
    return all(re.search(rf'^{target}:', (ROOT / 'Makefile').read_text(), flags=re.MULTILINE) for target in targets)


def _pip(words: list[str]) -> bool:
    """Whether the words install the program with existing extras, or a package that an extra names."""
    known = re.findall(r"^        '(\w+)': ", SETUP, flags=re.MULTILINE)
    for word in words[2:]:
        own = re.fullmatch(r'\.(\[(.+)\])?', word)
        if own and not {*(own[2] or '').split(','), 'dev'} - {''} <= {*known, 'dev'}:
            return False
        if not own and not re.search(rf"['\"]{re.escape(word.split('<')[0])}\b", SETUP):
            return False
    return words[1] == 'install'


def _script(words: list[str]) -> bool:
    """Whether the words run a file or module of the project with flags that appear in its text."""
    module = words[2] if words[1] == '-m' else ''
    if module == 'pytest':
        return all((ROOT / word.split('::')[0]).exists() for word in words[3:] if word.startswith('tests/'))
    path = ROOT / (f'{module.replace(".", "/")}.py' if module else words[1])
    flags = [word.split('=')[0] for word in words if word.startswith('--')]
    return path.is_file() and all(f"'{flag}'" in path.read_text() for flag in flags)


# For lines that run other programs: the first word, and the check of the line.
OTHERS: dict[str, Callable[[list[str]], bool]] = {
    'make': _make,
    'pip': _pip,
    'pipx': _pip,
    'python': _script,
    'source': lambda words: words == ['source', '.venv/bin/activate'],
    'bash': lambda words: (ROOT / words[1]).is_file(),
}


def test_every_other_line_is_checked_or_says_what_it_needs() -> None:
    wrong = []
    for line in LINES:
        words = shlex.split(line.text, comments=True)
        if words[0] in ('TENSORFLOW_PACKAGE=tensorflow', 'TENSORFLOW_PACKAGE=tensorflow-cpu'):
            words = words[1:]
        check = OTHERS.get(words[0].removeprefix('.venv/bin/'))
        if split_line(line.text) or line.needs or line.page in RUN_ELSEWHERE:
            continue
        if check is None or not check(words):
            wrong.append(str(line))
    assert not wrong, '\n'.join(wrong)


# Flags that shorten the runs of a page.
SMALL = {'model': 'lenet', 'batch_size': '2', 'num_batches': '2', 'num_warmup_batches': '1', 'device': 'cpu'}


@pytest.mark.long
def test_the_commands_about_your_own_images_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('PIL', reason='records needs Pillow')
    write_photos(tmp_path / 'PHOTOS')
    monkeypatch.chdir(tmp_path)
    totals = 0
    page = (ROOT / 'docs' / 'data.md').read_text().splitlines()
    begin, end = page.index('## Your own images'), page.index('## What training images undergo')
    for line in [line for line in LINES if line.page == 'docs/data.md' and begin < line.number < end]:
        found = split_line(line.text)
        if found is None:
            # The script that makes photographs has a test of its own.
            assert 'benchmarks/sample_photographs.py' in line.text
            continue
        argv = list(found.argv)
        if argv[0].startswith('-'):
            kept = [word for word in argv if word.lstrip('-').partition('=')[0] not in {*SMALL, 'num_epochs'}]
            small = {key: value for key, value in SMALL.items() if '--eval' not in argv or 'num_' not in key}
            argv = [*kept, *(f'--{name}={value}' for name, value in small.items())]
            totals += 1
        assert tf_cnn_benchmarks.main([word.replace('--shards=8', '--shards=2') for word in argv]) == 0, line
    assert len(re.findall(r'^total images/sec: \d', capfd.readouterr().out, flags=re.MULTILINE)) == totals == 5


def test_pages_that_others_run_are_run_there() -> None:
    for page, test in RUN_ELSEWHERE.items():
        assert Path(page).name in (ROOT / 'tests' / test).read_text()


def test_every_link_leads_somewhere() -> None:
    wrong = []
    for page in PAGES:
        for path, anchor in re.findall(r'\]\(([^)#:\s]*)(?:#([^)]*))?\)', page.read_text()):
            target = (page.parent / path) if path else page
            if not target.exists():
                wrong.append(f'{page.name}: {path}')
            elif anchor and target.suffix == '.md' and anchor not in _anchors(target):
                wrong.append(f'{page.name}: {path}#{anchor}')
    assert wrong == []


def _anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r'^#+ (.+)$', page.read_text(), flags=re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


def test_the_index_has_every_page_once_in_one_of_its_groups() -> None:
    index = (ROOT / 'docs' / 'README.md').read_text()
    _, *groups = re.split(r'^## ', index, flags=re.MULTILINE)
    assert [group.splitlines()[0] for group in groups] == ['Start', 'Tasks', 'Reference', 'Background']
    listed = [page for group in groups for page in re.findall(r'^\| \[(\w+\.md)\]', group, flags=re.MULTILINE)]
    assert sorted([*listed, 'README.md']) == sorted(path.name for path in PAGES if path.parent.name == 'docs')
    assert '(docs/README.md)' in (ROOT / 'README.md').read_text()

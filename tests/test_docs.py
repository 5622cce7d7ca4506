"""Every shell line of README.md and docs/ works: see "Shell lines in the documentation" in
CONTRIBUTING.md.

A line that runs this program must have a plan on this machine. A block that needs more has a
comment above it, `<!-- needs: 8 GPUs -->`; documents.fit adapts its lines to this machine first.
"""

import importlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tf_cnn_benchmarks
from models.registry import MODELS, load_model_file
from tests.support.documents import fit, python_block, split_line
from tests.support.images import write_photos
from tests.support.programs import ROOT
from tf_cnn.cli.options import Declaration
from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.lab.sources import split_host_flags
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.params import Params, RuleContext
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.plan.plan import Plan, ServerPlan, make_plan
from tf_cnn.system.errors import UsageError

# `make docs` generates these pages, which have no shell lines.
GENERATED = {ROOT / 'docs' / name for name in ('flags.md', 'result_file.md')}
_PAGES = sorted({*(ROOT / 'docs').glob('*.md')} - GENERATED)
PAGES = [
    *(ROOT / page for page in ('README.md', 'CONTRIBUTING.md', 'benchmarks/reference/README.md')),
    *_PAGES,
]
# The first words of shell lines, possibly after variables.
_PROGRAMS = (
    'bash|chromium|docker|git|horovodrun|kubectl|make|mpirun|pip|pipx|'
    'python3?|source|srun|tensorboard|tf_cnn_benchmarks'
)
_SHELL_LINE = re.compile(rf'([A-Z_]+=\S+ )*(\.venv/bin/)?({_PROGRAMS})(\.py)? \S')
_NEEDS = re.compile(r'<!-- needs: (.+) -->')


@dataclass(frozen=True)
class ShellLine:
    """A shell line with its continuation lines, without the backslashes at line ends.

    `needs` is the text of the comment `<!-- needs: ... -->` above its block: resources that this
    machine may lack.
    """

    page: str
    number: int
    text: str
    needs: str | None

    def __str__(self) -> str:
        return f'{self.page}:{self.number}: {self.text}'


def shell_lines() -> Iterator[ShellLine]:
    for page in PAGES:
        needs, in_block = None, False
        lines = iter(enumerate(page.read_text(encoding='utf-8').splitlines(), start=1))
        for number, line in lines:
            if line.startswith('```'):
                in_block = not in_block
            elif comment := _NEEDS.match(line):
                needs = comment[1]
            elif not in_block and not line.startswith('    '):
                # Text outside of blocks ends the scope of the comment.
                needs = None if line else needs
            elif _SHELL_LINE.match(text := line.strip()):
                while text.endswith('\\'):
                    text = text.removesuffix('\\') + next(lines)[1].strip()
                yield ShellLine(page.relative_to(ROOT).as_posix(), number, text, needs)


pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('same_environment')]

LINES = list(shell_lines())
MODULES = {name: importlib.import_module(f'tf_cnn.cli.{name}') for name in SUBCOMMANDS}
DECLARATIONS: dict[str, Declaration[Any]] = {
    name: module.DECLARATION for name, module in MODULES.items() if hasattr(module, 'DECLARATION')
}
# test_extending.py runs its lines.
RUN_ELSEWHERE = ('docs/extending.md',)


def test_every_line_of_this_program_is_planned(data, tmp_path, monkeypatch, forget_models):
    (tmp_path / 'tiny_resnet.py').write_text(python_block('models.md'))
    monkeypatch.chdir(tmp_path)
    wrong = []
    for line in LINES:
        argv = split_line(line.text)
        if argv is not None and line.page not in RUN_ELSEWHERE:
            fault = fault_of(line, argv, data, tmp_path)
            wrong += [f'{line}\n  {fault}'] if fault else []
    assert not wrong, '\n'.join(wrong)


def fault_of(line: ShellLine, argv: list[str], data: Path, outputs: Path) -> str | None:
    """Returns the fault of a command line of this program, or None."""
    if not argv or argv[0].startswith('-'):
        if {*argv} & {'--version', '--help'} or any(word.startswith('--help=') for word in argv):
            return None
        return _fault_of_run(line, argv, data, outputs)
    if argv[0] not in DECLARATIONS:
        return None if argv[0] in MODULES else 'there is no such subcommand'
    try:
        rest = DECLARATIONS[argv[0]].parse(argv[1:]).run_argv
        parsed = parse_argv(split_host_flags(rest)[0] if argv[0] == 'sweep' else rest)
        # Other sweeps need the reader's files.
        if argv[0] == 'sweep' and 'modes.toml' not in argv:
            words = [
                str(ROOT / word)
                if word.startswith('benchmarks/')
                else re.sub('^--data_dir=.*', f'--data_dir={data / "imagenet"}', word)
                for word in argv[1:]
            ]
            # Runs of this program on a machine that has what this one lacks.
            is_own = line.needs and '--' in words
            MODULES['sweep'].main(['--dry_run', *words, *(['--device=cpu'] if is_own else [])])
    except UsageError as error:
        return str(error)
    return '; '.join([*parsed.warnings, *_ignored_flags(parsed.params, is_alone=False)]) or None


def _ignored_flags(params: Params, *, is_alone: bool) -> list[str]:
    # Lines of clusters have several parameter servers, so no flag about servers is ignored.
    facts = RuleContext(
        is_single_process=is_alone,
        is_residual=MODELS.find_model(params.run.model).is_residual,
        num_ps=0 if is_alone else 2,
    )
    return params.ignored_flag_warnings(facts)


def _fault_of_run(line: ShellLine, argv: list[str], data: Path, outputs: Path) -> str | None:
    is_launched = bool(re.search(r'\b(mpirun|srun|horovodrun) ', line.text))
    try:
        parsed = parse_argv(argv)
        if parsed.params.run.model_file:
            load_model_file(parsed.params.run.model_file)
        is_alone = not is_launched and '_hosts=' not in line.text
        if faults := [*parsed.warnings, *_ignored_flags(parsed.params, is_alone=is_alone)]:
            return '; '.join(faults)
        if (
            parsed.params.evaluation.eval
            or parsed.params.checkpoints.backbone_model_path
            or is_launched
        ):
            # These need checkpoints or other processes; other tests cover them.
            return None
        plan = make_plan(
            parse_argv(fit(argv, data, outputs, keep_devices=not line.needs)).params,
            ProcessEnvironment({}),
        )
    except UsageError as error:
        return str(error)
    assert isinstance(plan, Plan | ServerPlan)
    return None


def test_every_other_line_names_existing_targets_and_scripts():
    targets = {*re.findall(r'^([\w-]+):', (ROOT / 'Makefile').read_text(), flags=re.MULTILINE)}
    lines = [
        line
        for line in LINES
        if not (split_line(line.text) is not None or line.needs or line.page in RUN_ELSEWHERE)
    ]
    first_words = [
        (line, word)
        for line in lines
        if (words := shlex.split(line.text, comments=True))
        for word in words[1:2]
    ]
    assert not [
        str(line)
        for line, word in first_words
        if line.text.startswith('make') and word not in targets
    ]
    assert not [
        str(line)
        for line, word in first_words
        if word.endswith('.py') and not (ROOT / word).exists()
    ]


@pytest.mark.long
def test_the_commands_about_your_own_images_run_one_after_the_other(tmp_path, monkeypatch, capfd):
    write_photos(tmp_path / 'PHOTOS')
    monkeypatch.chdir(tmp_path)
    totals = 0
    # Flags that make a run long.
    length = re.compile('--(model|batch_size|device|num_batches|num_warmup_batches|num_epochs)=')
    page = (ROOT / 'docs' / 'data.md').read_text().splitlines()
    begin, end = page.index('## Your own images'), page.index('## What training images undergo')
    for line in [
        line for line in LINES if line.page == 'docs/data.md' and begin < line.number < end
    ]:
        words = split_line(line.text)
        if words is None:
            # Another test runs the script that makes photographs.
            assert 'benchmarks/sample_photographs.py' in line.text
            continue
        argv = [word.replace('--shards=8', '--shards=2') for word in words]
        if argv[0].startswith('-'):
            argv = [word for word in argv if not length.match(word)]
            argv += ['--model=lenet', '--batch_size=2', '--device=cpu']
            argv += [] if '--eval' in argv else ['--num_batches=2', '--num_warmup_batches=1']
            totals += 1
        assert tf_cnn_benchmarks.main(argv) == 0, line
    printed = re.findall(r'^total images/sec: \d', capfd.readouterr().out, flags=re.MULTILINE)
    assert len(printed) == totals == 5


def test_every_example_in_python_can_be_compiled():
    for page in PAGES:
        for example in re.findall(r'^```python\n(.*?)^```$', page.read_text(), flags=re.M | re.S):
            compile(example, page.name, 'exec')


def test_every_link_leads_somewhere():
    wrong = []
    for page in PAGES:
        for path, anchor in re.findall(r'\]\(([^)#:\s]*)(?:#([^)]*))?\)', page.read_text()):
            target = (page.parent / path) if path else page
            if not target.exists():
                wrong.append(f'{page.name}: {path}')
            elif anchor and target.suffix == '.md':
                # GitHub makes anchors of the headings.
                headings = re.findall(r'^#+ (.+)$', target.read_text().lower(), flags=re.MULTILINE)
                anchors = [re.sub(r'[^\w\- ]', '', text).replace(' ', '-') for text in headings]
                wrong += [] if anchor in anchors else [f'{page.name}: {path}#{anchor}']
    assert wrong == []

"""The commands in README.md and docs/ (training, data, report) exist and accept their flags without a warning."""

import ast
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commands import checkpoint, cluster, compare, models, records, report, sweep
from commands.options import Declaration
from models.registry import MODELS
from params import RunFacts, find_idle, parse_argv

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text()
OTHERS = [(ROOT / 'docs' / name).read_text() for name in ('training.md', 'data.md', 'report.md')]
BLOCKS = re.findall(r'(?:^ {4}.*\n)+', '\n'.join([README, *OTHERS]), flags=re.MULTILINE)
COMMANDS = [
    words
    for line in ''.join(BLOCKS).replace('\\\n', ' ').splitlines()
    for words in [shlex.split(line, comments=True)]
    if words[:1] == ['python']
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 5


def idle_flags(argv: Sequence[str], *, alone: bool = True) -> list[str]:
    params = parse_argv(argv).params
    return find_idle(params, RunFacts(alone=alone, residual=MODELS.find_model(params.model).residual))


SUBCOMMANDS = (checkpoint, cluster, compare, models, records, report, sweep)
DECLARATIONS: dict[str, Declaration[Any]] = {module.DECLARATION.name: module.DECLARATION for module in SUBCOMMANDS}


@pytest.mark.parametrize('words', COMMANDS, ids=' '.join)
def test_every_command_is_there(words: list[str]) -> None:
    script, *flags = words[1:]
    if script != 'tf_cnn_benchmarks.py':
        source = (ROOT / script).read_text()
        assert all(f"'{flag.split('=')[0]}'" in source for flag in flags)
    elif flags[0] in DECLARATIONS:
        rest = DECLARATIONS[flags[0]].parse(flags[1:]).rest
        assert parse_argv(rest).warnings == ()
        assert idle_flags(rest, alone=False) == []
    elif flags != ['--help']:
        assert parse_argv(flags).warnings == ()
        assert idle_flags(flags) == []


def test_every_make_target_is_there() -> None:
    makefile = (ROOT / 'Makefile').read_text()
    for target in re.findall(r'^ {4}make (\w+)', README, flags=re.MULTILINE):
        assert re.search(rf'^{target}:', makefile, flags=re.MULTILINE)


def test_the_python_example_is_python() -> None:
    (example,) = [block for block in BLOCKS if 'make_params(' in block]
    ast.parse('\n'.join(line.strip() for line in example.splitlines()))


def test_every_file_it_points_to_is_there() -> None:
    for path in re.findall(r'\]\(([^)#:]+)\)', README):
        assert (ROOT / path).exists(), path


def test_ci_runs_what_it_names() -> None:
    script = (ROOT / '.ci' / 'run').read_text()
    assert 'make check' in script
    assert 'make test' in script

"""The commands in README.md, docs/training.md and docs/data.md exist and accept their flags without a warning."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from cluster.command import Options
from flag_spec import specs_of
from models.costs import list_costs
from params import parse_argv

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text()
OTHERS = [(ROOT / 'docs' / name).read_text() for name in ('training.md', 'data.md')]
BLOCKS = re.findall(r'(?:^ {4}.*\n)+', '\n'.join([README, *OTHERS]), flags=re.MULTILINE)
COMMANDS = [
    words
    for line in ''.join(BLOCKS).replace('\\\n', ' ').splitlines()
    for words in [shlex.split(line, comments=True)]
    if words[:1] == ['python']
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize('words', COMMANDS, ids=' '.join)
def test_every_command_is_there(words: list[str]) -> None:
    script, *flags = words[1:]
    source = (ROOT / script).read_text()
    if script != 'tf_cnn_benchmarks.py':
        assert all(f"'{flag.split('=')[0]}'" in source for flag in flags)
    elif flags[0] == 'records':
        help_text = (ROOT / 'records' / 'command.py').read_text()
        assert all(flag.split('=')[0].lstrip('-') in help_text for flag in flags if flag.startswith('--'))
    elif flags[0] == 'checkpoint':
        help_text = (ROOT / 'training' / 'command.py').read_text()
        assert all(flag in help_text for flag in flags if flag.startswith('--'))
    elif flags[0] == 'models':
        assert list_costs(*flags[1:])
    elif flags[0] == 'cluster':
        end = flags.index('--')
        assert {flag.split('=')[0].lstrip('-') for flag in flags[1:end]} <= specs_of(Options).keys()
        assert parse_argv(flags[end + 1 :]).warnings == ()
    elif flags != ['--help']:
        assert parse_argv(flags).warnings == ()


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

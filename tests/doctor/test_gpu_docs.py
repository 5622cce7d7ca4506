"""The commands, flags and checks that docs/gpu.md names are there."""

import re
import shlex
from pathlib import Path

import pytest

import tf_cnn_benchmarks
from commands.doctor import DECLARATION
from commands.subcommands import SUBCOMMANDS
from doctor.check_runner import matching
from doctor.check_table import CHECKS
from params import SPECS, parse_argv
from params.spec import specs_of

pytestmark = pytest.mark.unit

ROOT = Path(tf_cnn_benchmarks.__file__).parent
DOC = (ROOT / 'docs' / 'gpu.md').read_text()
INDENTED = '\n'.join(line[4:] for line in DOC.splitlines() if line.startswith('    '))
COMMANDS = [
    shlex.split(line.partition(' > ')[0])[2:]
    for line in re.sub(r'\\\n', '', INDENTED).splitlines()
    if line.startswith('python tf_cnn_benchmarks.py')
]


def test_every_command_line_is_read() -> None:
    kinds = [words[0] if words[0] in SUBCOMMANDS else 'benchmark' for words in COMMANDS]
    assert sorted(kinds) == ['benchmark', 'cluster', 'doctor', 'doctor']
    for kind, words in zip(kinds, COMMANDS, strict=True):
        if kind == 'doctor':
            DECLARATION.parse(words[1:])
        else:
            assert parse_argv(words[words.index('--') + 1 :] if kind == 'cluster' else words).warnings == ()


def test_every_flag_exists() -> None:
    named = set(re.findall(r'(?<![\w-])--([a-z]\w*)', DOC))
    elsewhere = {*specs_of(DECLARATION.options), 'run', 'workers', 'gpus', 'shm'}
    assert {name for name in named - elsewhere if name not in SPECS and name.removeprefix('no') not in SPECS} == set()


def test_every_check_is_in_a_family_that_it_explains_and_every_one_that_it_names_exists() -> None:
    families = {check.name.partition('/')[0] for check in CHECKS}
    assert {family for family in families if f'`{family}/' not in DOC} == set()
    patterns = re.findall(rf'`((?:{"|".join(families)})/[\w/*]+)`', DOC)
    # Capitals stand for any word.
    unknown = [name for name in patterns if not matching(re.sub(r'\b[A-Z]{3,}\b', '*', name), with_long=True)]
    assert (len(patterns) > 10, unknown) == (True, [])


def test_every_file_that_it_points_to_is_there() -> None:
    paths = [ROOT / 'docs' / path for path in re.findall(r'\]\(([^)#]+)', DOC)]
    paths += [ROOT / path for path in re.findall(r'\b((?:benchmarks|tests|doctor)/\w[\w.]*\.\w+)', DOC)]
    assert [path for path in paths if not path.exists()] == []

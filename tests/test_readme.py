"""README.md, beside its shell lines, which test_docs.py checks with those of docs/."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'(?:^ {4}.*\n)+', README, flags=re.MULTILINE)


def test_every_make_target_is_there() -> None:
    makefile = (ROOT / 'Makefile').read_text()
    for target in re.findall(r'^ {4}make (\w+)', README, flags=re.MULTILINE):
        assert re.search(rf'^{target}:', makefile, flags=re.MULTILINE)


def test_the_python_example_is_python() -> None:
    (example,) = [block for block in BLOCKS if 'make_params(' in block]
    ast.parse('\n'.join(line.strip() for line in example.splitlines()))


def test_ci_runs_what_it_names() -> None:
    script = (ROOT / '.ci' / 'run').read_text()
    assert 'make check' in script
    assert 'make test' in script

"""README.md, beside its shell lines, which test_docs.py checks with those of docs/."""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'(?:^ {4}.*\n)+', README, flags=re.MULTILINE)


@pytest.mark.unit
def test_every_make_target_is_there() -> None:
    makefile = (ROOT / 'Makefile').read_text()
    for target in re.findall(r'^ {4}make (\w+)', README, flags=re.MULTILINE):
        assert re.search(rf'^{target}:', makefile, flags=re.MULTILINE)


@pytest.mark.unit
def test_the_python_example_is_python() -> None:
    (example,) = [block for block in BLOCKS if 'make_params(' in block]
    ast.parse('\n'.join(line.strip() for line in example.splitlines()))


@pytest.mark.unit
def test_ci_runs_what_it_names() -> None:
    script = (ROOT / '.ci' / 'run').read_text()
    assert 'make check' in script
    assert 'make test' in script


@pytest.mark.distributed
def test_the_first_run_prints_what_is_shown_below_it() -> None:
    command, shown = re.findall(
        r'^ {4}python (tf_cnn_benchmarks\.py --.+)\n\n(?:\S.*\n)+\n((?: {4}.*\n)+)', README, re.MULTILINE
    )[0]
    run = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    printed = shape_of(run.stdout)
    assert shape_of(textwrap.dedent(shown))[: len(printed)] == printed
    assert 'total images/sec: N' in printed


def shape_of(text: str) -> list[str]:
    """The lines without measured figures, and without what differs between machines."""
    lines = [re.sub(r'^(TensorFlow|Devices|Data format|Machine):.*', r'\1', line) for line in text.splitlines()]
    return [re.sub(r'\d+\.\d+', 'N', line) for line in lines]

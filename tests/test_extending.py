"""docs/extending.md: its examples are applied to a copy of the program, and its commands are run there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.images import write_mnist

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / 'docs' / 'extending.md').read_text()
TITLES = ('A model', 'A mode', 'An input pipeline', 'An optimizer', 'A fact', 'A subcommand', 'A flag')
# One process runs all commands, since importing TensorFlow takes longer than any of them.
RUN_ALL = """
import shlex, sys
import tf_cnn_benchmarks
for line in sys.stdin.read().splitlines():
    print('+', line, flush=True)
    python, program, *argv = shlex.split(line)
    assert tf_cnn_benchmarks.main(argv) == 0, line
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf'^```{language}\n(.*?)^```$', TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope='module')
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program with all examples applied."""
    copy = tmp_path_factory.mktemp('extended') / 'program'
    ignored = shutil.ignore_patterns('.*', 'tests', 'docs', 'benchmarks', 'data', '__pycache__', '*.egg-info')
    shutil.copytree(ROOT, copy, ignore=ignored)
    for text in blocks('python'):
        name, _, content = text.removeprefix('# ').partition('\n')
        assert not (copy / name).exists(), name
        (copy / name).write_text(content)
    for change in blocks('diff'):
        done = subprocess.run(
            ['git', 'apply', '--recount', '-'], cwd=copy, input=change, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f'{done.stderr}\n{change}'
    images = np.random.default_rng(0).integers(0, 256, [20, 28, 28], np.uint8)
    write_mnist(copy / 'data' / 'mnist', images, np.arange(20) % 10)
    return copy


def test_every_kind_of_addition_has_an_example_that_is_run() -> None:
    for title in TITLES:
        (section,) = re.findall(rf'^## {title}\n(.*?)(?=^## |\Z)', TEXT, flags=re.MULTILINE | re.DOTALL)
        assert '```sh\n' in section, title
        assert '```diff\n' in section, title


def test_the_examples_run(extended: Path) -> None:
    commands = ''.join(blocks('sh'))
    ran = subprocess.run(
        [sys.executable, '-c', RUN_ALL], cwd=extended, input=commands, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    outputs = dict(zip(TITLES, ran.stdout.split('+ python')[1:], strict=True))
    assert '"type": "CPU"' in outputs['A subcommand']
    for title in set(TITLES) - {'A subcommand'}:
        assert 'total images/sec: ' in outputs[title], title
    assert 'Variables:   gathered' in outputs['A mode']
    assert 'Num devices: 1' in outputs['A fact']
    assert 'Optimizer:   nesterov' in outputs['An optimizer']
    assert 'Dataset:     mnist (real)' in outputs['An input pipeline']

"""docs/extending.md: its examples are applied to a copy of the program, and its commands are run
there.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT, run_process

pytestmark = pytest.mark.distributed

TEXT = (ROOT / 'docs' / 'extending.md').read_text()
# The sections that show how to add something, and what the command of each prints if the addition
# works.
EXPECTED = {
    'The costs of a model': r'',
    'A model': r'^Model: +tiny_squeeze$',
    'A mode in a file': r'^Variables: +after_backward$',
    'A mode in a file, in --help': r'after_backward: As collective_all_reduce, but no sum begins',
    'A mode in a file, in a cluster': r'^Devices: +\[./job:worker(.*\n)+Variables: '
    r'+after_backward$',
    'A mode in a file, in a sweep': r'^\| after_backward +\| 1\*2 +\|[ !]+[1-9]',
    'A mode': r'^Variables: +gathered$',
    'A fact': r'^Num devices: 1$',
    # The same run without the flag has learned by now: its loss is below 1.
    'A flag': r'^1\timages/sec: .*\t[3-9]\.\d{3}$',
}
# One process runs all commands of the program, since importing TensorFlow takes longer than any of
# them.
RUN_ALL = """
import shlex, subprocess, sys
import tf_cnn_benchmarks
for line in sys.argv[1].splitlines():
    print('+', line, flush=True)
    python, *argv = shlex.split(line)
    if argv[0] == '-m':
        code = subprocess.run([sys.executable, *argv]).returncode
    else:
        code = tf_cnn_benchmarks.main(argv[1:])
    assert code == 0, line
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf'^```{language}\n(.*?)^```$', TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope='module')
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program with all examples applied."""
    copy = tmp_path_factory.mktemp('extended') / 'program'
    ignored = shutil.ignore_patterns(
        '.*', 'tests', 'docs', 'benchmarks', 'data', '__pycache__', '*.egg-info'
    )
    shutil.copytree(ROOT, copy, ignore=ignored)
    (copy / 'docs').mkdir()
    shutil.copy(ROOT / 'docs' / 'models.md', copy / 'docs')
    for text in blocks('python'):
        name, _, content = text.removeprefix('# ').partition('\n')
        assert not (copy / name).exists(), name
        (copy / name).write_text(content)
    for change in blocks('diff'):
        git = ['git', 'apply', '--recount', '-']
        done = subprocess.run(git, cwd=copy, input=change, capture_output=True, text=True)
        assert done.returncode == 0, f'{done.stderr}\n{change}'
    return copy


def test_the_examples_run(extended):
    commands = ''.join(blocks('sh'))
    done = run_process([sys.executable, '-c', RUN_ALL, commands], extended, 300)
    assert done.code == 0, done.err
    outputs = dict(zip(EXPECTED, done.out.split('+ python')[1:], strict=True))
    for title, pattern in EXPECTED.items():
        words = ' '.join(outputs[title].split()) if 'help' in title else outputs[title]
        assert re.search(pattern, words, flags=re.MULTILINE), outputs[title]
    assert '| `tiny_squeeze` | imagenet |' in (extended / 'docs' / 'models.md').read_text()
    assert json.loads((extended / 'fact.json').read_text())['run']['num_devices'] == 1

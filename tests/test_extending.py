"""The examples of docs/extending.md, applied to a copy of the program, work with the commands of
the page.
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
# The sections of the page, each with the output of its command if the example works.
EXPECTED = {
    'The costs of a model': r'',
    'A model': r'^Model: +tiny_squeeze$',
    'A mode in a file': r'^Variables: +after_backward$',
    'A mode in a file, in --help': r'after_backward: As collective_all_reduce, but no sum begins',
    'A mode in a file, in a cluster': r'^Devices: +\[./job:worker(.*\n)+Variables: '
    r'+after_backward$',
    'A mode in a file, in a sweep': r' --variable_update=after_backward --num_gpus=2$',
    'A mode': r'^Variables: +gathered$',
    'A fact': r'^Num devices: 1$',
    # Without the flag, the loss of this run is below 1.
    'A flag': r'^1\timages/sec: .*\t[3-9]\.\d{3}$',
}
# One process imports TensorFlow, which takes longer than each command. A module runs in a fork, as
# later commands read what it writes.
RUN_ALL = """
import os, runpy, shlex, sys
import tf_cnn_benchmarks
from tf_cnn.graph.tensorflow_import import import_tensorflow
import_tensorflow()
for line in sys.argv[1].splitlines():
    print('+', line, flush=True)
    python, *argv = shlex.split(line)
    if argv[0] != '-m':
        code = tf_cnn_benchmarks.main(argv[1:])
    elif pid := os.fork():
        code = os.waitpid(pid, 0)[1]
    else:
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name='__main__', alter_sys=True)
        sys.exit()
    assert code == 0, line
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf'^```{language}\n(.*?)^```$', TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope='module')
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a copy of the program with all examples applied."""
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
        process = subprocess.run(git, cwd=copy, input=change, capture_output=True, text=True)
        assert process.returncode == 0, f'{process.stderr}\n{change}'
    return copy


def test_the_examples_run(extended):
    # test_installed.py starts a sweep with this mode.
    commands = ''.join(blocks('sh')).replace(' sweep ', ' sweep --dry_run ')
    process = run_process([sys.executable, '-c', RUN_ALL, commands], extended)
    assert process.code == 0, process.err
    outputs = dict(zip(EXPECTED, process.out.split('+ python')[1:], strict=True))
    for title, pattern in EXPECTED.items():
        words = ' '.join(outputs[title].split()) if 'help' in title else outputs[title]
        assert re.search(pattern, words, flags=re.MULTILINE), outputs[title]
    assert '| `tiny_squeeze` | imagenet |' in (extended / 'docs' / 'models.md').read_text()
    assert json.loads((extended / 'fact.json').read_text())['run']['num_devices'] == 1

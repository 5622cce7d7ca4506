"""Training learns: the recipe of docs/training.md reaches its accuracy in each of its modes, even
after it was killed once.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

import pytest

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from tests.support.programs import DEADLINE_SECS, ROOT, launched
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.training.checkpoint_files import checkpoint_step, latest_checkpoint

pytestmark = pytest.mark.distributed

SECTION = re.search(
    r'^## From nothing to a measured accuracy\n(.*?)^## ',
    (ROOT / 'docs' / 'training.md').read_text(),
    re.M | re.S,
)
assert SECTION
# What follows `python` in each command.
SAMPLE, TRAIN_RECORDS, VALIDATION_RECORDS, TRAIN, EVALUATE, REPLICATED, _ = (
    shlex.split(line)[1:]
    for line in re.findall(r'^ {4}(python .*)$', SECTION[1].replace('\\\n', ''), re.M)
)
NUM_HELD_OUT = 1797 // 5
# Ten to warm up, and five epochs of the other digits.
NUM_STEPS = 10 + 225
# The recipe reaches 0.98; its accuracy after the first steps is about 0.6.
GOAL = 0.95
ACCURACY = r'Accuracy @ 1 = (\d\.\d{4}) Accuracy @ 5 = \d\.\d{4} \[(\d+) examples\]'
EVERY = '--eval_during_training_every_n_steps'


def command(words: Sequence[str], *flags: str) -> list[str]:
    return [sys.executable, str(ROOT / words[0]), *words[1:], *flags]


def test_training_that_was_killed_goes_on_in_another_mode_and_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run(command(SAMPLE), check=True, timeout=DEADLINE_SECS)
    for words in (TRAIN_RECORDS, VALIDATION_RECORDS):
        with contextlib.redirect_stdout(io.StringIO()):
            assert tf_cnn_benchmarks.main([*words[1:], '--num_processes=1']) == 0
    # Killed soon after it has saved and evaluated.
    flags = ['--save_model_steps=10', f'{EVERY}=10', '--train_dir=train']
    with launched(command(TRAIN, *flags), tmp_path) as process:
        process.await_line('^Accuracy')
        process.kill()
        assert process.exit_code == -9
        (top_1, _), *_ = process.lines(ACCURACY)
    first_step = checkpoint_step(latest_checkpoint('train') or '')
    end = first_step + NUM_STEPS
    # An evaluation after this step shows that the run counts the steps before the kill.
    logs = tmp_path / 'logs'
    logs.mkdir()
    with launched(command(REPLICATED, f'{EVERY}={end}', '--train_dir=train'), logs) as process:
        assert process.has_ended()
    assert process.exit_code == 0
    benchmark = BenchmarkCNN(parse_argv([*EVALUATE[1:], '--train_dir=train']).params)
    benchmark.run()
    [evaluation] = benchmark.result.evaluations
    assert (evaluation.step, evaluation.num_images) == (end, NUM_HELD_OUT)
    assert first_step >= 10
    assert float(top_1) < GOAL - 0.05
    assert (evaluation.top_1 or 0) >= GOAL
    assert process.lines(ACCURACY) == [(f'{evaluation.top_1:.4f}', str(NUM_HELD_OUT))]

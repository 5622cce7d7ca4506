"""Scripts of users can read the standard output of every kind of run; distributed/test_modes.py has
clusters.
"""

import shlex

import numpy as np
import pytest

import tf_cnn_benchmarks
from tests.support.files import quoted
from tests.support.images import write_mnist
from tests.support.outputs import Output, read_output

pytestmark = [pytest.mark.graph, pytest.mark.long]

_SMALL = '--device=cpu --batch_size=4 --num_batches=3 --num_warmup_batches=1 --display_every=2'
_LABELS = (
    'TensorFlow, Model, Dataset, Mode, SingleSess, Batch size, Num batches, Num epochs, Devices, '
    'NUMA bind, Data format, Optimizer, Variables, Sync'
)


def read(capfd: pytest.CaptureFixture[str], flags: str, *, with_accuracy: bool = False) -> Output:
    assert tf_cnn_benchmarks.main(shlex.split(f'{flags} {_SMALL}')) == 0
    # capfd also captures native code.
    out, err = capfd.readouterr()
    assert 'Traceback' not in err
    output = read_output(out, with_accuracy=with_accuracy)
    labels = _LABELS.split(', ')
    assert [label for label in output.banner if label in labels] == labels
    return output


def test_training_prints_what_scripts_parse(capfd):
    trained = read(capfd, '--model=lenet')
    assert trained.banner['TensorFlow'][0].startswith('2.')
    assert trained.banner['Batch size'] == ['4 global', '4 per device']
    # The last step is printed although --display_every does not divide it.
    assert [number for number, *_ in trained.steps] == [1, 2, 3]
    assert trained.accuracies == []


@pytest.mark.parametrize(
    ('flag', 'mode'),
    [('--forward_only', 'forward-only'), ('--print_training_accuracy', 'training')],
)
def test_steps_with_accuracies_print_what_scripts_parse(flag, mode, capfd):
    output = read(capfd, f'--model=lenet {flag}', with_accuracy=True)
    assert output.banner['Mode'] == [mode]
    assert [number for number, *_ in output.steps] == [1, 2, 3]
    assert all(0 <= top_1 <= top_5 <= 1 for *_, top_1, top_5 in output.steps)


@pytest.mark.surroundings
def test_an_evaluation_prints_its_accuracy_and_its_own_total(tmp_path, capfd):
    random = np.random.default_rng(1)
    for subset, count in (('train', 40), ('validation', 12)):
        digits = random.integers(0, 256, [count, 28, 28])
        write_mnist(tmp_path, digits, random.integers(0, 10, count), subset)
    flags = f'--data_dir={quoted(tmp_path)} --train_dir={quoted(tmp_path)}/t'
    flags += ' --model=mnist --eval_batch_size=5'
    within = read(capfd, f'{flags} --eval_during_training_every_n_steps=2')
    assert [number for number, *_ in within.steps] == [1, 2, 3]
    assert {count for *_, count in within.accuracies} == {12}
    output = read(capfd, f'{flags} --eval')
    assert (output.banner['Mode'], output.banner['Dataset']) == (['evaluation'], ['mnist (real)'])
    [(top_1, top_5, num_examples)] = output.accuracies
    assert 0 <= top_1 <= top_5 <= 1
    # --num_batches counts batches of --eval_batch_size, beyond an epoch too.
    assert (num_examples, output.steps) == (3 * 5, [])

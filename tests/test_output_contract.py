"""Standard output of every kind of run, read as the scripts of others read it. Clusters: distributed/test_modes.py."""

import numpy as np
import pytest

from tests.support.images import write_mnist
from tests.support.outputs import Read, read_output
from tests.support.programs import running

pytestmark = [pytest.mark.graph, pytest.mark.long]

_SMALL = ['--device=cpu', '--batch_size=4', '--num_batches=3', '--num_warmup_batches=1', '--display_every=2']
_SYNTHETIC = ['--model=lenet', *_SMALL]
_MNIST = ['--model=mnist', '--data_dir={tmp}/mnist', '--train_dir={tmp}/trained', *_SMALL]
# In this order: the last one evaluates what the one before trained.
RUNS = {
    'training': _SYNTHETIC,
    'forward only': [*_SYNTHETIC, '--forward_only'],
    'training with accuracy': [*_SYNTHETIC, '--print_training_accuracy'],
    'evaluation within training': [*_MNIST, '--eval_during_training_every_n_steps=2', '--eval_batch_size=5'],
    'evaluation': [*_MNIST, '--eval', '--eval_batch_size=5'],
}
NUM_VALIDATION_IMAGES = 12


@pytest.fixture(scope='module')
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The whole standard output of each run."""
    tmp = tmp_path_factory.mktemp('outputs')
    random = np.random.default_rng(1)
    for subset, count in (('train', 40), ('validation', NUM_VALIDATION_IMAGES)):
        write_mnist(tmp / 'mnist', random.integers(0, 256, [count, 28, 28]), random.integers(0, 10, count), subset)
    with running(tmp / 'outputs', TF_CPP_MIN_LOG_LEVEL='0') as commands:
        ended = {name: commands.run(*(flag.format(tmp=tmp) for flag in argv)) for name, argv in RUNS.items()}
    assert {run.exit_code for run in ended.values()} == {0}
    return {name: run.out for name, run in ended.items()}


def check_banner(found: Read, **facts: list[str]) -> None:
    labels = ['TensorFlow', 'Model', 'Dataset', 'Mode', 'SingleSess', 'Batch size', 'Num batches', 'Num epochs']
    labels += ['Devices', 'NUMA bind', 'Data format', 'Optimizer', 'Variables', 'Sync']
    assert [label for label in found.banner if label in labels] == labels
    assert found.banner['TensorFlow'][0].startswith('2.')
    assert found.banner['Devices'] == ["['/cpu:0']"]
    assert {name: found.banner[name.replace('_', ' ')] for name in facts} == facts


def test_a_training_run_prints_what_scripts_parse(outputs: dict[str, str]) -> None:
    found = read_output(outputs['training'])
    check_banner(found, Model=['lenet'], Dataset=['imagenet (synthetic)'], Mode=['training'], SingleSess=['False'])
    check_banner(found, Batch_size=['4 global', '4 per device'], Num_batches=['3'], Sync=['True'])
    # The last step is printed although --display_every does not divide it.
    assert [number for number, *_ in found.steps] == [1, 2, 3]
    assert found.accuracies == []


@pytest.mark.parametrize(('name', 'mode'), [('forward only', 'forward-only'), ('training with accuracy', 'training')])
def test_step_lines_have_accuracies_where_they_are_computed(outputs: dict[str, str], name: str, mode: str) -> None:
    found = read_output(outputs[name], with_accuracy=True)
    check_banner(found, Mode=[mode])
    assert [number for number, *_ in found.steps] == [1, 2, 3]
    assert all(0 <= top_1 <= top_5 <= 1 for *_, top_1, top_5 in found.steps)


def test_an_evaluation_within_training_leaves_one_total(outputs: dict[str, str]) -> None:
    found = read_output(outputs['evaluation within training'])
    assert [number for number, *_ in found.steps] == [1, 2, 3]
    assert found.accuracies
    assert {count for *_, count in found.accuracies} == {NUM_VALIDATION_IMAGES}
    assert outputs['evaluation within training'].count('total images/sec') == 1


def test_an_evaluation_prints_its_accuracy_and_its_own_total(outputs: dict[str, str]) -> None:
    found = read_output(outputs['evaluation'])
    check_banner(found, Mode=['evaluation'], Dataset=['mnist (real)'])
    [(top_1, top_5, count)] = found.accuracies
    assert 0 <= top_1 <= top_5 <= 1
    # --num_batches counts batches of --eval_batch_size, beyond an epoch too.
    assert (count, found.steps) == (3 * 5, [])

"""Standard output of every kind of run, read as the scripts of others read it. Clusters:
distributed/test_modes.py.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.support.images import write_mnist
from tests.support.outputs import Read, read_output
from tests.support.programs import Capture, run_command

pytestmark = [pytest.mark.graph, pytest.mark.long]

_SMALL = [
    '--device=cpu',
    '--batch_size=4',
    '--num_batches=3',
    '--num_warmup_batches=1',
    '--display_every=2',
]


def run(capfd: Capture, *flags: str, with_accuracy: bool = False) -> Read:
    code, out, lines = run_command(capfd, *flags, *_SMALL)
    assert code == 0, lines
    return read_output(out, with_accuracy=with_accuracy)


def check_banner(found: Read, **facts: list[str]) -> None:
    labels = [
        'TensorFlow',
        'Model',
        'Dataset',
        'Mode',
        'SingleSess',
        'Batch size',
        'Num batches',
        'Num epochs',
    ]
    labels += ['Devices', 'NUMA bind', 'Data format', 'Optimizer', 'Variables', 'Sync']
    assert [label for label in found.banner if label in labels] == labels
    assert found.banner['TensorFlow'][0].startswith('2.')
    assert found.banner['Devices'] == ["['/cpu:0']"]
    assert {name: found.banner[name.replace('_', ' ')] for name in facts} == facts


def test_training_and_forward_only_print_what_scripts_parse(capfd: Capture) -> None:
    trained = run(capfd, '--model=lenet')
    check_banner(
        trained,
        Model=['lenet'],
        Dataset=['imagenet (synthetic)'],
        Mode=['training'],
        SingleSess=['False'],
    )
    check_banner(trained, Batch_size=['4 global', '4 per device'], Num_batches=['3'], Sync=['True'])
    # The last step is printed although --display_every does not divide it.
    assert [number for number, *_ in trained.steps] == [1, 2, 3]
    assert trained.accuracies == []
    for flag, mode in (
        ('--forward_only', 'forward-only'),
        ('--print_training_accuracy', 'training'),
    ):
        found = run(capfd, '--model=lenet', flag, with_accuracy=True)
        check_banner(found, Mode=[mode])
        assert [number for number, *_ in found.steps] == [1, 2, 3]
        assert all(0 <= top_1 <= top_5 <= 1 for *_, top_1, top_5 in found.steps)


def test_an_evaluation_prints_its_accuracy_and_its_own_total(
    tmp_path: Path, capfd: Capture
) -> None:
    random, num_validation_images = np.random.default_rng(1), 12
    for subset, count in (('train', 40), ('validation', num_validation_images)):
        write_mnist(
            tmp_path,
            random.integers(0, 256, [count, 28, 28]),
            random.integers(0, 10, count),
            subset,
        )
    flags = [
        '--model=mnist',
        f'--data_dir={tmp_path}',
        f'--train_dir={tmp_path}/trained',
        '--eval_batch_size=5',
    ]
    within = run(capfd, *flags, '--eval_during_training_every_n_steps=2')
    assert [number for number, *_ in within.steps] == [1, 2, 3]
    assert {count for *_, count in within.accuracies} == {num_validation_images}
    found = run(capfd, *flags, '--eval')
    check_banner(found, Mode=['evaluation'], Dataset=['mnist (real)'])
    [(top_1, top_5, count)] = found.accuracies
    assert 0 <= top_1 <= top_5 <= 1
    # --num_batches counts batches of --eval_batch_size, beyond an epoch too.
    assert (count, found.steps) == (3 * 5, [])

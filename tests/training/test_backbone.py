"""--backbone_model_path: training starts from those variables of another checkpoint that fit this
model.
"""

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.oracles import Weights
from tests.support.outputs import check_line, check_warning, failed, warnings_in
from tests.support.runs import ran, values_in

pytestmark = [pytest.mark.graph, pytest.mark.long]

run = functools.partial(ran, num_batches=1, optimizer='momentum')
NUM_CLASSES = 7


def write(prefix: Path, weights: Weights) -> Path:
    names = list(weights)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[''] * len(names),
        tensors=[tf.constant(weights[name]) for name in names],
    )
    return prefix


@pytest.fixture(scope='module')
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the network for other classes, of step 3, with slots that are not zero."""
    folder = tmp_path_factory.mktemp('backbone')
    run(train_dir=str(folder), num_batches=2, tf_random_seed=5)
    weights = values_in(folder / 'model.ckpt-3')
    for name in list(weights):
        if name.startswith('logits/'):
            weights[name] = np.ascontiguousarray(weights[name][..., :NUM_CLASSES])
    weights['conv3/kernel'] = np.zeros([3, 3, 64, 64], np.float32)
    return write(folder / 'pretrained', weights)


@pytest.mark.parametrize(
    'mode',
    [
        {'precision': 'bf16', 'fp16_vars': True},
        {'num_gpus': 2, 'batch_size': 2, 'variable_update': 'replicated', 'data_format': 'NCHW'},
        {'num_gpus': 2, 'batch_size': 2},
    ],
    ids=['16 bits', 'replicated', 'parameter_server'],
)
def test_training_starts_from_the_variables_that_fit(
    mode: dict[str, Any], backbone: Path, tmp_path: Path
) -> None:
    _, _, told = run(train_dir=str(tmp_path / 'train'), backbone_model_path=str(backbone), **mode)
    begun, pretrained = values_in(tmp_path / 'train' / 'model.ckpt-0'), values_in(backbone)
    assert begun['global_step'] == 0
    for layer in ('conv1', 'conv2', 'fc1'):
        for name in (f'{layer}/kernel', f'{layer}/bias'):
            np.testing.assert_allclose(
                begun[name], pretrained[name], rtol=2**-8 if 'precision' in mode else 0
            )
            assert np.any(pretrained[f'{name}/momentum'])
            assert not np.any(begun[f'{name}/momentum'])
    assert begun['logits/kernel'].shape == (512, 1001)
    assert np.ptp(begun['logits/kernel']) > 0
    flag = f'--backbone_model_path={backbone}'
    # One line for what was restored, a warning for what does not fit, and one for what is not used.
    (restored,) = [line for line in told.splitlines() if 'conv1/bias' in line]
    check_line(restored, '6', '8', backbone)
    for layer in ('conv1', 'conv2', 'fc1'):
        check_line(restored, f'{layer}/bias', f'{layer}/kernel')
    do_not_fit = (
        'logits/bias',
        'logits/kernel',
        f'[{NUM_CLASSES}]',
        '[1001]',
        f'[512, {NUM_CLASSES}]',
        '[512, 1001]',
    )
    check_warning(told, flag, '2', '8', *do_not_fit)
    check_warning(told, flag, '1', '9', 'conv3/kernel')
    assert len(warnings_in(told)) == 2


def test_all_towers_start_from_the_backbone(backbone: Path) -> None:
    flags: dict[str, Any] = {'backbone_model_path': str(backbone), 'num_gpus': 2, 'batch_size': 2}
    expected = run(**flags).losses
    assert run(**flags, variable_update='replicated').losses == pytest.approx(expected, rel=1e-5)
    assert run(num_gpus=2, batch_size=2).losses[0] != pytest.approx(expected[0], rel=1e-3)


def test_a_folder_stands_for_its_newest_checkpoint_and_one_that_fits_whole_brings_no_warning(
    tmp_path: Path,
) -> None:
    run(train_dir=str(tmp_path / 'other'), optimizer='adam')
    _, _, told = run(train_dir=str(tmp_path / 'train'), backbone_model_path=str(tmp_path / 'other'))
    assert warnings_in(told) == []
    begun, other = (
        values_in(tmp_path / 'train' / 'model.ckpt-0'),
        values_in(tmp_path / 'other' / 'model.ckpt-2'),
    )
    np.testing.assert_array_equal(begun['logits/kernel'], other['logits/kernel'])
    # A run that resumes its own training does not need it any more.
    shutil.rmtree(tmp_path / 'other')
    _, _, told = run(train_dir=str(tmp_path / 'train'), backbone_model_path=str(tmp_path / 'other'))
    check_warning(told, f'--backbone_model_path={tmp_path}/other', f'{tmp_path}/train/model.ckpt-2')
    # Besides the warning, a line announces the checkpoint from which training resumes.
    assert sum(f'{tmp_path}/train/model.ckpt-2' in line for line in told.splitlines()) == 2


def test_a_backbone_without_a_variable_of_the_model_is_refused(tmp_path: Path) -> None:
    with failed(f'--backbone_model_path={tmp_path}'):
        run(backbone_model_path=str(tmp_path))
    other = write(tmp_path / 'other', {'conv1/weights': np.zeros([5, 5, 3, 32], np.float32)})
    # With some names of this model's variables, to compare.
    with failed(other, 'conv1/bias'):
        run(backbone_model_path=str(other))

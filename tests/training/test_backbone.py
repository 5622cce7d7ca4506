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
from tests.support.runs import run_benchmark, values_in

pytestmark = [pytest.mark.graph, pytest.mark.long]

run = functools.partial(run_benchmark, num_batches=1, optimizer='momentum')
NUM_CLASSES = 7
FITTING = [f'{layer}/{part}' for layer in ('conv1', 'conv2', 'fc1') for part in ('kernel', 'bias')]

Flags = dict[str, Any]


def write(prefix: Path, weights: Weights) -> Path:
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=[*weights],
        shape_and_slices=[''] * len(weights),
        tensors=[*map(tf.constant, weights.values())],
    )
    return prefix


@pytest.fixture(scope='module')
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the network for other classes, of step 3, with slots that are not zero."""
    folder = tmp_path_factory.mktemp('backbone')
    run(train_dir=str(folder), num_batches=2, tf_random_seed=5)
    weights = values_in(folder / 'model.ckpt-3')
    for name in weights:
        if name.startswith('logits/'):
            weights[name] = weights[name][..., :NUM_CLASSES]
    weights['conv3/kernel'] = np.zeros([3, 3, 64, 64], np.float32)
    return write(folder / 'pretrained', weights)


@pytest.mark.surroundings
def test_training_starts_from_the_variables_that_fit(backbone, tmp_path):
    two_towers: Flags = {'num_gpus': 2, 'batch_size': 2}
    modes: dict[str, Flags] = {
        '16 bits': {'precision': 'bf16', 'fp16_vars': True, 'batch_size': 1},
        'replicated': {**two_towers, 'variable_update': 'replicated', 'data_format': 'NCHW'},
        'parameter_server': two_towers,
    }
    losses = {}
    pretrained, flag = values_in(backbone), f'--backbone_model_path={backbone}'
    for name, flags in modes.items():
        folder = tmp_path / name
        training = run(train_dir=str(folder), backbone_model_path=str(backbone), **flags)
        losses[name] = training.losses
        begun = values_in(folder / 'model.ckpt-0')
        assert begun['global_step'] == 0
        tolerance = 2**-8 if name == '16 bits' else 0
        for variable in FITTING:
            np.testing.assert_allclose(begun[variable], pretrained[variable], rtol=tolerance)
            assert np.any(pretrained[f'{variable}/momentum'])
            assert not np.any(begun[f'{variable}/momentum'])
        assert begun['logits/kernel'].shape == (512, 1001)
        assert np.ptp(begun['logits/kernel']) > 0
        (restored,) = [line for line in training.err.splitlines() if 'conv1/bias' in line]
        check_line(restored, '6', '8', backbone, *FITTING)
        # Warnings name the variables that do not fit, and those that are not used.
        kernel = ('logits/kernel', f'[512, {NUM_CLASSES}]', '[512, 1001]')
        bias = ('logits/bias', f'[{NUM_CLASSES}]', '[1001]')
        check_warning(training.err, flag, '2', '8', *bias, *kernel)
        check_warning(training.err, flag, '1', '9', 'conv3/kernel')
        assert len(warnings_in(training.err)) == 2
    # All towers start from the backbone.
    assert losses['replicated'] == pytest.approx(losses['parameter_server'], rel=1e-5)


@pytest.mark.surroundings
def test_a_folder_stands_for_its_newest_checkpoint(tmp_path):
    other, train = tmp_path / 'other', tmp_path / 'train'
    run(train_dir=str(other), optimizer='adam')
    assert warnings_in(run(train_dir=str(train), backbone_model_path=str(other)).err) == []
    begun, pretrained = values_in(train / 'model.ckpt-0'), values_in(other / 'model.ckpt-2')
    np.testing.assert_array_equal(begun['logits/kernel'], pretrained['logits/kernel'])
    # A run that resumes its own training does not need it any more.
    shutil.rmtree(other)
    err = run(train_dir=str(train), backbone_model_path=str(other)).err
    check_warning(err, f'--backbone_model_path={other}', f'{train}/model.ckpt-2')
    # Besides the warning, a line announces the checkpoint where training resumes.
    assert sum(f'{train}/model.ckpt-2' in line for line in err.splitlines()) == 2


def test_a_backbone_without_a_variable_of_the_model_is_refused(tmp_path):
    with failed(f'--backbone_model_path={tmp_path}'):
        run(backbone_model_path=str(tmp_path))
    other = write(tmp_path / 'other', {'conv1/weights': np.zeros([5, 5, 3, 32], np.float32)})
    # It names some variables of this model, to compare.
    with failed(other, 'conv1/bias'):
        run(backbone_model_path=str(other))

"""The subcommand checkpoint: a table and JSON of what a checkpoint contains."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from params import make_params
from tests.support.outputs import check_line

pytestmark = pytest.mark.graph

# The published count of ResNet-20: He et al. 2016 (arXiv:1512.03385), table 6, has 0.27 million.
NUM_PARAMETERS = 269_722


@pytest.fixture(scope='module')
def train_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('train')
    settings = {'model': 'resnet20', 'data_name': 'cifar10', 'device': 'cpu', 'optimizer': 'adam'}
    steps = {'batch_size': 1, 'num_batches': 2, 'num_warmup_batches': 0, 'save_model_steps': 1}
    BenchmarkCNN(make_params(**settings, **steps, train_dir=str(folder))).run()
    return folder


def described(capsys: pytest.CaptureFixture[str], path: Path) -> Any:
    assert tf_cnn_benchmarks.main(['checkpoint', str(path), '--json']) == 0
    return json.loads(capsys.readouterr().out)


def test_a_folder_is_described_by_its_checkpoints_and_the_contents_of_the_newest(
    capsys: pytest.CaptureFixture[str], train_dir: Path
) -> None:
    found = described(capsys, train_dir)
    assert [Path(prefix).name for prefix in found['checkpoints']] == ['model.ckpt-0', 'model.ckpt-1', 'model.ckpt-2']
    assert (found['checkpoint'], found['step'], found['ended']) == (str(train_dir / 'model.ckpt-2'), 2, True)
    totals = found['totals']
    # A moving mean and variance for each of 19 batch norms of 16, 32 and 64 channels; two slots a parameter.
    assert totals['model'] == {'tensors': 59, 'size': NUM_PARAMETERS, 'bytes': 4 * NUM_PARAMETERS}
    assert totals['statistics'] == {'tensors': 38, 'size': 2 * (7 * 16 + 6 * 32 + 6 * 64), 'bytes': 4 * 1376}
    assert totals['optimizer'] == {'tensors': 118, 'size': 2 * NUM_PARAMETERS, 'bytes': 8 * NUM_PARAMETERS}
    assert totals['training'] == {'tensors': 1, 'size': 1, 'bytes': 8}
    kernel = next(tensor for tensor in found['tensors'] if tensor['name'] == 'stage2/block1/conv1/kernel')
    assert (kernel['group'], kernel['dtype'], kernel['shape']) == ('model', 'float32', [3, 3, 16, 32])
    assert (kernel['size'], kernel['bytes']) == (4608, 18432)
    # A single checkpoint.
    found = described(capsys, train_dir / 'model.ckpt-1')
    assert found['step'] == 1
    assert 'checkpoints' not in found
    for file in ('model.ckpt-1.index', 'model.ckpt-1.data-00000-of-00001'):
        assert described(capsys, train_dir / file) == found


def test_the_table_has_a_line_for_each_tensor_and_each_group(
    capsys: pytest.CaptureFixture[str], train_dir: Path
) -> None:
    assert tf_cnn_benchmarks.main(['checkpoint', str(train_dir)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f'{train_dir}: model.ckpt-0, model.ckpt-1, model.ckpt-2')
    assert re.search(r'^ *model +conv1/kernel +float32 +3 x 3 x 3 x 16 +432 +1,728 *$', out, flags=re.MULTILINE)
    assert re.search(r'^ *model +.*\b59 +269,722 +1,078,888 *$', out, flags=re.MULTILINE)
    assert (
        len(re.findall(r'^ *optimizer +\S+/(?:kernel|bias|gamma|beta)/\w+ +float32 ', out, flags=re.MULTILINE)) == 118
    )
    check_line(out.splitlines()[-1], '269,722', f'{12 * NUM_PARAMETERS + 4 * 1376 + 8:,}')


def test_each_variable_is_listed_in_its_group(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also in a checkpoint of another program, with texts and without a step."""
    tensors = {
        'a/kernel': ('model', 0.0),
        'a/bn/moving_mean': ('statistics', 0.0),
        'a/kernel/momentum': ('optimizer', 0.0),
        'loss_scale/scale': ('training', 0.0),
        'epoch': ('training', 3),
        'notes': ('training', 'text'),
    }
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / 'theirs'),
        tensor_names=list(tensors),
        shape_and_slices=[''] * len(tensors),
        tensors=[tf.constant(value) for _, value in tensors.values()],
    )
    found = described(capsys, tmp_path / 'theirs')
    assert found['step'] is None
    assert {tensor['name']: tensor['group'] for tensor in found['tensors']} == {
        name: group for name, (group, _) in tensors.items()
    }
    assert {tensor['name']: tensor['bytes'] for tensor in found['tensors']} == dict.fromkeys(tensors, 4) | {'notes': 0}


@pytest.mark.parametrize(
    ('path', 'code', 'facts'),
    [
        ('nowhere', 2, ['{tmp}/nowhere', '--train_dir']),
        ('', 1, ['{tmp}', '--train_dir']),
        ('broken', 1, ['{tmp}/broken.index']),
        ('model.ckpt-7.index', 2, ['{tmp}/model.ckpt-7.index']),
    ],
)
def test_a_path_that_cannot_be_listed_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, path: str, code: int, facts: list[str]
) -> None:
    if path == 'broken':
        (tmp_path / 'broken.index').write_bytes(b'no table')
    assert tf_cnn_benchmarks.main(['checkpoint', str(tmp_path / path)]) == code
    out, err = capsys.readouterr()
    assert out == ''
    assert err.startswith('tf_cnn_benchmarks: error: ')
    check_line(err, *(fact.format(tmp=tmp_path) for fact in facts))

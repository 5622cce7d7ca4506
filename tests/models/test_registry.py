"""Models are found by name, pattern and data set; a model in a user's file is counted and trained
like the others.

Errors in a file name it and its line.
"""

import contextlib
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models import costs
from models.layers import LayerBuilder
from models.model_spec import BatchNorm, ModelSpec, Network
from models.registry import MODELS, Registry, load_model_file, register_model
from tests.support.documents import python_block
from tests.support.graphs import linear
from tests.support.images import write_cifar
from tests.support.outputs import refused
from tests.support.runs import run_benchmark

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('forget_models')]


def test_a_pattern_lists_the_models_that_it_matches():
    names = ['resnet50', 'resnet50_v1.5', 'resnet50_v2', 'resnet50_v2.5']
    assert MODELS.list_models('resnet50*') == names
    assert MODELS.list_models('*3') == ['inception3']
    assert MODELS.list_models('ResNet*') == []


@pytest.mark.parametrize(
    ('name', 'data_set', 'facts', 'num_named'),
    [
        ('resnett50', None, ['resnet50', 'models'], 3),
        ('', None, ['models', len(MODELS.list_models())], 0),
        ('mnist', 'imagenet', ['--data_name=imagenet', '--data_name=mnist'], 1),
        # Models of the original that are no classifiers have no nearest name.
        ('ssd300', None, [], 0),
        ('ncf', None, [], 0),
        ('deepspeech2', None, [], 0),
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest_names(name, data_set, facts, num_named):
    with refused(f'--model={name}', *facts) as error:
        MODELS.find_model(name, data_set)
    assert len({*MODELS.list_models()} & {*re.split(r'[^\w.]+', str(error.value))}) == num_named


def test_a_registry_knows_its_own_models_alone():
    row = ModelSpec('lenet', 'mnist', 28, 32, 0.1, Network(print))
    registry = Registry([row, replace(row, data_set='imagenet')])
    assert registry.list_models() == ['lenet']
    assert registry.find_model('lenet') == row
    with refused('--model=vgg16'):
        registry.find_model('vgg16')


def test_no_model_of_the_catalog_has_two_rows_for_one_data_set():
    rows = [(row.name, row.data_set) for row in MODELS.list_specs()]
    assert len({*rows}) == len(rows)


def test_the_example_of_the_docs_is_short_and_trains(tmp_path):
    # Classes that a network can tell apart by their grey.
    labels = np.arange(20) % 10
    greys = (25 * labels).astype(np.uint8)
    write_cifar(tmp_path, np.broadcast_to(greys[:, None, None, None], [20, 32, 32, 3]), labels)
    example = tmp_path / 'tiny_resnet.py'
    example.write_text(python_block('models.md'))
    assert len(example.read_text().splitlines()) <= 20
    run = run_benchmark(
        model='tiny_resnet',
        model_file=str(example),
        data_dir=str(tmp_path),
        batch_size=20,
        num_batches=15,
        optimizer='momentum',
        init_learning_rate=0.05,
        augmentation='none',
    )
    assert run.result.run.data_set == 'cifar10'
    assert not run.result.run.is_synthetic
    assert run.losses[-1] < 0.7 * run.losses[0]


def test_a_registered_model_has_the_facts_it_was_given():
    register_model('mine', linear, data_set='mnist', image_size=20, batch_size=3, learning_rate=0.5)
    mine = MODELS.find_model('mine')
    assert mine == ModelSpec('mine', 'mnist', 20, 3, 0.5, mine.network)
    assert mine.network.builder is linear
    assert MODELS.find_model('mine', 'records').image_size == 20
    assert MODELS.list_models('mi*') == ['mine']


@pytest.mark.parametrize(
    ('name', 'settings', 'message'),
    [
        ('resnet50', {}, '^resnet50: '),
        ('mine', {}, '^mine: '),
        ('ssd300', {}, '^ssd300: '),
        ('another', {'data_set': 'imagnet'}, "data_set='imagnet'"),
        ('another', {'image_size': 0}, 'image_size=0'),
    ],
)
def test_a_taken_name_or_a_wrong_fact_is_refused(name, settings, message):
    register_model('mine', linear)
    with pytest.raises(ValueError, match=message):
        register_model(name, linear, **settings)
    assert not MODELS.list_models('another')


def test_a_registered_model_has_its_batch_norm_and_auxiliary_head():
    def with_head(cnn: Any, x: Any, num_classes: int) -> Any:
        x = cnn.flatten(cnn.batch_norm(x, 'bn'))
        return cnn.dense(x, num_classes, 'logits'), cnn.dense(x, num_classes, 'auxiliary')

    norm = BatchNorm(scale=False)
    register_model('mine', with_head, data_set='mnist', image_size=4, batch_norm=norm)
    [cost] = costs.list_costs('mine')
    assert cost.parameters == 1 + 2 * (16 * 10 + 10)


HEAD = 'from models.registry import register_model\n'


def test_a_file_that_was_corrected_is_loaded_again_and_once_with_modules_beside_it(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(sys, 'path', list(sys.path))
    (tmp_path / 'beside_mine.py').write_text('NAME = "mine"\n')
    path = tmp_path / 'mine.py'
    content = f'{HEAD}from beside_mine import NAME\nprint("hello")\nregister_model(NAME, print)\n'
    path.write_text(f'{content}1 / 0\n')
    with refused(f'--model_file={path}', 'line 5', 'ZeroDivisionError: division by zero'):
        load_model_file(str(path))
    assert not MODELS.list_models('mine')
    path.write_text(content)
    load_model_file(str(path))
    monkeypatch.chdir(tmp_path)
    load_model_file('mine.py')
    assert MODELS.list_models('mine') == ['mine']
    # What it prints goes to standard error.
    assert capsys.readouterr() == ('', 'hello\nhello\n')


def test_a_network_without_logits_raises():
    register_model('mine', lambda *arguments: None, data_set='cifar10', image_size=8)
    with pytest.raises(TypeError, match=r'NoneType.*\[4, 10\]'):
        run_benchmark(model='mine')


@pytest.mark.parametrize('single', [False, True])
def test_a_network_without_kernels_has_no_weight_decay(single):
    def build(cnn: LayerBuilder, images: Any, num_classes: int) -> Any:
        return cnn.flatten(cnn.layer_scale(cnn.pad_channels(images, num_classes), 'a', 1.0))

    register_model('mine', build, data_set='cifar10', image_size=1)
    run = run_benchmark(model='mine', optimizer='lars', weight_decay=0.1, single_l2_loss_op=single)
    assert run.result.is_complete


@pytest.mark.parametrize(
    ('layers', 'facts'),
    [
        ("x = cnn.conv(x, 3, 3, 'c')\n    x = cnn.conv(x, 3, 3, 'c')", ['line 7', 'c/kernel']),
        (
            "with cnn.scope('s'): x = cnn.conv(x, 3, 3, 'c')\n    x = cnn.conv(x, 3, 3, 's/c')",
            ['7'],
        ),
        ("x = cnn.batch_norm(x, 'n')\n    x = cnn.batch_norm(x, 'n')", ['line 7', 'n/gamma']),
        ("w = tf.get_variable('w', [])\n    x = x * w", ['line 6', ' w ', 'not made by cnn']),
        ('x += tf.metrics.mean(x)[1]', ['line 6', ' mean/', 'not made by cnn']),
        ('x = tf.keras.layers.Dense(3)(x)', ['line 6', '/kernel', 'not made by cnn']),
        ("x = cnn.conv(x, 3, 3, 'c')\n    x = cnn.conv(x, 3, 3, 'd')", []),
    ],
    ids=['conv', 'scope', 'batch norm', 'get_variable', 'metrics', 'keras', 'good'],
)
def test_layers_of_equal_names_and_variables_without_cnn_are_refused(layers, facts, tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(
        f'{HEAD}import tensorflow.compat.v1 as tf\n\n\n'
        f'def mine(cnn, x, num_classes):\n    {layers}\n'
        "    return cnn.dense(cnn.flatten(x), num_classes, 'logits')\n\n\n"
        "register_model('mine', mine, data_set='mnist', image_size=4)\n"
    )
    load_model_file(str(path))
    with refused(f'--model_file={path}', *facts) if facts else contextlib.nullcontext():
        costs.list_costs('mine')

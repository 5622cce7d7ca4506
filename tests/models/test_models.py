"""Every network computes what its counterpart in Keras computes from the same weights, in both data
formats.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.registry import MODELS
from tests.models.keras_networks import CONFORMANCE, build, give_weights
from tests.support.graphs import (
    DATA_FORMATS,
    load,
    one_tower,
    open_session,
    random_images,
    relative_error,
)
from tf_cnn.inputs.data_sets import DATA_SETS

pytestmark = [pytest.mark.graph, pytest.mark.long]

# By model: another one that is compared with Keras and has other lengths and widths.
SHALLOWER = {
    'vgg11': 'vgg16',
    'vgg19': 'vgg16',
    'resnet101': 'resnet50',
    'resnet101_v2': 'resnet50_v2',
    'resnet101_v2.5': 'resnet50_v2.5',
    'resnet152': 'resnet50',
    'resnet152_v2': 'resnet50_v2',
    'resnet152_v2.5': 'resnet50_v2.5',
    'official_resnet34': 'official_resnet18',
    'official_resnet34_v2': 'official_resnet18_v2',
    'official_resnet50': 'official_resnet18',
    'official_resnet50_v2': 'official_resnet18_v2',
    'official_resnet101': 'official_resnet18',
    'official_resnet101_v2': 'official_resnet18_v2',
    'official_resnet152': 'official_resnet18',
    'official_resnet152_v2': 'official_resnet18_v2',
    'official_resnet200': 'official_resnet18',
    'official_resnet200_v2': 'official_resnet18_v2',
    'resnet32': 'resnet20',
    'resnet32_v2': 'resnet20_v2',
    'resnet44': 'resnet20',
    'resnet44_v2': 'resnet20_v2',
    'resnet56': 'resnet20',
    'resnet56_v2': 'resnet20_v2',
    'resnet110': 'resnet20',
    'resnet110_v2': 'resnet20_v2',
    'densenet100_k12': 'densenet40_k12',
    'densenet100_k12_paper': 'densenet40_k12_paper',
    'densenet100_k24': 'densenet40_k12',
    'densenet100_k24_paper': 'densenet40_k12_paper',
    'nasnetlarge': 'nasnet',
    'vit_b16': 'vit_s16',
}
# These take long, and consist of layers and blocks of others.
SLOW = {
    'overfeat',
    'inception4',
    'resnet50_v1.5',
    'resnet50_v2.5',
    'resnet101',
    'resnet152',
    'densenet40_k12_paper',
    'densenet121',
    'nasnet',
    'nasnetlarge',
}


@pytest.mark.parametrize(
    'case',
    [
        pytest.param(
            case,
            marks=pytest.mark.all_modes if case.model in SLOW else (),
            id=f'{case.model}-{case.data_set}',
        )
        for case in CONFORMANCE
    ],
)
def test_a_network_gives_the_logits_of_its_counterpart_in_keras(case):
    spec = MODELS.find_model(case.model, case.data_set)
    data_set = DATA_SETS[spec.data_set]
    size = case.smaller_size or spec.image_size
    shape = (size, size, data_set.channels)
    images = random_images(shape)
    graph, manager = tf.Graph(), one_tower()
    with graph.as_default():
        logits = {
            form: build(case.model, manager, tf.constant(images), form, case.data_set).logits
            for form in DATA_FORMATS
        }
    counterpart = case.counterpart(shape, data_set.num_classes)
    ours = manager.savable_variables()
    weights, num_parameters = give_weights(counterpart, ours)
    assert num_parameters == sum(weights[name].size for name in ours if ours[name].trainable)
    expected = np.asarray(counterpart(images, training=False))
    del counterpart
    tf.keras.backend.clear_session()
    assert relative_error(*expected) > 0.01, 'the logits must depend on the images'
    with graph.as_default(), open_session(has_nchw=True) as session:
        load(session, manager, weights)
        for form in DATA_FORMATS:
            assert relative_error(session.run(logits[form]), expected) < 2e-5, form


def test_every_network_is_compared_with_keras_or_with_a_shallower_one():
    compared = {MODELS.find_model(case.model, case.data_set).network for case in CONFORMANCE}
    # The published counts hold Inception v4 and OverFeat.
    uncompared = (*SHALLOWER, 'inception3_aux', 'inception4', 'overfeat')
    similar = {MODELS.find_model(model).network for model in uncompared}
    assert {spec.network for spec in MODELS.list_specs()} == compared | similar
    assert {*SHALLOWER.values()} <= {case.model for case in CONFORMANCE}


@pytest.mark.parametrize(('model', 'shallower'), SHALLOWER.items())
def test_a_deeper_network_differs_from_the_shallower_one_only_in_sizes(model, shallower):
    deep, compared = (MODELS.find_model(name).network for name in (model, shallower))
    assert (deep.builder, deep.batch_norm) == (compared.builder, compared.batch_norm)
    assert deep.options.keys() == compared.options.keys()
    sizes = {'depth', 'blocks', 'growth_rate', 'transition_filters'}
    sizes |= {'num_cells', 'penultimate_filters', 'stem_filters', 'width', 'num_heads'}
    if model == 'nasnetlarge':
        # The first cell of a stage takes its second input from one cell earlier.
        sizes.add('skip_reduction')
    assert {key for key in deep.options if deep.options[key] != compared.options[key]} <= sizes


def test_inception3_aux_is_inception3_with_another_head_while_training():
    images = random_images((299, 299, 3))
    with tf.Graph().as_default(), open_session() as session:
        manager, images = one_tower(), tf.constant(images)
        plain = build('inception3', manager, images, is_training=True)
        both = build('inception3_aux', manager, images, is_training=True)
        assert build('inception3_aux', manager, images).auxiliary is None
        assert plain.auxiliary is None
        session.run(manager.initializers)
        expected, logits, auxiliary = session.run([plain.logits, both.logits, both.auxiliary])
    assert relative_error(logits, expected) < 1e-4
    assert relative_error(auxiliary, expected) > 0.1
    assert np.ptp(auxiliary) > 0

"""Every network computes what its counterpart in Keras computes from the same weights, in both data
formats.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.counting import model_cost
from models.registry import MODELS
from tests.support.graphs import DATA_FORMATS, open_session
from tests.support.keras_networks import CONFORMANCE, Case, build, give_weights
from tests.support.networks import load, one_tower, random_images, relative_error
from tf_cnn.inputs.data_sets import DATA_SETS

pytestmark = [pytest.mark.graph, pytest.mark.long]

# Networks that differ from another one only in the lengths and widths of their tables.
LIKE = {
    **{
        f'resnet{deep}_{version}': f'resnet50_{version}'
        for deep in (101, 152)
        for version in ('v2', 'v2.5')
    },
    **{
        f'{family}{deep}{version}': f'{family}{shallow}{version}'
        for family, shallow, deeper in (
            ('official_resnet', 18, (34, 50, 101, 152, 200)),
            ('resnet', 20, (32, 44, 56, 110)),
        )
        for deep in deeper
        for version in ('', '_v2')
    },
    **{
        f'densenet100_k{rate}{suffix}': f'densenet40_k12{suffix}'
        for rate in (12, 24)
        for suffix in ('', '_paper')
    },
}


def count_draws(graph: tf.Graph) -> int:
    """The number of ops that drop units or paths. Initial values are drawn by other ops."""
    return sum(op.type == 'RandomUniform' for op in graph.get_operations())


# These take the longest to compare. They are made as the shallower ones, which are always compared.
DEEPEST = {'resnet101': 'resnet50', 'resnet152': 'resnet50', 'nasnetlarge': 'nasnet'}
DEEPEST |= {'vgg16': 'vgg11', 'vgg19': 'vgg11'}
# These take long, too, and consist of layers and blocks of others.
LONG = {
    'inception4',
    'overfeat',
    'resnet50_v1.5',
    'resnet50_v2.5',
    'densenet121',
    'densenet40_k12_paper',
}


def marks_of(case: Case) -> Any:
    """What is not always compared."""
    is_long = (
        case.model in LONG
        or case.model in DEEPEST
        or (case.model == 'nasnet' and case.data_set is None)
    )
    return pytest.mark.all_modes if is_long else ()


@pytest.mark.parametrize(
    'case',
    [
        pytest.param(case, marks=marks_of(case), id=f'{case.model}_{case.facts.data_set}')
        for case in CONFORMANCE
    ],
)
def test_a_network_has_the_parameters_and_gives_the_logits_of_its_counterpart(case: Case) -> None:
    data_set = DATA_SETS[case.facts.data_set]
    size = case.smaller_size or case.image_size
    shape = (size, size, data_set.channels)
    images = random_images(shape)
    graph, manager = tf.Graph(), one_tower()
    with graph.as_default():
        logits = {
            form: build(
                case.model, manager, tf.constant(images), form, data_set=case.data_set
            ).logits
            for form in DATA_FORMATS
        }
    assert count_draws(graph) == 0
    counterpart = case.counterpart(shape, data_set.num_classes)
    weights, num_parameters = give_weights(counterpart, manager.savable_variables())
    expected = np.asarray(counterpart(images, training=False))
    del counterpart
    tf.keras.backend.clear_session()
    trainable = [
        name for name, variable in manager.savable_variables().items() if variable.trainable
    ]
    assert sum(weights[name].size for name in trainable) == num_parameters
    assert model_cost(case.facts).parameters == case.num_parameters
    if case.smaller_size is None:
        assert num_parameters == case.num_parameters
    assert relative_error(*expected) > 0.01, (
        'the logits must depend on the images, or this says little'
    )
    with graph.as_default(), open_session(has_nchw=True) as session:
        load(session, manager, weights)
        for form in DATA_FORMATS:
            assert relative_error(session.run(logits[form]), expected) < 2e-5, form


def test_there_is_a_network_for_every_model_of_the_catalog_and_each_has_a_test() -> None:
    models = {*LIKE, 'inception3_aux'}
    networks = {case.facts.network for case in CONFORMANCE} | {
        MODELS.find_model(name).network for name in models
    }
    assert {facts.network for facts in MODELS.list_specs()} == networks
    assert {*MODELS.list_models()} == {case.model for case in CONFORMANCE} | models
    assert all(case.image_size == case.facts.image_size for case in CONFORMANCE)


@pytest.mark.parametrize(('model', 'shallower'), {**LIKE, **DEEPEST}.items())
def test_a_deeper_network_is_made_as_the_one_that_is_compared_with_keras(
    model: str, shallower: str
) -> None:
    deep, compared = (MODELS.find_model(name).network for name in (model, shallower))
    assert deep.batch_norm == compared.batch_norm
    assert deep.builder == compared.builder
    sizes = {
        'depth',
        'blocks',
        'growth_rate',
        'transition_filters',
        'num_cells',
        'penultimate_filters',
        'stem_filters',
    }
    assert deep.options.keys() == compared.options.keys()
    different = {
        key
        for key, value in deep.options.items()
        if key not in sizes and value != compared.options[key]
    }
    # In the large NASNet, the first cell of a stage takes its second input from one cell earlier.
    assert different == ({'skip_reduction'} if model == 'nasnetlarge' else set())


def test_inception3_aux_is_inception3_with_another_head_while_training() -> None:
    images = random_images((299, 299, 3))
    with tf.Graph().as_default(), open_session() as session:
        manager = one_tower()
        plain = build('inception3', manager, tf.constant(images), is_training=True)
        both = build('inception3_aux', manager, tf.constant(images), is_training=True)
        assert build('inception3_aux', manager, tf.constant(images)).auxiliary is None
        assert plain.auxiliary is None
        session.run(manager.initializers)
        expected, logits, auxiliary = session.run([plain.logits, both.logits, both.auxiliary])
    assert relative_error(logits, expected) < 1e-4
    assert auxiliary.shape == expected.shape
    assert relative_error(auxiliary, expected) > 0.1
    assert np.ptp(auxiliary) > 0


@pytest.mark.parametrize(
    ('model', 'num_layers'),
    [
        ('alexnet', 2),
        ('overfeat', 2),
        ('vgg16', 2),
        ('lenet', 0),
        ('googlenet', 1),
        ('inception4', 1),
    ],
)
def test_networks_drop_units_while_training(model: str, num_layers: int) -> None:
    facts = MODELS.find_model(model)
    with tf.Graph().as_default() as graph:
        build(
            model,
            one_tower(),
            tf.zeros([1, facts.image_size, facts.image_size, 3]),
            is_training=True,
        )
    assert count_draws(graph) == num_layers

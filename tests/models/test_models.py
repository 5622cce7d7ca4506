"""Every network gives the same logits as its counterpart in Keras with the same weights, in both
data formats; networks learn.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.networks import NetworkValues, build_network
from models.registry import MODELS
from tests.models.keras_networks import CONFORMANCE
from tests.support.graphs import (
    BATCH,
    DATA_FORMATS,
    one_tower,
    open_session,
    random_images,
    random_weight,
    relative_error,
)
from tf_cnn.inputs.data_sets import DATA_SETS

pytestmark = [pytest.mark.graph, pytest.mark.long]


# These take long, and consist of layers and blocks of others. The stored costs of all resnet50*
# depend on the convolution that has the strides.
SLOW = {
    'mnist',
    'overfeat',
    'inception4',
    'resnet50_v1.5',
    'resnet50_v2',
    'resnet50_v2.5',
    'densenet40_k12_paper',
    'densenet121',
    'nasnet',
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
    ours = NetworkValues()
    with tf.Graph().as_default() as graph:
        logits = {
            form: build_network(
                case.network(),
                tf.constant(images),
                data_set.num_classes,
                ours,
                form,
                is_training=False,
            ).logits
            for form in DATA_FORMATS
        }
    counterpart = case.counterpart(shape, data_set.num_classes)
    names, weights, num_parameters = list(ours.values), {}, 0
    for weight in sorted(counterpart.weights, key=lambda weight: weight.value.number):
        if weight.name == 'bias' and not names[0].endswith('/bias'):
            # A convolution of our network lacks it.
            weight.assign(np.zeros(weight.shape))
            continue
        name = names.pop(0)
        weights[name] = random_weight(name, tuple(ours.values[name].shape))
        # A pointwise convolution may be a dense layer in the other network.
        weight.assign(weights[name].reshape(weight.shape))
        num_parameters += weights[name].size if weight.trainable else 0
    assert not names
    assert num_parameters == sum(weights[name].size for name in ours.trainable)
    expected = np.asarray(counterpart(images, training=False))
    del counterpart
    assert relative_error(*expected) > 0.01, 'the logits must depend on the images'
    values = {ours.values[name]: weight for name, weight in weights.items()}
    with graph.as_default(), open_session(has_nchw=True) as session:
        for form, outputs in session.run(logits, values).items():
            assert relative_error(outputs, expected) < 2e-5, form


def test_every_network_is_compared_with_keras_or_has_the_layers_of_one_that_is_in_other_sizes():
    sizes = {'depth', 'blocks', 'growth_rate', 'transition_filters', 'width', 'num_heads'}
    # The first cell of a stage of nasnetlarge takes its second input from one cell earlier.
    sizes |= {'num_cells', 'penultimate_filters', 'stem_filters', 'skip_reduction'}
    # The part of a name that says a size.
    size_in_name = r'(?<=net)(\d+|large)|(?<=vgg)\d+|(?<=_k)\d+|(?<=vit_)[bs]'

    def layers_of(spec):
        network = spec.network
        options = {key: None if key in sizes else network.options[key] for key in network.options}
        return re.sub(size_in_name, '', spec.name), network.builder, network.batch_norm, options

    compared = [layers_of(MODELS.find_model(case.model, case.data_set)) for case in CONFORMANCE]
    for spec in MODELS.list_specs():
        assert layers_of(spec) in compared or spec.name == 'inception3_aux', spec.name


def test_inception3_aux_is_inception3_with_another_head_while_training():
    plain_network, network = (
        MODELS.find_model(model).network for model in ('inception3', 'inception3_aux')
    )
    with tf.Graph().as_default(), open_session() as session:
        # The networks share variables of the same name.
        variables, images = NetworkValues(), tf.constant(random_images((299, 299, 3)))
        arguments = images, 1001, variables, 'NHWC'
        plain = build_network(plain_network, *arguments, is_training=True)
        both = build_network(network, *arguments, is_training=True)
        assert build_network(network, *arguments, is_training=False).auxiliary is None
        assert plain.auxiliary is None
        weights = {
            value: random_weight(name, tuple(value.shape))
            for name, value in variables.values.items()
        }
        expected, logits, auxiliary = session.run(
            [plain.logits, both.logits, both.auxiliary], weights
        )
    assert relative_error(logits, expected) < 1e-4
    assert relative_error(auxiliary, expected) > 0.1
    assert np.ptp(auxiliary) > 0


# ---- training ------------------------------------------------------------------------------------


NUM_CLASSES = 20


def build(network, manager, images, **options):
    with manager.create_outer_variable_scope(0) as variables:
        return build_network(network, images, NUM_CLASSES, variables, 'NHWC', **options).logits


# Dropout before the logits, and drop path in each block with a shortcut, where its rate is not
# zero.
@pytest.mark.parametrize(
    ('model', 'num_drops'),
    [
        ('alexnet', 2),
        ('overfeat', 2),
        ('vgg16', 2),
        ('lenet', 0),
        ('googlenet', 1),
        ('inception4', 1),
        ('mobilenet', 1),
        ('nasnet', 1),
        ('densenet40_k12', 0),
        ('efficientnet_b0', 1 + 9),
        ('convnext_tiny', 17),
        ('vit_s16', 2 * 11),
    ],
)
def test_networks_drop_units_and_paths_while_training(model, num_drops):
    spec = MODELS.find_model(model)
    with tf.Graph().as_default() as graph:
        images = tf.zeros([1, spec.image_size, spec.image_size, 3])
        variables = NetworkValues()
        build_network(spec.network, images, 1001, variables, 'NHWC', is_training=True)
    assert [op.type for op in graph.get_operations()].count('RandomUniform') == num_drops


# EfficientNet has the blocks of MobileNet, with more in them.
@pytest.mark.parametrize(
    ('model', 'smaller_options'),
    [
        ('densenet121', {'blocks': (2, 2, 2, 2)}),
        ('efficientnet_b0', {}),
        ('convnext_tiny', {}),
        ('vit_s16', {'width': 96, 'num_heads': 3}),
    ],
)
def test_training_gives_every_variable_a_finite_gradient(model, smaller_options):
    network = MODELS.find_model(model).network
    network = replace(network, options={**network.options, **smaller_options})
    with tf.Graph().as_default(), open_session() as session:
        manager, images = one_tower(), tf.constant(random_images((64, 64, 3)))
        logits = build(network, manager, images, is_training=True)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=[*range(BATCH)])
        trainable = manager.trainable_variables_on_device(0)
        gradients = tf.gradients(loss, [variable.value for variable in trainable])
        assert None not in gradients
        session.run(manager.initializers)
        sizes = np.array([np.abs(gradient).max() for gradient in session.run(gradients)])
    assert np.isfinite(sizes).all()
    # Drop path may leave out a block for all images of a batch this small.
    assert (sizes > 0).mean() > 0.9
    # Weight decay applies to variables with more than one axis, the kernels.
    for name, variable in manager.savable_variables().items():
        assert (len(variable.shape) > 1) == name.endswith('/kernel')


@pytest.mark.parametrize('model', ['resnet50', 'official_resnet50_v2'])
def test_fresh_weights_give_logits_that_float16_can_hold(model):
    network = MODELS.find_model(model).network
    with tf.Graph().as_default(), open_session() as session:
        manager, images = one_tower(), tf.constant(random_images((64, 64, 3)))
        logits = build(network, manager, images, is_training=False, dtype=tf.float16)
        session.run(manager.initializers)
        # Far from the largest number of float16, 65504.
        assert np.abs(session.run(logits)).max() < 100

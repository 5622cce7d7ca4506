"""Networks from keras.applications or rebuilt in Keras layers, and the table of our networks to
compare with them.

Each function keras_... makes a Keras model from the shape of an image and the number of classes.
Both sides create their variables in the same order.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from models.model_spec import Network
from models.registry import MODELS

keras = tf.keras
layers = keras.layers


def on_mean(inputs, x, num_classes):
    """Returns the model that ends in the mean over height and width and a layer of logits."""
    return keras.Model(inputs, layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(x)))


def layer(text: str, **options: Any) -> Any:
    """Makes a layer from a text such as '3x3 64 /2 V': the size of its window, its filters or max
    for max pooling, its stride, and V for valid padding.
    """
    size, filters, *rest = text.split()
    window = [*map(int, size.split('x'))]
    strides = next((int(word[1:]) for word in rest if word.startswith('/')), 1)
    padding = 'valid' if 'V' in rest else 'same'
    if filters == 'max':
        return layers.MaxPooling2D(window, strides, padding)
    return layers.Conv2D(int(filters), window, strides, padding, **options)


def normalise_responses(x):
    squares = keras.ops.pad(x**2, [[0, 0], [0, 0], [0, 0], [4, 4]])
    channels = x.shape[-1]
    sums = sum(squares[..., first : first + channels] for first in range(9))
    return x / (1 + 0.001 / 9 * sums) ** 0.75


def keras_plain(shape, num_classes, *, convs='', units):
    """Returns convolutions, max pooling and local response normalisation, then dense layers with
    these units.
    """
    stack = [keras.Input(shape)]
    for text in filter(None, convs.split(', ')):
        is_norm = text == 'lrn'
        stack.append(
            layers.Lambda(normalise_responses) if is_norm else layer(text, activation='relu')
        )
    dense = [layers.Dense(int(number), 'relu') for number in units.split()]
    return keras.Sequential([*stack, layers.Flatten(), *dense, layers.Dense(num_classes)])


def keras_googlenet(shape, num_classes):
    conv = partial(layers.Conv2D, padding='same', activation='relu')

    def pool(x, strides=2):
        return layers.MaxPooling2D(3, strides, 'same')(x)

    inputs = keras.Input(shape)
    x = layers.Conv2D(64, 7, 2, activation='relu')(layers.ZeroPadding2D(3)(inputs))
    x = pool(conv(192, 3)(conv(64, 1)(pool(x))))
    # Table 1: #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj.
    for row in (
        '64 96 128 16 32 32',
        '128 128 192 32 96 64 pool',
        '192 96 208 16 48 64',
        '160 112 224 24 64 64',
        '128 128 256 24 64 64',
        '112 144 288 32 64 64',
        '256 160 320 32 128 128 pool',
        '256 160 320 32 128 128',
        '384 192 384 48 128 128',
    ):
        b1, b3_reduce, b3, b5_reduce, b5, projection = map(int, row.split()[:6])
        branches = [
            conv(b1, 1)(x),
            conv(b3, 3)(conv(b3_reduce, 1)(x)),
            conv(b5, 5)(conv(b5_reduce, 1)(x)),
            conv(projection, 1)(pool(x, 1)),
        ]
        x = layers.Concatenate()(branches)
        x = pool(x) if row.endswith('pool') else x
    return on_mean(inputs, x, num_classes)


def keras_inception4(shape, num_classes):
    """Figures 3 to 9 of Szegedy et al. 2016 (arXiv:1602.07261)."""

    def branch(x, convs):
        for text in convs.split(', '):
            x = layer(text, use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization(scale=False, epsilon=1e-3)(x))
        return x

    def average(x):
        return layers.AveragePooling2D(3, 1, 'same')(x)

    def halve(x):
        return layers.MaxPooling2D(3, 2)(x)

    def join(*branches):
        return layers.Concatenate()([*branches])

    inputs = keras.Input(shape)
    x = branch(inputs, '3x3 32 /2 V, 3x3 32 V, 3x3 64')
    x = join(halve(x), branch(x, '3x3 96 /2 V'))
    short = branch(x, '1x1 64, 3x3 96 V')
    x = join(short, branch(x, '1x1 64, 7x1 64, 1x7 64, 3x3 96 V'))
    x = join(branch(x, '3x3 192 /2 V'), halve(x))
    for _ in range(4):
        pool, single = branch(average(x), '1x1 96'), branch(x, '1x1 96')
        double = branch(x, '1x1 64, 3x3 96')
        x = join(pool, single, double, branch(x, '1x1 64, 3x3 96, 3x3 96'))
    single = branch(x, '3x3 384 /2 V')
    x = join(halve(x), single, branch(x, '1x1 192, 3x3 224, 3x3 256 /2 V'))
    for _ in range(7):
        pool, single = branch(average(x), '1x1 128'), branch(x, '1x1 384')
        long = branch(x, '1x1 192, 1x7 224, 7x1 256')
        longer = branch(x, '1x1 192, 1x7 192, 7x1 224, 1x7 224, 7x1 256')
        x = join(pool, single, long, longer)
    short = branch(x, '1x1 192, 3x3 192 /2 V')
    x = join(halve(x), short, branch(x, '1x1 256, 1x7 256, 7x1 320, 3x3 320 /2 V'))
    for _ in range(3):
        parts = [branch(average(x), '1x1 256'), branch(x, '1x1 256')]
        for y in (branch(x, '1x1 384'), branch(x, '1x1 384, 1x3 448, 3x1 512')):
            parts += [branch(y, '1x3 256'), branch(y, '3x1 256')]
        x = join(*parts)
    return on_mean(inputs, x, num_classes)


def _padded_conv(x, filters, size, strides=1):
    return layers.Conv2D(filters, size, strides, use_bias=False)(layers.ZeroPadding2D(size // 2)(x))


def _norm(x, *, activate=True):
    x = layers.BatchNormalization(epsilon=1e-5)(x)
    return layers.ReLU()(x) if activate else x


def keras_resnet(
    shape,
    num_classes,
    *,
    num_blocks=(3, 4, 6, 3),
    bottleneck=True,
    pre_activation,
    same_pool=False,
    stride_first=False,
):
    """A ResNet v1.5 or v2.5, with a stage's stride on the first 3x3 convolution of its first block,
    or v1 or v2.
    """

    def block(x, width, strides, *, project):
        shortcut = x
        if pre_activation:
            x = _norm(x)
        convs = [(width, 3, strides), (width, 3, 1)]
        if bottleneck:
            first, second = (strides, 1) if stride_first else (1, strides)
            convs = [(width, 1, first), (width, 3, second), (4 * width, 1, 1)]
        if project:
            shortcut = _padded_conv(x, convs[-1][0], 1, strides)
            if not pre_activation:
                shortcut = _norm(shortcut, activate=False)
        for number, (filters, size, conv_strides) in enumerate(convs, 1):
            x = _padded_conv(x, filters, size, conv_strides)
            if number < len(convs):
                x = _norm(x)
        if pre_activation:
            return layers.Add()([x, shortcut])
        return layers.ReLU()(layers.Add()([_norm(x, activate=False), shortcut]))

    inputs = keras.Input(shape)
    x = _padded_conv(inputs, 64, 7, 2)
    if not pre_activation:
        x = _norm(x)
    if same_pool:
        x = layers.MaxPooling2D(3, 2, 'same')(x)
    else:
        x = keras.ops.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=-np.inf)
        x = layers.MaxPooling2D(3, 2)(x)
    for stage, count in enumerate(num_blocks):
        for index in range(count):
            x = block(x, 64 * 2**stage, 2 if index == 0 and stage > 0 else 1, project=index == 0)
    return on_mean(inputs, _norm(x) if pre_activation else x, num_classes)


def keras_resnet_cifar(shape, num_classes, *, num_blocks, pre_activation):
    inputs = keras.Input(shape)
    x = _norm(_padded_conv(inputs, 16, 3))
    for width, index in itertools.product((16, 32, 64), range(num_blocks)):
        halves = width > 16 and index == 0
        shortcut = x
        if halves:
            shortcut = keras.ops.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [0, width // 2]])
        if pre_activation and (width, index) != (16, 0):
            x = _norm(x)
        x = _padded_conv(_norm(_padded_conv(x, width, 3, 2 if halves else 1)), width, 3)
        if not pre_activation:
            x = _norm(x, activate=False)
        x = layers.Add()([x, shortcut])
        x = x if pre_activation else layers.ReLU()(x)
    return on_mean(inputs, _norm(x) if pre_activation else x, num_classes)


def keras_densenet_cifar(
    shape,
    num_classes,
    *,
    num_layers,
    growth_rate,
    transition=None,
):
    """With transition channels after each transition and biases, or as in the paper."""

    conv = partial(layers.Conv2D, padding='same', use_bias=transition is not None)
    inputs = keras.Input(shape)
    x = conv(16, 3)(inputs)
    for block in (1, 2, 3):
        for _ in range(num_layers):
            x = layers.Concatenate()([x, conv(growth_rate, 3)(_norm(x))])
        if block < 3:
            x = layers.AveragePooling2D(2)(conv(transition or x.shape[-1], 1)(_norm(x)))
    return on_mean(inputs, _norm(x), num_classes)


def published(name, shape, num_classes, **options):
    make = getattr(keras.applications, name)
    return make(
        weights=None, input_shape=shape, classes=num_classes, classifier_activation=None, **options
    )


def keras_efficientnet_b0(shape, num_classes):
    """Starts after the layer that normalises images, since our networks get normalised images."""
    model = published('EfficientNetB0', shape, num_classes)
    [normalised] = [layer for layer in model.layers if isinstance(layer, layers.Normalization)]
    return keras.Model(normalised.output, model.output)


def keras_vit(shape, num_classes, *, width, num_heads):
    """Each head is an attention layer of its own, as in appendix A of Dosovitskiy et al. 2021."""

    def norm(x):
        return layers.LayerNormalization(epsilon=1e-6)(x)

    def embeddings(x):
        positions = keras.ops.arange(x.shape[1]) + keras.ops.zeros_like(x[..., 0], 'int32')
        return layers.Embedding(x.shape[1], width)(positions)

    def attention(x):
        columns = keras.ops.split(layers.Dense(3 * width)(x), 3 * num_heads, axis=-1)
        heads = [
            layers.Attention()([query / (width // num_heads) ** 0.5, value, key])
            for query, key, value in zip(
                *(columns[i * num_heads : (i + 1) * num_heads] for i in range(3)), strict=True
            )
        ]
        return layers.Dense(width)(layers.Concatenate()(heads))

    inputs = keras.Input(shape)
    x = layers.Reshape((-1, width))(layers.Conv2D(width, 16, 16)(inputs))
    x = layers.Concatenate(axis=1)([embeddings(x[:, :1]), x])
    x = layers.Add()([x, embeddings(x)])
    for _ in range(12):
        x = layers.Add()([x, attention(norm(x))])
        y = layers.Dense(4 * width, lambda z: keras.activations.gelu(z, approximate=False))(norm(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(inputs, layers.Dense(num_classes)(norm(x)[:, 0]))


@dataclass(frozen=True)
class Case:
    """A network, and its counterpart: the name in keras.applications or a function keras_....

    Logits are compared at the image size of the model, or at smaller_size to save time.
    smaller_options replace options of the network: repeated layers and wide ones prove no more.
    The stored and published costs depend on the real options.
    """

    model: str
    keras_model: str | Callable[[tuple[int, ...], int], Any]
    smaller_size: int | None = None
    data_set: str | None = None
    smaller_options: Mapping[str, object] = field(default_factory=dict)

    def network(self) -> Network:
        network = MODELS.find_model(self.model, self.data_set).network
        return replace(network, options={**network.options, **self.smaller_options})

    def counterpart(self, shape: tuple[int, ...], num_classes: int) -> Any:
        """Returns the Keras model; its variables have their number in the order of creation."""
        numbers = itertools.count()

        def numbered(make_variable: Callable[..., Any], **settings: Any) -> Any:
            variable = make_variable(**settings)
            variable.number = next(numbers)
            return variable

        with tf.variable_creator_scope(numbered):
            if isinstance(self.keras_model, str):
                return published(self.keras_model, shape, num_classes)
            return self.keras_model(shape, num_classes)


LENET = partial(keras_plain, convs='5x5 32, 2x2 max /2 V, 5x5 64, 2x2 max /2 V')
ALEXNET = partial(
    keras_plain,
    convs='11x11 64 /4 V, 3x3 max /2 V, 5x5 192, 3x3 max /2 V, 3x3 384, 3x3 384, 3x3 256, '
    '3x3 max /2 V',
    units='4096 4096',
)
ALEXNET_CIFAR = partial(
    keras_plain, convs='5x5 64, 3x3 max /2, lrn, 5x5 64, lrn, 3x3 max /2', units='384 192'
)
OVERFEAT = partial(
    keras_plain,
    convs='11x11 96 /4 V, 2x2 max /2 V, 5x5 256 V, 2x2 max /2 V, 3x3 512, 3x3 1024, 3x3 1024, '
    '2x2 max /2 V',
    units='3072 4096',
)
RESNET_18 = partial(keras_resnet, num_blocks=(2, 2, 2, 2), bottleneck=False, same_pool=True)
RESNET_50_V2 = partial(keras_resnet, pre_activation=True)
DENSENET_40 = partial(keras_densenet_cifar, num_layers=12, growth_rate=12)
RESNET_14 = partial(keras_resnet_cifar, num_blocks=2)

CONFORMANCE = (
    Case('trivial', partial(keras_plain, units='1 4096')),
    Case('lenet', partial(LENET, units='512')),
    Case('mnist', partial(LENET, units='1024')),
    Case('alexnet', ALEXNET, 131),
    Case('alexnet', ALEXNET_CIFAR, data_set='cifar10'),
    Case('overfeat', OVERFEAT, 119),
    Case('vgg16', 'VGG16', 64),
    Case('googlenet', keras_googlenet, 64),
    Case('inception3', 'InceptionV3', 139),
    Case('inception4', keras_inception4, 107),
    Case('resnet50', 'ResNet50', 64),
    Case('resnet50_v1.5', partial(keras_resnet, pre_activation=False), 64),
    Case('resnet50_v2', partial(RESNET_50_V2, stride_first=True), 64),
    Case('resnet50_v2.5', RESNET_50_V2, 64),
    Case('official_resnet18', partial(RESNET_18, pre_activation=False), 64),
    Case('official_resnet18_v2', partial(RESNET_18, pre_activation=True), 64),
    Case('resnet20', partial(RESNET_14, pre_activation=False), smaller_options={'depth': 14}),
    Case('resnet20_v2', partial(RESNET_14, pre_activation=True), smaller_options={'depth': 14}),
    Case(
        'densenet40_k12',
        partial(keras_densenet_cifar, num_layers=2, growth_rate=12, transition=24),
        smaller_options={'blocks': [2, 2, 2]},
    ),
    Case('densenet40_k12_paper', DENSENET_40),
    Case('mobilenet', 'MobileNetV2', 96),
    Case('nasnet', 'NASNetMobile', 96),
    Case('densenet121', 'DenseNet121', 75),
    Case('efficientnet_b0', keras_efficientnet_b0, 75),
    Case('convnext_tiny', partial(published, 'ConvNeXtTiny', include_preprocessing=False), 64),
    Case(
        'vit_s16',
        partial(keras_vit, width=96, num_heads=3),
        64,
        smaller_options={'width': 96, 'num_heads': 3},
    ),
)

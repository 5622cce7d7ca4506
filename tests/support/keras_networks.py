"""Networks from keras.applications or rebuilt in Keras layers, and the table of our networks to compare with them."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from inputs.data_sets import DATA_SETS
from models.model_facts import ModelFacts
from models.networks import Logits, build_network
from models.registry import MODELS
from tests.support.networks import random_weight
from tests.support.oracles import Weights
from variable_mgr import VariableMgr

keras = tf.keras
layers = keras.layers


def sequential(shape: tuple[int, ...], *own: Any) -> Any:
    return keras.Sequential([keras.Input(shape), *own])


def conv(filters: int, size: int, name: str | None, strides: int = 1, padding: str = 'same') -> Any:
    return layers.Conv2D(filters, size, strides, padding, activation='relu', name=name)


def fully_connected(num_classes: int, *units: int) -> list[Any]:
    hidden = [layers.Dense(number, 'relu', name=f'fc{index}') for index, number in enumerate(units, 1)]
    return [layers.Flatten(), *hidden, layers.Dense(num_classes, name='logits')]


def keras_trivial(shape: tuple[int, ...], num_classes: int) -> Any:
    return sequential(shape, *fully_connected(num_classes, 1, 4096))


def keras_lenet(shape: tuple[int, ...], num_classes: int, *, units: int) -> Any:
    return sequential(
        shape,
        conv(32, 5, 'conv1'),
        layers.MaxPooling2D(),
        conv(64, 5, 'conv2'),
        layers.MaxPooling2D(),
        *fully_connected(num_classes, units),
    )


def keras_alexnet(shape: tuple[int, ...], num_classes: int) -> Any:
    return sequential(
        shape,
        conv(64, 11, 'conv1', 4, 'valid'),
        layers.MaxPooling2D(3, 2),
        conv(192, 5, 'conv2'),
        layers.MaxPooling2D(3, 2),
        conv(384, 3, 'conv3'),
        conv(384, 3, 'conv4'),
        conv(256, 3, 'conv5'),
        layers.MaxPooling2D(3, 2),
        *fully_connected(num_classes, 4096, 4096),
    )


def keras_alexnet_cifar(shape: tuple[int, ...], num_classes: int) -> Any:
    def normalised_responses(x: Any) -> Any:
        squares = keras.ops.pad(x**2, [[0, 0], [0, 0], [0, 0], [4, 4]])
        channels = x.shape[-1]
        sums = sum(squares[..., first : first + channels] for first in range(9))
        return x / (1 + 0.001 / 9 * sums) ** 0.75

    return sequential(
        shape,
        conv(64, 5, 'conv1'),
        layers.MaxPooling2D(3, 2, 'same'),
        layers.Lambda(normalised_responses),
        conv(64, 5, 'conv2'),
        layers.Lambda(normalised_responses),
        layers.MaxPooling2D(3, 2, 'same'),
        *fully_connected(num_classes, 384, 192),
    )


def keras_overfeat(shape: tuple[int, ...], num_classes: int) -> Any:
    return sequential(
        shape,
        conv(96, 11, 'conv1', 4, 'valid'),
        layers.MaxPooling2D(),
        conv(256, 5, 'conv2', padding='valid'),
        layers.MaxPooling2D(),
        conv(512, 3, 'conv3'),
        conv(1024, 3, 'conv4'),
        conv(1024, 3, 'conv5'),
        layers.MaxPooling2D(),
        *fully_connected(num_classes, 3072, 4096),
    )


def keras_vgg11(shape: tuple[int, ...], num_classes: int) -> Any:
    """Column A of table 1, by blocks."""
    own = []
    for block, column in enumerate(((64,), (128,), (256, 256), (512, 512), (512, 512)), 1):
        own += [conv(filters, 3, f'block{block}.conv{index}') for index, filters in enumerate(column, 1)]
        own.append(layers.MaxPooling2D())
    return sequential(shape, *own, *fully_connected(num_classes, 4096, 4096))


def keras_googlenet(shape: tuple[int, ...], num_classes: int) -> Any:
    """Its layers are in our order and numbered by Keras."""

    def own(x: Any, filters: int, size: int) -> Any:
        return conv(filters, size, None)(x)

    def pool(x: Any, strides: int = 2) -> Any:
        return layers.MaxPooling2D(3, strides, 'same')(x)

    def module(x: Any, *widths: int) -> Any:
        b1, b3_reduce, b3, b5_reduce, b5, projection = widths
        branches = [own(x, b1, 1), own(own(x, b3_reduce, 1), b3, 3), own(own(x, b5_reduce, 1), b5, 5)]
        return layers.Concatenate()([*branches, own(pool(x, 1), projection, 1)])

    inputs = keras.Input(shape)
    x = layers.Conv2D(64, 7, 2, activation='relu')(layers.ZeroPadding2D(3)(inputs))
    x = pool(own(own(pool(x), 64, 1), 192, 3))
    x = module(x, 64, 96, 128, 16, 32, 32)
    x = pool(module(x, 128, 128, 192, 32, 96, 64))
    x = module(x, 192, 96, 208, 16, 48, 64)
    x = module(x, 160, 112, 224, 24, 64, 64)
    x = module(x, 128, 128, 256, 24, 64, 64)
    x = module(x, 112, 144, 288, 32, 64, 64)
    x = pool(module(x, 256, 160, 320, 32, 128, 128))
    x = module(x, 256, 160, 320, 32, 128, 128)
    x = module(x, 384, 192, 384, 48, 128, 128)
    x = layers.Dropout(0.4)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(num_classes, name='predictions')(x))


def keras_inception4(shape: tuple[int, ...], num_classes: int) -> Any:
    """Its layers are in our order and numbered by Keras. A branch is a list of (filters, size, strides and padding)."""

    def branch(x: Any, *convs: Any) -> Any:
        for filters, size, *rest in convs:
            strides, padding = rest or (1, 'same')
            x = layers.Conv2D(filters, size, strides, padding, use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization(scale=False, epsilon=1e-3)(x))
        return x

    def average(x: Any) -> Any:
        return layers.AveragePooling2D(3, 1, 'same')(x)

    def halve(x: Any) -> Any:
        return layers.MaxPooling2D(3, 2)(x)

    def split(x: Any) -> list[Any]:
        return [branch(x, (256, (1, 3))), branch(x, (256, (3, 1)))]

    join, half, valid = layers.Concatenate, (2, 'valid'), (1, 'valid')
    inputs = keras.Input(shape)
    x = branch(inputs, (32, 3, *half), (32, 3, *valid), (64, 3))
    x = join()([halve(x), branch(x, (96, 3, *half))])
    short = branch(x, (64, 1), (96, 3, *valid))
    x = join()([short, branch(x, (64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3, *valid))])
    x = join()([branch(x, (192, 3, *half)), halve(x)])
    for _ in range(4):
        pool, single = branch(average(x), (96, 1)), branch(x, (96, 1))
        double = branch(x, (64, 1), (96, 3))
        x = join()([pool, single, double, branch(x, (64, 1), (96, 3), (96, 3))])
    single = branch(x, (384, 3, *half))
    x = join()([halve(x), single, branch(x, (192, 1), (224, 3), (256, 3, *half))])
    for _ in range(7):
        pool, single = branch(average(x), (128, 1)), branch(x, (384, 1))
        long = branch(x, (192, 1), (224, (1, 7)), (256, (7, 1)))
        longer = branch(x, (192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1)))
        x = join()([pool, single, long, longer])
    short = branch(x, (192, 1), (192, 3, *half))
    x = join()([halve(x), short, branch(x, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, *half))])
    for _ in range(3):
        pool, single = branch(average(x), (256, 1)), branch(x, (256, 1))
        short, long = branch(x, (384, 1)), branch(x, (384, 1), (448, (1, 3)), (512, (3, 1)))
        x = join()([pool, single, *split(short), *split(long)])
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(num_classes, name='predictions')(x))


def _padded_conv(x: Any, filters: int, size: int, name: str, strides: int = 1) -> Any:
    x = layers.ZeroPadding2D(size // 2)(x)
    return layers.Conv2D(filters, size, strides, use_bias=False, name=name)(x)


def _norm(x: Any, name: str, *, activate: bool = True) -> Any:
    x = layers.BatchNormalization(epsilon=1e-5, name=name)(x)
    return layers.ReLU()(x) if activate else x


def keras_resnet(
    shape: tuple[int, ...],
    num_classes: int,
    *,
    num_blocks: tuple[int, ...] = (3, 4, 6, 3),
    bottleneck: bool = True,
    pre_activation: bool,
    same_pool: bool = False,
    stride_first: bool = False,
) -> Any:
    """A ResNet v1.5 or v2.5, with a stage's stride on the first 3x3 convolution of its first block, or v1 or v2."""

    def block(x: Any, width: int, strides: int, name: str, *, project: bool) -> Any:
        shortcut = x
        if pre_activation:
            x = _norm(x, f'{name}.bn')
        convs = [(width, 3, strides), (width, 3, 1)]
        if bottleneck:
            first, second = (strides, 1) if stride_first else (1, strides)
            convs = [(width, 1, first), (width, 3, second), (4 * width, 1, 1)]
        if project:
            shortcut = _padded_conv(x, convs[-1][0], 1, f'{name}.shortcut', strides)
            if not pre_activation:
                shortcut = _norm(shortcut, f'{name}.shortcut.bn', activate=False)
        for number, (filters, size, conv_strides) in enumerate(convs, 1):
            x = _padded_conv(x, filters, size, f'{name}.conv{number}', conv_strides)
            if number < len(convs):
                x = _norm(x, f'{name}.conv{number}.bn')
        if pre_activation:
            return layers.Add()([x, shortcut])
        return layers.ReLU()(layers.Add()([_norm(x, f'{name}.conv{len(convs)}.bn', activate=False), shortcut]))

    inputs = keras.Input(shape)
    x = _padded_conv(inputs, 64, 7, 'conv1', 2)
    if not pre_activation:
        x = _norm(x, 'conv1.bn')
    if same_pool:
        x = layers.MaxPooling2D(3, 2, 'same')(x)
    else:
        x = keras.ops.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=-np.inf)
        x = layers.MaxPooling2D(3, 2)(x)
    for stage, count in enumerate(num_blocks):
        for index in range(count):
            strides = 2 if index == 0 and stage > 0 else 1
            x = block(x, 64 * 2**stage, strides, f'stage{stage + 1}.block{index + 1}', project=index == 0)
    if pre_activation:
        x = _norm(x, 'final_bn')
    return keras.Model(inputs, layers.Dense(num_classes, name='logits')(layers.GlobalAveragePooling2D()(x)))


def keras_resnet_cifar(shape: tuple[int, ...], num_classes: int, *, num_blocks: int, pre_activation: bool) -> Any:
    inputs = keras.Input(shape)
    x = _norm(_padded_conv(inputs, 16, 3, 'conv1'), 'conv1.bn')
    for stage, width in enumerate((16, 32, 64), 1):
        for index in range(1, num_blocks + 1):
            name, halves = f'stage{stage}.block{index}', stage > 1 and index == 1
            shortcut = x
            if halves:
                shortcut = keras.ops.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [0, width // 2]])
            if pre_activation and (stage, index) != (1, 1):
                x = _norm(x, f'{name}.bn')
            x = _norm(_padded_conv(x, width, 3, f'{name}.conv1', 2 if halves else 1), f'{name}.conv1.bn')
            x = _padded_conv(x, width, 3, f'{name}.conv2')
            if not pre_activation:
                x = _norm(x, f'{name}.conv2.bn', activate=False)
            x = layers.Add()([x, shortcut])
            x = x if pre_activation else layers.ReLU()(x)
    x = _norm(x, 'final_bn') if pre_activation else x
    return keras.Model(inputs, layers.Dense(num_classes, name='logits')(layers.GlobalAveragePooling2D()(x)))


def keras_densenet_cifar(
    shape: tuple[int, ...], num_classes: int, *, num_layers: int, growth_rate: int, transition: int | None = None
) -> Any:
    """With transition channels after each transition and biases, or as in the paper."""

    def own(x: Any, filters: int, size: int, name: str) -> Any:
        return layers.Conv2D(filters, size, padding='same', use_bias=transition is not None, name=name)(x)

    inputs = keras.Input(shape)
    x = own(inputs, 16, 3, 'conv1')
    for block in (1, 2, 3):
        for layer in range(1, num_layers + 1):
            name = f'block{block}.layer{layer}'
            x = layers.Concatenate()([x, own(_norm(x, f'{name}.bn'), growth_rate, 3, f'{name}.conv')])
        if block < 3:
            name = f'transition{block}'
            x = own(_norm(x, f'{name}.bn'), transition or x.shape[-1], 1, f'{name}.conv')
            x = layers.AveragePooling2D(2)(x)
    x = _norm(x, 'final_bn')
    return keras.Model(inputs, layers.Dense(num_classes, name='logits')(layers.GlobalAveragePooling2D()(x)))


def published(name: str, shape: tuple[int, ...], num_classes: int, **options: Any) -> Any:
    make = getattr(keras.applications, name)
    return make(weights=None, input_shape=shape, classes=num_classes, classifier_activation=None, **options)


def keras_efficientnet_b0(shape: tuple[int, ...], num_classes: int) -> Any:
    """Starts after the layer that normalises images, since our networks get normalised images."""
    model = published('EfficientNetB0', shape, num_classes)
    [normalised] = [layer for layer in model.layers if isinstance(layer, layers.Normalization)]
    return keras.Model(normalised.output, model.output)


def weighted_layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if hasattr(layer, 'layers'):
            yield from weighted_layers(layer)
        elif layer.weights:
            yield layer


def weight_name(layer: Any, weight: Any) -> str:
    """Our name for a weight, without the name of its layer."""
    if type(layer).__name__ == 'LayerScale':
        return 'gamma'
    return weight.name.replace('_kernel', '/kernel')


# (Keras layer names, our layer names), both in the order of creation -> our name for each Keras name.
Naming = Callable[[list[str], list[str]], dict[str, str]]


def same_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    return {name: name.replace('.', '/') for name in theirs}


def vgg_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    return {name: 'logits' if name == 'predictions' else name.replace('_', '/') for name in theirs}


def resnet_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    """conv3_block2_1_bn is stage2/block2/conv1/bn; convolution 0 is the shortcut."""
    names = {'conv1_conv': 'conv1', 'conv1_bn': 'conv1/bn', 'predictions': 'logits'}
    for name in theirs:
        match = re.fullmatch(r'conv(\d)_block(\d+)_(\d)_(conv|bn)', name)
        if match:
            conv = 'shortcut' if match[3] == '0' else f'conv{match[3]}'
            suffix = '/bn' if match[4] == 'bn' else ''
            names[name] = f'stage{int(match[1]) - 1}/block{match[2]}/{conv}{suffix}'
    return names


def inception_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    """Keras numbers its layers; both sides create the branches of a block in the order of the paper's figures."""
    names = {'predictions': 'logits'}
    for kind, is_norm in (('conv2d', False), ('batch_normalization', True)):
        numbered = [name for name in theirs if name.startswith(kind)]
        numbered.sort(key=lambda name: int(name.removeprefix(kind).lstrip('_') or 0))
        of_kind = [name for name in ours if name.endswith('/bn') == is_norm and name != 'logits']
        names |= dict(zip(numbered, of_kind, strict=True))
    return names


def densenet_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    """conv3_block2_1_conv is block2/layer2/bottleneck/conv, pool3_bn is transition2/bn."""
    names = {'conv1_conv': 'conv1', 'conv1_bn': 'conv1/bn', 'bn': 'final_bn', 'predictions': 'logits'}
    parts = {'0_bn': 'bottleneck/bn', '1_conv': 'bottleneck/conv', '1_bn': 'bn', '2_conv': 'conv'}
    for name in theirs:
        if match := re.fullmatch(r'conv(\d)_block(\d+)_(\d_\w+)', name):
            names[name] = f'block{int(match[1]) - 1}/layer{match[2]}/{parts[match[3]]}'
        elif match := re.fullmatch(r'pool(\d)_(bn|conv)', name):
            names[name] = f'transition{int(match[1]) - 1}/{match[2]}'
    return names


def mobilenet_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    """block_1_expand_BN is stage2/block1/expand/bn; before it comes expanded_conv."""
    names = {'Conv1': 'conv1', 'bn_Conv1': 'conv1/bn', 'Conv_1': 'conv2', 'Conv_1_bn': 'conv2/bn'}
    names['predictions'] = 'logits'
    blocks = _prefixes(r'stage\d/block\d', ours)
    for name in theirs:
        if match := re.fullmatch(r'(?:expanded_conv|block_(\d+))_([a-z]+)(_BN)?', name):
            names[name] = f'{blocks[int(match[1] or 0)]}/{match[2]}{"/bn" if match[3] else ""}'
    return names


def efficientnet_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    """block2a_expand_conv is stage2/block1/expand."""
    names = {'stem_conv': 'conv1', 'stem_bn': 'conv1/bn', 'top_conv': 'conv2', 'top_bn': 'conv2/bn'}
    names['predictions'] = 'logits'
    parts = {'dwconv': 'depthwise', 'bn': 'depthwise/bn', 'se_reduce': 'squeeze', 'se_expand': 'excite'}
    parts |= {'expand_conv': 'expand', 'expand_bn': 'expand/bn'}
    parts |= {'project_conv': 'project', 'project_bn': 'project/bn'}
    for name in theirs:
        if match := re.fullmatch(r'block(\d)([a-z])_(\w+)', name):
            names[name] = f'stage{match[1]}/block{ord(match[2]) - ord("a") + 1}/{parts[match[3]]}'
    return names


def convnext_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    """stage_1_block_0_pointwise_conv_1 is stage2/block1/expand, downsampling_conv_0 is stage2/downsample."""
    names = {'stem_conv': 'stage1/downsample', 'stem_layernorm': 'stage1/downsample/ln'}
    names |= {'head_layernorm': 'final_ln', 'head_dense': 'logits'}
    parts = {'depthwise_conv': 'depthwise', 'layernorm': 'ln', 'layer_scale': 'layer_scale'}
    parts |= {'pointwise_conv_1': 'expand', 'pointwise_conv_2': 'project'}
    for name in (name.removeprefix('convnext_tiny_') for name in theirs):
        if match := re.fullmatch(r'stage_(\d)_block_(\d)_(\w+)', name):
            names[name] = f'stage{int(match[1]) + 1}/block{int(match[2]) + 1}/{parts[match[3]]}'
        elif match := re.fullmatch(r'downsampling_(conv|layernorm)_(\d)', name):
            names[name] = f'stage{int(match[2]) + 2}/downsample{"/ln" if match[1] == "layernorm" else ""}'
    return {f'convnext_tiny_{name}': our_name for name, our_name in names.items()}


def nasnet_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    """separable_conv_1_bn_normal_left2_0 is stage1/cell1/left2/conv1/bn; reduction cells are numbered too."""
    ends = [match[1] for name in theirs if (match := re.fullmatch(r'normal_conv_1_(\d+)', name))]
    cells = dict(zip(sorted(ends, key=int), _prefixes(r'stage\d/cell\d', ours), strict=True))
    ends = [match[1] for name in theirs if (match := re.fullmatch(r'reduction_conv_1_(reduce_\d+)', name))]
    ends.sort(key=lambda end: int(end.removeprefix('reduce_')))
    cells |= dict(zip(['stem_1', 'stem_2', *ends], _prefixes(r'(stem_)?reduction\d', ours), strict=True))
    names = {'stem_conv1': 'stem', 'stem_bn1': 'stem/bn', 'predictions': 'logits'}
    parts = {
        r'(?:normal|reduction)_conv_1': 'input',
        r'(?:normal|reduction)_bn_1': 'input/bn',
        r'adjust_conv_projection': 'previous',
        r'adjust_conv_(\d)': r'previous/half\1',
        r'adjust_bn': 'previous/bn',
        # The second left4 of a Keras reduction cell is left5 in the paper and here.
        r'separable_conv_(\d)_reduction_left4': r'left5/conv\1',
        r'separable_conv_(\d)_bn_reduction_left4': r'left5/conv\1/bn',
        r'separable_conv_(\d)_(?:normal|reduction)_(\w+\d)': r'\2/conv\1',
        r'separable_conv_(\d)_bn_(?:normal|reduction)_(\w+\d)': r'\2/conv\1/bn',
    }
    for name in theirs:
        if match := re.fullmatch(r'(\w+?)_(\d+|stem_\d|reduce_\d+)', name):
            for pattern, part in parts.items():
                if inner := re.fullmatch(pattern, match[1]):
                    names.setdefault(name, f'{cells[match[2]]}/{inner.expand(part)}')
    return names


def _prefixes(pattern: str, names: list[str]) -> list[str]:
    """The matched beginnings of the names that match the pattern, without repeats, in order."""
    return list(dict.fromkeys(match[0] for name in names if (match := re.match(pattern, name))))


@dataclass(frozen=True)
class Case:
    """A row of the conformance table.

    `counterpart` makes the Keras model from (shape of an image, number of classes). `num_parameters` counts the
    trainable ones with images of image_size. Logits are compared at that size, or at smaller_size to save time.
    """

    model: str
    counterpart: Callable[[tuple[int, ...], int], Any]
    naming: Naming
    image_size: int
    num_parameters: int
    smaller_size: int | None = None
    data_set: str | None = None

    @property
    def facts(self) -> ModelFacts:
        return MODELS.find_model(self.model, self.data_set)


RESNET_18 = partial(keras_resnet, num_blocks=(2, 2, 2, 2), bottleneck=False, same_pool=True)
RESNET_50_V2 = partial(keras_resnet, pre_activation=True)
DENSENET_40 = partial(keras_densenet_cifar, num_layers=12, growth_rate=12)
RESNET_20 = partial(keras_resnet_cifar, num_blocks=3)
CONVNEXT = partial(published, 'ConvNeXtTiny', include_preprocessing=False)

# The counts are with 1001 classes (cifar10, mnist: 10) and without the biases that batch norm makes useless. Most are
# the published ones for 1000 classes plus one more column of the last layer: from Keras; torchvision (whose AlexNet has
# other filters); Caffe's model zoo (GoogLeNet); timm (Inception v4, where 31,584 normalised channels have factors);
# TensorFlow's tutorials (AlexNet for CIFAR-10, of 24x24 pixels). The official ResNet of 18 layers has 64 x 64 + 2 x 64
# more than torchvision's, for a projection in its first stage, and version 2 does not normalise the projections.
CONFORMANCE = (
    Case('trivial', keras_trivial, same_names, 227, 4_263_877),
    Case('trivial', keras_trivial, same_names, 32, 3073 + 2 * 4096 + 4097 * 10, data_set='cifar10'),
    Case('lenet', partial(keras_lenet, units=512), same_names, 28, 2_173_353),
    Case('mnist', partial(keras_lenet, units=1024), same_names, 28, 3_274_634),
    Case('alexnet', keras_alexnet, same_names, 227, 61_838_248 + 4097, 131),
    Case('alexnet', keras_alexnet_cifar, same_names, 32, 1_068_298 + (8 * 8 - 6 * 6) * 64 * 384, data_set='cifar10'),
    Case('overfeat', keras_overfeat, same_names, 231, 145_920_872 + 4097, 119),
    Case('vgg11', keras_vgg11, same_names, 224, 132_863_336 + 4097, 64),
    Case('vgg16', partial(published, 'VGG16'), vgg_names, 224, 138_357_544 + 4097, 64),
    Case('vgg19', partial(published, 'VGG19'), vgg_names, 224, 143_667_240 + 4097, 64),
    Case('googlenet', keras_googlenet, inception_names, 224, 6_998_552 + 1025, 64),
    Case('inception3', partial(published, 'InceptionV3'), inception_names, 299, 23_817_352 + 2049, 139),
    Case('inception4', keras_inception4, inception_names, 299, 42_679_816 - 31_584 + 1537, 107),
    Case('resnet50', partial(published, 'ResNet50'), resnet_names, 224, 25_557_032 + 2049, 64),
    Case('resnet50_v1.5', partial(keras_resnet, pre_activation=False), same_names, 224, 25_557_032 + 2049, 64),
    Case('resnet50_v2', partial(RESNET_50_V2, stride_first=True), same_names, 224, 25_549_352 + 2049, 64),
    Case('resnet50_v2.5', RESNET_50_V2, same_names, 224, 25_549_352 + 2049, 64),
    Case('resnet101', partial(published, 'ResNet101'), resnet_names, 224, 44_549_160 + 2049, 64),
    Case('resnet152', partial(published, 'ResNet152'), resnet_names, 224, 60_192_808 + 2049, 64),
    Case('official_resnet18', partial(RESNET_18, pre_activation=False), same_names, 224, 11_693_736 + 513, 64),
    Case('official_resnet18_v2', partial(RESNET_18, pre_activation=True), same_names, 224, 11_691_816 + 513, 64),
    Case('resnet20', partial(RESNET_20, pre_activation=False), same_names, 32, 269_722),
    Case('resnet20_v2', partial(RESNET_20, pre_activation=True), same_names, 32, 269_722),
    # The original program's network has 11 classes, each with 168 weights and a bias.
    Case('densenet40_k12', partial(DENSENET_40, transition=24), same_names, 32, 357_491 - 169),
    Case('densenet40_k12_paper', DENSENET_40, same_names, 32, 1_019_722),
    Case('mobilenet', partial(published, 'MobileNetV2'), mobilenet_names, 224, 3_504_872 + 1281, 96),
    Case('nasnet', partial(published, 'NASNetMobile'), nasnet_names, 224, 5_289_978 + 1057, 96),
    Case('nasnetlarge', partial(published, 'NASNetLarge'), nasnet_names, 331, 88_753_150 + 4033, 75),
    Case('densenet121', partial(published, 'DenseNet121'), densenet_names, 224, 7_978_856 + 1025, 75),
    Case('efficientnet_b0', keras_efficientnet_b0, efficientnet_names, 224, 5_288_548 + 1281, 75),
    Case('convnext_tiny', CONVNEXT, convnext_names, 224, 28_589_128 + 769, 96),
)


def build(
    model: str,
    manager: VariableMgr,
    images: Any,
    data_format: str = 'NHWC',
    *,
    is_training: bool = False,
    data_set: str | None = None,
) -> Logits:
    """Builds a network on images. Networks with the same manager share variables of the same name."""
    facts = MODELS.find_model(model, data_set)
    num_classes = DATA_SETS[facts.data_set].num_classes
    with manager.create_outer_variable_scope(0) as variables:
        return build_network(facts.network, images, num_classes, variables, data_format, is_training=is_training)


def count(manager: VariableMgr, *, trainable: bool) -> int:
    variables = manager.savable_variables().values()
    return sum(math.prod(variable.shape) for variable in variables if variable.trainable == trainable)


def give_weights(model: Any, case: Case, ours: dict[str, Any]) -> tuple[Weights, dict[bool, int]]:
    """Gives a Keras model random weights; returns them by our names, and their number by whether they are trainable.

    `ours` are our variables by name. Convolution biases that our network lacks are set to zero and not returned.
    """
    our_layers = list(dict.fromkeys(name.rpartition('/')[0] for name in ours))
    weighted = list(weighted_layers(model))
    naming = case.naming([layer.name for layer in weighted], our_layers)
    weights: Weights = {}
    counts = {True: 0, False: 0}
    for layer in weighted:
        trainable = {id(weight) for weight in layer.trainable_weights}
        for weight in layer.weights:
            name = f'{naming[layer.name]}/{weight_name(layer, weight)}'
            if name not in ours and isinstance(layer, tf.keras.layers.Conv2D) and weight.name == 'bias':
                weight.assign(np.zeros(weight.shape))
                continue
            weights[name] = random_weight(name, tuple(ours[name].shape))
            # A pointwise convolution may be a dense layer in the other network.
            weight.assign(weights[name].reshape(weight.shape))
            counts[id(weight) in trainable] += weights[name].size
    return weights, counts

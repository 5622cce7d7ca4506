"""The networks in Keras, its own or rebuilt, and which layer of theirs is which of ours.

Each is made of the shape of an image and the number of classes. Rebuilt ones have our names, with "." in place of "/".
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

keras = tf.keras
layers = keras.layers


def keras_trivial(shape: tuple[int, ...], num_classes: int) -> Any:
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Flatten(),
            layers.Dense(1, 'relu', name='fc1'),
            layers.Dense(4096, 'relu', name='fc2'),
            layers.Dense(num_classes, name='logits'),
        ]
    )


def keras_lenet(shape: tuple[int, ...], num_classes: int, *, units: int) -> Any:
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(32, 5, padding='same', activation='relu', name='conv1'),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 5, padding='same', activation='relu', name='conv2'),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(units, 'relu', name='fc1'),
            layers.Dense(num_classes, name='logits'),
        ]
    )


def keras_alexnet(shape: tuple[int, ...], num_classes: int) -> Any:
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(64, 11, strides=4, activation='relu', name='conv1'),
            layers.MaxPooling2D(3, 2),
            layers.Conv2D(192, 5, padding='same', activation='relu', name='conv2'),
            layers.MaxPooling2D(3, 2),
            layers.Conv2D(384, 3, padding='same', activation='relu', name='conv3'),
            layers.Conv2D(384, 3, padding='same', activation='relu', name='conv4'),
            layers.Conv2D(256, 3, padding='same', activation='relu', name='conv5'),
            layers.MaxPooling2D(3, 2),
            layers.Flatten(),
            layers.Dense(4096, 'relu', name='fc1'),
            layers.Dropout(0.5),
            layers.Dense(4096, 'relu', name='fc2'),
            layers.Dropout(0.5),
            layers.Dense(num_classes, name='logits'),
        ]
    )


def keras_resnet50(shape: tuple[int, ...], num_classes: int, *, pre_activation: bool) -> Any:
    """ResNet-50 v1.5 or v2, with a stage's stride on the 3x3 convolution of its first block."""

    def conv(x: Any, filters: int, size: int, name: str, strides: int = 1) -> Any:
        x = layers.ZeroPadding2D(size // 2)(x)
        return layers.Conv2D(filters, size, strides, use_bias=False, name=name)(x)

    def norm(x: Any, name: str, *, activate: bool = True) -> Any:
        x = layers.BatchNormalization(epsilon=1e-5, name=name)(x)
        return layers.ReLU()(x) if activate else x

    def block(x: Any, width: int, strides: int, name: str, *, project: bool) -> Any:
        shortcut = x
        if pre_activation:
            x = norm(x, f'{name}.bn')
        if project:
            shortcut = conv(x, 4 * width, 1, f'{name}.shortcut', strides)
            if not pre_activation:
                shortcut = norm(shortcut, f'{name}.shortcut.bn', activate=False)
        x = norm(conv(x, width, 1, f'{name}.conv1'), f'{name}.conv1.bn')
        x = norm(conv(x, width, 3, f'{name}.conv2', strides), f'{name}.conv2.bn')
        x = conv(x, 4 * width, 1, f'{name}.conv3')
        if pre_activation:
            return layers.Add()([x, shortcut])
        return layers.ReLU()(layers.Add()([norm(x, f'{name}.conv3.bn', activate=False), shortcut]))

    inputs = keras.Input(shape)
    x = conv(inputs, 64, 7, 'conv1', 2)
    if not pre_activation:
        x = norm(x, 'conv1.bn')
    x = keras.ops.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=-np.inf)
    x = layers.MaxPooling2D(3, 2)(x)
    for stage, num_blocks in enumerate((3, 4, 6, 3)):
        for index in range(num_blocks):
            strides = 2 if index == 0 and stage > 0 else 1
            x = block(x, 64 * 2**stage, strides, f'stage{stage + 1}.block{index + 1}', project=index == 0)
    if pre_activation:
        x = norm(x, 'final_bn')
    return keras.Model(inputs, layers.Dense(num_classes, name='logits')(layers.GlobalAveragePooling2D()(x)))


def published(name: str, shape: tuple[int, ...], num_classes: int) -> Any:
    """A model of keras.applications."""
    make = getattr(keras.applications, name)
    return make(weights=None, input_shape=shape, classes=num_classes, classifier_activation=None)


# From the names of a Keras model's layers and of ours, in the order of their creation, to ours of each of Keras.
Naming = Callable[[list[str], list[str]], dict[str, str]]


def same_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    return {name: name.replace('.', '/') for name in theirs}


def vgg_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    return {name: 'logits' if name == 'predictions' else name.replace('_', '/') for name in theirs}


def resnet_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    """conv3_block2_1_bn is stage2/block2/conv1/bn; convolution 0 is the shortcut."""
    names = {'conv1_conv': 'conv1', 'conv1_bn': 'conv1/bn', 'predictions': 'logits'}
    for name in theirs:
        match = re.fullmatch(r'conv(\d)_block(\d)_(\d)_(conv|bn)', name)
        if match:
            conv = 'shortcut' if match[3] == '0' else f'conv{match[3]}'
            suffix = '/bn' if match[4] == 'bn' else ''
            names[name] = f'stage{int(match[1]) - 1}/block{match[2]}/{conv}{suffix}'
    return names


def inception_names(theirs: list[str], ours: list[str]) -> dict[str, str]:
    """Keras only numbers them; both sides make the branches of a block in the order of the paper's figures."""
    names = {'predictions': 'logits'}
    for kind, is_norm in (('conv2d', False), ('batch_normalization', True)):
        numbered = [name for name in theirs if name.startswith(kind)]
        numbered.sort(key=lambda name: int(name.removeprefix(kind).lstrip('_') or 0))
        of_kind = [name for name in ours if name.endswith('/bn') == is_norm and name != 'logits']
        names |= dict(zip(numbered, of_kind, strict=True))
    return names

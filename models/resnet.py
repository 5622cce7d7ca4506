"""Residual networks: v1, He et al. 2015 (arXiv:1512.03385), with v1.5; and v2, He et al. 2016
(arXiv:1603.05027).

The models named official_resnet come from the TensorFlow "official models"
(github.com/tensorflow/models). They are v1.5 or v2.5, and have a larger decay in batch norm, 'SAME'
padding in the pooling layer, and a projection in the first block of every stage. Other
implementations have none in the first stage of depths 18 and 34.
"""

import math
from dataclasses import dataclass

from models.catalog import model
from models.layers import LayerBuilder, Padding, Tensor, he_normal
from models.model_spec import (
    IMAGENET_FACTORS,
    RESNET_CIFAR_SCHEDULE,
    RESNET_SCHEDULE,
    BatchNorm,
    RateSchedule,
)

# Number of blocks in each of the four stages, by depth: He et al. 2015, table 1; 200 from He et al.
# 2016, section 5.
BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
_WITHOUT_BOTTLENECKS = (18, 34)
_EXPANSION = 4  # ratio of a bottleneck block's output channels to its inner channels


@dataclass(frozen=True)
class _Conv:
    filters: int
    kernel_size: int
    strides: int = 1


def resnet(
    cnn: LayerBuilder,
    x: Tensor,
    num_classes: int,
    *,
    depth: int,
    version: str,
    pool_padding: Padding = 1,
) -> Tensor:
    """The logits [N, num_classes] of images x.

    version is 'v1', 'v1.5', 'v2' or 'v2.5'. The first convolution of a block has the stride in v1
    and v2, the first 3x3 convolution in v1.5 (as in most published ResNet-50 results) and v2.5. v2
    and v2.5 normalise and activate before each convolution.
    """
    x = _conv(cnn, x, _Conv(64, 7, 2), 'conv1')
    if not _is_v2(version):
        x = cnn.relu(cnn.batch_norm(x, 'conv1/bn'))
    x = cnn.max_pool(x, 3, 2, pool_padding)
    untrained_scale = sum(BLOCKS[depth]) ** -0.5
    for stage, num_blocks in enumerate(BLOCKS[depth]):
        for index in range(num_blocks):
            strides = 2 if stage > 0 and index == 0 else 1
            if depth in _WITHOUT_BOTTLENECKS:
                convs = _basic_convs(64 << stage, strides)
            else:
                convs = _bottleneck_convs(
                    64 << stage, strides, stride_first=version in ('v1', 'v2')
                )
            with cnn.scope(f'stage{stage + 1}/block{index + 1}'):
                x = _block(cnn, x, convs, version, untrained_scale, project=index == 0)
    return _head(cnn, x, num_classes, version)


def resnet_cifar(
    cnn: LayerBuilder, x: Tensor, num_classes: int, *, depth: int, version: str
) -> Tensor:
    """The logits [N, num_classes] of images x of 32x32 pixels: He et al. 2015, section 4.2.

    depth is 6n + 2, version 'v1' or 'v2'. Shortcuts have no parameters: where the number of
    channels doubles, they take every second pixel and append channels of zeros (option A).
    """
    # Also in v2, the first activation precedes the first shortcut: He et al. 2016, appendix.
    x = cnn.relu(cnn.batch_norm(_conv(cnn, x, _Conv(16, 3), 'conv1'), 'conv1/bn'))
    num_blocks = (depth - 2) // 6
    untrained_scale = (3 * num_blocks) ** -0.5
    for stage in range(3):
        for index in range(num_blocks):
            convs = _basic_convs(16 << stage, 2 if stage > 0 and index == 0 else 1)
            with cnn.scope(f'stage{stage + 1}/block{index + 1}'):
                activated = stage == index == 0
                x = _block(
                    cnn, x, convs, version, untrained_scale, project=False, activated=activated
                )
    return _head(cnn, x, num_classes, version)


# ---- the models ----------------------------------------------------------------------------------

for _name, _depth, _version in (
    *(
        (f'{depth}{suffix}', depth, version)
        for depth in (50, 101, 152)
        for suffix, version in (('', 'v1'), ('_v2', 'v2'), ('_v2.5', 'v2.5'))
    ),
    ('50_v1.5', 50, 'v1.5'),
):
    model(
        f'resnet{_name}',
        'imagenet',
        image_size=224,
        batch_size=64 if _depth == 50 else 32,
        learning_rate=0.128,
        schedule=RESNET_SCHEDULE,
        depth=_depth,
        version=_version,
    )(resnet)
# As in github.com/tensorflow/models, official/resnet/resnet_model.py. Learning rates of 0.1 for 256
# images: He et al. 2015, section 3.4.
for _depth, _batch_size in ((18, 32), (34, 32), (50, 128), (101, 32), (152, 32), (200, 32)):
    for _suffix, _version in (('', 'v1.5'), ('_v2', 'v2.5')):
        model(
            f'official_resnet{_depth}{_suffix}',
            'imagenet',
            image_size=224,
            batch_size=_batch_size,
            learning_rate=0.1 * _batch_size / 256,
            batch_norm=BatchNorm(decay=0.997),
            schedule=RateSchedule(IMAGENET_FACTORS, reference_batch_size=_batch_size),
            depth=_depth,
            version=_version,
            pool_padding='SAME',
        )(resnet)
for _depth in (20, 32, 44, 56, 110):
    for _suffix, _version in (('', 'v1'), ('_v2', 'v2')):
        model(
            f'resnet{_depth}{_suffix}',
            'cifar10',
            image_size=32,
            batch_size=128,
            learning_rate=0.1,
            any_size=True,
            schedule=RESNET_CIFAR_SCHEDULE,
            depth=_depth,
            version=_version,
        )(resnet_cifar)


def _is_v2(version: str) -> bool:
    return version.startswith('v2')


def _basic_convs(width: int, strides: int) -> list[_Conv]:
    """He et al. 2015, figure 5 (left)."""
    return [_Conv(width, 3, strides), _Conv(width, 3)]


def _bottleneck_convs(width: int, strides: int, *, stride_first: bool) -> list[_Conv]:
    """He et al. 2015, figure 5 (right)."""
    first, middle = (strides, 1) if stride_first else (1, strides)
    return [_Conv(width, 1, first), _Conv(width, 3, middle), _Conv(_EXPANSION * width, 1)]


def _conv(cnn: LayerBuilder, x: Tensor, conv: _Conv, name: str) -> Tensor:
    # Equal padding on both sides: 'SAME' would pad strided convolutions unequally.
    padding = conv.kernel_size // 2
    return cnn.conv(
        x,
        conv.filters,
        conv.kernel_size,
        name,
        strides=conv.strides,
        padding=padding,
        use_bias=False,
        initializer=he_normal,
    )


def _block(
    cnn: LayerBuilder,
    x: Tensor,
    convs: list[_Conv],
    version: str,
    untrained_scale: float,
    *,
    project: bool,
    activated: bool = False,
) -> Tensor:
    """Convolutions in parallel with a shortcut: He et al. 2015, figure 2; v2: He et al. 2016,
    figure 4e.

    Args:
      untrained_scale: the initial factor of the last batch norm before the sum, in a network that
        is not trained. For L blocks it is 1 / sqrt(L), as in De & Smith 2020 (arXiv:2002.10444),
        section 4. With 1 the variance would more than double in each block, and 16 blocks would
        exceed the range of float16.
      project: whether the shortcut is a convolution.
      activated: whether x is already normalised and activated, so that a v2 block does not do it
        again.
    """
    if _is_v2(version):
        preactivated = x if activated else cnn.relu(cnn.batch_norm(x, 'bn'))
        shortcut = _shortcut(cnn, preactivated if project else x, convs, project=project)
        x = _conv(cnn, preactivated, convs[0], 'conv1')
        for number, conv in enumerate(convs[1:], 2):
            scale = untrained_scale if number == len(convs) else 1.0
            x = cnn.relu(cnn.batch_norm(x, f'conv{number - 1}/bn', untrained_scale=scale))
            x = _conv(cnn, x, conv, f'conv{number}')
        return x + shortcut
    shortcut = _shortcut(cnn, x, convs, project=project)
    if project:
        shortcut = cnn.batch_norm(shortcut, 'shortcut/bn')
    for number, conv in enumerate(convs, 1):
        scale = untrained_scale if number == len(convs) else 1.0
        x = cnn.batch_norm(
            _conv(cnn, x, conv, f'conv{number}'), f'conv{number}/bn', untrained_scale=scale
        )
        if number < len(convs):
            x = cnn.relu(x)
    return cnn.relu(x + shortcut)


def _shortcut(cnn: LayerBuilder, x: Tensor, convs: list[_Conv], *, project: bool) -> Tensor:
    filters, strides = convs[-1].filters, math.prod(conv.strides for conv in convs)
    if project:
        return _conv(cnn, x, _Conv(filters, 1, strides), 'shortcut')
    return x if strides == 1 else cnn.pad_channels(cnn.max_pool(x, 1, strides), filters)


def _head(cnn: LayerBuilder, x: Tensor, num_classes: int, version: str) -> Tensor:
    if _is_v2(version):
        x = cnn.relu(cnn.batch_norm(x, 'final_bn'))
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')

"""Densely connected networks: Huang et al. 2017 (arXiv:1608.06993)."""

from collections.abc import Sequence

from models.catalog import model
from models.layers import LayerBuilder, Tensor, he_normal
from models.model_spec import RateSchedule


# Section 4.2: a learning rate of 0.1 for 256 images, scaled linearly to the batch size (Goyal et
# al. 2017, arXiv:1706.02677).
@model(
    'densenet121',
    'imagenet',
    image_size=224,
    batch_size=32,
    learning_rate=0.0125,
    blocks=(6, 12, 24, 16),
    growth_rate=32,
    bottleneck=True,
    compression=0.5,
    stem_filters=64,
    small_images=False,
)
# The arguments after num_classes are what the models of the paper differ in.
def densenet(
    cnn: LayerBuilder,
    x: Tensor,
    num_classes: int,
    *,
    blocks: Sequence[int],
    growth_rate: int,
    bottleneck: bool,
    compression: float,
    stem_filters: int,
    small_images: bool,
    transition_filters: int | None = None,
    use_bias: bool = False,
) -> Tensor:
    """The logits [N, num_classes] of images x.

    Args:
      blocks: the number of layers of each dense block.
      growth_rate: the number of channels that each layer adds (the paper's k).
      bottleneck: whether each layer begins with a 1x1 convolution to 4k channels ("DenseNet-B").
      compression: the fraction of the channels that a transition between blocks keeps
        ("DenseNet-C", theta), unless transition_filters is their number.
      stem_filters: the number of channels before the first block.
      small_images: whether the first block gets the image at its full size, as for CIFAR (section
        3, "implementation details"); otherwise at a fourth of its height and width (table 1).
    """

    def composite(x: Tensor, filters: int, kernel_size: int) -> Tensor:
        """The composite function of section 3: batch norm, ReLU, convolution."""
        x = cnn.relu(cnn.batch_norm(x, 'bn'))
        return cnn.conv(x, filters, kernel_size, 'conv', use_bias=use_bias, initializer=he_normal)

    if small_images:
        x = cnn.conv(x, stem_filters, 3, 'conv1', use_bias=use_bias, initializer=he_normal)
    else:
        x = cnn.conv(
            x,
            stem_filters,
            7,
            'conv1',
            strides=2,
            padding=3,
            use_bias=use_bias,
            initializer=he_normal,
        )
        x = cnn.max_pool(cnn.relu(cnn.batch_norm(x, 'conv1/bn')), 3, 2, padding=1)
    for block, num_layers in enumerate(blocks):
        if block > 0:
            *_, channels = cnn.shape(x)
            filters = transition_filters or int(channels * compression)
            with cnn.scope(f'transition{block}'):
                x = cnn.avg_pool(composite(x, filters, 1), 2, 2)
        for layer in range(num_layers):
            with cnn.scope(f'block{block + 1}/layer{layer + 1}'):
                new_features = x
                if bottleneck:
                    with cnn.scope('bottleneck'):
                        new_features = composite(new_features, 4 * growth_rate, 1)
                x = cnn.concat([x, composite(new_features, growth_rate, 3)])
    x = cnn.relu(cnn.batch_norm(x, 'final_bn'))
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')


# DenseNets for CIFAR-10: as in the paper, or as in the original program, where a transition has
# 2 * growth_rate channels. The rate drops after half and three quarters of 300 epochs: section 4.2.
_CIFAR_SCHEDULE = RateSchedule(
    ((150.0, 0.1), (225.0, 0.01), (300.0, 0.001)), rounds_epochs_down=True
)
for _depth, _growth_rate in ((40, 12), (100, 12), (100, 24)):
    for _suffix in ('', '_paper'):
        model(
            f'densenet{_depth}_k{_growth_rate}{_suffix}',
            'cifar10',
            image_size=32,
            batch_size=64,
            learning_rate=0.1,
            any_size=True,
            schedule=_CIFAR_SCHEDULE,
            blocks=[(_depth - 4) // 3] * 3,
            growth_rate=_growth_rate,
            bottleneck=False,
            compression=1.0,
            stem_filters=16,
            small_images=True,
            transition_filters=None if _suffix else 2 * _growth_rate,
            use_bias=not _suffix,
        )(densenet)

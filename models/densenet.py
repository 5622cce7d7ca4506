"""Densely connected networks: Huang et al. 2017 (arXiv:1608.06993)."""

from collections.abc import Sequence

from models.layers import LayerBuilder, Tensor, he_normal


# DenseNets differ in the keyword arguments; the table of models in models/zoo.py sets them.
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

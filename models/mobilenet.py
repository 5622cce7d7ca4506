"""MobileNet v2: Sandler et al. 2018 (arXiv:1801.04381). EfficientNet uses its blocks too."""

from collections.abc import Callable

from models.catalog import model
from models.layers import LayerBuilder, Tensor, he_normal_fan_out, truncated_normal
from models.model_spec import BatchNorm

# Expansion, filters, number of blocks, and strides of the first block: table 2.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_DROPOUT = 0.2  # as in the authors' code (TF-Slim) and torchvision; the paper gives no rate


# Batch norm as in keras.applications; the paper gives neither value.
@model(
    'mobilenet',
    'imagenet',
    image_size=224,
    batch_size=32,
    learning_rate=0.005,
    batch_norm=BatchNorm(decay=0.999, epsilon=1e-3),
)
def mobilenet_v2(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    """The logits [N, num_classes] of images x; the width multiplier is 1.

    Weight decay includes depthwise kernels, which the authors' code excludes.
    """
    x = conv_norm(cnn, x, 32, 3, 'conv1', cnn.relu6, strides=2)
    for stage, (expansion, filters, num_blocks, strides) in enumerate(_STAGES):
        for index in range(num_blocks):
            with cnn.scope(f'stage{stage + 1}/block{index + 1}'):
                x = inverted_residual(
                    cnn,
                    x,
                    filters,
                    3,
                    cnn.relu6,
                    expansion=expansion,
                    strides=strides if index == 0 else 1,
                )
    x = conv_norm(cnn, x, 1280, 1, 'conv2', cnn.relu6)
    x = cnn.dropout(cnn.global_avg_pool(x), _DROPOUT)
    return cnn.dense(x, num_classes, 'logits', initializer=truncated_normal(0.01))


Activation = Callable[[Tensor], Tensor]


def conv_norm(
    cnn: LayerBuilder,
    x: Tensor,
    filters: int,
    kernel_size: int,
    name: str,
    activation: Activation | None = None,
    *,
    strides: int = 1,
) -> Tensor:
    x = cnn.conv(
        x,
        filters,
        kernel_size,
        name,
        strides=strides,
        use_bias=False,
        initializer=he_normal_fan_out,
    )
    x = cnn.batch_norm(x, f'{name}/bn')
    return activation(x) if activation else x


# The arguments after x are the columns of the tables of MobileNet v2 and EfficientNet.
def inverted_residual(
    cnn: LayerBuilder,
    x: Tensor,
    filters: int,
    kernel_size: int,
    activation: Activation,
    *,
    expansion: int,
    strides: int,
    squeeze: int | None = None,
    drop_rate: float = 0.0,
) -> Tensor:
    """A 1x1 convolution that widens, a depthwise one, and a linear 1x1 convolution that narrows:
    figure 3b.

    Args:
      expansion: the ratio of inner channels to channels of x; 1 means no widening convolution.
      squeeze: the ratio of x's channels to the units of squeeze-and-excitation (Hu et al. 2018,
        arXiv:1709.01507); None for a block without it.
      drop_rate: the rate of stochastic depth, for blocks with a shortcut.
    """
    shortcut = x
    *_, in_channels = cnn.shape(x)
    width = expansion * in_channels
    if expansion > 1:
        x = conv_norm(cnn, x, width, 1, 'expand', activation)
    x = cnn.depthwise_conv(x, kernel_size, 'depthwise', strides=strides, use_bias=False)
    x = activation(cnn.batch_norm(x, 'depthwise/bn'))
    if squeeze:
        summary = cnn.dense(
            cnn.global_avg_pool(x), in_channels // squeeze, 'squeeze', initializer=he_normal_fan_out
        )
        x = cnn.gate(
            x, cnn.dense(activation(summary), width, 'excite', initializer=he_normal_fan_out)
        )
    x = conv_norm(cnn, x, filters, 1, 'project')
    if strides == 1 and filters == in_channels:
        return cnn.drop_path(x, drop_rate) + shortcut
    return x

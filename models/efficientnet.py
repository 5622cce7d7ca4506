"""EfficientNet: Tan & Le 2019 (arXiv:1905.11946)."""

from models.catalog import model
from models.layers import LayerBuilder, Tensor, variance_scaling
from models.mobilenet import conv_norm, inverted_residual
from models.model_spec import BatchNorm

# Kernel size, expansion, filters, number of blocks, and strides of the first block: table 1, stages
# 2 to 8.
_STAGES = (
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)
_NUM_BLOCKS = sum(num_blocks for _, _, _, num_blocks, _ in _STAGES)
# Section 5.2.
_DROPOUT = 0.2
# The rate of stochastic depth ("survival probability 0.8"); it grows linearly from block to block.
_DROP_PATH = 0.2


# Batch norm: the decay of section 5.2, and the epsilon of the authors' code. The learning rate is
# 0.256 (section 5.2) for 4096 images (the authors' code) with RMSProp, scaled linearly to the batch
# size (Goyal et al. 2017, arXiv:1706.02677).
@model(
    'efficientnet_b0',
    'imagenet',
    image_size=224,
    batch_size=32,
    learning_rate=0.002,
    batch_norm=BatchNorm(decay=0.99, epsilon=1e-3),
)
def efficientnet_b0(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    x = conv_norm(cnn, x, 32, 3, 'conv1', cnn.swish, strides=2)
    blocks_before = 0
    for stage, (kernel_size, expansion, filters, num_blocks, strides) in enumerate(_STAGES):
        for index in range(num_blocks):
            with cnn.scope(f'stage{stage + 1}/block{index + 1}'):
                x = inverted_residual(
                    cnn,
                    x,
                    filters,
                    kernel_size,
                    cnn.swish,
                    expansion=expansion,
                    strides=strides if index == 0 else 1,
                    squeeze=4,
                    drop_rate=_DROP_PATH * blocks_before / _NUM_BLOCKS,
                )
            blocks_before += 1
    x = conv_norm(cnn, x, 1280, 1, 'conv2', cnn.swish)
    x = cnn.dropout(cnn.global_avg_pool(x), _DROPOUT)
    # The variance of the authors' uniform distribution between -1 / sqrt(fan_out) and 1 /
    # sqrt(fan_out).
    return cnn.dense(x, num_classes, 'logits', initializer=variance_scaling(1 / 3, 'fan_out'))

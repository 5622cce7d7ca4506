"""ConvNeXt: Liu et al. 2022 (arXiv:2201.03545)."""

from models.catalog import model
from models.layers import LayerBuilder, Tensor, truncated_normal

# Channels and blocks of the four stages of ConvNeXt-T: table 9.
_STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))
_NUM_BLOCKS = sum(num_blocks for _, num_blocks in _STAGES)
# Appendix A.1, table 5: the rate of stochastic depth at the last block, which grows linearly from
# block to block, and the initial layer scale.
_DROP_PATH = 0.1
_LAYER_SCALE = 1e-6
_kernel_initializer = truncated_normal(0.02)  # of every kernel, as in the authors' code


# The learning rate is 0.004 for 4096 images with AdamW (table 5), scaled linearly to the batch size
# (Goyal et al. 2017, arXiv:1706.02677).
@model('convnext_tiny', 'imagenet', image_size=224, batch_size=32, learning_rate=0.004 * 32 / 4096)
def convnext_tiny(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    """The logits [N, num_classes] of images x.

    Weight decay excludes layer norms and layer scales, as in the authors' code, since their
    variables are vectors.
    """
    blocks_before = 0
    for stage, (channels, num_blocks) in enumerate(_STAGES):
        with cnn.scope(f'stage{stage + 1}'):
            if stage == 0:
                x = cnn.conv(
                    x,
                    channels,
                    4,
                    'downsample',
                    strides=4,
                    padding='VALID',
                    initializer=_kernel_initializer,
                )
                x = cnn.layer_norm(x, 'downsample/ln')
            else:
                x = cnn.layer_norm(x, 'downsample/ln')
                x = cnn.conv(
                    x,
                    channels,
                    2,
                    'downsample',
                    strides=2,
                    padding='VALID',
                    initializer=_kernel_initializer,
                )
        for index in range(num_blocks):
            with cnn.scope(f'stage{stage + 1}/block{index + 1}'):
                x = _block(cnn, x, channels, _DROP_PATH * blocks_before / (_NUM_BLOCKS - 1))
            blocks_before += 1
    x = cnn.layer_norm(cnn.global_avg_pool(x), 'final_ln')
    return cnn.dense(x, num_classes, 'logits', initializer=_kernel_initializer)


def _block(cnn: LayerBuilder, x: Tensor, channels: int, drop_rate: float) -> Tensor:
    """Figure 4, on the right."""
    shortcut = x
    x = cnn.layer_norm(cnn.depthwise_conv(x, 7, 'depthwise', initializer=_kernel_initializer), 'ln')
    x = cnn.gelu(cnn.conv(x, 4 * channels, 1, 'expand', initializer=_kernel_initializer))
    x = cnn.conv(x, channels, 1, 'project', initializer=_kernel_initializer)
    return cnn.drop_path(cnn.layer_scale(x, 'layer_scale', _LAYER_SCALE), drop_rate) + shortcut

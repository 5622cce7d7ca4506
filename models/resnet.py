"""Residual networks: He et al. 2015 (arXiv:1512.03385), v1.5 of it, and v2, He et al. 2016 (arXiv:1603.05027)."""

from models.layers import LayerBuilder, Tensor, he_normal

# Blocks in each of the four stages, by depth: He et al. 2015, table 1.
BLOCKS = {50: (3, 4, 6, 3)}
_EXPANSION = 4  # a bottleneck block's output channels over its inner ones


def resnet(cnn: LayerBuilder, x: Tensor, num_classes: int, *, depth: int, version: str) -> Tensor:
    """The logits [N, num_classes] of images x.

    version is 'v1', 'v1.5' or 'v2'. v1 puts a block's stride on its first 1x1 convolution, v1.5 on the 3x3 one (as most
    published ResNet-50 figures do). v2 normalises and activates before each convolution, stride on the 3x3 one.
    """
    x = cnn.conv(x, 64, 7, 'conv1', strides=2, padding=3, use_bias=False, initializer=he_normal)
    if version != 'v2':
        x = cnn.relu(cnn.batch_norm(x, 'conv1/bn'))
    x = cnn.max_pool(x, 3, 2, padding=1)
    block = _pre_activation_block if version == 'v2' else _block
    for stage, num_blocks in enumerate(BLOCKS[depth]):
        for index in range(num_blocks):
            strides = 2 if stage > 0 and index == 0 else 1
            with cnn.scope(f'stage{stage + 1}/block{index + 1}'):
                x = block(cnn, x, 64 << stage, strides, project=index == 0, stride_first=version == 'v1')
    if version == 'v2':
        x = cnn.relu(cnn.batch_norm(x, 'final_bn'))
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')


def _conv(cnn: LayerBuilder, x: Tensor, filters: int, kernel_size: int, name: str, strides: int = 1) -> Tensor:
    # Zeros on both sides, whatever the image's size: 'SAME' would shift the grid of strided convolutions.
    padding = kernel_size // 2
    return cnn.conv(
        x, filters, kernel_size, name, strides=strides, padding=padding, use_bias=False, initializer=he_normal
    )


def _block(cnn: LayerBuilder, x: Tensor, width: int, strides: int, *, project: bool, stride_first: bool) -> Tensor:
    """The bottleneck block of v1 and v1.5: He et al. 2015, figure 5."""
    shortcut = x
    if project:
        shortcut = cnn.batch_norm(_conv(cnn, x, _EXPANSION * width, 1, 'shortcut', strides), 'shortcut/bn')
    first, middle = (strides, 1) if stride_first else (1, strides)
    x = cnn.relu(cnn.batch_norm(_conv(cnn, x, width, 1, 'conv1', first), 'conv1/bn'))
    x = cnn.relu(cnn.batch_norm(_conv(cnn, x, width, 3, 'conv2', middle), 'conv2/bn'))
    x = cnn.batch_norm(_conv(cnn, x, _EXPANSION * width, 1, 'conv3'), 'conv3/bn')
    return cnn.relu(x + shortcut)


def _pre_activation_block(
    cnn: LayerBuilder, x: Tensor, width: int, strides: int, *, project: bool, stride_first: bool
) -> Tensor:
    """The bottleneck block of v2: He et al. 2016, figure 4e."""
    del stride_first
    preactivated = cnn.relu(cnn.batch_norm(x, 'bn'))
    shortcut = _conv(cnn, preactivated, _EXPANSION * width, 1, 'shortcut', strides) if project else x
    x = cnn.relu(cnn.batch_norm(_conv(cnn, preactivated, width, 1, 'conv1'), 'conv1/bn'))
    x = cnn.relu(cnn.batch_norm(_conv(cnn, x, width, 3, 'conv2', strides), 'conv2/bn'))
    return _conv(cnn, x, _EXPANSION * width, 1, 'conv3') + shortcut

"""Inception v4: Szegedy et al. 2016 (arXiv:1602.07261), figures 3 to 9."""

from models.inception import conv
from models.layers import LayerBuilder, Tensor


def inception4(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    """The logits [N, num_classes] of images x: figure 9."""
    x = _stem(cnn, x)
    for index in range(4):
        with cnn.scope(f'mixed_35x35_{index + 1}'):
            x = _mixed_35x35(cnn, x)
    with cnn.scope('reduce_17x17'):
        x = _reduce_17x17(cnn, x)
    for index in range(7):
        with cnn.scope(f'mixed_17x17_{index + 1}'):
            x = _mixed_17x17(cnn, x)
    with cnn.scope('reduce_8x8'):
        x = _reduce_8x8(cnn, x)
    for index in range(3):
        with cnn.scope(f'mixed_8x8_{index + 1}'):
            x = _mixed_8x8(cnn, x)
    return cnn.dense(cnn.dropout(cnn.global_avg_pool(x), 0.2), num_classes, 'logits')


def _stem(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Figure 3: [N, 299, 299, 3] -> [N, 35, 35, 384]."""
    with cnn.scope('stem'):
        x = conv(cnn, x, 32, 3, 'conv1', strides=2, padding='VALID')
        x = conv(cnn, x, 32, 3, 'conv2', padding='VALID')
        x = conv(cnn, x, 64, 3, 'conv3')
        x = cnn.concat([cnn.max_pool(x, 3, 2), conv(cnn, x, 96, 3, 'conv4', strides=2, padding='VALID')])
        short = conv(cnn, conv(cnn, x, 64, 1, 'b3/conv1'), 96, 3, 'b3/conv2', padding='VALID')
        long = conv(cnn, x, 64, 1, 'b7/conv1')
        long = conv(cnn, long, 64, (7, 1), 'b7/conv2')
        long = conv(cnn, long, 64, (1, 7), 'b7/conv3')
        long = conv(cnn, long, 96, 3, 'b7/conv4', padding='VALID')
        x = cnn.concat([short, long])
        return cnn.concat([conv(cnn, x, 192, 3, 'conv5', strides=2, padding='VALID'), cnn.max_pool(x, 3, 2)])


def _mixed_35x35(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Inception-A: figure 4."""
    pool = conv(cnn, cnn.avg_pool(x, 3, 1, 'SAME'), 96, 1, 'pool/conv')
    b1 = conv(cnn, x, 96, 1, 'b1/conv')
    b3 = conv(cnn, conv(cnn, x, 64, 1, 'b3/conv1'), 96, 3, 'b3/conv2')
    b33 = conv(cnn, conv(cnn, x, 64, 1, 'b33/conv1'), 96, 3, 'b33/conv2')
    return cnn.concat([pool, b1, b3, conv(cnn, b33, 96, 3, 'b33/conv3')])


def _reduce_17x17(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Reduction-A: figure 7, with the filters of table 1's row for Inception v4."""
    b3 = conv(cnn, x, 384, 3, 'b3/conv', strides=2, padding='VALID')
    b33 = conv(cnn, conv(cnn, x, 192, 1, 'b33/conv1'), 224, 3, 'b33/conv2')
    b33 = conv(cnn, b33, 256, 3, 'b33/conv3', strides=2, padding='VALID')
    return cnn.concat([cnn.max_pool(x, 3, 2), b3, b33])


def _mixed_17x17(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Inception-B: figure 5."""
    pool = conv(cnn, cnn.avg_pool(x, 3, 1, 'SAME'), 128, 1, 'pool/conv')
    b1 = conv(cnn, x, 384, 1, 'b1/conv')
    b7 = conv(cnn, x, 192, 1, 'b7/conv1')
    b7 = conv(cnn, b7, 224, (1, 7), 'b7/conv2')
    b7 = conv(cnn, b7, 256, (7, 1), 'b7/conv3')
    b77 = conv(cnn, x, 192, 1, 'b77/conv1')
    b77 = conv(cnn, b77, 192, (1, 7), 'b77/conv2')
    b77 = conv(cnn, b77, 224, (7, 1), 'b77/conv3')
    b77 = conv(cnn, b77, 224, (1, 7), 'b77/conv4')
    b77 = conv(cnn, b77, 256, (7, 1), 'b77/conv5')
    return cnn.concat([pool, b1, b7, b77])


def _reduce_8x8(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Reduction-B: figure 8."""
    b3 = conv(cnn, conv(cnn, x, 192, 1, 'b3/conv1'), 192, 3, 'b3/conv2', strides=2, padding='VALID')
    b7 = conv(cnn, x, 256, 1, 'b7/conv1')
    b7 = conv(cnn, b7, 256, (1, 7), 'b7/conv2')
    b7 = conv(cnn, b7, 320, (7, 1), 'b7/conv3')
    b7 = conv(cnn, b7, 320, 3, 'b7/conv4', strides=2, padding='VALID')
    return cnn.concat([cnn.max_pool(x, 3, 2), b3, b7])


def _mixed_8x8(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Inception-C: figure 6."""
    pool = conv(cnn, cnn.avg_pool(x, 3, 1, 'SAME'), 256, 1, 'pool/conv')
    b1 = conv(cnn, x, 256, 1, 'b1/conv')
    b3 = conv(cnn, x, 384, 1, 'b3/conv')
    b33 = conv(cnn, x, 384, 1, 'b33/conv1')
    b33 = conv(cnn, b33, 448, (1, 3), 'b33/conv2')
    b33 = conv(cnn, b33, 512, (3, 1), 'b33/conv3')
    return cnn.concat([pool, b1, *_split_3x3(cnn, b3, 'b3'), *_split_3x3(cnn, b33, 'b33')])


def _split_3x3(cnn: LayerBuilder, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    return conv(cnn, x, 256, (1, 3), f'{name}/conv_1x3'), conv(cnn, x, 256, (3, 1), f'{name}/conv_3x1')

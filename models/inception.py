"""Inception v3 and v4.

v3: Szegedy et al. 2015 (arXiv:1512.00567), table 1 and figures 5 to 8.
v4: Szegedy et al. 2016 (arXiv:1602.07261), figures 3 to 9.
"""

from models.catalog import model
from models.layers import LayerBuilder, Padding, Tensor, he_normal, truncated_normal
from models.model_spec import BatchNorm

# As in keras.applications: without a learned factor (gamma).
_BATCH_NORM = BatchNorm(epsilon=1e-3, scale=False)


def _conv(
    cnn: LayerBuilder,
    x: Tensor,
    filters: int,
    kernel_size: int | tuple[int, int],
    name: str,
    *,
    strides: int = 1,
    padding: Padding = 'SAME',
) -> Tensor:
    x = cnn.conv(
        x,
        filters,
        kernel_size,
        name,
        strides=strides,
        padding=padding,
        use_bias=False,
        initializer=he_normal,
    )
    return cnn.relu(cnn.batch_norm(x, f'{name}/bn'))


def _branch(
    cnn: LayerBuilder,
    x: Tensor,
    name: str,
    *convs: tuple[int, int | tuple[int, int]],
    strides: int = 1,
    padding: Padding = 'SAME',
) -> Tensor:
    """Convolutions in a row, each (filters, kernel_size); strides and padding are of the last."""
    for number, (filters, kernel_size) in enumerate(convs[:-1], 1):
        x = _conv(cnn, x, filters, kernel_size, f'{name}/conv{number}')
    filters, kernel_size = convs[-1]
    conv = f'{name}/conv{len(convs)}'
    return _conv(cnn, x, filters, kernel_size, conv, strides=strides, padding=padding)


def _split_3x3(cnn: LayerBuilder, x: Tensor, filters: int, name: str) -> list[Tensor]:
    """A 1x3 and a 3x1 convolution in parallel: figure 7 of v3, figure 6 of v4."""
    return [
        _conv(cnn, x, filters, (1, 3), f'{name}/conv_1x3'),
        _conv(cnn, x, filters, (3, 1), f'{name}/conv_3x1'),
    ]


# ---- v3 ------------------------------------------------------------------------------------------


@model(
    'inception3',
    'imagenet',
    image_size=299,
    batch_size=32,
    learning_rate=0.005,
    batch_norm=_BATCH_NORM,
)
def inception3(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    return _head(cnn, _mixed_8x8(cnn, _mixed_17x17(cnn, _stem_and_35x35(cnn, x))), num_classes)


@model(
    'inception3_aux',
    'imagenet',
    image_size=299,
    batch_size=32,
    learning_rate=0.005,
    batch_norm=_BATCH_NORM,
)
def inception3_aux(cnn: LayerBuilder, x: Tensor, num_classes: int) -> tuple[Tensor, Tensor | None]:
    """Returns the logits of images x and, while training, the logits of the auxiliary head after
    the last 17x17 block.
    """
    x = _mixed_17x17(cnn, _stem_and_35x35(cnn, x))
    auxiliary = _auxiliary_head(cnn, x, num_classes) if cnn.is_training else None
    return _head(cnn, _mixed_8x8(cnn, x), num_classes), auxiliary


def _stem_and_35x35(cnn: LayerBuilder, x: Tensor) -> Tensor:
    x = _conv(cnn, x, 32, 3, 'conv1', strides=2, padding='VALID')
    x = _conv(cnn, x, 32, 3, 'conv2', padding='VALID')
    x = _conv(cnn, x, 64, 3, 'conv3')
    x = cnn.max_pool(x, 3, 2)
    x = _conv(cnn, x, 80, 1, 'conv4', padding='VALID')
    x = _conv(cnn, x, 192, 3, 'conv5', padding='VALID')
    x = cnn.max_pool(x, 3, 2)
    for index, pool_filters in enumerate((32, 64, 64)):
        with cnn.scope(f'mixed_35x35_{index + 1}'):
            b1 = _conv(cnn, x, 64, 1, 'b1/conv')
            b5 = _branch(cnn, x, 'b5', (48, 1), (64, 5))
            b3 = _branch(cnn, x, 'b3', (64, 1), (96, 3), (96, 3))
            pool = _conv(cnn, cnn.avg_pool(x, 3, 1, 'SAME'), pool_filters, 1, 'pool/conv')
            x = cnn.concat([b1, b5, b3, pool])
    return x


def _mixed_17x17(cnn: LayerBuilder, x: Tensor) -> Tensor:
    with cnn.scope('reduce_17x17'):
        b3 = _conv(cnn, x, 384, 3, 'b3/conv', strides=2, padding='VALID')
        b33 = _branch(cnn, x, 'b33', (64, 1), (96, 3), (96, 3), strides=2, padding='VALID')
        x = cnn.concat([b3, b33, cnn.max_pool(x, 3, 2)])
    for index, width in enumerate((128, 160, 160, 192)):
        with cnn.scope(f'mixed_17x17_{index + 1}'):
            b1 = _conv(cnn, x, 192, 1, 'b1/conv')
            b7 = _branch(cnn, x, 'b7', (width, 1), (width, (1, 7)), (192, (7, 1)))
            b77 = _branch(
                cnn,
                x,
                'b77',
                (width, 1),
                (width, (7, 1)),
                (width, (1, 7)),
                (width, (7, 1)),
                (192, (1, 7)),
            )
            pool = _conv(cnn, cnn.avg_pool(x, 3, 1, 'SAME'), 192, 1, 'pool/conv')
            x = cnn.concat([b1, b7, b77, pool])
    return x


def _mixed_8x8(cnn: LayerBuilder, x: Tensor) -> Tensor:
    with cnn.scope('reduce_8x8'):
        b3 = _branch(cnn, x, 'b3', (192, 1), (320, 3), strides=2, padding='VALID')
        b7 = _branch(
            cnn,
            x,
            'b7',
            (192, 1),
            (192, (1, 7)),
            (192, (7, 1)),
            (192, 3),
            strides=2,
            padding='VALID',
        )
        x = cnn.concat([b3, b7, cnn.max_pool(x, 3, 2)])
    for index in range(2):
        with cnn.scope(f'mixed_8x8_{index + 1}'):
            b1 = _conv(cnn, x, 320, 1, 'b1/conv')
            b3 = cnn.concat(_split_3x3(cnn, _conv(cnn, x, 384, 1, 'b3/conv1'), 384, 'b3'))
            b33 = _branch(cnn, x, 'b33', (448, 1), (384, 3))
            b33 = cnn.concat(_split_3x3(cnn, b33, 384, 'b33'))
            pool = _conv(cnn, cnn.avg_pool(x, 3, 1, 'SAME'), 192, 1, 'pool/conv')
            x = cnn.concat([b1, b3, b33, pool])
    return x


def _head(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')


def _auxiliary_head(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    """Figure 8: [N, 17, 17, 768] -> 5x5 -> 1x1 -> [N, num_classes]."""
    with cnn.scope('auxiliary'):
        x = cnn.avg_pool(x, 5, 3)
        x = _conv(cnn, x, 128, 1, 'conv1')
        x = _conv(cnn, x, 768, 5, 'conv2', padding='VALID')
        return cnn.dense(cnn.flatten(x), num_classes, 'logits', initializer=truncated_normal(0.001))


# ---- v4 ------------------------------------------------------------------------------------------


@model(
    'inception4',
    'imagenet',
    image_size=299,
    batch_size=32,
    learning_rate=0.005,
    batch_norm=_BATCH_NORM,
)
def inception4(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    """The logits [N, num_classes] of images x: figure 9."""
    x = _stem(cnn, x)
    for index in range(4):
        with cnn.scope(f'mixed_35x35_{index + 1}'):
            x = _inception_a(cnn, x)
    with cnn.scope('reduce_17x17'):
        x = _reduction_a(cnn, x)
    for index in range(7):
        with cnn.scope(f'mixed_17x17_{index + 1}'):
            x = _inception_b(cnn, x)
    with cnn.scope('reduce_8x8'):
        x = _reduction_b(cnn, x)
    for index in range(3):
        with cnn.scope(f'mixed_8x8_{index + 1}'):
            x = _inception_c(cnn, x)
    return cnn.dense(cnn.dropout(cnn.global_avg_pool(x), 0.2), num_classes, 'logits')


def _stem(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Figure 3: [N, 299, 299, 3] -> [N, 35, 35, 384]."""
    with cnn.scope('stem'):
        x = _conv(cnn, x, 32, 3, 'conv1', strides=2, padding='VALID')
        x = _conv(cnn, x, 32, 3, 'conv2', padding='VALID')
        x = _conv(cnn, x, 64, 3, 'conv3')
        x = cnn.concat(
            [cnn.max_pool(x, 3, 2), _conv(cnn, x, 96, 3, 'conv4', strides=2, padding='VALID')]
        )
        b3 = _branch(cnn, x, 'b3', (64, 1), (96, 3), padding='VALID')
        b7 = _branch(cnn, x, 'b7', (64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3), padding='VALID')
        x = cnn.concat([b3, b7])
        return cnn.concat(
            [_conv(cnn, x, 192, 3, 'conv5', strides=2, padding='VALID'), cnn.max_pool(x, 3, 2)]
        )


def _inception_a(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Figure 4."""
    pool = _conv(cnn, cnn.avg_pool(x, 3, 1, 'SAME'), 96, 1, 'pool/conv')
    b1 = _conv(cnn, x, 96, 1, 'b1/conv')
    b3 = _branch(cnn, x, 'b3', (64, 1), (96, 3))
    b33 = _branch(cnn, x, 'b33', (64, 1), (96, 3), (96, 3))
    return cnn.concat([pool, b1, b3, b33])


def _reduction_a(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Figure 7, with the filters of table 1's row for Inception v4."""
    b3 = _conv(cnn, x, 384, 3, 'b3/conv', strides=2, padding='VALID')
    b33 = _branch(cnn, x, 'b33', (192, 1), (224, 3), (256, 3), strides=2, padding='VALID')
    return cnn.concat([cnn.max_pool(x, 3, 2), b3, b33])


def _inception_b(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Figure 5."""
    pool = _conv(cnn, cnn.avg_pool(x, 3, 1, 'SAME'), 128, 1, 'pool/conv')
    b1 = _conv(cnn, x, 384, 1, 'b1/conv')
    b7 = _branch(cnn, x, 'b7', (192, 1), (224, (1, 7)), (256, (7, 1)))
    b77 = _branch(
        cnn, x, 'b77', (192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))
    )
    return cnn.concat([pool, b1, b7, b77])


def _reduction_b(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Figure 8."""
    b3 = _branch(cnn, x, 'b3', (192, 1), (192, 3), strides=2, padding='VALID')
    b7 = _branch(
        cnn, x, 'b7', (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3), strides=2, padding='VALID'
    )
    return cnn.concat([cnn.max_pool(x, 3, 2), b3, b7])


def _inception_c(cnn: LayerBuilder, x: Tensor) -> Tensor:
    """Figure 6."""
    pool = _conv(cnn, cnn.avg_pool(x, 3, 1, 'SAME'), 256, 1, 'pool/conv')
    b1 = _conv(cnn, x, 256, 1, 'b1/conv')
    b3 = _conv(cnn, x, 384, 1, 'b3/conv')
    b33 = _branch(cnn, x, 'b33', (384, 1), (448, (1, 3)), (512, (3, 1)))
    return cnn.concat(
        [pool, b1, *_split_3x3(cnn, b3, 256, 'b3'), *_split_3x3(cnn, b33, 256, 'b33')]
    )

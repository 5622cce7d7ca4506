"""NASNet-A: Zoph et al. 2018 (arXiv:1707.07012), figure 4 and appendix A."""

from models.catalog import model
from models.layers import LayerBuilder, Tensor, he_normal_fan_out
from models.model_spec import BatchNorm

# As in the authors' code (TF-Slim) and keras.applications.
_BATCH_NORM = BatchNorm(decay=0.9997, epsilon=1e-3)
_DROPOUT = 0.5  # as in the authors' code
# The initial batch norm factor of the projections into a cell, in a network that is not trained. In
# each of up to 20 cells, a projection from 6F to F channels multiplies the mean square by 6, and a
# pair of separable convolutions by up to 8. With this factor the activations stay in the range of
# float16.
_UNTRAINED_SCALE = 1 / 6


@model(
    'nasnetlarge',
    'imagenet',
    image_size=331,
    batch_size=16,
    learning_rate=0.005,
    batch_norm=_BATCH_NORM,
    num_cells=6,
    penultimate_filters=4032,
    stem_filters=96,
    skip_reduction=True,
)
@model(
    'nasnet',
    'imagenet',
    image_size=224,
    batch_size=32,
    learning_rate=0.005,
    batch_norm=_BATCH_NORM,
    num_cells=4,
    penultimate_filters=1056,
    stem_filters=32,
    skip_reduction=False,
)
def nasnet(
    cnn: LayerBuilder,
    x: Tensor,
    num_classes: int,
    *,
    num_cells: int,
    penultimate_filters: int,
    stem_filters: int,
    skip_reduction: bool,
) -> Tensor:
    """The logits [N, num_classes] of images x.

    It has neither the auxiliary head nor the ScheduledDropPath of the paper's training (which only
    NASNet-A large has), since a network does not know the progress of training.

    Args:
      num_cells: the number of normal cells in each of the three stages (N in "N @ penultimate
        filters").
      penultimate_filters: the number of channels before the logits, 24 times the filters of a cell
        of the first stage.
      skip_reduction: whether the second input of the first cell of a stage comes from one cell
        earlier.
    """

    def reduce(x: Tensor, previous: Tensor | None, filters: int, name: str) -> Tensor:
        with cnn.scope(name):
            return _reduction_cell(cnn, x, previous, filters)

    x = cnn.conv(
        x,
        stem_filters,
        3,
        'stem',
        strides=2,
        padding='VALID',
        use_bias=False,
        initializer=he_normal_fan_out,
    )
    x, previous = cnn.batch_norm(x, 'stem/bn'), None
    filters = penultimate_filters // 24
    for number in (1, 2):
        x, previous = reduce(x, previous, filters * number // 4, f'stem_reduction{number}'), x
    for stage in range(3):
        if stage > 0:
            filters *= 2
            reduced = reduce(x, previous, filters, f'reduction{stage}')
            x, previous = reduced, previous if skip_reduction else x
        for number in range(num_cells):
            with cnn.scope(f'stage{stage + 1}/cell{number + 1}'):
                x, previous = _normal_cell(cnn, x, previous, filters), x
    x = cnn.dropout(cnn.global_avg_pool(cnn.relu(x)), _DROPOUT)
    return cnn.dense(x, num_classes, 'logits')


def _normal_cell(cnn: LayerBuilder, x: Tensor, previous: Tensor, filters: int) -> Tensor:
    """Figure 4, on the left: [N, H, W, C] -> [N, H, W, 6 * filters]."""
    previous = _match_size(cnn, previous, x, filters)
    x = _project(cnn, x, filters, 'input')
    pooled = cnn.avg_pool(previous, 3, 1, 'SAME')
    return cnn.concat(
        [
            previous,
            _separable(cnn, x, filters, 5, 'left1')
            + _separable(cnn, previous, filters, 3, 'right1'),
            _separable(cnn, previous, filters, 5, 'left2')
            + _separable(cnn, previous, filters, 3, 'right2'),
            cnn.avg_pool(x, 3, 1, 'SAME') + previous,
            pooled + pooled,
            _separable(cnn, x, filters, 3, 'left5') + x,
        ]
    )


def _reduction_cell(cnn: LayerBuilder, x: Tensor, previous: Tensor | None, filters: int) -> Tensor:
    """Figure 4, on the right: [N, H, W, C] -> [N, ceil(H/2), ceil(W/2), 4 * filters].

    The averages of its pooling include the padding, as in keras.applications.
    """
    previous = x if previous is None else _match_size(cnn, previous, x, filters)
    x = _project(cnn, x, filters, 'input')
    padded = cnn.pad_same(x, 3, 2)
    maxima = cnn.max_pool(padded, 3, 2)
    b1 = _separable(cnn, x, filters, 5, 'left1', 2) + _separable(
        cnn, previous, filters, 7, 'right1', 2
    )
    b2 = maxima + _separable(cnn, previous, filters, 7, 'right2', 2)
    b3 = cnn.avg_pool(padded, 3, 2) + _separable(cnn, previous, filters, 5, 'right3', 2)
    b4 = cnn.avg_pool(b1, 3, 1, 'SAME') + b2
    b5 = _separable(cnn, b1, filters, 3, 'left5') + maxima
    return cnn.concat([b2, b3, b4, b5])


def _project(cnn: LayerBuilder, x: Tensor, filters: int, name: str) -> Tensor:
    x = cnn.conv(cnn.relu(x), filters, 1, name, use_bias=False, initializer=he_normal_fan_out)
    return cnn.batch_norm(x, f'{name}/bn', untrained_scale=_UNTRAINED_SCALE)


def _match_size(cnn: LayerBuilder, previous: Tensor, x: Tensor, filters: int) -> Tensor:
    """Converts the output of the cell before the last to the size of x and the given number of
    filters.
    """
    if cnn.shape(previous)[:2] == cnn.shape(x)[:2]:
        return _project(cnn, previous, filters, 'previous')
    # Every second pixel, and every second pixel of the image moved by one, so that both parities
    # contribute.
    previous = cnn.relu(previous)
    halves = [
        cnn.conv(
            pixels,
            filters // 2,
            1,
            f'previous/half{number}',
            strides=2,
            use_bias=False,
            initializer=he_normal_fan_out,
        )
        for number, pixels in ((1, previous), (2, cnn.shift(previous)))
    ]
    return cnn.batch_norm(cnn.concat(halves), 'previous/bn', untrained_scale=_UNTRAINED_SCALE)


def _separable(
    cnn: LayerBuilder, x: Tensor, filters: int, kernel_size: int, name: str, strides: int = 1
) -> Tensor:
    """Applies ReLU, a depthwise and a pointwise convolution, and batch norm, all twice: appendix A.
    Only the first depthwise convolution has strides.
    """
    for number, conv_strides in ((1, strides), (2, 1)):
        conv = f'{name}/conv{number}'
        x = cnn.depthwise_conv(
            cnn.relu(x), kernel_size, f'{conv}/depthwise', strides=conv_strides, use_bias=False
        )
        x = cnn.conv(
            x, filters, 1, f'{conv}/pointwise', use_bias=False, initializer=he_normal_fan_out
        )
        x = cnn.batch_norm(x, f'{conv}/bn')
    return x

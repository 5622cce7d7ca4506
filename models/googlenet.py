"""GoogLeNet, Inception v1: Szegedy et al. 2014 (arXiv:1409.4842), table 1 and figure 2b.

As usual in benchmarks, it has neither local response normalisation nor the two auxiliary heads.
"""

from models.catalog import model
from models.layers import LayerBuilder, Tensor, he_normal

# Table 1: filters of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5 and pool proj, by module. 4a and 5a
# follow a pooling layer.
_MODULES = {
    '3a': (64, 96, 128, 16, 32, 32),
    '3b': (128, 128, 192, 32, 96, 64),
    '4a': (192, 96, 208, 16, 48, 64),
    '4b': (160, 112, 224, 24, 64, 64),
    '4c': (128, 128, 256, 24, 64, 64),
    '4d': (112, 144, 288, 32, 64, 64),
    '4e': (256, 160, 320, 32, 128, 128),
    '5a': (256, 160, 320, 32, 128, 128),
    '5b': (384, 192, 384, 48, 128, 128),
}


@model('googlenet', 'imagenet', image_size=224, batch_size=32, learning_rate=0.005)
def googlenet(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    x = _conv(cnn, x, 64, 7, 'conv1', strides=2)
    x = cnn.max_pool(x, 3, 2, 'SAME')
    x = _conv(cnn, x, 64, 1, 'conv2_reduce')
    x = _conv(cnn, x, 192, 3, 'conv2')
    x = cnn.max_pool(x, 3, 2, 'SAME')
    for name, filters in _MODULES.items():
        if name in ('4a', '5a'):
            x = cnn.max_pool(x, 3, 2, 'SAME')
        with cnn.scope(f'mixed_{name}'):
            x = _module(cnn, x, filters)
    x = cnn.dropout(cnn.global_avg_pool(x), 0.4)
    return cnn.dense(x, num_classes, 'logits')


def _module(cnn: LayerBuilder, x: Tensor, filters: tuple[int, int, int, int, int, int]) -> Tensor:
    """Figure 2b; filters is a row of _MODULES."""
    b1, b3_reduce, b3, b5_reduce, b5, pool = filters
    return cnn.concat(
        [
            _conv(cnn, x, b1, 1, 'b1/conv'),
            _conv(cnn, _conv(cnn, x, b3_reduce, 1, 'b3/reduce'), b3, 3, 'b3/conv'),
            _conv(cnn, _conv(cnn, x, b5_reduce, 1, 'b5/reduce'), b5, 5, 'b5/conv'),
            _conv(cnn, cnn.max_pool(x, 3, 1, 'SAME'), pool, 1, 'pool/conv'),
        ]
    )


def _conv(
    cnn: LayerBuilder, x: Tensor, filters: int, kernel_size: int, name: str, *, strides: int = 1
) -> Tensor:
    x = cnn.conv(
        x,
        filters,
        kernel_size,
        name,
        strides=strides,
        padding=kernel_size // 2,
        initializer=he_normal,
    )
    return cnn.relu(x)

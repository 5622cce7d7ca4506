"""VGG: Simonyan & Zisserman 2015 (arXiv:1409.1556)."""

from models.catalog import model
from models.layers import LayerBuilder, Tensor, he_normal

# Number of 3x3 convolutions in each of the five blocks, by depth: table 1, columns A, D and E.
CONVS = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_FILTERS = (64, 128, 256, 512, 512)


@model('vgg19', 'imagenet', image_size=224, batch_size=64, learning_rate=0.005, depth=19)
@model('vgg16', 'imagenet', image_size=224, batch_size=64, learning_rate=0.005, depth=16)
@model('vgg11', 'imagenet', image_size=224, batch_size=64, learning_rate=0.005, depth=11)
def vgg(cnn: LayerBuilder, x: Tensor, num_classes: int, *, depth: int) -> Tensor:
    for block, (num_convs, filters) in enumerate(zip(CONVS[depth], _FILTERS, strict=True)):
        for index in range(num_convs):
            x = cnn.relu(
                cnn.conv(x, filters, 3, f'block{block + 1}/conv{index + 1}', initializer=he_normal)
            )
        x = cnn.max_pool(x, 2, 2)
    x = cnn.flatten(x)
    for name in ('fc1', 'fc2'):
        x = cnn.dropout(cnn.relu(cnn.dense(x, 4096, name, initializer=he_normal)), 0.5)
    return cnn.dense(x, num_classes, 'logits')

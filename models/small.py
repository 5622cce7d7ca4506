"""Networks of few layers: AlexNet, OverFeat, LeNet, two networks of TensorFlow's first
tutorials, and a trivial one.
"""

from models.catalog import model
from models.layers import LayerBuilder, Tensor, he_normal
from models.model_spec import RateSchedule


@model('alexnet', 'imagenet', image_size=227, batch_size=512, learning_rate=0.005)
def alexnet(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    """Returns the logits [N, num_classes] of the one-column AlexNet for images x: Krizhevsky 2014
    (arXiv:1404.5997).
    """
    x = cnn.relu(cnn.conv(x, 64, 11, 'conv1', strides=4, padding='VALID', initializer=he_normal))
    x = cnn.max_pool(x, 3, 2)
    x = cnn.relu(cnn.conv(x, 192, 5, 'conv2', initializer=he_normal))
    x = cnn.max_pool(x, 3, 2)
    for name, filters in (('conv3', 384), ('conv4', 384), ('conv5', 256)):
        x = cnn.relu(cnn.conv(x, filters, 3, name, initializer=he_normal))
    x = cnn.flatten(cnn.max_pool(x, 3, 2))
    for name in ('fc1', 'fc2'):
        x = cnn.dropout(cnn.relu(cnn.dense(x, 4096, name, initializer=he_normal)), 0.5)
    return cnn.dense(x, num_classes, 'logits')


@model(
    'alexnet',
    'cifar10',
    image_size=32,
    batch_size=128,
    learning_rate=0.1,
    schedule=RateSchedule(decay_epochs=100.0),
)
def alexnet_cifar(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    """Returns the logits [N, num_classes] of the CIFAR-10 network of TensorFlow's tutorials for
    images x of 32x32 pixels.

    It is Krizhevsky's cuda-convnet with two hidden fully connected layers. Its local response
    normalisation covers 9 channels: Krizhevsky et al. 2012, section 3.3.
    """
    x = cnn.relu(cnn.conv(x, 64, 5, 'conv1', initializer=he_normal))
    x = _local_response_norm(cnn, cnn.max_pool(x, 3, 2, 'SAME'))
    x = _local_response_norm(cnn, cnn.relu(cnn.conv(x, 64, 5, 'conv2', initializer=he_normal)))
    x = cnn.flatten(cnn.max_pool(x, 3, 2, 'SAME'))
    for name, units in (('fc1', 384), ('fc2', 192)):
        x = cnn.relu(cnn.dense(x, units, name, initializer=he_normal))
    return cnn.dense(x, num_classes, 'logits')


@model('overfeat', 'imagenet', image_size=231, batch_size=32, learning_rate=0.005)
def overfeat(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    """Returns the logits [N, num_classes] of OverFeat's fast model for images x: Sermanet et al.
    2014 (arXiv:1312.6229).

    Table 1 lists the layers. The network has no local response normalisation (section 3.1).
    """
    x = cnn.relu(cnn.conv(x, 96, 11, 'conv1', strides=4, padding='VALID', initializer=he_normal))
    x = cnn.max_pool(x, 2, 2)
    x = cnn.relu(cnn.conv(x, 256, 5, 'conv2', padding='VALID', initializer=he_normal))
    x = cnn.max_pool(x, 2, 2)
    for name, filters in (('conv3', 512), ('conv4', 1024), ('conv5', 1024)):
        x = cnn.relu(cnn.conv(x, filters, 3, name, initializer=he_normal))
    x = cnn.flatten(cnn.max_pool(x, 2, 2))
    for name, units in (('fc1', 3072), ('fc2', 4096)):
        x = cnn.dropout(cnn.relu(cnn.dense(x, units, name, initializer=he_normal)), 0.5)
    return cnn.dense(x, num_classes, 'logits')


@model('mnist', 'mnist', image_size=28, batch_size=128, learning_rate=0.001, units=1024)
@model('lenet', 'mnist', image_size=28, batch_size=32, learning_rate=0.005, units=512)
@model('lenet', 'imagenet', image_size=28, batch_size=32, learning_rate=0.005, units=512)
def lenet(cnn: LayerBuilder, x: Tensor, num_classes: int, *, units: int) -> Tensor:
    """Returns the logits [N, num_classes] of LeNet for images x, after LeCun et al. 1998
    (doi:10.1109/5.726791), with max pooling and ReLU.

    units is the size of the hidden layer, 1024 in the MNIST network.
    """
    for name, filters in (('conv1', 32), ('conv2', 64)):
        x = cnn.max_pool(cnn.relu(cnn.conv(x, filters, 5, name, initializer=he_normal)), 2, 2)
    x = cnn.relu(cnn.dense(cnn.flatten(x), units, 'fc1', initializer=he_normal))
    return cnn.dense(x, num_classes, 'logits')


@model('trivial', 'cifar10', image_size=32, batch_size=32, learning_rate=0.005)
@model('trivial', 'imagenet', image_size=227, batch_size=32, learning_rate=0.005)
def trivial(cnn: LayerBuilder, x: Tensor, num_classes: int) -> Tensor:
    """Returns logits [N, num_classes] for images x at almost no cost, to measure the harness and
    the input.
    """
    x = cnn.relu(cnn.dense(cnn.flatten(x), 1, 'fc1'))
    x = cnn.relu(cnn.dense(x, 4096, 'fc2'))
    return cnn.dense(x, num_classes, 'logits')


def _local_response_norm(cnn: LayerBuilder, x: Tensor) -> Tensor:
    return cnn.local_response_norm(x, radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)

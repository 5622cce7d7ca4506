"""A --model_file with the network of TensorFlow's tutorial on MNIST.

It has two convolutions of 5x5 and two dense layers. --data_dir is a folder with MNIST's files, or
with the digits of sample_digits.py --format=mnist.
"""

from typing import Any

from tf_cnn_benchmarks import register_model


def mnist_network(cnn: Any, x: Any, num_classes: int) -> Any:
    x = cnn.max_pool(cnn.relu(cnn.conv(x, 32, 5, 'conv2d_1')), 2, 2)
    x = cnn.max_pool(cnn.relu(cnn.conv(x, 64, 5, 'conv2d_2')), 2, 2)
    x = cnn.relu(cnn.dense(cnn.flatten(x), 1024, 'dense_1'))
    return cnn.dense(x, num_classes, 'dense_2')


register_model(
    'mnist_network',
    mnist_network,
    data_set='mnist',
    image_size=28,
    batch_size=128,
    learning_rate=1e-3,
)

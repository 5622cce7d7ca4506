"""Trains ResNet-50 of keras.applications on TensorFlow with train_on_batch.

python -m benchmarks.peers.keras_resnet50 --batch_size=32 --precision=bf16
"""

import os
from collections.abc import Callable

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ['KERAS_BACKEND'] = 'tensorflow'

import keras
import tensorflow as tf

from benchmarks.peers.measuring import (
    IMAGE_SIZE,
    LEARNING_RATE,
    NUM_CLASSES,
    WEIGHT_DECAY,
    make_parser,
    run_steps,
)


def make_step(batch_size: int, precision: str, *, forward_only: bool) -> Callable[[], float]:
    keras.mixed_precision.set_global_policy('mixed_bfloat16' if precision == 'bf16' else 'float32')
    images = tf.random.uniform([batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], -1, 1)
    labels = tf.random.uniform([batch_size], 0, NUM_CLASSES, tf.int32)
    model = keras.applications.ResNet50(
        weights=None, classes=NUM_CLASSES, classifier_activation=None
    )
    for layer in model.layers:
        if not forward_only and hasattr(layer, 'kernel'):
            layer.kernel.regularizer = keras.regularizers.L2(WEIGHT_DECAY / 2)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(LEARNING_RATE), cross_entropy)
    if not forward_only:

        def train() -> float:
            # train_on_batch returns the mean loss of all batches since the last reset.
            model.reset_metrics()
            return float(model.train_on_batch(images, labels))

        return train

    @tf.function
    def forward() -> tf.Tensor:
        return cross_entropy(labels, model(images, training=False))

    return lambda: float(forward())


def main() -> None:
    args = make_parser('ResNet-50 in Keras.').parse_args()
    step = make_step(args.batch_size, args.precision, forward_only=args.forward_only)
    run_steps(args, f'Keras {keras.__version__}, TensorFlow {tf.__version__}', step)


if __name__ == '__main__':
    main()

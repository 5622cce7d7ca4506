"""A TensorFlow graph loop, as small and fast as a hand-written one can be, for ResNet-50 or `trivial` on records.

    python benchmarks/peers/plain_tensorflow.py --batch_size=32 --precision=bf16
    python benchmarks/peers/plain_tensorflow.py --data_dir=data/records --batch_size=64

The graph contains nothing of this program, only tf.nn's ops on reference variables, tf.gradients, and the fused update.
"""

import argparse
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

from benchmarks.peers.measuring import LEARNING_RATE, WEIGHT_DECAY, parse_flags, run_steps
from benchmarks.peers.plain_networks import NETWORKS, Layers, PlainNetwork
from benchmarks.peers.plain_records import make_pipeline


def make_step(
    model: str,
    batch_size: int,
    precision: str,
    *,
    forward_only: bool,
    prepares_fetches: bool = True,
    pipeline: Callable[[], tuple[tf.Tensor, tf.Tensor]] | None = None,
) -> Callable[[], float]:
    """Returns a function that takes a step of a network of NETWORKS in a new session, and returns the loss.

    Args:
      prepares_fetches: whether TensorFlow looks up what to fetch once, and not in each step, as session.run does.
      pipeline: adds the images and labels to the graph; None for random ones, which stay in variables.
    """
    network = NETWORKS[model]
    layers = Layers(is_training=not forward_only)
    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        images, labels = pipeline() if pipeline else _random_images(batch_size, network)
        inputs = tf.cast(images, tf.bfloat16 if precision == 'bf16' else tf.float32)
        logits = tf.cast(network.build(layers, inputs, network.num_classes), tf.float32)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))
        ops = layers.updates
        if forward_only:
            # A forward step of the program finds the accuracy, too, as one of the original did.
            ops = [tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, k), tf.float32)) for k in (1, 5)]
        else:
            # The returned loss includes weight decay, as in the program.
            loss += WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(kernel) for kernel in layers.kernels])
            variables = [*layers.kernels, *layers.others]
            gradients = tf.gradients(loss, variables)
            optimizer = tf.train.GradientDescentOptimizer(LEARNING_RATE)
            ops = [*ops, optimizer.apply_gradients(zip(gradients, variables, strict=True))]
        initialize = tf.global_variables_initializer()
    session = tf.Session(graph=graph)
    session.run(initialize)
    fetches = [loss, *ops]
    run = session.make_callable(fetches) if prepares_fetches else functools.partial(session.run, fetches)
    return lambda: float(run()[0])


def _random_images(batch_size: int, network: PlainNetwork) -> tuple[tf.Tensor, tf.Tensor]:
    images = tf.random.uniform([batch_size, network.image_size, network.image_size, 3], -1, 1)
    labels = tf.random.uniform([batch_size], 0, network.num_classes, tf.int32)
    kept = [tf.Variable(values, trainable=False, use_resource=True) for values in (images, labels)]
    return kept[0].read_value(), kept[1].read_value()


def main() -> None:
    def add_flags(parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--data_dir', help='train --model=trivial on the train-*-of-* shards in this folder')
        parser.add_argument('--distortions', action='store_true', help='with --data_dir: change colours at random')

    args = parse_flags('ResNet-50, or the trivial model on records, in a plain TensorFlow graph loop.', add_flags)
    model, pipeline, peer = 'resnet50', None, 'plain TensorFlow'
    if args.data_dir:
        model, peer = 'trivial', 'plain tf.data'
        pipeline = make_pipeline(args.data_dir, args.batch_size, distortions=args.distortions)
    step = make_step(model, args.batch_size, args.precision, forward_only=args.forward_only, pipeline=pipeline)
    run_steps(args, peer, {'tensorflow': tf.version.VERSION}, step, model=model, is_synthetic=not pipeline)


if __name__ == '__main__':
    main()

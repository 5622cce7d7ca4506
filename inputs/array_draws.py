"""Draws images from arrays in memory, in an order that a seed determines, and the numbers that shift them."""

from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class ArrayDraws:
    """The random numbers of one step, for the batches of all devices together.

    Attributes:
      end: scalar int64, the position after the last image of the step. It seeds the other random numbers of the step.
      chosen: [B] int64, the numbers of the images.
      uniform: [B, 3] float32 in [0, 1), for preprocessing.shift_and_flip.
    """

    end: tf.Tensor
    chosen: tf.Tensor
    uniform: tf.Tensor


def draw_batches(counter: tf.Variable, global_batch: int, num_images: int, seed: int) -> ArrayDraws:
    """Returns what the next step draws.

    counter, a scalar int64, is the position before the step in an endless sequence of epochs; the step advances it.
    """
    end = tf.identity(counter.assign_add(global_batch))
    chosen = in_random_order(end - global_batch + tf.range(global_batch, dtype=tf.int64), num_images, seed)
    return ArrayDraws(end, chosen, tf.random.stateless_uniform([global_batch, 3], tf.stack([seed, end])))


def in_random_order(positions: tf.Tensor, count: int, seed: int) -> tf.Tensor:
    """Maps [B] int64 positions in an endless sequence of epochs to [B] int64 in [0, count), each once per epoch."""
    epochs = positions // count
    seeds = tf.stack([tf.fill(tf.shape(epochs), tf.constant(seed, tf.int64)), tf.zeros_like(epochs), epochs], axis=1)
    # The op computes the permutation for each index: nothing is stored, and no step waits for a shuffle.
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % count, seed=seeds, max_index=tf.constant(count - 1, tf.int64), rounds=8
    )


def from_host(array: np.ndarray) -> tf.Tensor:
    """Returns the values of an array as a tensor. The graph does not contain them, since it is limited to 2 GB."""
    # numpy_function runs in this process; the host device of a pipeline may belong to another one.
    with tf.device('/cpu:0'):
        value = tf.numpy_function(lambda: array, [], tf.as_dtype(array.dtype), stateful=True)
    value.set_shape(array.shape)
    return value

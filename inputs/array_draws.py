"""Draws images from arrays in memory, in an order that a seed determines, and the numbers that shift them."""

from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class ArrayDraws:
    """The random numbers of one step, for the batches of all devices of a worker together.

    Attributes:
      end: scalar int64, the position after the worker's last image of the step. It seeds the other random numbers.
      chosen: [B] int64, the numbers of the images.
      uniform: [B, 3] float32 in [0, 1), for preprocessing.shift_and_flip.
    """

    end: tf.Tensor
    chosen: tf.Tensor
    uniform: tf.Tensor


def draw_batches(
    counter: tf.Variable, batch_of_worker: int, batch_of_workers: int, num_images: int, seed: int
) -> ArrayDraws:
    """Returns what this worker's share of the next step draws.

    All workers have the same endless sequence of epochs. counter, a scalar int64, is the position in it where this
    worker's share of the step begins; the step advances it by the images of all workers. So each image comes once in a
    pass of all workers together.
    """
    begin = counter.assign_add(batch_of_workers) - batch_of_workers
    end = begin + batch_of_worker
    chosen = in_random_order(begin + tf.range(batch_of_worker, dtype=tf.int64), num_images, seed)
    return ArrayDraws(end, chosen, tf.random.stateless_uniform([batch_of_worker, 3], tf.stack([seed, end])))


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

"""The random order of images in memory, and the random numbers that shift them.

Each device computes both itself, with the same result on CPUs and GPUs: they depend only on the
seed and on an image's position in the sequence of epochs. The code uses 64-bit integer arithmetic,
because RandomIndexShuffle runs only on CPUs, and a GPU keeps 32-bit integers and the seeds of
stateless random numbers in host memory.
"""

import math

import numpy as np
import tensorflow.compat.v1 as tf

# Rows and columns rotate alternately, see shuffled_indices.
_NUM_ROTATIONS = 6
# The multipliers and shifts of SplitMix64: Steele, Lea and Flood 2014, with Stafford's variant 13.
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFTS = 30, 27, 31


def image_positions(
    first: int, batch_size: int, global_batch_size: int, steps_before: tf.Tensor
) -> tuple[tf.Tensor, tf.Operation, tf.Operation]:
    """Returns the positions of a device's images in the endless sequence of epochs, [B] uint64, for
    this step; an op that initialises them; and one that sets them as after steps_before steps.

    A variable on the current device has the positions of the next step. All workers share one
    sequence.

    Args:
      first: the position of the first image of the first step.
      batch_size: B, the number of images per step.
      global_batch_size: images per step on all devices of all workers.
      steps_before: a scalar uint64.
    """
    start = tf.cast(first + tf.range(batch_size, dtype=tf.int64), tf.uint64)
    # No collection: neither trained nor saved.
    variable = tf.Variable(start, trainable=False, collections=[], use_resource=True)
    stride = tf.constant(global_batch_size, tf.uint64, [batch_size])
    positions = variable.assign_add(stride) - stride
    return (
        positions,
        variable.initializer,
        variable.assign(start + steps_before * global_batch_size).op,
    )


def shuffled_indices(positions: tf.Tensor, count: int, seed: int) -> tf.Tensor:
    """Maps [B] uint64 positions to [B] int64 image indices in [0, count), each once per epoch.

    The permutation needs no memory and no loop. The numbers fill the rows of an almost square
    grid; the last row may be shorter. Three times each row, then each column, is rotated by a
    number of places that depends on the epoch and on the row or column. This is a Feistel network
    on a grid (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"), but rows and
    columns have their exact lengths, so no number falls outside the range and needs a redraw.
    """
    width = math.isqrt(count - 1) + 1
    height = -(-count // width)
    last_row_width = count - width * (height - 1)
    epochs = positions // count
    number = positions - epochs * count
    row = number // width
    column = number - row * width
    epoch_key = _splitmix64(epochs * _GOLDEN + _random_key(seed, 0))
    for rotation in range(_NUM_ROTATIONS):
        if rotation % 2:
            size = tf.where_v2(column < last_row_width, _uint64(height), _uint64(height - 1))
            row = (row + _random_offsets(column, epoch_key, _random_key(seed, rotation + 1))) % size
        else:
            size = tf.where_v2(row < height - 1, _uint64(width), _uint64(last_row_width))
            column = (
                column + _random_offsets(row, epoch_key, _random_key(seed, rotation + 1))
            ) % size
    return tf.cast(row * width + column, tf.int64)


def random_shift_numbers(positions: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns [B, 3] float32 in [0, 1) for [B] uint64 positions: input of shift_and_flip."""
    keys = np.array([_random_key(seed, -1 - column) for column in range(3)], np.uint64)
    bits = _splitmix64(positions[:, tf.newaxis] * _GOLDEN + keys)
    return tf.cast(tf.bitwise.right_shift(bits, _uint64(40)), tf.float32) * 2.0**-24


def _random_offsets(index: tf.Tensor, epoch_key: tf.Tensor, key: int) -> tf.Tensor:
    """Returns [B] uint64 below 2^32: hashes of the index and both keys."""
    bits = (index + key) * _GOLDEN + epoch_key
    bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _uint64(32))) * _MULTIPLIERS[0]
    return tf.bitwise.right_shift(bits, _uint64(32))


def _splitmix64(bits: tf.Tensor) -> tf.Tensor:
    """Returns SplitMix64's hash of each uint64."""
    for multiplier, shift in zip((*_MULTIPLIERS, None), _SHIFTS, strict=True):
        bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _uint64(shift)))
        bits = bits if multiplier is None else bits * multiplier
    return bits


def _random_key(seed: int, number: int) -> int:
    """Returns one of the random 64-bit keys of a seed."""
    state = np.random.SeedSequence([seed % 2**64, number % 2**64]).generate_state(1, np.uint64)
    return int(state[0])


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


def array_to_tensor(array: np.ndarray) -> tf.Tensor:
    """Returns an array as a tensor that the graph does not contain, since graphs end at 2 GB."""
    # numpy_function runs in this process; the host device of a pipeline may belong to another one.
    with tf.device('/cpu:0'):
        value = tf.numpy_function(lambda: array, [], tf.as_dtype(array.dtype), stateful=True)
    value.set_shape(array.shape)
    return value

"""Reads the images of a run into memory, in the size of the model, before the first step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from inputs.data_sets import Arrays, Shards
from preprocessing import ImageOptions

Dataset = Any
# In bytes, as TensorFlow aligns tensors on the CPU.
_ALIGNMENT = 64


def read_images(
    source: Shards | Arrays, make_examples: Callable[[], Dataset], options: ImageOptions, config: tf.ConfigProto
) -> Arrays:
    """Returns the images of a source, [N, H, W, C] uint8, as an evaluation reads them: each once, in order.

    Args:
      source: the images.
      make_examples: adds a Dataset of the examples to the graph, see inputs.validation.
      options: the size of the images that are returned.
      config: the settings of the run's session. Images are read in this process, on its CPU.

    Raises:
      tf.errors.OpError: as for the pipelines that read the source in steps.
    """
    shape = source.num_images, options.height, options.width, options.channels
    if isinstance(source, Arrays) and source.images.shape == shape:
        return source
    images, labels = _aligned(shape), np.empty(shape[:1], np.int32)
    on_cpu = tf.ConfigProto()
    on_cpu.CopyFrom(config)
    on_cpu.device_count['GPU'] = 0
    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        iterator = tf.data.make_initializable_iterator(make_examples().prefetch(tf.data.AUTOTUNE))
        example = iterator.get_next()
        with tf.Session(graph=graph, config=on_cpu) as session:
            session.run(iterator.initializer)
            read = session.make_callable(example)
            for number in range(len(images)):
                images[number], labels[number] = read()
    return Arrays(source.subset, images, labels)


def _aligned(shape: Sequence[int]) -> np.ndarray:
    """Returns an uninitialised array of uint8 whose memory TensorFlow can use without a copy."""
    size = math.prod(shape)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + size].reshape(shape)

"""Reads each image of a source once, in order: for evaluations, and into memory before a run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.inputs.data_sets import Arrays, Shards
from tf_cnn.inputs.pipeline import Batch, InputPipeline

# The label of the padding in the last batch.
NO_IMAGE = -1

Dataset = Any
# The alignment in bytes of TensorFlow's tensors on the CPU.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Share:
    """The examples that one process evaluates: every count-th example from the index-th on.

    num_examples is the number for all processes; if the source has fewer, some repeat. With None,
    each example is evaluated once.
    """

    index: int = 0
    count: int = 1
    num_examples: int | None = None

    def select(self, examples: Dataset) -> Dataset:
        if self.num_examples is not None:
            examples = examples.repeat().take(self.num_examples)
        return examples.shard(self.count, self.index)


class ValidationInput(InputPipeline):
    """Batches in order, padded after the last example with the label NO_IMAGE.

    The padding keeps the shape of batches static.

    Args:
      devices: the devices of the towers; the k-th batch of a step goes to the k-th device.
      make_examples: adds a Dataset to the graph: pairs of an image [H, W, C] uint8 and its label, a
        scalar int32.
    """

    def __init__(
        self,
        devices: Sequence[str],
        batch_size: int,
        make_examples: Callable[[], Dataset],
        scale: preprocessing.Scale | None = None,
    ) -> None:
        super().__init__()
        with tf.device(HOST_DEVICE), tf.name_scope('validation_input'):
            examples = make_examples()
            shape = tf.data.get_output_shapes(examples)[0].as_list()
            padding = tf.data.Dataset.from_tensors(
                (np.zeros(shape, np.uint8), np.int32(NO_IMAGE))
            ).repeat()
            batches = (
                examples.concatenate(padding)
                .batch(batch_size, drop_remainder=True)
                .prefetch(len(devices))
            )
            iterator = tf.data.make_initializable_iterator(batches)
            self.initializers.append(iterator.initializer)
            host_batches = [iterator.get_next() for _ in devices]
        for device, (images, labels) in zip(devices, host_batches, strict=True):
            with tf.device(device), tf.name_scope('validation_batch'):
                self._batches.append(
                    Batch(preprocessing.normalize(images, scale), tf.identity(labels))
                )


def record_examples(
    source: Shards, num_classes: int, options: preprocessing.ImageOptions, share: Share
) -> Dataset:
    """Returns a Dataset of the images of TFRecord shards, in order. Faults in the data raise the
    same errors as in RecordPipeline.
    """

    @tf.autograph.experimental.do_not_convert
    def decode_record(number: Any, record: Any) -> tuple[Any, Any]:
        encoded, label, boxes = preprocessing.parse_example(record, num_classes, options.uses_boxes)
        return preprocessing.preprocess(encoded, boxes, options, number), label

    records = share.select(tf.data.TFRecordDataset(list(source.paths)).enumerate())
    return records.map(decode_record, num_parallel_calls=tf.data.experimental.AUTOTUNE)


def array_examples(source: Arrays, options: preprocessing.ImageOptions, share: Share) -> Dataset:
    """Returns a Dataset of the images of arrays, in order, resized to the size in options.

    The graph does not contain the images.
    """
    images, labels = source.images, source.labels

    @tf.autograph.experimental.do_not_convert
    def load_image(index: Any) -> tuple[Any, Any]:
        image, label = tf.numpy_function(
            lambda number: (images[number], labels[number]),
            [index],
            (tf.uint8, tf.int32),
            stateful=False,
        )
        image.set_shape(images.shape[1:])
        label.set_shape([])
        if images.shape[1:3] != (options.height, options.width):
            image = preprocessing.resize_and_distort(image, options, index, random_numbers=None)
        return image, label

    return share.select(tf.data.Dataset.range(len(images))).map(load_image)


def read_images(
    source: Shards | Arrays,
    make_examples: Callable[[], Dataset],
    options: preprocessing.ImageOptions,
    config: tf.ConfigProto,
) -> Arrays:
    """Reads images into memory before the first step, as an evaluation reads them.

    This process reads them on its CPU. Returns Arrays with images [N, H, W, C] uint8. Raises
    tf.errors.OpError for faults in the data, as RecordPipeline does.

    Args:
      make_examples: adds a Dataset to the graph, see record_examples and array_examples.
    """
    shape = source.num_images, options.height, options.width, options.channels
    if isinstance(source, Arrays) and source.images.shape == shape:
        return source
    images, labels = _aligned_array(shape), np.empty(shape[:1], np.int32)
    cpu_config = tf.ConfigProto()
    cpu_config.CopyFrom(config)
    cpu_config.device_count['GPU'] = 0
    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        iterator = tf.data.make_initializable_iterator(make_examples().prefetch(tf.data.AUTOTUNE))
        example = iterator.get_next()
        with tf.Session(graph=graph, config=cpu_config) as session:
            session.run(iterator.initializer)
            read_example = session.make_callable(example)
            for number in range(len(images)):
                images[number], labels[number] = read_example()
    return Arrays(source.subset, images, labels)


def _aligned_array(shape: Sequence[int]) -> np.ndarray:
    """Returns an uninitialised array of uint8 that TensorFlow can use without a copy."""
    size = math.prod(shape)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + size].reshape(shape)

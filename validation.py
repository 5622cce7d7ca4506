"""The images of a validation set, each once: what evaluation looks at."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow.compat.v1 as tf

import preprocessing
from input_pipeline import Batch, InputPipeline
from training.variables import HOST_DEVICE

# The label of what fills up the last batch.
NO_IMAGE = -1

Dataset = Any


@dataclass(frozen=True)
class Share:
    """Which of the examples a process looks at: every count-th from the index-th on, of the first num_examples.

    num_examples may be more than there are: then they come again. None is each of them once.
    """

    index: int = 0
    count: int = 1
    num_examples: int | None = None

    def of(self, examples: Dataset) -> Dataset:
        if self.num_examples is not None:
            examples = examples.repeat().take(self.num_examples)
        return examples.shard(self.count, self.index)


class ValidationInput(InputPipeline):
    """Batches of examples in their order; once all have come, only of what is none, with the label NO_IMAGE.

    Every batch is full, so that the graph has one shape of it, and each example comes once, whatever the number is.

    Args:
      devices: of the towers; batch k of a step goes to the k-th.
      make_examples: adds a data set to the graph: pairs of an image [H, W, C] uint8 and its label, a scalar int32.
    """

    def __init__(self, devices: Sequence[str], batch_size: int, make_examples: Callable[[], Dataset]) -> None:
        super().__init__()
        with tf.device(HOST_DEVICE), tf.name_scope('validation_input'):
            examples = make_examples()
            shape = tf.data.get_output_shapes(examples)[0].as_list()
            none = tf.data.Dataset.from_tensors((np.zeros(shape, np.uint8), np.int32(NO_IMAGE))).repeat()
            batches = examples.concatenate(none).batch(batch_size, drop_remainder=True).prefetch(len(devices))
            iterator = tf.data.make_initializable_iterator(batches)
            self.initializers.append(iterator.initializer)
            made = [iterator.get_next() for _ in devices]
        self._batches = []
        for device, (images, labels) in zip(devices, made, strict=True):
            with tf.device(device), tf.name_scope('validation_batch'):
                self._batches.append(Batch(preprocessing.normalize(images), tf.identity(labels)))

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]


def record_examples(
    paths: Sequence[str], num_classes: int, options: preprocessing.ImageOptions, share: Share
) -> Dataset:
    """The images of TFRecord shards, in the order of the shards and of the records in each.

    Faults of the data fail the step with a TensorFlow error, as those of input_pipeline.RecordPipeline.
    """

    def example(number: Any, record: Any) -> tuple[Any, Any]:
        encoded, label, boxes = preprocessing.parse_example(record, num_classes, options.uses_boxes)
        preprocess = functools.partial(preprocessing.preprocess, encoded, boxes, options)
        return preprocessing.in_turn(options, number, preprocess), label

    records = share.of(tf.data.TFRecordDataset(list(paths)).enumerate())
    return records.map(example, num_parallel_calls=tf.data.experimental.AUTOTUNE)


def array_examples(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int32],
    share: Share,
    options: preprocessing.ImageOptions | None = None,
) -> Dataset:
    """The images [N, H, W, C] and labels [N] of arrays, in their order, resized if options say so.

    They stay out of the graph.
    """

    def look_up(index: int) -> tuple[Any, Any]:
        return images[index], labels[index]

    def example(index: Any) -> tuple[Any, Any]:
        image, label = tf.numpy_function(look_up, [index], (tf.uint8, tf.int32), stateful=False)
        image.set_shape(images.shape[1:])
        label.set_shape([])
        if options and images.shape[1:3] != (options.height, options.width):
            resize = functools.partial(preprocessing.resize_and_distort, image, options, draws=None)
            image = preprocessing.in_turn(options, index, resize)
        return image, label

    return share.of(tf.data.Dataset.range(len(images))).map(example)

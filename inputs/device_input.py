"""The input pipeline whose images stay in the memory of the devices, which gather their batches there."""

import tensorflow.compat.v1 as tf

import preprocessing
from inputs import array_draws
from inputs.buffers import Buffer
from inputs.data_sets import Arrays
from inputs.pipeline import Batch, InputParts, InputPipeline, Run


class DeviceInput(InputPipeline):
    """Each device holds all images as uint8, and takes its batch from them in each step.

        host: which images, how shifted  ->  device: gather  ->  shift and flip  ->  normalise  ->  the model

    A step sends the devices only the numbers of the images, and the rows and columns of their shifts: the op that
    computes the random order runs only on a CPU. The batches are those of ArrayPipeline, bit for bit, in the same
    order. Every device has the whole set, so that its part of a batch may be any images; the virtual devices of a CPU
    share one copy, since they share its memory.

    The source has the size in options, see inputs.validation.read_images. normalize_on_device says that the devices are
    GPUs, which cannot shift uint8 and gather it only from variables.
    """

    def __init__(self, parts: InputParts) -> None:
        source, devices, options = parts.source, parts.devices, parts.options
        assert isinstance(source, Arrays)
        super().__init__()
        num_images, batch_of_worker = len(source.images), parts.batch_of_worker
        with tf.name_scope('device_input'), tf.device(parts.host_device):
            self._steps_before = tf.placeholder(tf.int64, [])
            begin = tf.constant(parts.first_position, tf.int64)
            counter = self._resident(begin)
            self._set_position = counter.assign(begin + self._steps_before * parts.batch_of_workers)
            drawn = array_draws.draw_batches(counter, batch_of_worker, parts.batch_of_workers, num_images, options.seed)
            chosen = tf.split(drawn.chosen, len(devices))
            uniform = tf.split(drawn.uniform, len(devices))
        self.buffers.append(Buffer('images', num_images, (source.images.nbytes + source.labels.nbytes) / num_images))
        images, labels = array_draws.from_host(source.images), array_draws.from_host(source.labels)
        self._batches = []
        for tower, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f'device_input_{tower}'):
                image_store = self._resident(images)
                # GPUs hold no variables of 32-bit integers.
                label_store = self._resident(tf.cast(labels, tf.int64))
                if parts.normalize_on_device:
                    batch = image_store.sparse_read(chosen[tower])
                else:
                    # On a CPU, sparse_read would give each variable a copy of its own instead of the shared one.
                    batch = tf.gather(image_store.read_value(), chosen[tower])
                if options.shifts:
                    batch = tf.cast(batch, tf.float32) if parts.normalize_on_device else batch
                    batch = preprocessing.shift_and_flip(batch, uniform[tower], index_device=parts.host_device)
                batch = preprocessing.normalize(batch, options.scale)
                self._batches.append(Batch(batch, tf.cast(label_store.sparse_read(chosen[tower]), tf.int32)))

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]

    def warm_up(self, session: tf.Session, steps_before: int = 0, run: Run | None = None) -> None:
        session.run(self._set_position, {self._steps_before: steps_before})

"""How batches reach the devices: synthetic ones stay there, records are read, preprocessed and staged ahead of time."""

import abc
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow.compat.v1 as tf

import preprocessing
from data_sets import Shards
from errors import UsageError


@dataclass(frozen=True)
class Batch:
    """What a tower trains on: images [N, H, W, C] float32 in [-1, 1], labels [N] int32, on the device of the tower."""

    images: tf.Tensor
    labels: tf.Tensor


HostBatch = tuple[tf.Tensor, tf.Tensor]


class InputPipeline(abc.ABC):
    """Gives each tower a batch that is on its device when the step starts.

    initializers: to be run once, with those of the model, before warm_up.
    per_step_ops: to be run in every session.run that uses a batch, and in that same run.
    """

    def __init__(self) -> None:
        self.initializers: list[tf.Operation] = []
        self.per_step_ops: list[tf.Operation] = []

    @abc.abstractmethod
    def tower_batch(self, tower: int) -> Batch:
        """The batch of a tower. Its tensors are the same ones at every call."""

    def warm_up(self, session: tf.Session) -> None:  # noqa: B027 (most have nothing to warm up)
        """Makes the first step possible. May be called again: it starts anew."""


class SyntheticInput(InputPipeline):
    """Random images and labels, made once on each device and used in every step: input that costs nothing.

    Pixels are uniform in [-1, 1), labels in [0, num_classes). The seed and the tower decide them.
    """

    def __init__(
        self,
        devices: Sequence[str],
        batch_size: int,
        height: int,
        width: int,
        channels: int,
        num_classes: int,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._batches = []
        for tower, device in enumerate(devices):
            seeds = [seed, tower]
            with tf.device(device), tf.name_scope(f'synthetic_input_{tower}'):
                shape = [batch_size, height, width, channels]
                images = self._resident(tf.random.stateless_uniform(shape, seeds, -1.0, 1.0))
                labels = self._resident(tf.random.stateless_uniform([batch_size], seeds, 0, num_classes, tf.int32))
                self._batches.append(Batch(images, labels))

    def _resident(self, value: tf.Tensor) -> tf.Tensor:
        # In no collection: it is neither trained, nor saved in checkpoints, nor waited for by other initialisers.
        variable = tf.Variable(value, trainable=False, collections=[], use_resource=True)
        self.initializers.append(variable.initializer)
        return variable.read_value()

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]


class StagingArea:
    """A queue of tuples of tensors in the memory of a device. Putting never waits; getting waits for a put."""

    def __init__(self, device: str, like: Sequence[tf.Tensor]) -> None:
        self.device = device
        self._dtypes = [tensor.dtype for tensor in like]
        self._shapes = [tensor.shape for tensor in like]
        # Servers keep staging areas by name, for every client and graph.
        self._name = f'staging_area_{uuid.uuid4().hex}'

    def put(self, tensors: Sequence[tf.Tensor]) -> tf.Operation:
        with tf.device(self.device):
            return tf.raw_ops.Stage(values=list(tensors), shared_name=self._name)

    def get(self) -> list[tf.Tensor]:
        with tf.device(self.device):
            tensors = tf.raw_ops.Unstage(dtypes=self._dtypes, shared_name=self._name)
        for tensor, shape in zip(tensors, self._shapes, strict=True):
            tensor.set_shape(shape)
        return list(tensors)

    def size(self) -> tf.Tensor:
        """Scalar int32: how many tuples are in it."""
        with tf.device(self.device):
            return tf.raw_ops.StageSize(dtypes=self._dtypes, shared_name=self._name)

    def clear(self) -> tf.Operation:
        with tf.device(self.device):
            return tf.raw_ops.StageClear(dtypes=self._dtypes, shared_name=self._name)


class StagedInput(InputPipeline):
    """A software pipeline of three stages that run at the same time, each on another set of batches.

        A  make the host batches  ->  host area  ->  B  copy to the device  ->  device areas  ->  C  the model

    Warm-up runs A0, then A1 and B0. Step k runs C(k), B(k+1), A(k+2) in one session.run, so nothing ever waits for
    another stage: between two runs every area holds exactly one set, during a run at most two. An error in A(k+2) is
    raised by step k.
    """

    def __init__(
        self,
        devices: Sequence[str],
        make_host_batches: Callable[[], Sequence[HostBatch]],
        host_device: str = '/cpu:0',
    ) -> None:
        """make_host_batches is called once, on the host device, and returns (images, labels) for each device.

        images are [N, H, W, C]: float32 in [-1, 1], or uint8, which stage C normalises on the device.
        labels are [N] int32.
        """
        super().__init__()
        with tf.name_scope('stage_a'), tf.device(host_device):
            host_batches = make_host_batches()
            flat = [tensor for host_batch in host_batches for tensor in host_batch]
            self.host_area = StagingArea(host_device, flat)
            self._stage_a = self.host_area.put(flat)
        with tf.name_scope('stage_b'):
            self.device_areas = [
                StagingArea(device, host_batch) for device, host_batch in zip(devices, host_batches, strict=True)
            ]
            staged = iter(self.host_area.get())
            self._stage_b = [area.put([next(staged), next(staged)]) for area in self.device_areas]
        self._batches = []
        self.per_step_ops = [self._stage_a, *self._stage_b]
        for area in self.device_areas:
            with tf.name_scope('stage_c'), tf.device(area.device):
                images, labels = area.get()
                # Also when a run leaves out a tower, its area must not grow.
                self.per_step_ops.append(labels.op)
                self._batches.append(
                    Batch(preprocessing.normalize(images) if images.dtype == tf.uint8 else images, labels)
                )
        self._clear = [area.clear() for area in (self.host_area, *self.device_areas)]

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]

    def warm_up(self, session: tf.Session) -> None:
        session.run(self._clear)
        session.run(self._stage_a)
        session.run([self._stage_a, *self._stage_b])


class RecordPipeline(StagedInput):
    """Reads, preprocesses and stages the images of TFRecord shards.

    Stage A is one RecordInput for a whole set of batches (several would each read every record), then the ops of each
    record by itself, which the session runs in parallel. Every record comes once in an epoch, in a random order;
    the epochs follow each other without end, also within a batch.

    Faults of the data fail the step with a TensorFlow error that does not name the file: DataLossError (a record that
    is cut off or fails its checksum), InvalidArgumentError (no Example, no image, no JPEG, a label out of range).
    RecordInput takes a shard that ends within the 12 bytes of a record's header for complete: records.check does not.

    Memory of the pool of records: (pool_records + 16 * readers) records, 110 KB each in ImageNet, of which half of
    pool_records must be read before the first batch.
    """

    def __init__(
        self,
        shards: Shards,
        devices: Sequence[str],
        batch_size_per_device: int,
        num_classes: int,
        options: preprocessing.ImageOptions,
        *,
        normalize_on_device: bool,
        host_device: str = '/cpu:0',
        shift: float = 0.0,
        pool_records: int | None = None,
        readers: int = 16,
    ) -> None:
        """Builds the ops.

        Args:
          normalize_on_device: uint8 travels to the device and becomes float32 there; else float32 travels.
          shift: in [0, 1), where in the list of shards to begin: worker w of W begins at w / W.
          pool_records: how many records to choose at random from; by default 2048, and two sets of batches at least.
          readers: how many shards to read at the same time.

        Raises:
          UsageError: the shards hold no record, or other files cannot be told from them.
        """
        global_batch = batch_size_per_device * len(devices)

        def example(record: tf.Tensor, position: int) -> HostBatch:
            with tf.name_scope(f'record_{position}'):
                encoded, label, boxes = preprocessing.parse_example(record, num_classes, options.uses_boxes)
                image = preprocessing.preprocess(encoded, boxes, options, position)
                return image if normalize_on_device else preprocessing.normalize(image), label

        def make_host_batches() -> list[HostBatch]:
            records = tf.raw_ops.RecordInput(
                file_pattern=shard_pattern(shards),
                batch_size=global_batch,
                file_random_seed=options.seed,
                file_shuffle_shift_ratio=shift,
                file_buffer_size=max(2048, 2 * global_batch) if pool_records is None else pool_records,
                file_parallelism=readers,
            )
            examples = [example(record, position) for position, record in enumerate(tf.unstack(records, global_batch))]
            towers = [examples[i : i + batch_size_per_device] for i in range(0, global_batch, batch_size_per_device)]
            return [tuple(map(tf.stack, zip(*tower, strict=True))) for tower in towers]

        super().__init__(devices, make_host_batches, host_device)


def shard_pattern(shards: Shards) -> str:
    """The glob, as TensorFlow understands it, that matches the shards and nothing else.

    Raises:
      UsageError: the shards hold no record (RecordInput would wait for ever), or other files match as well.
    """
    paths = [Path(path) for path in shards.paths]
    if not any(os.path.getsize(path) for path in paths):
        raise UsageError(
            f'--data_dir={paths[0].parent}: its {len(paths)} {shards.subset} shards hold no record; '
            'make shards from a folder of images with: tf_cnn_benchmarks records --input=DIR --output=DIR'
        )
    # All shards are named alike but for digits, so each place in the names holds a digit or always the same letter.
    names = [path.name for path in paths]
    if len({len(name) for name in names}) == 1:
        columns = zip(*names, strict=True)
        pattern = ''.join(column[0] if len(set(column)) == 1 else '[0-9]' for column in columns)
    else:
        pattern = f'{shards.subset}-*-of-*'
    folder = ''.join(f'\\{letter}' if letter in '*?[]\\' else letter for letter in str(paths[0].parent))
    others = {Path(path).name for path in tf.gfile.Glob(f'{folder}/{pattern}')} - set(names)
    if others:
        raise UsageError(
            f'--data_dir={paths[0].parent}: {min(others)} is named like the {shards.subset} shards; move it elsewhere'
        )
    return f'{folder}/{pattern}'

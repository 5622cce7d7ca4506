"""How batches reach the devices: synthetic ones stay there, records are read, preprocessed and staged ahead of time."""

import abc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import preprocessing
from data_sets import Shards, how_to_make
from errors import UsageError
from staging import StagingArea


@dataclass(frozen=True)
class Batch:
    """What a tower trains on: images [N, H, W, C] float32 in [-1, 1], labels [N] int32, on the device of the tower."""

    images: tf.Tensor
    labels: tf.Tensor


HostBatch = Sequence[tf.Tensor]


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

    def warm_up(self, session: tf.Session, steps_before: int = 0) -> None:  # noqa: B027 (most have nothing to warm up)
        """Makes the next step possible. May be called again: it starts anew.

        Args:
          steps_before: how many steps were taken, by earlier processes, too: those of a checkpoint.
        """

    def _resident(self, value: tf.Tensor) -> tf.Variable:
        # In no collection: it is neither trained, nor saved in checkpoints, nor waited for by other initialisers.
        variable = tf.Variable(value, trainable=False, collections=[], use_resource=True)
        self.initializers.append(variable.initializer)
        return variable


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
                images = self._resident(tf.random.stateless_uniform(shape, seeds, -1.0, 1.0)).read_value()
                labels = self._resident(tf.random.stateless_uniform([batch_size], seeds, 0, num_classes, tf.int32))
                self._batches.append(Batch(images, labels.read_value()))

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]


class WorkersInput(InputPipeline):
    """The input of towers on several workers: each has a pipeline for its own.

    Args:
      pipelines: of each worker in the order of the towers, for as many of them each.
    """

    def __init__(self, pipelines: Sequence[InputPipeline], towers_each: int) -> None:
        super().__init__()
        self._pipelines = pipelines
        self._towers_each = towers_each
        for pipeline in pipelines:
            self.initializers += pipeline.initializers
            self.per_step_ops += pipeline.per_step_ops

    def tower_batch(self, tower: int) -> Batch:
        worker, own_tower = divmod(tower, self._towers_each)
        return self._pipelines[worker].tower_batch(own_tower)

    def warm_up(self, session: tf.Session, steps_before: int = 0) -> None:
        for pipeline in self._pipelines:
            pipeline.warm_up(session, steps_before)


def _as_it_is(host_batch: HostBatch) -> tuple[tf.Tensor, tf.Tensor]:
    images, labels = host_batch
    return images, labels


class StagedInput(InputPipeline):
    """A software pipeline of three stages that run at the same time, each on another set of batches.

        A  make  ->  host area  ->  B  assemble, copy to the device  ->  device areas  ->  C  the model

    Warm-up runs A0, then A1 and B0. Step k runs C(k), B(k+1), A(k+2) in one session.run, so nothing ever waits for
    another stage: between two runs every area holds exactly one set, during a run at most two. An error in A(k+2) is
    raised by step k.
    """

    def __init__(
        self,
        devices: Sequence[str],
        make_host_batches: Callable[[], Sequence[HostBatch]],
        assemble: Callable[[HostBatch], tuple[tf.Tensor, tf.Tensor]] = _as_it_is,
        host_device: str = '/cpu:0',
    ) -> None:
        """Calls the functions once, to build their ops on the host device.

        Args:
          make_host_batches: stage A, returns the tensors of a batch for each device.
          assemble: stage B, makes images and labels of these; by default they are images and labels. images are
            [N, H, W, C]: float32 in [-1, 1], or uint8, which stage C normalises on the device. labels are [N] int32.
        """
        super().__init__()
        with tf.name_scope('stage_a'), tf.device(host_device):
            host_batches = make_host_batches()
            made = [tensor for host_batch in host_batches for tensor in host_batch]
            self.host_area = StagingArea(host_device, made)
            stage_a = self.host_area.put(made)
        self.device_areas = []
        stage_b = []
        with tf.name_scope('stage_b'), tf.device(host_device):
            staged = iter(self.host_area.get())
            for device, host_batch in zip(devices, host_batches, strict=True):
                batch = assemble(list(itertools.islice(staged, len(host_batch))))
                area = StagingArea(device, batch)
                self.device_areas.append(area)
                stage_b.append(area.put(batch))
        self._batches = []
        self.per_step_ops = [stage_a, *stage_b]
        for area in self.device_areas:
            with tf.name_scope('stage_c'), tf.device(area.device):
                images, labels = area.get()
                # Also when a run leaves out a tower, its area must not grow.
                self.per_step_ops.append(labels.op)
                self._batches.append(
                    Batch(preprocessing.normalize(images) if images.dtype == tf.uint8 else images, labels)
                )
        self._warm_up = (
            [area.clear() for area in (self.host_area, *self.device_areas)],
            [stage_a],
            [stage_a, *stage_b],
        )

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]

    def warm_up(self, session: tf.Session, steps_before: int = 0) -> None:
        for ops in self._warm_up:
            session.run(ops)


class RecordPipeline(StagedInput):
    """Reads, preprocesses and stages the images of TFRecord shards.

    Stage A is one RecordInput for a whole set of batches (several would each read every record), then the ops of each
    record by itself, which the session runs in parallel. Stage B stacks: it is one op on one core, and so it runs while
    the next records are decoded on the others. Every record comes once in an epoch, in a random order;
    the epochs follow each other without end, also within a batch.

    Faults of the data fail the step with a TensorFlow error that does not name the file: DataLossError (a record that
    is cut off or fails its checksum), InvalidArgumentError (no Example, no image, no JPEG, a label out of range).
    RecordInput takes a shard that ends within the 12 bytes of a record's header for complete; who runs the steps has to
    look (records.check.first_cut_shard).

    A step waits for half of pool_records to be read at the start of every epoch. The memory they take is that of
    pool_records + 16 * readers records, of 110 KB each in ImageNet.
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
          normalize_on_device: uint8 travels to the device and becomes float32 there: a quarter of the bytes on a bus.
            Else float32 travels: less work where the device is the CPU itself.
          shift: in [0, 1), where in the list of shards to begin: worker w of W begins at w / W.
          pool_records: how many records to choose at random from; by default 512, and two sets of batches at least.
          readers: how many shards to read at the same time.

        Raises:
          UsageError: as shard_pattern.
        """
        global_batch = batch_size_per_device * len(devices)

        def example(record: tf.Tensor, position: int, draws: preprocessing.Draws | None) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.name_scope(f'record_{position}'):
                encoded, label, boxes = preprocessing.parse_example(record, num_classes, options.uses_boxes)
                image = preprocessing.preprocess(encoded, boxes, options, position, draws)
                return image if normalize_on_device else preprocessing.normalize(image, is_record=True), label

        def make_host_batches() -> list[HostBatch]:
            """Of each device the images, then their labels."""
            records = tf.raw_ops.RecordInput(
                file_pattern=shard_pattern(shards),
                batch_size=global_batch,
                file_random_seed=options.seed,
                file_shuffle_shift_ratio=shift,
                file_buffer_size=max(512, 2 * global_batch) if pool_records is None else pool_records,
                file_parallelism=readers,
            )
            records.set_shape([global_batch])
            draws = preprocessing.draw(global_batch, options) if options.training else [None] * global_batch
            examples = list(map(example, tf.unstack(records), range(global_batch), draws))
            towers = [examples[i : i + batch_size_per_device] for i in range(0, global_batch, batch_size_per_device)]
            host_batches: list[HostBatch] = [list(itertools.chain(*zip(*tower, strict=True))) for tower in towers]
            if options.shifts:
                uniform = tf.random.uniform([len(devices), batch_size_per_device, 3], seed=options.seed)
                host_batches = [
                    [*made, of_tower] for made, of_tower in zip(host_batches, tf.unstack(uniform), strict=True)
                ]
            return host_batches

        def assemble(host_batch: HostBatch) -> tuple[tf.Tensor, tf.Tensor]:
            size = batch_size_per_device
            images, labels = tf.stack(host_batch[:size]), tf.stack(host_batch[size : 2 * size])
            if options.shifts:
                black = 0 if images.dtype == tf.uint8 else -1
                images = preprocessing.shift_and_flip(images, host_batch[2 * size], black)
            return images, labels

        super().__init__(devices, make_host_batches, assemble, host_device)


class ArrayPipeline(StagedInput):
    """Draws the images of arrays in a random order, preprocesses and stages them. The arrays stay in the host's memory.

    Every image comes once in an epoch; the epochs follow each other without end, also within a batch. The order of an
    epoch and the random numbers of a step depend on the seed and the number of the epoch or of the image alone: when
    training goes on after some steps, with batches of the same size, it sees what it would have seen. Images that are
    as large as the model's, without distortions, are drawn, shifted and normalised as one tensor.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        devices: Sequence[str],
        batch_size_per_device: int,
        options: preprocessing.ImageOptions,
        *,
        normalize_on_device: bool,
        host_device: str = '/cpu:0',
        shift: float = 0.0,
    ) -> None:
        """Builds the ops.

        Args:
          images, labels: [N, H, W, C] uint8 and [N] int32, see array_files. Variables get them when they are
            initialised, through this process: in the graph they would be saved with it, and bounded by 2 GB.
          normalize_on_device: as RecordPipeline.
          shift: in [0, 1), where in the order of the first epoch to begin: worker w of W begins at w / W.
        """
        global_batch = batch_size_per_device * len(devices)
        num_images = len(images)
        self._steps_before = tf.placeholder(tf.int64, [])

        def held(array: np.ndarray) -> tf.Tensor:
            value = tf.numpy_function(lambda: array, [], tf.as_dtype(array.dtype), stateful=True)
            value.set_shape(array.shape)
            return value

        # The host device may be that of another process.
        with tf.device('/cpu:0'):
            values = held(images), held(labels)

        def make_host_batches() -> list[HostBatch]:
            image_store, label_store = map(self._resident, values)
            begin = tf.constant(int(shift * num_images), tf.int64)
            counter = self._resident(begin)
            self._go_on = counter.assign(begin + self._steps_before * global_batch)
            drawn = tf.identity(counter.assign_add(global_batch))
            numbers = drawn - global_batch + tf.range(global_batch, dtype=tf.int64)
            chosen = _in_random_order(numbers, num_images, options.seed)
            batch, of_batch = image_store.sparse_read(chosen), label_store.sparse_read(chosen)
            if options.distortions or images.shape[1:3] != (options.height, options.width):
                draws: Sequence[preprocessing.Draws | None] = [None] * global_batch
                if options.training:
                    # Other numbers than those of the shifts.
                    draws = preprocessing.draw(global_batch, options, seeds=tf.stack([options.seed, -1 - drawn]))
                each = zip(tf.unstack(batch), range(global_batch), draws, strict=True)
                batch = tf.stack([preprocessing.resize_and_distort(i, options, n, draw) for i, n, draw in each])
            if options.shifts:
                uniform = tf.random.stateless_uniform([global_batch, 3], tf.stack([options.seed, drawn]))
                batch = preprocessing.shift_and_flip(batch, uniform)
            if not normalize_on_device:
                batch = preprocessing.normalize(batch)
            return list(zip(tf.split(batch, len(devices)), tf.split(of_batch, len(devices)), strict=True))

        super().__init__(devices, make_host_batches, host_device=host_device)

    def warm_up(self, session: tf.Session, steps_before: int = 0) -> None:
        session.run(self._go_on, {self._steps_before: steps_before})
        super().warm_up(session, steps_before)


def _in_random_order(numbers: tf.Tensor, count: int, seed: int) -> tf.Tensor:
    """[B] int64 positions in an endless sequence of epochs -> [B] int64 in [0, count): each once in an epoch."""
    epochs = numbers // count
    seeds = tf.stack([tf.fill(tf.shape(epochs), tf.constant(seed, tf.int64)), tf.zeros_like(epochs), epochs], axis=1)
    # A permutation as a function: none is stored, and none has to be drawn between two epochs.
    return tf.raw_ops.RandomIndexShuffle(
        index=numbers % count, seed=seeds, max_index=tf.constant(count - 1, tf.int64), rounds=8
    )


def shard_pattern(shards: Shards) -> str:
    """The file_pattern, as RecordInput understands it, of the shards and nothing else: their globs with commas between.

    The shards are listed, in order, rather than matched by one glob, since a folder lists its files in any order and
    then the seed would not decide which shard comes first.

    Raises:
      UsageError: the shards hold no record (RecordInput would wait for ever), or the name of their folder has a comma
        and another folder only differs by what stands there.
    """
    folder = Path(shards.paths[0]).parent
    if not any(Path(path).stat().st_size for path in shards.paths):
        raise UsageError(
            f'--data_dir={folder}: its {len(shards.paths)} {shards.subset} shards hold no record; '
            f'{how_to_make(shards.subset)}'
        )
    # A comma cannot be escaped.
    special = {',': '?'} | {letter: f'\\{letter}' for letter in '*?[]\\'}
    pattern = ''.join(special.get(letter, letter) for letter in str(folder))
    others = set(tf.gfile.Glob(pattern)) - {str(folder)}
    if others:
        raise UsageError(
            f'--data_dir={folder}: TensorFlow cannot tell it from {min(others)} because of its comma; rename it'
        )
    return ','.join(f'{pattern}/{Path(path).name}' for path in shards.paths)

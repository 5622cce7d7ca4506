"""Compares RecordInput with staging areas and tf.data: how fast they turn shards into batches, without a model.

    python benchmarks/input_pipeline.py --data_dir=DIR

Both read the same shards, make images with the same functions, keep two sets of batches ahead, and take turns in one
process. tf.data runs in several settings; the ratio of a round compares with the setting that is fastest over all
rounds. Each turn starts when no background thread is working, and does not time the first batches, which are ready
already. A turn is repeated, at most MAX_REPEATS times, if other processes used the processors meanwhile; the number of
turns that remained disturbed is printed. Linux only.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

import preprocessing
from errors import UsageError
from inputs.data_sets import DATA_SETS, Shards, find_shards
from inputs.pipeline import Batch, InputPipeline
from inputs.record_pipeline import RecordPipeline

OURS = 'staged'
NUM_CLASSES = DATA_SETS['imagenet'].num_classes
SHUFFLED_RECORDS = 256  # for both; on a small data set, a larger pool would stop reading at the end of each epoch
MAX_OTHERS, MAX_REPEATS = 0.12, 8  # processors that other processes may use; repeats of a disturbed turn
AHEAD = 2  # sets of batches; a turn starts with as many untimed batches, and two more for those in progress


class TfData(InputPipeline):
    """The same work with tf.data: parallel reads, shuffle, parallel map, batch, prefetch; not deterministic."""

    def __init__(
        self,
        shards: Shards,
        batch_size: int,
        options: preprocessing.ImageOptions,
        parallel_calls: int,
        private_threads: int,
        fuse_map_and_batch: bool,
        normalize_in_map: bool,
    ) -> None:
        super().__init__()

        def example(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label, boxes = preprocessing.parse_example(record, NUM_CLASSES, options.uses_boxes)
            draws = preprocessing.draw(1, options).of_image(0)
            image = preprocessing.preprocess(encoded, boxes, options, 0, draws)
            return preprocessing.normalize(image) if normalize_in_map else image, label

        settings = tf.data.Options()
        settings.deterministic = False
        settings.threading.private_threadpool_size = private_threads
        settings.experimental_optimization.map_and_batch_fusion = fuse_map_and_batch
        with tf.device('/cpu:0'):
            records = tf.data.Dataset.from_tensor_slices(list(shards.paths)).shuffle(len(shards.paths)).repeat()
            records = records.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)
            records = records.shuffle(SHUFFLED_RECORDS)
            batches = records.map(example, num_parallel_calls=parallel_calls).batch(batch_size, drop_remainder=True)
            iterator = tf.data.make_initializable_iterator(batches.prefetch(AHEAD).with_options(settings))
            images, labels = iterator.get_next()
            self._batch = Batch(images if normalize_in_map else preprocessing.normalize(images), labels)
        self.initializers = [iterator.initializer]

    def tower_batch(self, tower: int) -> Batch:
        return self._batch


@dataclass(frozen=True)
class Turn:
    """Wall-clock and processor seconds per batch, and whether other processes used the processors meanwhile."""

    wall_seconds: float
    processor_seconds: float
    disturbed: bool


class Contestant:
    """A pipeline and its session, initialised and warmed up."""

    def __init__(self, make: Callable[[], InputPipeline], threads: tuple[int, int]) -> None:
        with tf.Graph().as_default() as graph:
            pipeline = make()
            step = [*pipeline.per_step_ops, *(tensor.op for tensor in vars(pipeline.tower_batch(0)).values())]
            inter, intra = threads
            config = tf.ConfigProto(inter_op_parallelism_threads=inter, intra_op_parallelism_threads=intra)
            self._session = tf.Session(graph=graph, config=config)
            self._session.run(pipeline.initializers)
            pipeline.warm_up(self._session)
            self._step = self._session.make_callable(step)

    def turn(self, batches: int) -> Turn:
        for _ in range(1 + MAX_REPEATS):
            wait_until_idle()
            for _ in range(AHEAD + 2):
                self._step()
            wall, own, everyone = time.perf_counter(), time.process_time(), busy_seconds()
            for _ in range(batches):
                self._step()
            wall, own, everyone = time.perf_counter() - wall, time.process_time() - own, busy_seconds() - everyone
            turn = Turn(wall / batches, own / batches, disturbed=everyone - own > MAX_OTHERS * wall)
            if not turn.disturbed:
                break
        return turn


def busy_seconds() -> float:
    """Processor seconds of all processes since the machine started."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = Path('/proc/stat').read_text().split()[1:9]
    ticks = sum(map(int, (user, nice, system, irq, softirq, steal)))
    return ticks / os.sysconf('SC_CLK_TCK')


def wait_until_idle() -> None:
    """Returns when the threads of this process have used less than 2 % of a processor for 50 ms."""
    interval = 0.05
    while True:
        before = time.process_time()
        time.sleep(interval)
        if time.process_time() - before < 0.02 * interval:
            return


def contestants(shards: Shards, batch_size: int) -> dict[str, Contestant]:
    """Our pipeline, and tf.data in each setting, by name."""
    options = preprocessing.ImageOptions(height=224, width=224, channels=3, training=True, seed=1)
    cores = len(os.sched_getaffinity(0))

    def staged() -> InputPipeline:
        devices, pool = ['/cpu:0'], SHUFFLED_RECORDS
        return RecordPipeline(
            shards, devices, batch_size, NUM_CLASSES, options, normalize_on_device=False, pool_records=pool
        )

    def tf_data(calls: int, fuse: bool, normalize_in_map: bool) -> Contestant:
        return Contestant(lambda: TfData(shards, batch_size, options, calls, cores, fuse, normalize_in_map), (0, 1))

    return {
        OURS: Contestant(staged, (0, 1)),
        'tf.data AUTOTUNE': tf_data(tf.data.AUTOTUNE, False, False),
        'tf.data 2 calls a core': tf_data(2 * cores, False, False),
        'tf.data fused': tf_data(2 * cores, True, False),
        'tf.data fused floats': tf_data(2 * cores, True, True),
    }


def run(shards: Shards, batch_size: int, rounds: int, batches_per_round: int) -> None:
    pipelines = contestants(shards, batch_size)
    turns: dict[str, list[Turn]] = {name: [] for name in pipelines}
    print('images/sec ' + ' '.join(f'{name:>22}' for name in pipelines))
    for index in range(rounds):
        # Every other round in reverse order, so that no contestant always follows the same one.
        for name in list(pipelines)[:: -1 if index % 2 else 1]:
            turns[name].append(pipelines[name].turn(batches_per_round))
        print(
            f'round {index + 1:4} ' + ' '.join(f'{batch_size / turns[name][-1].wall_seconds:22.0f}' for name in turns)
        )
    medians = {name: statistics.median(turn.wall_seconds for turn in taken) for name, taken in turns.items()}
    print('median     ' + ' '.join(f'{batch_size / seconds:22.0f}' for seconds in medians.values()))
    costs = (statistics.median(turn.processor_seconds for turn in taken) for taken in turns.values())
    print('CPU ms each' + ' '.join(f'{1000 * seconds / batch_size:22.3f}' for seconds in costs))
    print('disturbed  ' + ' '.join(f'{sum(turn.disturbed for turn in taken):22}' for taken in turns.values()))
    best = min(medians.keys() - {OURS}, key=medians.__getitem__)
    pairs = list(zip(turns[OURS], turns[best], strict=True))
    for what, ratios in (
        ('images/sec', [theirs.wall_seconds / ours.wall_seconds for ours, theirs in pairs]),
        ('images per CPU second', [theirs.processor_seconds / ours.processor_seconds for ours, theirs in pairs]),
    ):
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f'{OURS} / {best}, {what}: {middle:.3f} (quartiles {low:.3f} .. {high:.3f}, {rounds} rounds)')


def main() -> None:
    parser = argparse.ArgumentParser(description='RecordInput and staging areas against tf.data, in images/sec.')
    parser.add_argument('--data_dir', required=True, help='folder with train-*-of-* shards')
    parser.add_argument('--batch_size', type=int, default=64)
    parser.add_argument('--rounds', type=int, default=15, help='at least 2')
    parser.add_argument('--batches_per_round', type=int, default=12)
    flags = parser.parse_args()
    if flags.rounds < 2:
        parser.error(f'--rounds={flags.rounds}: quartiles need at least 2')
    try:
        run(find_shards(flags.data_dir, 'train'), flags.batch_size, flags.rounds, flags.batches_per_round)
    except UsageError as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()

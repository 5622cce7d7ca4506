"""RecordInput and staging areas against tf.data: how fast shards become batches, without a model.

    python benchmarks/input_throughput.py --data_dir=DIR

Both sides read the same shards, make images with the same functions, keep two sets of batches ahead, and run in turns
in one process, so that whatever else the machine does hits both. tf.data comes in several settings, and the ratio of a
round is against the one that is fastest over all rounds. Before its turn a contestant waits until nothing works in the
background any more, and its first batches, which are there already, are not timed.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

import preprocessing
from data_sets import DATA_SETS, Shards, find_shards
from input_pipeline import Batch, InputPipeline, RecordPipeline

NUM_CLASSES = DATA_SETS['imagenet'].num_classes
SHUFFLED_RECORDS = (
    256  # for both sides: with a small data set, a large pool means that reading stops at each epoch's end
)
AHEAD = 2  # sets of batches; as many untimed ones begin a turn, and two more for what was under way


class TfData(InputPipeline):
    """The same work as tf.data does it: parallel reads, shuffle, parallel map, batch, prefetch, in any order."""

    def __init__(
        self,
        shards: Shards,
        batch_size: int,
        options: preprocessing.ImageOptions,
        parallel_calls: int,
        private_threads: int = 0,
        fuse_map_and_batch: bool = False,
    ) -> None:
        super().__init__()

        def example(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label, boxes = preprocessing.parse_example(record, NUM_CLASSES, options.uses_boxes)
            return preprocessing.preprocess(encoded, boxes, options, position=0), label

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
            self._batch = Batch(preprocessing.normalize(images), labels)
        self.initializers = [iterator.initializer]

    def tower_batch(self, tower: int) -> Batch:
        return self._batch


class Contestant:
    """A pipeline with its session, ready to run."""

    def __init__(self, make: Callable[[], InputPipeline], threads: tuple[int, int]) -> None:
        with tf.Graph().as_default() as graph:
            pipeline = make()
            self._step = [*pipeline.per_step_ops, *(tensor.op for tensor in vars(pipeline.tower_batch(0)).values())]
            inter, intra = threads
            config = tf.ConfigProto(inter_op_parallelism_threads=inter, intra_op_parallelism_threads=intra)
            self._session = tf.Session(graph=graph, config=config)
            self._session.run(pipeline.initializers)
            pipeline.warm_up(self._session)

    def turn(self, batches: int) -> float:
        """Seconds per batch."""
        wait_until_idle()
        for _ in range(AHEAD + 2):
            self._session.run(self._step)
        start = time.perf_counter()
        for _ in range(batches):
            self._session.run(self._step)
        return (time.perf_counter() - start) / batches


def wait_until_idle() -> None:
    """Returns when the threads of this process have used less than 2 % of a processor for 50 ms."""
    interval = 0.05
    while True:
        before = time.process_time()
        time.sleep(interval)
        if time.process_time() - before < 0.02 * interval:
            return


def contestants(shards: Shards, batch_size: int) -> dict[str, Contestant]:
    """Ours under 'staged', and tf.data in its settings."""
    options = preprocessing.ImageOptions(height=224, width=224, channels=3, training=True, seed=1)
    cores = len(os.sched_getaffinity(0))

    def staged() -> InputPipeline:
        devices, pool = ['/cpu:0'], SHUFFLED_RECORDS
        return RecordPipeline(
            shards, devices, batch_size, NUM_CLASSES, options, normalize_on_device=False, pool_records=pool
        )

    def tf_data(parallel_calls: int, private_threads: int = 0, fuse: bool = False) -> Callable[[], InputPipeline]:
        return lambda: TfData(shards, batch_size, options, parallel_calls, private_threads, fuse)

    return {
        'staged': Contestant(staged, (0, 1)),
        'tf.data AUTOTUNE': Contestant(tf_data(tf.data.AUTOTUNE), (0, 0)),
        'tf.data private pool': Contestant(tf_data(tf.data.AUTOTUNE, cores), (0, 0)),
        'tf.data 1 call a core': Contestant(tf_data(cores), (0, 1)),
        'tf.data 2 calls a core': Contestant(tf_data(2 * cores, cores), (0, 1)),
        'tf.data fused batch': Contestant(tf_data(tf.data.AUTOTUNE, cores, True), (0, 1)),
    }


def run(shards: Shards, batch_size: int, rounds: int, batches_per_round: int) -> None:
    entrants = contestants(shards, batch_size)
    rates: dict[str, list[float]] = {name: [] for name in entrants}
    print('round ' + ' '.join(f'{name:>22}' for name in entrants), '  images/sec')
    for index in range(rounds):
        # Every other round backwards: nobody always comes after the same one.
        for name in list(entrants)[:: 1 if index % 2 else -1]:
            rates[name].append(batch_size / entrants[name].turn(batches_per_round))
        print(f'{index + 1:5} ' + ' '.join(f'{rates[name][-1]:22.0f}' for name in entrants), flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print('median' + ' '.join(f'{median:22.0f}' for median in medians.values()))
    ours = rates.pop('staged')
    best = max(rates, key=medians.__getitem__)
    ratios = [mine / other for mine, other in zip(ours, rates[best], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f'staged / {best}: {middle:.3f} (quartiles {low:.3f} .. {high:.3f}, {rounds} rounds)')


def main() -> None:
    parser = argparse.ArgumentParser(description='RecordInput and staging areas against tf.data, in images/sec.')
    parser.add_argument('--data_dir', required=True, help='folder with train-*-of-* shards')
    parser.add_argument('--batch_size', type=int, default=64)
    parser.add_argument('--rounds', type=int, default=15, help='at least 2')
    parser.add_argument('--batches_per_round', type=int, default=12)
    flags = parser.parse_args()
    run(find_shards(flags.data_dir, 'train'), flags.batch_size, flags.rounds, flags.batches_per_round)


if __name__ == '__main__':
    main()

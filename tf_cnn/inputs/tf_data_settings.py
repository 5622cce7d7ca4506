"""The settings of the tf.data pipeline. Does not import TensorFlow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TfDataSettings:
    """How tf.data reads records and prepares batches.

    Attributes:
      cycle_length: how many shards are read at the same time.
      sloppy: whether a record may overtake records of slower shards; then the seed does not
        determine their order.
      prefetched_shards: how many shards beyond cycle_length are opened ahead; None lets tf.data
        decide.
      repeats_first_record: whether every image is made from the first record: a step has all of its
        work except reading.
      batches_per_device: how many more batches than prefetched_batches wait on the host for each
        device.
      private_threads: the number of threads of the pipeline; with None it shares the threads of the
        session.
    """

    cycle_length: int = 16
    sloppy: bool = False
    prefetched_shards: int | None = None
    caches_records: bool = False
    repeats_first_record: bool = False
    prefetched_batches: int = 1
    batches_per_device: int = 1
    private_threads: int | None = None

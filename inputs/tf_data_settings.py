"""The settings of the tf.data pipeline. Does not import TensorFlow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TfDataSettings:
    """How tf.data reads records and prepares batches.

    Attributes:
      cycle_length: how many shards are read at the same time. sloppy: whether a record may overtake those of slower
        shards; the seed then does not determine the order of the records.
      prefetched_shards: how many shards beyond cycle_length are opened ahead; None: tf.data decides.
      caches: whether the records are read once and then kept in memory.
      repeats_one: whether the first record is used for every image: the work of a step without its reading.
      prefetched_batches: how many batches are prepared ahead; 0: none.
      batches_per_device: how many batches wait on the host for each device, besides these.
      private_threads: the number of threads for the pipeline alone; None: it shares those of the session.
    """

    cycle_length: int = 16
    sloppy: bool = False
    prefetched_shards: int | None = None
    caches: bool = False
    repeats_one: bool = False
    prefetched_batches: int = 1
    batches_per_device: int = 1
    private_threads: int | None = None

"""What each stage of an input pipeline takes, as rows of a result. Does not import TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from results.statistics import throughput


@dataclass(frozen=True)
class StageTime:
    """What a pipeline that ends after a stage took: wall-clock seconds, and those of all processors of this process."""

    stage: str
    images: int
    wall_seconds: float
    processor_seconds: float

    def __add__(self, other: 'StageTime') -> 'StageTime':
        return StageTime(
            self.stage,
            self.images + other.images,
            self.wall_seconds + other.wall_seconds,
            self.processor_seconds + other.processor_seconds,
        )


def rows_of(times: Sequence[StageTime]) -> list[dict[str, Any]]:
    """The rows of the table, as objects of a result.

    What a stage adds is the time per image of the pipeline up to it, less that of the pipeline up to the one before. It
    may be below 0: the stages of a pipeline overlap, and both numbers are measured. share is of the last row's time.
    """
    rows: list[dict[str, Any]] = []
    wall = processor = 0.0
    for time in times:
        wall_each, processor_each = time.wall_seconds / time.images, time.processor_seconds / time.images
        rows.append(
            {
                'stage': time.stage,
                'images_per_second': throughput(time.images, time.wall_seconds),
                'added_wall_seconds_per_image': wall_each - wall,
                'added_processor_seconds_per_image': processor_each - processor,
            }
        )
        wall, processor = wall_each, processor_each
    return [{**row, 'share': row['added_wall_seconds_per_image'] / wall} for row in rows]

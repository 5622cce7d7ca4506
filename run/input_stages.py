"""What each stage of an input pipeline takes, as rows of a result and as a table. Does not import TensorFlow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from comparison.tables import Table, TableColumn
from errors import spelled
from inputs.stages import STAGES, stages_up_to
from results.sections import StageRow
from results.statistics import throughput

_MICROSECOND = 1e-6
# A time below zero is noise. With enough steps that is below this share of the whole, and takes several times as many.
_UNKNOWN, _SMALL_SHARE, _FEWEST_TIMES = 'not measurable', 0.05, 4


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


def rows_of(times: Sequence[StageTime]) -> list[StageRow]:
    """The rows of the table, as objects of a result.

    What a stage adds is the time per image of the pipeline up to it, less that of the pipeline up to the one before. It
    may be below 0: the stages of a pipeline overlap, and both numbers are measured. share is of the last row's time.
    """
    rows = []
    each = [(time.wall_seconds / time.images, time.processor_seconds / time.images) for time in times]
    for time, (wall, processor), (wall_before, processor_before) in zip(times, each, [(0.0, 0.0), *each], strict=False):
        added = wall - wall_before
        rows.append(
            StageRow(
                stage=time.stage,
                images_per_second=throughput(time.images, time.wall_seconds),
                added_wall_seconds_per_image=added,
                added_processor_seconds_per_image=processor - processor_before,
                share=added / each[-1][0],
            )
        )
    return rows


def format_stages(rows: Sequence[StageRow], num_steps: int, target_secs: float | None = None) -> str:
    """The rows as a table: images/sec up to each stage, and what the stage adds per image, in microseconds.

    Args:
      num_steps: the timed steps up to each stage.
      target_secs: the seconds of --target_seconds up to each stage, if these decided when it ended.
    """
    titles = ('images/sec', 'adds us', 'adds CPU us', 'share')
    columns = (TableColumn('stage'), *(TableColumn(title, is_number=True) for title in titles))
    cells = [
        (
            row.stage,
            f'{row.images_per_second:.1f}',
            _microseconds(row.added_wall_seconds_per_image),
            _microseconds(row.added_processor_seconds_per_image),
            f'{100 * row.share:.1f} %' if row.share >= 0 else _UNKNOWN,
        )
        for row in rows
    ]
    table = Table(columns, cells).as_markdown()
    worst = min(row.share for row in rows)
    if worst < 0:
        # The noise of a mean falls with the root of the number of steps.
        times = max(_FEWEST_TIMES, (worst / _SMALL_SHARE) ** 2)
        name, length = ('target_seconds', target_secs) if target_secs else ('num_batches', num_steps)
        enough = spelled(name, math.ceil(length * times))
        table += f'\nSome stages cost less than the noise of these steps; about {enough} would do.'
    measured = [row.stage for row in rows]
    if missing := [name for name in stages_up_to(measured[-1], tuple(STAGES)) if name not in measured]:
        return f'{table}\nThis pipeline has no stage {" or ".join(missing)}.'
    return table


def _microseconds(seconds: float) -> str:
    return f'{seconds / _MICROSECOND:.1f}' if seconds >= 0 else _UNKNOWN

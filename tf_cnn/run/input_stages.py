"""What each stage of an input pipeline takes, as rows of a result and as a table. Does not import
TensorFlow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tf_cnn.inputs.stages import STAGES, stages_up_to
from tf_cnn.results.sections import StageRow
from tf_cnn.results.statistics import throughput
from tf_cnn.results.tables import Table, TableColumn
from tf_cnn.system.errors import format_flag

_MICROSECOND = 1e-6
# A time below zero is noise. With enough steps that is below this share of the whole, and takes
# several times as many.
_UNKNOWN, _SMALL_SHARE, _FEWEST_TIMES = 'not measurable', 0.05, 4


@dataclass(frozen=True)
class StageTime:
    """The time of a pipeline that ends after a stage; processor_seconds are those of all processors
    of this process.
    """

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


def stage_rows(times: Sequence[StageTime]) -> list[StageRow]:
    """Returns what each stage adds: the time per image up to it, less that up to the stage before.

    It may be below 0, since stages overlap and both times are measured. share is of the last row's
    time.
    """
    rows = []
    each = [
        (time.wall_seconds / time.images, time.processor_seconds / time.images) for time in times
    ]
    for time, (wall, processor), (wall_before, processor_before) in zip(
        times, each, [(0.0, 0.0), *each], strict=False
    ):
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


def format_stages(
    rows: Sequence[StageRow], num_steps: int, target_secs: float | None = None
) -> str:
    """Formats rows as a table, times in microseconds. target_secs is --target_seconds if that ended
    the steps.
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
        name, length = (
            ('target_seconds', target_secs) if target_secs else ('num_batches', num_steps)
        )
        enough = format_flag(name, math.ceil(length * times))
        table += f'\nSome stages cost less than the noise of these steps; about {enough} would do.'
    measured = [row.stage for row in rows]
    if missing := [
        name for name in stages_up_to(measured[-1], tuple(STAGES)) if name not in measured
    ]:
        return f'{table}\nThis pipeline has no stage {" or ".join(missing)}.'
    return table


def _microseconds(seconds: float) -> str:
    return f'{seconds / _MICROSECOND:.1f}' if seconds >= 0 else _UNKNOWN

"""The time of each stage of an input pipeline, as rows of a result and as a table. Does not import
TensorFlow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tf_cnn.inputs.pipeline_stages import STAGES, stages_up_to
from tf_cnn.results.sections import StageRow
from tf_cnn.results.statistics import throughput
from tf_cnn.results.tables import Column, Table
from tf_cnn.system.errors import format_flag

_MICROSECOND = 1e-6
# A share below zero is noise. The advice asks for enough steps to bring the noise below this share,
# and for at least this many times the steps of the run.
_NOT_MEASURABLE, _MAX_NOISE_SHARE, _MIN_LENGTH_FACTOR = 'not measurable', 0.05, 4


@dataclass(frozen=True)
class StageTime:
    """The time of a pipeline that ends after `stage`; processor_seconds is the CPU time of this
    process.
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
    """Returns the time per image that each stage adds: the time up to this stage, minus the time up
    to the previous stage.

    The difference may be negative, since stages overlap and both times are measured. `share` is
    relative to the time of the full pipeline, in the last row.
    """
    rows = []
    per_image = [
        (time.wall_seconds / time.images, time.processor_seconds / time.images) for time in times
    ]
    for time, (wall, processor), (wall_before, processor_before) in zip(
        times, per_image, [(0.0, 0.0), *per_image], strict=False
    ):
        added_seconds = wall - wall_before
        rows.append(
            StageRow(
                stage=time.stage,
                images_per_second=throughput(time.images, time.wall_seconds),
                added_wall_seconds_per_image=added_seconds,
                added_processor_seconds_per_image=processor - processor_before,
                share=added_seconds / per_image[-1][0],
            )
        )
    return rows


def format_stage_table(
    rows: Sequence[StageRow], num_steps: int, target_secs: float | None = None
) -> str:
    """Formats rows as a table, with times in microseconds.

    target_secs is --target_seconds if the clock ended the steps, else None.
    """
    table = Table(_COLUMNS, rows).as_markdown()
    smallest_share = min(row.share for row in rows)
    if smallest_share < 0:
        # The noise of a mean falls with the square root of the number of steps.
        length_factor = max(_MIN_LENGTH_FACTOR, (smallest_share / _MAX_NOISE_SHARE) ** 2)
        name, length = (
            ('target_seconds', target_secs) if target_secs else ('num_batches', num_steps)
        )
        sufficient_flag = format_flag(name, math.ceil(length * length_factor))
        table += (
            '\nSome stages cost less than the noise of these steps; about '
            f'{sufficient_flag} would do.'
        )
    measured_stages = [row.stage for row in rows]
    if missing_stages := [
        name
        for name in stages_up_to(measured_stages[-1], tuple(STAGES))
        if name not in measured_stages
    ]:
        return f'{table}\nThis pipeline has no stage {" or ".join(missing_stages)}.'
    return table


def _microseconds(seconds: float) -> str:
    return f'{seconds / _MICROSECOND:.1f}' if seconds >= 0 else _NOT_MEASURABLE


_COLUMNS: tuple[Column[StageRow], ...] = (
    Column('stage', lambda row: row.stage),
    Column('images/sec', lambda row: f'{row.images_per_second:.1f}', is_number=True),
    Column('adds us', lambda row: _microseconds(row.added_wall_seconds_per_image), is_number=True),
    Column(
        'adds CPU us',
        lambda row: _microseconds(row.added_processor_seconds_per_image),
        is_number=True,
    ),
    Column(
        'share',
        lambda row: f'{100 * row.share:.1f} %' if row.share >= 0 else _NOT_MEASURABLE,
        is_number=True,
    ),
)

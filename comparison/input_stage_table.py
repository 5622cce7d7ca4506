"""The table of what each stage of an input pipeline takes. Does not import TensorFlow."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from comparison.tables import format_markdown
from inputs.stages import STAGES, stages_up_to

_MICROSECOND = 1e-6
# A time below zero is noise. With enough steps that is below this share of the whole, and takes several times as many.
_UNKNOWN, _SMALL_SHARE, _FEWEST_TIMES = 'not measurable', 0.05, 4


def format_stages(rows: Sequence[Mapping[str, Any]], num_steps: int) -> str:
    """The rows as a table: images/sec up to each stage, and what the stage adds per image, in microseconds.

    Args:
      num_steps: the timed steps up to each stage.
    """
    header = ('stage', 'images/sec', 'adds us', 'adds CPU us', 'share')
    cells = [
        (
            row['stage'],
            f'{row["images_per_second"]:.1f}',
            _microseconds(row['added_wall_seconds_per_image']),
            _microseconds(row['added_processor_seconds_per_image']),
            f'{100 * row["share"]:.1f} %' if row['share'] >= 0 else _UNKNOWN,
        )
        for row in rows
    ]
    table = format_markdown(header, cells, right=range(1, len(header)))
    worst = min(row['share'] for row in rows)
    if worst < 0:
        # The noise of a mean falls with the root of the number of steps.
        enough = math.ceil(num_steps * max(_FEWEST_TIMES, (worst / _SMALL_SHARE) ** 2))
        table += f'\nSome stages cost less than the noise of these steps; about --num_batches={enough} would do.'
    measured = [row['stage'] for row in rows]
    if missing := [name for name in stages_up_to(measured[-1], tuple(STAGES)) if name not in measured]:
        return f'{table}\nThis pipeline has no stage {" or ".join(missing)}.'
    return table


def _microseconds(seconds: float) -> str:
    return f'{seconds / _MICROSECOND:.1f}' if seconds >= 0 else _UNKNOWN

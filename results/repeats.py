"""Finds runs that are repeats of each other. Does not import TensorFlow."""

import json
from collections.abc import Iterable, Mapping

from results.document import Record
from results.statistics import modified_z_scores

# A run is an outlier beyond this modified z-score: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, 3.3.
_OUTLIER_SCORE = 3.5
# The median and the MAD of fewer runs are too uncertain to call one an outlier.
_MIN_RUNS_FOR_OUTLIERS = 5


def repeat_key(record: Record, *, across_versions: bool = False) -> str:
    """Returns a text that is equal for runs that are repeats of each other, whose rates may be pooled.

    Repeats have the same Record.setting, machine, version of TensorFlow and environment variables.

    Args:
      across_versions: whether the versions of TensorFlow may differ, to follow a setting over months.
    """
    version = (record.machine.get('versions') or {}).get('tensorflow')
    return as_key(
        [
            record.machine.get('fingerprint'),
            None if across_versions else version,
            record.environment or {},
            record.setting,
        ]
    )


def grouped(records: Iterable[Record]) -> list[list[Record]]:
    """Groups records that are repeats; groups and their records stay in the order of the records."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(repeat_key(record), []).append(record)
    return list(groups.values())


def far_from_others(rates: Mapping[str, float]) -> dict[str, float]:
    """Returns the outliers among the images/sec of repeats, by name; empty if there are too few repeats."""
    if len(rates) < _MIN_RUNS_FOR_OUTLIERS:
        return {}
    scores = modified_z_scores([*rates.values()])
    return {
        name: rate for (name, rate), score in zip(rates.items(), scores, strict=True) if abs(score) > _OUTLIER_SCORE
    }


def as_key(value: object) -> str:
    """Returns a text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)

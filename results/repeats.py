"""Which runs are repeats of each other. Does not import TensorFlow."""

import json
from collections.abc import Iterable, Mapping

from results.document import Record
from results.statistics import modified_z_scores

# A run is an outlier beyond this modified z-score: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, 3.3.
_OUTLIER_SCORE = 3.5
# With fewer runs the median and the MAD say too little about what is usual.
_MIN_RUNS_FOR_OUTLIERS = 5


def repeat_key(record: Record, *, across_versions: bool = False) -> str:
    """A text that two runs share if they are repeats of each other, so that their rates may be pooled.

    They have the same Record.setting, machine, version of TensorFlow and environment variables.

    Args:
      across_versions: the versions of TensorFlow may differ, for following a setting over the months.
    """
    version = (record.machine.get('versions') or {}).get('tensorflow')
    return as_key(
        [
            record.machine.get('fingerprint'),
            None if across_versions else version,
            record.document.get('environment') or {},
            record.setting,
        ]
    )


def grouped(records: Iterable[Record]) -> list[list[Record]]:
    """The repeats of each setting; groups and records stay in the order of the records."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(repeat_key(record), []).append(record)
    return list(groups.values())


def far_from_others(rates: Mapping[str, float]) -> dict[str, float]:
    """Those repeats whose rate is an outlier, from the images/sec of each by its name; empty if they are few."""
    if len(rates) < _MIN_RUNS_FOR_OUTLIERS:
        return {}
    scores = modified_z_scores([*rates.values()])
    return {
        name: rate for (name, rate), score in zip(rates.items(), scores, strict=True) if abs(score) > _OUTLIER_SCORE
    }


def as_key(value: object) -> str:
    """A text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, default=str)

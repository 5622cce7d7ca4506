"""Which runs are repeats of each other. Does not import TensorFlow."""

import json
from collections.abc import Iterable

from reporting.record import Record


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


def as_key(value: object) -> str:
    """A text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, default=str)

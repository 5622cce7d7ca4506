"""The flags whose values TensorFlow keeps until the process ends. Does not import TensorFlow."""

from typing import Any

from errors import UsageError

INTRA = 'num_intra_threads'
_fixed: dict[str, Any] = {}


def fix_for_process(name: str, value: object) -> None:
    """Sets a flag for the whole process.

    Raises:
      UsageError: an earlier run in this process used another value.
    """
    first = _fixed.setdefault(name, value)
    if first != value:
        # 0 is what the flag means that was not given.
        written = f'--{name}={value}' if value or name != INTRA else f'--{name} is not given, or 0'
        raise UsageError(
            f'{written}: an earlier run in this process had {first}, which TensorFlow keeps until the process ends; '
            f'start a new process, or write --{name}={first} for this run'
        )


def fixed_for_process(name: str) -> Any:
    """The value of a flag that an earlier run in this process set; None if none did."""
    return _fixed.get(name)


def is_fixed(name: str) -> bool:
    """Whether an earlier run in this process set a flag."""
    return name in _fixed

"""What a check of this machine finds, as `doctor` and runs print it."""

from collections.abc import Mapping

from msgspec import Struct

# WARNING: runs work, but slower than possible. WRONG: some runs fail, or compute wrong values.
OK, WARNING, WRONG, SKIPPED = 'ok', 'warning', 'wrong', 'skipped'


class Finding(Struct, frozen=True):
    """The outcome of a check.

    Attributes:
      found: one line with the finding, or why the check was skipped.
      advice: one line; None if there is nothing to do.
      figures: the measured values and versions, for --json.
    """

    outcome: str
    found: str
    advice: str | None = None
    figures: Mapping[str, object] = {}  # a Struct copies it
    name: str = ''

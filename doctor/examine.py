"""Which checks apply to this machine, and what they find."""

import fnmatch
import os
from collections.abc import Callable, Iterator, Sequence

from doctor.checks import CHECKS, DEVICES, Check, Needs
from doctor.runner import run_checks
from doctor.verdicts import Finding, skipped
from run.gpus import has_nvidia_gpu

# A check that starts runs the whole program, or waits for a driver, may take; the others take seconds.
_BEFORE_DEVICES = CHECKS[: next(index for index, check in enumerate(CHECKS) if check.name == DEVICES) + 1]


def matching(pattern: str | None, *, measures: bool) -> list[Check]:
    """The checks whose names match one of the patterns, in the order of the table.

    Args:
      pattern: shell wildcards, several with commas between; a family alone ('host') stands for all in it; None: all.
      measures: whether those that measure rates belong to them.
    """
    patterns = [word.strip() for word in (pattern or '*').split(',')]

    def fits(check: Check) -> bool:
        return any(
            fnmatch.fnmatchcase(check.name, word) or fnmatch.fnmatchcase(check.name, f'{word.rstrip("/")}/*')
            for word in patterns
        )

    return [check for check in CHECKS if fits(check) and (measures or not check.measures)]

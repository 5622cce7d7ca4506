"""What a check is told, and what it found. Does not import TensorFlow."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Why checks of GPUs are skipped on most machines without one.
NO_GPU = 'this machine has no GPU of NVIDIA'


@dataclass(frozen=True)
class Context:
    """What every check is told.

    Attributes:
      num_gpus: how many GPUs of this machine compute; 0 where the CPU does.
      time_limit: the factor of --time_limit, for the processes that a check starts itself.
      doing: to be called with a few words before each part of a check that takes long, or may never end.
    """

    num_gpus: int = 0
    time_limit: float = 1.0
    doing: Callable[[str], None] = lambda text: None


class Outcome(enum.Enum):
    """How a check ended. WRONG makes the exit code 1."""

    OK = 'ok'
    WARNING = 'warning'
    WRONG = 'wrong'
    SKIPPED = 'skipped'


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
      found: one line with what was measured; for a skipped check, why.
      advice: what to do, one line; None where there is nothing to do.
      figures: everything that was measured, for a bug report; values that JSON can hold.
    """

    outcome: Outcome
    found: str
    advice: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """The verdict as an object of JSON."""
        return {
            'outcome': self.outcome.value,
            'found': self.found,
            'advice': self.advice,
            'figures': dict(self.figures),
        }


def verdict_of(document: Mapping[str, Any]) -> Verdict:
    """The verdict that as_document() made this object of."""
    return Verdict(Outcome(document['outcome']), document['found'], document['advice'], document['figures'])


def ok(found: str, **figures: Any) -> Verdict:
    """All is as it should be."""
    return Verdict(Outcome.OK, found, None, figures)


def warning(found: str, advice: str, **figures: Any) -> Verdict:
    """Runs work, but slower or less predictably than they could."""
    return Verdict(Outcome.WARNING, found, advice, figures)


def wrong(found: str, advice: str | None = None, **figures: Any) -> Verdict:
    """Some runs fail, or compute something wrong."""
    return Verdict(Outcome.WRONG, found, advice, figures)


def skipped(why: str) -> Verdict:
    """The check does not apply."""
    return Verdict(Outcome.SKIPPED, why)


@dataclass(frozen=True)
class Finding:
    """A check that has ended.

    Attributes:
      name, asks: of the check. seconds: how long it took; 0 if it was skipped.
      log: the last lines of its standard error; kept only for a verdict that is not ok.
    """

    name: str
    asks: str
    verdict: Verdict
    seconds: float = 0.0
    log: Sequence[str] = ()

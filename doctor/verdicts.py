"""What a check gets, and what it returns. Does not import TensorFlow."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Why checks of GPUs are skipped on most machines without one.
NO_GPU = 'this machine has no GPU of NVIDIA'


@dataclass(frozen=True)
class Context:
    """The facts that every check gets.

    Attributes:
      num_gpus: how many GPUs of this machine compute; 0 if the CPU computes.
      expects_gpu: whether --device=gpu was written.
      time_limit: the factor of --time_limit, for the processes that a check starts itself.
      doing: a function that a check calls with a few words before each part that takes long or may hang.
    """

    num_gpus: int = 0
    expects_gpu: bool = False
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
    """The result of a check.

    Attributes:
      outcome: how it ended.
      found: one line with what was measured; for a skipped check, the reason.
      advice: one line that says what to do; None if there is nothing to do.
      figures: everything that was measured, for a bug report; values that JSON can represent.
    """

    outcome: Outcome
    found: str
    advice: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """Returns the verdict as a JSON object."""
        return {
            'outcome': self.outcome.value,
            'found': self.found,
            'advice': self.advice,
            'figures': dict(self.figures),
        }


def verdict_of(document: Mapping[str, Any]) -> Verdict:
    """Returns the verdict from which as_document() made this object."""
    return Verdict(Outcome(document['outcome']), document['found'], document['advice'], document['figures'])


def ok(found: str, **figures: Any) -> Verdict:
    """Returns the verdict that nothing is wrong."""
    return Verdict(Outcome.OK, found, None, figures)


def warning(found: str, advice: str, **figures: Any) -> Verdict:
    """Returns the verdict that runs work, but slower or less predictably than they could."""
    return Verdict(Outcome.WARNING, found, advice, figures)


def wrong(found: str, advice: str | None = None, **figures: Any) -> Verdict:
    """Returns the verdict that some runs fail, or compute something wrong."""
    return Verdict(Outcome.WRONG, found, advice, figures)


def skipped(why: str) -> Verdict:
    """Returns the verdict of a check that does not apply."""
    return Verdict(Outcome.SKIPPED, why)


@dataclass(frozen=True)
class Finding:
    """A check that has ended.

    Attributes:
      name: the name of the check.
      asks: the question that the check answers.
      verdict: the result.
      seconds: how long it took; 0 if it was skipped.
      log: the last lines of its standard error; kept only for a verdict that is not ok.
    """

    name: str
    asks: str
    verdict: Verdict
    seconds: float = 0.0
    log: Sequence[str] = ()

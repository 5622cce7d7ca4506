"""What a planner answers. Does not import TensorFlow."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar('T_co', covariant=True)


@dataclass(frozen=True)
class Found(Generic[T_co]):
    """The facts that a planner found, and what the user should know about them.

    Attributes:
      facts: what was asked for.
      warnings: a line for each flag without effect, and the like.
    """

    facts: T_co
    warnings: tuple[str, ...] = ()

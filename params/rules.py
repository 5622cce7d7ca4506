"""What each group of flags declares besides its flags: rules between flags, and when a flag has no effect."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The table imports the groups of flags, which import this module.
    from params.table import Params


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run that its flags alone do not give.

    Attributes:
      alone: whether no other process takes part. It is False under a mode's launcher, such as horovodrun, even if the
        launcher starts only one process.
      residual: whether the model is a residual network.
      has_records: whether --data_dir, if given, contains records rather than arrays.
      num_ps: the number of parameter servers.
    """

    alone: bool
    residual: bool
    has_records: bool = True
    num_ps: int = 0


# A rule returns the message of the error, or None if the settings follow it.
Rule = Callable[['Params'], str | None]
RunRule = Callable[['Params', RunFacts], str | None]


@dataclass(frozen=True)
class Idle:
    """Flags that have no effect under a condition; the reason completes '--flag=value has no effect: '."""

    flags: tuple[str, ...]
    when: Callable[['Params', RunFacts], bool]
    reason: str


def idle_on_cpu(
    *flags: str, when: Callable[['Params'], bool] = lambda params: True, reason: str = 'the run is on the CPU'
) -> Idle:
    """Returns the row of flags that have no effect on a CPU.

    This is the one rule for flags that are for GPUs only. They change no result, so on a CPU they never stop a run; a
    warning names them as they were written. Only the flags that choose the devices are refused without a GPU:
    --device=gpu, and --num_gpus above 1 without --device.

    Args:
      when: whether the given value is for GPUs, for flags of which only some values are.
    """
    return Idle(flags, lambda p, run: p.device == 'cpu' and when(p), reason)


def idle_in_eval(*flags: str, reason: str = '--eval trains nothing') -> Idle:
    """Returns the row of flags that have no effect with --eval."""
    return Idle(flags, lambda p, run: p.eval, reason)


def idle_in_forward_only(*flags: str, reason: str) -> Idle:
    """Returns the row of flags that have no effect with --forward_only."""
    return Idle(flags, lambda p, run: p.forward_only, reason)

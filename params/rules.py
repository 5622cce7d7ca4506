"""What the groups of flags declare besides flags: rules between them, and when a flag has no effect."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The table is made of the groups, which import this module.
    from params.table import Params


@dataclass(frozen=True)
class RunFacts:
    """What the flags alone do not say about a run.

    Attributes:
      alone: whether no other process takes part. It is False under a launcher of a mode, such as horovodrun, even if
        that starts only one process.
      residual: whether the model is a residual network.
      has_records: whether --data_dir, if there is one, contains records, and not arrays.
    """

    alone: bool
    residual: bool
    has_records: bool = True


# Each returns the message of the error, or None if the settings keep the rule.
Rule = Callable[['Params'], str | None]
RunRule = Callable[['Params', RunFacts], str | None]


@dataclass(frozen=True)
class Idle:
    """Flags that have no effect under a condition, and the reason, which completes '--flag=value has no effect: '."""

    flags: tuple[str, ...]
    when: Callable[['Params', RunFacts], bool]
    reason: str


def idle_on_cpu(
    *flags: str, when: Callable[['Params'], bool] = lambda params: True, reason: str = 'the run is on the CPU'
) -> Idle:
    """These flags have no effect on a CPU.

    The one rule for flags that are for GPUs only: they change no result, so on a CPU they never stop a run, and a
    warning names them as they were written. Only the flags that choose the devices themselves are refused where there
    is no GPU: --device=gpu, and --num_gpus above 1 without --device.

    Args:
      when: for flags of which only some values are for GPUs, whether the value is one of these.
    """
    return Idle(flags, lambda p, run: p.device == 'cpu' and when(p), reason)


def idle_in_eval(*flags: str, reason: str = '--eval trains nothing') -> Idle:
    """These flags have no effect with --eval."""
    return Idle(flags, lambda p, run: p.eval, reason)


def idle_in_forward_only(*flags: str, reason: str) -> Idle:
    """These flags have no effect with --forward_only."""
    return Idle(flags, lambda p, run: p.forward_only, reason)

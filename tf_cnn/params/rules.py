"""Common conditions for ignored flags, and the properties of a run that rules of flags need."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tf_cnn.flags.spec import IgnoredWhen

if TYPE_CHECKING:
    # The table imports the groups of flags, which import this module.
    from tf_cnn.params.table import Params


@dataclass(frozen=True)
class RunContext:
    """Properties of a run that its flags alone do not give.

    Attributes:
      is_single_process: whether no other process takes part. It is False under a mode's launcher,
        such as horovodrun, even if the launcher starts only one process.
      has_records: whether --data_dir, if given, contains records rather than arrays.
    """

    is_single_process: bool
    is_residual: bool
    has_records: bool = True
    num_ps: int = 0


def ignored_on_cpu(
    when: Callable[['Params'], bool], reason: str = 'the run is on the CPU'
) -> IgnoredWhen:
    """Ignores a flag on the CPU if `when` is true, because its value is for GPUs only."""
    return IgnoredWhen(lambda p, run: p.device == 'cpu' and when(p), reason)


def ignored_in_forward_only(reason: str) -> IgnoredWhen:
    return IgnoredWhen(lambda p, run: p.forward_only, reason)


# Flags for GPUs change no result, so on a CPU they never stop a run. Without a GPU, only flags that
# choose devices are refused: --device=gpu, and --num_gpus above 1 without --device.
ON_CPU = ignored_on_cpu(lambda p: True)
IN_EVAL = IgnoredWhen(lambda p, run: p.eval, '--eval trains nothing')
TRAINS_NOTHING = ignored_in_forward_only('--forward_only trains nothing')
SINGLE_PROCESS = IgnoredWhen(
    lambda p, run: run.is_single_process, 'it is for clusters, and this run has one process'
)
NO_MODEL = IgnoredWhen(lambda p, run: p.input_only is not None, '--input_only runs no model')
NO_COMPUTING = IgnoredWhen(lambda p, run: p.exchange_only, '--exchange_only computes nothing')
SYNTHETIC = IgnoredWhen(
    lambda p, run: p.data_dir is None, 'images are synthetic without --data_dir'
)

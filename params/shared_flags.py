"""Which flags all processes of a cluster must have with the same values. Does not import TensorFlow."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from params.evaluation_flags import EvaluationFlags
from params.optimizer_flags import OptimizerFlags
from params.precision_flags import PrecisionFlags
from params.run_flags import RunFlags
from params.variable_flags import VariableFlags

if TYPE_CHECKING:
    from params.table import Params

# These groups decide what a step computes, and what the processes send each other and when.
_GROUPS = (RunFlags, VariableFlags, OptimizerFlags, PrecisionFlags, EvaluationFlags)
_OTHERS = ('num_gpus', 'target_seconds')
# The flags in them that concern one process: its paths, output, reactions, and ways to compute.
_OF_ONE_PROCESS = {
    *('model_file', 'eval_dir', 'eval_interval_secs', 'display_every', 'print_training_accuracy'),
    *('loss_type_to_report', 'tf_random_seed', 'verbose', 'continue_on_nan', 'tf32'),
}
# Parameter servers only wait for the others and often get few flags; the workers of a controller compute too.
_OF_SERVERS = ('cross_replica_sync', 'deterministic', 'forward_only')


def flags_to_agree_on(params: 'Params', *, serves: bool) -> Mapping[str, Any]:
    """Returns the values of the flags that must be the same in all processes that have them here, by name.

    Args:
      serves: whether the process only serves the others.
    """
    names = [field.name for group in _GROUPS for field in dataclasses.fields(group)]
    wanted = _OF_SERVERS if serves else [name for name in (*names, *_OTHERS) if name not in _OF_ONE_PROCESS]
    return {name: getattr(params, name) for name in wanted}

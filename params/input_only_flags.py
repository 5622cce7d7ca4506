"""Which flags have no effect with --input_only, which runs the input pipeline without a model."""

import dataclasses

from params.evaluation_flags import EvaluationFlags
from params.optimizer_flags import OptimizerFlags
from params.precision_flags import PrecisionFlags
from params.rules import Idle
from params.variable_flags import VariableFlags

# Those of the other groups that are about a model's computation, its checkpoints, or diagnoses of its steps.
_OTHERS = (
    'backbone_model_path',
    'data_format',
    'export_saved_model',
    'freeze_when_forward_only',
    'graph_file',
    'local_parameter_device',
    'loss_type_to_report',
    'max_ckpts_to_keep',
    'measure_peak',
    'partitioned_graph_file_prefix',
    'print_training_accuracy',
    'profile_dir',
    'profile_steps',
    'save_model_secs',
    'save_model_steps',
    'save_summaries_steps',
    'steps_per_run',
    'summary_verbosity',
    'tfprof_file',
    'trace_file',
    'train_dir',
    'use_chrome_trace_format',
)
# Whole groups, whose flags may become more.
_GROUPS = (OptimizerFlags, VariableFlags, PrecisionFlags, EvaluationFlags)

IDLE: tuple[Idle, ...] = (
    Idle(
        (*(field.name for group in _GROUPS for field in dataclasses.fields(group)), *_OTHERS),
        lambda p, run: p.input_only is not None,
        '--input_only runs no model',
    ),
)

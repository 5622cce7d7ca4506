"""Applies the rules of all groups of flags: which settings clash, and which flags have no effect."""

import dataclasses
from collections.abc import Iterable

from errors import UsageError
from params import (
    cluster_flags,
    data_flags,
    device_flags,
    evaluation_flags,
    file_flags,
    input_flags,
    optimizer_flags,
    precision_flags,
    result_flags,
    run_flags,
    tensorflow_flags,
    variable_flags,
)
from params.optimizer_table import OPTIMIZERS
from params.rules import Idle, Rule, RunFacts, RunRule
from params.table import Params

_GROUPS = (
    run_flags,
    device_flags,
    data_flags,
    input_flags,
    variable_flags,
    optimizer_flags,
    precision_flags,
    cluster_flags,
    evaluation_flags,
    file_flags,
    result_flags,
    tensorflow_flags,
)
_RULES: list[Rule] = [rule for group in _GROUPS for rule in group.RULES]
_RUN_RULES: tuple[RunRule, ...] = (
    *run_flags.RUN_RULES,
    *data_flags.RUN_RULES,
    *input_flags.RUN_RULES,
    *variable_flags.RUN_RULES,
    *optimizer_flags.RUN_RULES,
    *cluster_flags.RUN_RULES,
    *evaluation_flags.RUN_RULES,
    *result_flags.RUN_RULES,
)
# Without effect under --input_only: flags about the model's computation, its checkpoints, or diagnoses of its steps ...
_OF_A_MODEL = (
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
# ... and every flag of these groups.
_GROUPS_OF_A_MODEL = (
    optimizer_flags.OptimizerFlags,
    variable_flags.VariableFlags,
    precision_flags.PrecisionFlags,
    evaluation_flags.EvaluationFlags,
)
# Without effect under --exchange_only: flags about images, losses and what computes them.
_OF_COMPUTING = (
    *('batch_size', 'data_format', 'loss_type_to_report', 'print_training_accuracy', 'continue_on_nan'),
    *('label_smoothing', 'single_l2_loss_op', 'distinct_worker_data'),
    *('fp16_loss_scale', 'fp16_enable_auto_loss_scale', 'fp16_inc_loss_scale_every_n'),
)
_IDLE: list[Idle] = [
    Idle(_OF_COMPUTING, lambda p, run: p.exchange_only, '--exchange_only computes nothing'),
    Idle(
        tuple(field.name for field in dataclasses.fields(evaluation_flags.EvaluationFlags)),
        lambda p, run: p.exchange_only,
        '--exchange_only trains no model',
    ),
    Idle(
        ('weight_decay',),
        lambda p, run: p.exchange_only and 'weight_decay' not in OPTIMIZERS[p.optimizer].arguments,
        '--exchange_only computes no loss, to which it would be added',
    ),
    Idle(
        (*(field.name for group in _GROUPS_OF_A_MODEL for field in dataclasses.fields(group)), *_OF_A_MODEL),
        lambda p, run: p.input_only is not None,
        '--input_only runs no model',
    ),
    *(row for group in _GROUPS for row in group.IDLE),
]


def check(params: Params) -> None:
    """Raises UsageError with a line for each rule between flags that the settings break."""
    _raise_broken(rule(params) for rule in _RULES)


def check_run(params: Params, facts: RunFacts) -> None:
    """Raises UsageError with a line for each rule that the settings break in a run with these facts."""
    _raise_broken(rule(params, facts) for rule in _RUN_RULES)


def _raise_broken(messages: Iterable[str | None]) -> None:
    if lines := list(filter(None, messages)):
        raise UsageError(*lines)


def find_idle(params: Params, facts: RunFacts) -> list[str]:
    """Returns one line for each given flag (see Params.given) that has no effect in a run with these facts.

    A flag that has its default value, or turns off what is off by default, asks for nothing and is skipped.
    """
    defaults = Params()
    lines = []
    for name, written in params.given.items():
        value, default = getattr(params, name), getattr(defaults, name)
        if value == default or not (value or default):
            continue
        reasons = (row.reason for row in _IDLE if name in row.flags and row.when(params, facts))
        if reason := next(reasons, None):
            lines.append(f'{written} has no effect: {reason}')
    return lines + variable_flags.find_idle_parts(params)


def reasons_of_idleness(name: str) -> list[str]:
    """Returns every reason for which a flag can have no effect, for the docs."""
    return list(dict.fromkeys(row.reason for row in _IDLE if name in row.flags))

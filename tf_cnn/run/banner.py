"""The banner of a run, which other programs read."""

import tensorflow.compat.v1 as tf

from tf_cnn.inputs.catalog import pipeline_row_for
from tf_cnn.machine.run_environment import short_commit
from tf_cnn.plan.params import Role
from tf_cnn.plan.plan import Plan
from tf_cnn.results.console import IN_TF32, PERHAPS_IN_TF32, format_banner, transfer_lines
from tf_cnn.results.sections import NO_TRANSFER
from tf_cnn.results.summary import format_machine
from tf_cnn.run.result_builder import run_section
from tf_cnn.step.step_graph import StepGraph


def make_banner(plan: Plan, device_prefix: str = '', step_graph: StepGraph | None = None) -> str:
    """Returns the banner of a run. device_prefix names this task of a cluster; step_graph is None
    if the run does not train.
    """
    run, devices, row = run_section(plan), plan.devices, plan.data.input_row
    num_workers = plan.cluster_role.num_training_tasks * len(devices.hosts)
    target = plan.params.results.target_seconds
    num_batches: object = (
        f'as many as take {target:g} seconds' if target else plan.params.run.num_timed
    )
    num_epochs = 'unknown' if target else f'{plan.num_epochs:.2f}'
    if plan.role is Role.EVALUATION and (evaluations := plan.evaluations):
        num_batches = 'all' if evaluations.banner_batches is None else evaluations.banner_batches
        num_epochs = f'{evaluations.num_epochs:.2f}'
    # The warm-up trains on further images.
    num_warmup, warmup = plan.params.run.num_warmup_batches, ''
    if num_warmup and plan.params.run.num_epochs is not None and plan.role is not Role.EVALUATION:
        num_warmup_epochs = plan.steps_to_epochs(num_warmup)
        warmup = f'{num_warmup} batches ({num_warmup_epochs:.2f} epochs) before these'
    steps_per_run = f'{run.steps_per_run}; the steps of one session call share its time equally'
    tf32 = PERHAPS_IN_TF32 if run.tf32 is None else IN_TF32 if run.tf32 else ''
    reason = devices.data_format_reason
    is_frozen = plan.params.run.freeze_when_forward_only
    return format_banner(
        [
            ('TensorFlow', '.'.join(tf.__version__.split('.')[:2])),
            ('Model', plan.model_name),
            ('Dataset', f'{run.data_set} ({"synthetic" if run.is_synthetic else "real"})'),
            # If it differs from the usual one for these images.
            ('Input', '' if row == pipeline_row_for(plan.data.images) else row.name),
            ('Mode', run.role),
            ('SingleSess', not devices.is_local),
            ('Batch size', f'{run.global_batch_size} global'),
            ('', f'{run.batch_size} per device'),
            ('Num batches', num_batches),
            ('Num epochs', num_epochs),
            ('Warm-up', warmup),
            ('Steps/run', steps_per_run if run.steps_per_run > 1 else ''),
            ('Devices', [f'{device_prefix}{tower}' for tower in devices.towers]),
            ('NUMA bind', plan.session.process.numa or False),
            ('Data format', run.data_format + (f' ({reason})' if reason else '')),
            ('Precision', f'{run.precision}{tf32}' if tf32 or run.precision != 'fp32' else ''),
            ('Optimizer', run.optimizer),
            ('Variables', run.variable_update),
            ('Weights', 'constant, batch norm is folded' if is_frozen else ''),
            ('AllReduce', run.all_reduce_spec if plan.mode.takes_all_reduce_spec else ''),
            ('Sync', run.sync),
            ('Staged vars', plan.params.variables.staged_vars or ''),
            *transfer_lines(step_graph.transfer if step_graph else NO_TRANSFER, num_workers),
            ('Commit', short_commit(plan.git_commit or '')),
            *zip(('Machine', 'GPUs'), format_machine(plan.machine), strict=False),
        ]
    )

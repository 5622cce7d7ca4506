"""Which flags have no effect in a run, and why. Does not import TensorFlow."""

from collections.abc import Callable, Mapping

from flag_rules import RATE_FLAGS, WHOLE_SCHEDULES, is_alone, is_residual
from flag_table import EVAL_DURING_TRAINING, Params

_Test = Callable[[Params], bool]
_UPDATE = (
    *WHOLE_SCHEDULES,
    *RATE_FLAGS,
    'num_learning_rate_warmup_epochs',
    'optimizer',
    'momentum',
    'rmsprop_decay',
    'rmsprop_momentum',
    'rmsprop_epsilon',
    'adam_beta1',
    'adam_beta2',
    'adam_epsilon',
    'lars_eta',
    'weight_decay',
    'single_l2_loss_op',
    'gradient_clip',
)
_PACKING = ('gradient_repacking', 'agg_small_grads_max_bytes', 'agg_small_grads_max_group')
_LOCAL_REDUCTION = ('all_reduce_spec', 'hierarchical_copy', 'network_topology')
_REDUCTION = (*_LOCAL_REDUCTION, *_PACKING)
_CLUSTER = (
    'cross_replica_sync',
    'num_ps',
    'cluster_port',
    'connect_timeout_secs',
    'peer_timeout_secs',
    'ps_linger_secs',
    'distinct_worker_data',
)
_LOSS_SCALE = ('fp16_loss_scale', 'fp16_enable_auto_loss_scale', 'fp16_inc_loss_scale_every_n')
_CHECKPOINTS = ('save_model_secs', 'save_model_steps', 'max_ckpts_to_keep')
_SUMMARIES = ('save_summaries_steps', 'summary_verbosity')
_HOW_TO_EVALUATE = ('eval_batch_size', 'num_eval_batches', 'num_eval_epochs', 'eval_dir')


# Flags, when they have no effect, and why. Of the rows that are true of a flag, the first one is told.
_IDLE: tuple[tuple[tuple[str, ...], _Test, str], ...] = (
    (
        (*_UPDATE, *_REDUCTION, *_CHECKPOINTS, *_SUMMARIES, 'num_warmup_batches', 'display_every', 'staged_vars'),
        lambda p: p.eval,
        '--eval trains nothing',
    ),
    (
        ('loss_type_to_report', 'print_training_accuracy', 'label_smoothing', 'distortions', 'cross_replica_sync'),
        lambda p: p.eval,
        '--eval trains nothing',
    ),
    (('backbone_model_path', 'profile_steps', 'profile_dir'), lambda p: p.eval, '--eval trains nothing'),
    (('backbone_model_path', 'export_saved_model'), lambda p: p.forward_only, '--forward_only trains nothing'),
    (
        ('trace_file', 'use_chrome_trace_format', 'tfprof_file', 'graph_file', 'partitioned_graph_file_prefix'),
        lambda p: p.eval,
        'it is about training steps, and --eval takes none',
    ),
    (
        ('compact_gradient_transfer', 'local_parameter_device', 'distinct_worker_data'),
        lambda p: p.eval,
        '--eval trains nothing',
    ),
    (('variable_update',), lambda p: p.eval and is_alone(p), '--eval reads the checkpoints of all in the same way'),
    (
        ('tf_random_seed',),
        lambda p: p.eval and p.data_dir is not None,
        '--eval takes the weights of a checkpoint, and images as they are',
    ),
    (
        ('batch_size',),
        lambda p: p.eval and bool(p.eval_batch_size and (p.data_dir or p.num_eval_batches)),
        '--eval_batch_size says how many images are evaluated at a time',
    ),
    (
        ('num_batches', 'num_epochs'),
        lambda p: p.eval and (p.data_dir is not None or p.num_eval_batches is not None),
        '--num_eval_batches says how many to evaluate',
    ),
    (_HOW_TO_EVALUATE, lambda p: not p.evaluates, 'nothing is evaluated; see --eval'),
    (('eval_interval_secs',), lambda p: not p.eval, 'it belongs to --eval'),
    (EVAL_DURING_TRAINING, lambda p: p.forward_only, '--forward_only trains nothing'),
    ((*_UPDATE, *_REDUCTION), lambda p: p.forward_only, '--forward_only updates no variables'),
    (('loss_type_to_report',), lambda p: p.forward_only, '--forward_only computes no weight decay, the losses are one'),
    (('print_training_accuracy',), lambda p: p.forward_only, '--forward_only prints the accuracy anyway'),
    (('distortions',), lambda p: p.forward_only, '--forward_only takes images as they are'),
    (
        ('augmentation', 'distortions', 'resize_method'),
        lambda p: p.data_dir is None,
        'images are synthetic without --data_dir',
    ),
    (('label_smoothing',), lambda p: p.forward_only, '--forward_only takes labels as they are'),
    (('resnet_base_lr',), lambda p: not is_residual(p), 'it belongs to residual networks, and --model is none'),
    (
        ('minimum_learning_rate',),
        lambda p: not p.num_epochs_per_decay,
        'nothing lowers the learning rate without --num_epochs_per_decay',
    ),
    (('single_l2_loss_op',), lambda p: not p.weight_decay, '--weight_decay=0 leaves no L2 loss'),
    (
        ('momentum',),
        lambda p: p.optimizer not in ('momentum', 'lars'),
        'it belongs to --optimizer=momentum and --optimizer=lars',
    ),
    (('lars_eta',), lambda p: p.optimizer != 'lars', 'it belongs to --optimizer=lars'),
    (
        ('rmsprop_decay', 'rmsprop_momentum', 'rmsprop_epsilon'),
        lambda p: p.optimizer != 'rmsprop',
        'it belongs to --optimizer=rmsprop',
    ),
    (('adam_beta1', 'adam_beta2', 'adam_epsilon'), lambda p: p.optimizer != 'adam', 'it belongs to --optimizer=adam'),
    (_CLUSTER, is_alone, 'it belongs to clusters, and this process is alone'),
    (('fp16_vars',), lambda p: p.precision == 'fp32', 'it belongs to --precision=fp16 and bf16'),
    (_LOSS_SCALE, lambda p: p.precision != 'fp16', 'the loss is scaled with --precision=fp16 only'),
    ((*_LOSS_SCALE, 'fp16_vars', 'continue_on_nan'), lambda p: p.eval, '--eval trains nothing'),
    (_LOSS_SCALE, lambda p: p.forward_only, '--forward_only computes no gradients'),
    (
        ('fp16_inc_loss_scale_every_n',),
        lambda p: not p.fp16_enable_auto_loss_scale,
        'it belongs to --fp16_enable_auto_loss_scale',
    ),
    (
        ('num_ps', 'cluster_port'),
        lambda p: bool(p.ps_hosts or p.worker_hosts),
        'the flags of the hosts say where the tasks are',
    ),
    (
        ('compact_gradient_transfer', 'cross_replica_sync', 'staged_vars'),
        lambda p: p.forward_only,
        '--forward_only updates no variables',
    ),
    (
        ('local_parameter_device',),
        lambda p: not is_alone(p),
        'the variables of a cluster are on the CPUs of its parameter servers, or on the devices of the towers',
    ),
    (
        ('num_ps', 'cluster_port', 'connect_timeout_secs', 'peer_timeout_secs', 'ps_linger_secs'),
        lambda p: p.variable_update == 'horovod',
        'horovodrun starts the processes, and Horovod brings them together',
    ),
    (('horovod_device',), lambda p: p.variable_update != 'horovod', 'it belongs to --variable_update=horovod'),
    (
        ('all_reduce_spec',),
        lambda p: p.variable_update not in ('replicated', 'distributed_all_reduce'),
        'it belongs to --variable_update=replicated and distributed_all_reduce',
    ),
    (
        ('hierarchical_copy', 'network_topology'),
        lambda p: p.variable_update != 'replicated',
        'it belongs to --variable_update=replicated',
    ),
    (
        (*_PACKING, 'compact_gradient_transfer'),
        lambda p: p.variable_update != 'replicated' and is_alone(p),
        'it belongs to --variable_update=replicated, and to clusters',
    ),
    (
        (*_REDUCTION, 'compact_gradient_transfer'),
        lambda p: p.num_gpus == 1 and is_alone(p),
        'with --num_gpus=1 there is one gradient, and nothing to sum',
    ),
    (('network_topology',), lambda p: not p.hierarchical_copy, 'it belongs to --hierarchical_copy'),
    (
        ('agg_small_grads_max_group',),
        lambda p: not p.agg_small_grads_max_bytes,
        'gradients are summed together with --agg_small_grads_max_bytes above 0 only',
    ),
    (
        ('local_parameter_device',),
        lambda p: p.variable_update == 'independent',
        'with --variable_update=independent each device keeps its own variables',
    ),
    (
        ('local_parameter_device',),
        lambda p: p.variable_update == 'replicated' and bool(p.all_reduce_spec or p.hierarchical_copy),
        'with --variable_update=replicated it only says where gradients are summed, and another flag says that already',
    ),
    (('allow_growth', 'gpu_memory_frac_for_testing'), lambda p: p.device == 'cpu', 'the run is on the CPU'),
    (('use_chrome_trace_format',), lambda p: p.trace_file is None, 'it belongs to --trace_file'),
    (('save_summaries_steps',), lambda p: not p.summary_verbosity, '--summary_verbosity=0 writes no summaries'),
    (('summary_verbosity',), lambda p: not p.save_summaries_steps, '--save_summaries_steps=0 writes no summaries'),
    (
        ('train_dir',),
        lambda p: p.forward_only and not (p.save_summaries_steps and p.summary_verbosity),
        '--forward_only saves no checkpoints, and summaries need --save_summaries_steps and --summary_verbosity',
    ),
    (_CHECKPOINTS, lambda p: p.train_dir is None, 'checkpoints are saved with --train_dir only'),
    (_CHECKPOINTS, lambda p: p.forward_only, '--forward_only saves no checkpoints'),
)


def has_effect(params: Params, name: str) -> bool:
    """Whether the run heeds the flag of this name; one that it does not heed cannot be wrong."""
    return not find_idle(params, {name: ''})


def find_idle(params: Params, as_written: Mapping[str, str]) -> list[str]:
    """One line for each flag that was given and has no effect.

    Args:
      as_written: the flags that were given, by name, each as it was written. One that leaves off what is off by default
        (--nodistortions) asks for nothing and is passed over.
    """
    defaults = type(params)()
    lines = []
    for name, written in as_written.items():
        value = getattr(params, name)
        if not value and not getattr(defaults, name):
            continue
        reasons = (reason for names, is_idle, reason in _IDLE if name in names and is_idle(params))
        if reason := next(reasons, None):
            lines.append(f'{written} has no effect: {reason}')
    return lines

"""The settings of sessions that fit the devices."""

from typing import Any

import tensorflow.compat.v1 as tf
from google.protobuf import text_format  # type: ignore[import-untyped]  # protobuf ships no types

from errors import UsageError, spelled
from hardware.gpu_memory import GpuMemory
from params import Params
from params.modes import MODES
from planning.fixed import INTRA, fix_for_process, fixed_for_process
from planning.gpu_settings import has_persistent_batch_norm, prepare_gpus, read_once
from planning.machine import Machine, find_machine
from planning.process_settings import XLA_ON_CPU, check_deterministic_ops
from planning.threads import Threads, choose_threads

_USELESS = (
    'arithmetic_optimization',
    'auto_mixed_precision',
    'common_subgraph_elimination',
    'constant_folding',
    'debug_stripper',
    'dependency_optimization',
    'function_optimization',
    'implementation_selector',
    'loop_optimization',
    'pin_to_host_optimization',
    'scoped_allocator_optimization',
    'shape_optimization',
)
# Fusing operations is what is left.
_USEFUL = ('remapping',)


def find_threads(params: Params, machine: Machine) -> Threads:
    """The threads of this process, after those of its GPUs are set."""
    earlier = fixed_for_process(INTRA)
    if not machine.is_here:
        return choose_threads(params, 'cpu', 1, earlier)
    if machine.kind == 'gpu':
        prepare_gpus(params)
    updates_on_host = machine.parameter_device_kind == 'cpu' or 'pscpu' in (machine.all_reduce_spec or '')
    return choose_threads(params, machine.kind, len(machine.towers), earlier, updates_on_host=updates_on_host)


def session_config(
    params: Params, machine: Machine, *, in_cluster: bool = False, threads: Threads | None = None
) -> tf.ConfigProto:
    """The settings of the session.

    Args:
      threads: by default those of find_threads.
      in_cluster: whether the session is on a server, to which other processes send graphs.

    Raises:
      UsageError: an earlier run in this process used another value of a process-wide setting; or --rewriter_config
        cannot be read.
    """
    config = tf.ConfigProto(allow_soft_placement=True)
    if machine.kind == 'cpu' or not machine.is_here:
        config.device_count['CPU'] = len(machine.towers) if machine.is_here else 1
        config.device_count['GPU'] = 0
    fix_for_process('xla', params.xla)
    check_deterministic_ops(params.deterministic)
    threads = threads or find_threads(params, machine)
    if machine.kind == 'gpu' and machine.is_here:
        fix_for_process('batchnorm_persistent', has_persistent_batch_norm())
        for name, value in read_once().items():
            fix_for_process(name, value)
        tf.config.experimental.enable_tensor_float_32_execution(params.tf32)
    if machine.kind == 'cpu' or params.num_intra_threads is not None:
        fix_for_process(INTRA, threads.intra_op)
    config.intra_op_parallelism_threads = threads.intra_op
    config.inter_op_parallelism_threads = threads.inter_op
    config.use_per_session_threads = True
    config.gpu_options.CopyFrom(GpuMemory.of(params).options())
    config.log_device_placement = params.log_device_placement
    # Otherwise TensorFlow places the whole graph before it assigns the first values, and copies all of it for the first
    # step too, although a sixth of it never runs. But then it runs none of its graph passes, whose fusing makes steps
    # forward faster by a twentieth, and training steps on GPUs; and servers do not support this.
    has_copies = machine.kind == 'cpu' and len(machine.towers) > 1 and params.trains
    needs_passes = machine.data_format != 'NHWC' or params.rewriter_config is not None
    config.graph_options.place_pruned_graph = has_copies and not in_cluster and not needs_passes
    # Each device of the CPU is on the node of its number (tensorflow/core/common_runtime/threadpool_device_factory.cc).
    # Servers keep this; planning/planner.py decides anew for a process that computes itself, which it may bind.
    config.experimental.use_numa_affinity = params.use_numa_affinity
    if params.xla:
        config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    rewrite = config.graph_options.rewrite_options
    if params.rewriter_config is not None:
        _read_graph_passes(params.rewriter_config, rewrite)
    else:
        _choose_graph_passes(rewrite, params.enable_optimizations)
        if not params.enable_optimizations:
            config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    _fit_layout(rewrite, machine)
    if in_cluster and params.precision == 'bf16':
        # Remapping fuses convolutions into ops that a server supports for float32 and float16 only.
        rewrite.remapping = rewrite.OFF
    return config


def server_config(params: Params, *, computes: bool, host_has_gpus: bool = False) -> tf.ConfigProto:
    """The session settings of a parameter server, or of a worker that a controller drives.

    Args:
      computes: whether its devices have towers; otherwise it only keeps variables, on the CPU.
      host_has_gpus: as for find_machine.
    """
    if computes:
        machine = find_machine(params, MODES[params.variable_update], alone=False, host_has_gpus=host_has_gpus)
        config = session_config(params, machine, in_cluster=True)
        config.use_per_session_threads = False
        return config
    return tf.ConfigProto(device_count={'GPU': 0})


def check_xla(config: tf.ConfigProto, device: str) -> None:
    """Runs a few operations to check that XLA compiles them.

    Raises:
      UsageError: XLA does not compile in this process.
    """
    with tf.Graph().as_default() as graph, tf.device(device):
        x = tf.random.uniform([8, 8], seed=1)
        for _ in range(4):
            x = tf.tanh(tf.matmul(x, x))
    metadata = tf.RunMetadata()
    with tf.Session(graph=graph, config=config) as session:
        session.run(x, options=tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    if not any(node.op == '_XlaRun' for partition in metadata.partition_graphs for node in partition.node):
        raise UsageError(
            '--xla: TensorFlow does not compile in this process, which used it before; start a new process, '
            f'or set TF_XLA_FLAGS={XLA_ON_CPU} before TensorFlow is used'
        )


def _read_graph_passes(text: str, rewrite: Any) -> None:
    try:
        text_format.Parse(text, rewrite)
    except text_format.ParseError as error:
        reason = ' '.join(str(error).split())
        raise UsageError(
            f'{spelled("rewriter_config", text)}: it must be a RewriterConfig of TensorFlow as text, such as '
            f"'remapping: OFF': {reason}"
        ) from None


def _choose_graph_passes(rewrite: Any, optimizes: bool) -> None:
    """Switches off the graph passes that take long with many towers and do not speed up the step.

    Args:
      optimizes: otherwise those that do speed it up are off as well.
    """
    rewrite.meta_optimizer_iterations = rewrite.ONE
    for name in _USELESS if optimizes else (*_USELESS, *_USEFUL):
        setattr(rewrite, name, rewrite.OFF)
    rewrite.disable_model_pruning = not optimizes
    rewrite.memory_optimization = rewrite.NO_MEM_OPT


def _fit_layout(rewrite: Any, machine: Machine) -> None:
    """Sets the layout passes, unless --rewriter_config has."""
    if machine.kind == 'cpu' and machine.data_format == 'NCHW':
        # The CPU's kernels are made for NHWC.
        rewrite.cpu_layout_conversion = rewrite.cpu_layout_conversion or rewrite.NCHW_TO_NHWC
    elif rewrite.layout_optimizer == rewrite.DEFAULT:
        # On a GPU it would change the data format that the user chose.
        rewrite.layout_optimizer = rewrite.OFF

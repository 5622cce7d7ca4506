"""The settings of sessions and of the whole process."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import tensorflow.compat.v1 as tf
from google.protobuf import text_format

from tf_cnn.graph.onednn import uses_onednn
from tf_cnn.machine.gpus import VISIBLE_VARIABLE
from tf_cnn.machine.processors import process_cores
from tf_cnn.machine.run_environment import describe_machine, library_variables
from tf_cnn.machine.this_process import (
    DETERMINISTIC,
    INTRA,
    NUMA,
    TF32,
    ProcessEnvironment,
    ProcessSettings,
    make_gpu_options,
)
from tf_cnn.plan.cluster_role import ClusterRole
from tf_cnn.plan.devices import Devices
from tf_cnn.plan.params import Params
from tf_cnn.plan.process_settings import (
    XLA_ON_CPU,
    Threads,
    choose_binding,
    choose_gpu_variables,
    choose_threads,
    memory_flags,
)
from tf_cnn.results.sections import MachineSection
from tf_cnn.system.errors import UsageError, format_flag

# The graph passes that do not speed up the step, and the pass that does: it fuses operations.
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
_USEFUL = ('remapping',)


@dataclass(frozen=True)
class SessionConfig:
    """The settings of sessions and of the whole process."""

    config: tf.ConfigProto
    process: ProcessSettings
    threads: Threads

    def describe_machine(self) -> MachineSection:
        """Describes this machine with the settings of the process applied."""
        facts = describe_machine(
            num_intra_threads=self.threads.intra_op,
            num_inter_threads=self.threads.inter_op,
            threads_reason=self.threads.reason,
            cores=self.process.cores or None,
        )
        return cast(MachineSection, facts)

    def library_variables(self, environment: ProcessEnvironment) -> Mapping[str, str]:
        """Returns the environment variables of libraries with the settings of the process
        applied.
        """
        set_here = {
            **self.process.values,
            VISIBLE_VARIABLE: environment.process.setting(VISIBLE_VARIABLE),
        }
        variables = {name: value for name, value in set_here.items() if value is not None}
        return library_variables({**environment.variables, **variables})


def configure_session(
    params: Params,
    environment: ProcessEnvironment,
    cluster_role: ClusterRole,
    devices: Devices | None,
    start: ProcessSettings,
    warnings: list[str],
) -> SessionConfig:
    """Chooses the settings of sessions or of a server.

    devices: None in a parameter server, which holds variables on the CPU.
    """
    if params.tensorflow.onednn is not None and uses_onednn() is (not params.tensorflow.onednn):
        written = params.flag_text('onednn')
        warnings.append(f'{written} has no effect: this TensorFlow has no such switch; remove it')
    if devices is None:
        return SessionConfig(tf.ConfigProto(device_count={'GPU': 0}), start, Threads(0, 0, ''))
    on_gpus = devices.kind == 'gpu' and devices.is_local
    numa = choose_binding(params, environment, cluster_role, devices, start.gpus, warnings)
    threads = choose_threads(
        params, environment, devices, len(numa.cores or process_cores()), warnings
    )
    values = {
        **start.values,
        DETERMINISTIC: params.run.deterministic,
        '--xla': params.devices.xla,
        INTRA: threads.intra_op,
        # TensorFlow binds devices, not the process.
        NUMA: (not numa.by_tensorflow and numa.banner_text) or False,
    }
    if on_gpus:
        values |= choose_gpu_variables(params, environment, warnings)
        values[TF32] = params.numerics.tf32
    process = replace(start, values=values, numa=numa.banner_text, cores=numa.cores)
    config = session_config(params, devices, threads, in_cluster=cluster_role.cluster is not None)
    config.use_per_session_threads = not cluster_role.is_server
    config.experimental.use_numa_affinity = numa.by_tensorflow
    if params.devices.xla and devices.is_local and not cluster_role.is_server:
        check_xla(config, devices.towers[0])
    return SessionConfig(config, process, threads)


def session_config(
    params: Params, devices: Devices, threads: Threads, *, in_cluster: bool
) -> tf.ConfigProto:
    """Returns the settings of a session.

    in_cluster: whether the session runs on a server of a cluster.
    """
    config = tf.ConfigProto(allow_soft_placement=True)
    if devices.kind == 'cpu' or not devices.is_local:
        config.device_count['CPU'] = len(devices.towers) if devices.is_local else 1
        config.device_count['GPU'] = 0
    config.intra_op_parallelism_threads = threads.intra_op
    config.inter_op_parallelism_threads = threads.inter_op
    config.gpu_options.CopyFrom(make_gpu_options(memory_flags(params)))
    config.log_device_placement = params.tensorflow.log_device_placement
    # Without this option, TensorFlow places and copies the whole graph for the first step, although
    # a sixth of it never runs. With it, TensorFlow runs no graph passes; their fusions make forward
    # steps and steps on GPUs faster. Servers do not support the option.
    has_copies = devices.kind == 'cpu' and len(devices.towers) > 1 and params.trains
    needs_passes = devices.data_format != 'NHWC' or params.tensorflow.rewriter_config is not None
    config.graph_options.place_pruned_graph = has_copies and not in_cluster and not needs_passes
    if params.devices.xla:
        config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    rewrite = config.graph_options.rewrite_options
    if params.tensorflow.rewriter_config is not None:
        _read_graph_passes(params.tensorflow.rewriter_config, rewrite)
    else:
        rewrite.meta_optimizer_iterations = rewrite.ONE
        for name in _USELESS if params.tensorflow.enable_optimizations else (*_USELESS, *_USEFUL):
            setattr(rewrite, name, rewrite.OFF)
        rewrite.memory_optimization = rewrite.NO_MEM_OPT
        if not params.tensorflow.enable_optimizations:
            rewrite.disable_model_pruning = True
            config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    if devices.kind == 'cpu' and devices.data_format == 'NCHW':
        # The CPU's kernels are made for NHWC.
        rewrite.cpu_layout_conversion = rewrite.cpu_layout_conversion or rewrite.NCHW_TO_NHWC
    elif rewrite.layout_optimizer == rewrite.DEFAULT:
        # On a GPU this pass would change the data format that the user chose.
        rewrite.layout_optimizer = rewrite.OFF
    if in_cluster and params.numerics.precision == 'bf16':
        # Remapping fuses convolutions into ops that a server supports for float32 and float16 only.
        rewrite.remapping = rewrite.OFF
    return config


def check_xla(config: tf.ConfigProto, device: str) -> None:
    """Runs a few operations; raises UsageError if XLA does not compile them in this process."""
    with tf.Graph().as_default() as graph, tf.device(device):
        x = tf.random.uniform([8, 8], seed=1)
        for _ in range(4):
            x = tf.tanh(tf.matmul(x, x))
    metadata = tf.RunMetadata()
    with tf.Session(graph=graph, config=config) as session:
        session.run(x, options=tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    if not any(
        node.op == '_XlaRun' for partition in metadata.partition_graphs for node in partition.node
    ):
        raise UsageError(
            '--xla: TensorFlow was used in this process before, and does not compile now; start a '
            f'new process, or set TF_XLA_FLAGS={XLA_ON_CPU} before TensorFlow is used'
        )


def _read_graph_passes(text: str, rewrite: Any) -> None:
    try:
        text_format.Parse(text, rewrite)
    except text_format.ParseError as error:
        reason = ' '.join(str(error).split())
        raise UsageError(
            f'{format_flag("rewriter_config", text)}: it must be a RewriterConfig of TensorFlow '
            'as text, such as '
            f"'remapping: OFF': {reason}"
        ) from None

"""Builds the graphs of a run from its plan: a step, an evaluation."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from models.networks import NetworkValues
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.inputs.pipeline import InputPipeline
from tf_cnn.managers.all_reduce import (
    Algorithm,
    compact_algorithm,
    halves_algorithm,
    make_algorithm,
)
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.plan.plan import Plan
from tf_cnn.step.constant_weights import freeze
from tf_cnn.step.evaluation import Evaluation
from tf_cnn.step.exchange import GradientsInMemory, gradient_shapes
from tf_cnn.step.make_input import SEEDS_PER_RESTART, make_input, make_validation_input
from tf_cnn.step.step_graph import StepConfig, StepGraph, build_step_graph
from tf_cnn.training.optimizers import make_optimizer
from variable_mgr import VariableMgr


def build_step(plan: Plan, restart: int = 0) -> StepGraph:
    """Adds a step to the current graph. restart is 0 when training starts, and a different number
    each time it continues.
    """
    params, network, num_classes = plan.params, plan.model.network, plan.data.data_set.num_classes
    manager = _make_manager(plan)
    optimizer = make_optimizer(params.training)
    frozen_network = freeze(plan) if params.run.freeze_when_forward_only else None
    step_input: InputPipeline | GradientsInMemory
    if params.run.exchange_only:
        shapes = gradient_shapes(
            params.run.exchange_bytes, network, plan.data.image_shape, num_classes
        )
        step_input = GradientsInMemory(shapes, plan.first_tower)
    else:
        step_input = make_input(plan, manager.get_devices(), restart)
    # Random ops start again in each session. With another seed, a continued training drops other
    # units than in its first steps.
    seed = params.run.tf_random_seed + SEEDS_PER_RESTART * restart
    config = _step_config(plan, seed)
    return build_step_graph(config, optimizer, manager, step_input, frozen_network)


def build_evaluation(
    plan: Plan, sources: Sequence[NetworkValues], process_index: int, num_processes: int
) -> Evaluation:
    """Adds the evaluation of this process's share of the images. Each tower reads the variables of
    one source.
    """
    assert plan.evaluations
    return Evaluation(
        _step_config(plan, plan.params.run.tf_random_seed),
        sources,
        plan.devices.towers,
        make_validation_input(plan, process_index, num_processes),
        plan.params.evaluation.eval_batch_size,
        plan.evaluations.num_batches,
    )


def _step_config(plan: Plan, seed: int) -> StepConfig:
    return StepConfig(
        plan.params,
        plan.model.network,
        plan.data.data_set.num_classes,
        plan.learning_rate,
        seed,
        plan.precision,
        plan.first_tower,
    )


def _make_manager(plan: Plan) -> VariableMgr:
    params, processes, devices = plan.params, plan.cluster_role, plan.devices
    flags, context = params.variables, plan.context
    transfer_dtype = flags.transfer_dtype(params, context)
    transfer = tf.as_dtype(transfer_dtype) if transfer_dtype else None
    config = ManagerConfig(
        devices=devices.towers,
        seed=params.run.tf_random_seed,
        parameter_devices=devices.parameter_devices,
        algorithm=_make_algorithm(plan, transfer),
        flags=flags,
        server_devices=[f'{task.device}/cpu:0' for task in processes.cluster.servers]
        if processes.cluster
        else (),
        is_synchronous=processes.is_synchronous,
        worker=processes.index,
        num_workers=processes.num_training_tasks,
        transfer=transfer,
        nccl_over_towers=flags.uses_nccl(params, context),
        horovod=processes.horovod,
        # The host needs the scalars of each step, unless it only starts a loop in the graph.
        scalar_device=devices.parameter_devices[0] if params.run.steps_per_run > 1 else HOST_DEVICE,
        variable_dtype=plan.precision.variable_dtype,
    )
    manager: VariableMgr = plan.mode.load_manager(
        context.topology,
        staged=flags.staged_vars,
        relaxed=flags.variable_consistency == 'relaxed',
    )(config)
    return manager


def _make_algorithm(plan: Plan, transfer: tf.DType | None) -> Algorithm:
    towers, flags = plan.devices.towers, plan.params.variables
    size_ranges = flags.size_ranges(plan.params)
    if size_ranges is None:
        algorithm = halves_algorithm(towers, flags.linked_towers(len(towers)))
    else:
        algorithm = make_algorithm(size_ranges, towers, HOST_DEVICE, plan.devices.hosts)
    return compact_algorithm(algorithm, towers, transfer) if transfer else algorithm

"""The third tower and all after it are copies of the second: they compute what Python would have built."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from inputs.pipeline import Batch, InputPipeline
from models.layers import LayerBuilder
from run.step_graph import StepGraph, build_step_graph
from tests.support.graphs import cpus, training_step
from tests.support.networks import make_manager
from tests.support.oracles import OPTIMIZERS
from training.precision import FP32, Precision

pytestmark = pytest.mark.graph

NUM_CLASSES, SEED, NUM_TOWERS = 5, 3, 4


class Placeholders(InputPipeline):
    """A batch that each tower is given."""

    def tower_batch(self, tower: int) -> Batch:
        with tf.device(f'/device:CPU:{tower}'):
            return Batch(tf.placeholder(tf.float32, [2, 8, 8, 3]), tf.placeholder(tf.int32, [2]))


def plain(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """Batch norm, dropout, sums of gradients, and names that ops outside of the towers have as well."""
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 4, 3, 'conv', use_bias=False), 'norm'))
    x = cnn.dropout(x + cnn.conv(x, 4, 1, 'beside'), 0.5)
    x = x * tf.constant(2.0, x.dtype, name='Placeholder')
    return cnn.dense(cnn.dropout(cnn.flatten(x), 0.25), num_classes, 'logits')


def noisy(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """Its random numbers have no seed but that of the graph, which makes one from the number of the op."""
    return cnn.dense(cnn.flatten(x + tf.random.normal([8, 8, 3])), num_classes, 'logits')


def build(network: Callable[..., Any], mode: str = 'parameter_server', **settings: Any) -> tuple[tf.Graph, StepGraph]:
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(SEED)
        manager = make_manager(mode, cpus(NUM_TOWERS), seed=SEED)
        step = training_step(network, NUM_CLASSES, seed=SEED, learning_rate=0.1, **settings)
        return graph, build_step_graph(step, OPTIMIZERS['momentum'].ours, manager, Placeholders())


def are_copied(graph: tf.Graph) -> bool:
    """Whether the gradients of the third tower have the names of a copy."""
    return not any(op.name.startswith('tower_2/gradients/tower_2/') for op in graph.get_operations())


def seeds_of(graph: tf.Graph, kind: str) -> list[list[int]]:
    """For each tower, the seeds of its ops of this type, in their order."""
    return [
        [op.get_attr('seed2') for op in graph.get_operations() if op.type == kind and op.name.startswith(f'tower_{n}/')]
        for n in range(NUM_TOWERS)
    ]


def compared(tensor: Any, tower: int, known: dict[Any, int], done: dict[str, int]) -> int:
    """A number that is the same for two tensors if they are computed alike, on the device of their tower.

    Args:
      known: the numbers given so far. done: those of the ops of this tower, by name.
    """
    op = tensor.op
    if op.name not in done:
        attributes = {name: str(value) for name, value in op.node_def.attr.items() if name not in ('_class', 'seed2')}
        facts = (
            op.type,
            op.device.replace(f'CPU:{tower}', 'CPU:own'),
            tuple(sorted(attributes.items())),
            op.name if op.type == 'VarHandleOp' else '',
            tuple(str(output.shape) for output in op.outputs),
            tuple(compared(source, tower, known, done) for source in op.inputs),
        )
        done[op.name] = known.setdefault(facts, len(known))
    return known.setdefault((done[op.name], tensor.value_index), len(known))


@pytest.mark.parametrize('precision', [FP32, Precision('bf16')], ids=str)
def test_a_copy_computes_the_gradients_of_the_tower_that_python_built(precision: Precision) -> None:
    graph, step = build(plain, precision=precision)
    assert are_copied(graph)
    known: dict[Any, int] = {}
    for variable, total in step.gradients:
        towers = total.op.inputs
        assert len(towers) == NUM_TOWERS, variable.name
        numbers = [compared(gradient, tower, known, {}) for tower, gradient in enumerate(towers)]
        assert numbers[1] == numbers[2] == numbers[3], variable.name
        assert [gradient.shape for gradient in towers] == [variable.shape] * NUM_TOWERS


@pytest.mark.parametrize('mode', ['parameter_server', 'replicated', 'independent'])
def test_each_copy_has_dropout_seeds_and_names_of_its_own(mode: str) -> None:
    graph, _ = build(plain, mode)
    assert are_copied(graph)
    assert seeds_of(graph, 'RandomUniform') == [
        [SEED + 1000 * tower + layer for layer in (1, 2)] for tower in range(NUM_TOWERS)
    ]
    for op in graph.get_operations():
        if op.name.startswith('tower_'):
            # The first tower reads the variables that all share.
            sources = {source.op.name.split('/')[0] for source in op.inputs if source.op.type != 'ReadVariableOp'}
            others = {f'tower_{n}' for n in range(NUM_TOWERS)} - {op.name.split('/')[0]}
            assert not sources & others, op


@pytest.mark.parametrize('mode', ['parameter_server', 'independent'])
def test_only_towers_with_the_duty_keep_moving_averages(mode: str) -> None:
    graph, _ = build(plain, mode)
    factors = [op.get_attr('exponential_avg_factor') for op in graph.get_operations() if op.type == 'FusedBatchNormV3']
    assert [factor < 1 for factor in factors] == [True, *[mode == 'independent'] * (NUM_TOWERS - 1)]


def test_towers_whose_random_numbers_have_no_seed_are_built_one_by_one() -> None:
    graph, _ = build(noisy)
    assert not are_copied(graph)
    assert len({seed for (seed,) in seeds_of(graph, 'RandomStandardNormal')}) == NUM_TOWERS

"""The methods by which variable managers are known are those with which each of them builds its
step.
"""

from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest

import variable_mgr
from tests.support.gpu_graphs import WAYS, build_on_gpus
from variable_mgr import VariableMgr

pytestmark = pytest.mark.graph

KNOWN_METHODS = (
    'append_apply_gradients_ops',
    'create_outer_variable_scope',
    'each_tower_has_variables',
    'get_devices',
    'get_gradients_to_apply',
    'get_post_init_ops',
    'preprocess_device_grads',
    'savable_variables',
    'trainable_variables_on_device',
)
# The scopes of the variables of a model, with two towers, where they are not those of parameter
# servers, v.
SCOPES = {
    'replicated': {'v0', 'v1'},
    'replicated by NCCL': {'v0', 'v1'},
    'replicated by rings': {'v0', 'v1'},
    'replicated, relaxed': {'v0', 'v1'},
    'independent': {'v0', 'v1'},
    'collective_all_reduce': {'v0', 'v1'},
    'distributed_all_reduce': {'v0', 'v1', 'v2', 'v3'},
    'distributed_replicated': {'ps_var', 'v0', 'v1'},
}
CLASSES = [
    made for name in variable_mgr.__all__ if isinstance(made := getattr(variable_mgr, name), type)
]


@pytest.mark.parametrize('way', WAYS)
def test_a_step_is_built_by_the_methods_that_managers_are_known_by(way: str) -> None:
    called: set[str] = set()

    def recorded(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return method(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for owner in {
            owner for made in CLASSES for owner in made.__mro__ if issubclass(owner, VariableMgr)
        }:
            for name in set(KNOWN_METHODS) & set(vars(owner)):
                stack.enter_context(
                    mock.patch.object(owner, name, recorded(name, vars(owner)[name]))
                )
        built = build_on_gpus(2, **WAYS[way])
    # Workers with staged variables read them in the step that updates them, whether towers have
    # copies or not.
    assert set(KNOWN_METHODS) - called == (
        {'each_tower_has_variables'} if 'servers, staged' in way else set()
    )
    handles = [
        op.get_attr('shared_name').decode()
        for op in built.graph.get_operations()
        if op.type == 'VarHandleOp'
    ]
    assert {name.split('/')[0] for name in handles if name.endswith('/kernel')} == SCOPES.get(
        way, {'v'}
    )

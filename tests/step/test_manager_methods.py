"""Every variable manager builds its step with the public methods of VariableMgr."""

from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest

import variable_mgr
from tests.step.gpu_graphs import MODE_FLAGS, build_on_gpus

pytestmark = pytest.mark.graph


@pytest.mark.parametrize(
    'mode',
    # Other modes have the same managers, with other devices or sums.
    sorted({*MODE_FLAGS} - {'parameter_server', 'replicated by NCCL', 'replicated by rings'}),
)
def test_a_manager_builds_its_step_with_all_public_methods(mode):
    # The variable scopes of two towers. In all other modes there is one scope, v.
    scopes = {
        **{name: {'v0', 'v1'} for name in MODE_FLAGS if name.startswith('replicated')},
        'independent': {'v0', 'v1'},
        'collective_all_reduce': {'v0', 'v1'},
        'distributed_all_reduce': {'v0', 'v1', 'v2', 'v3'},
        'distributed_replicated': {'ps_var', 'v0', 'v1'},
    }
    methods = {
        'append_apply_gradients_ops',
        'create_outer_variable_scope',
        'each_tower_has_variables',
        'get_devices',
        'get_gradients_to_apply',
        'get_post_init_ops',
        'preprocess_device_grads',
        'savable_variables',
        'trainable_variables_on_device',
    }
    if 'servers, staged' in mode:
        # Workers read staged variables in the step that updates them, with or without copies.
        methods.remove('each_tower_has_variables')
    called: set[str] = set()

    def record(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return method(*args, **kwargs)

        return call

    classes = [getattr(variable_mgr, name) for name in variable_mgr.__all__]
    owners = {owner for manager in classes for owner in getattr(manager, '__mro__', ())}
    with ExitStack() as stack:
        for owner in owners:
            for name in methods & set(vars(owner)):
                method = record(name, vars(owner)[name])
                stack.enter_context(mock.patch.object(owner, name, method))
        gpu_graph = build_on_gpus(2, model='trivial', **MODE_FLAGS[mode])
    assert called == methods
    names = [op.get_attr('shared_name').decode() for op in gpu_graph.of_type('VarHandleOp')]
    assert {name.split('/')[0] for name in names if name.endswith('/kernel')} == scopes.get(
        mode, {'v'}
    )

"""The methods by which variable managers are known are those with which each of them builds its
step.
"""

from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest

import variable_mgr
from tests.run.gpu_graphs import WAYS, build_on_gpus

pytestmark = pytest.mark.graph


@pytest.mark.parametrize('way', WAYS)
def test_a_step_is_built_by_the_methods_that_managers_are_known_by(way):
    # The scopes of the variables of a model, with two towers, where they are not those of parameter
    # servers, v.
    scopes = {
        **{way: {'v0', 'v1'} for way in WAYS if way.startswith('replicated')},
        'independent': {'v0', 'v1'},
        'collective_all_reduce': {'v0', 'v1'},
        'distributed_all_reduce': {'v0', 'v1', 'v2', 'v3'},
        'distributed_replicated': {'ps_var', 'v0', 'v1'},
    }
    known_methods = {
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
    if 'servers, staged' in way:
        # Workers read staged variables in the step that updates them, whether towers have copies
        # or not.
        known_methods.remove('each_tower_has_variables')
    called: set[str] = set()

    def recorded(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return method(*args, **kwargs)

        return call

    exported = [getattr(variable_mgr, name) for name in variable_mgr.__all__]
    owners = {owner for made in exported for owner in getattr(made, '__mro__', ())}
    with ExitStack() as stack:
        for owner in owners:
            for name in known_methods & set(vars(owner)):
                method = recorded(name, vars(owner)[name])
                stack.enter_context(mock.patch.object(owner, name, method))
        built = build_on_gpus(2, **WAYS[way])
    assert called == known_methods
    names = [op.get_attr('shared_name').decode() for op in built.of_type('VarHandleOp')]
    assert {name.split('/')[0] for name in names if name.endswith('/kernel')} == scopes.get(
        way, {'v'}
    )

"""Sessions and the eager context take the memory of GPUs in the same way, whichever opens them
first.
"""

import json
from typing import Any

import pytest

from tests.support.machines import write_pynvml
from tests.support.outputs import check_line
from tests.support.programs import run_in_fork

pytestmark = pytest.mark.distributed

# Takes each list of settings in a forked process that has imported TensorFlow and not used it.
CODE = """
import json, os, sys
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context
from tf_cnn.system.errors import UsageError
from tf_cnn.plan.parsing import make_params
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.plan import make_plan
def of(options):
    return [options.allow_growth, round(options.per_process_gpu_memory_fraction, 3)]
for name, runs in json.loads(sys.argv[1]).items():
    pid = os.fork()
    if not pid:
        found = []
        for settings in runs:
            if settings is None:
                found.append(int(tf.constant(1) + 1))
                continue
            try:
                params = make_params(model='lenet', **settings)
                plan = make_plan(params, ProcessEnvironment(os.environ))
            except UsageError as error:
                found.append(str(error))
                continue
            with tf.Graph().as_default():
                tf.data.Dataset.range(2).map(lambda number: number + 1)
            # That has opened the devices.
            assert context.context()._initialized
            of_context = of(context.context().config.gpu_options)
            found.append([of(plan.session.config.gpu_options), of_context])
        print(json.dumps([name, found, tf.executing_eagerly()]), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def both(growth: bool, fraction: float) -> list[list[object]]:
    """The options of sessions and of the eager context."""
    return [[growth, fraction]] * 2


def test_the_eager_context_takes_memory_as_sessions_do(tmp_path):
    growing, half = {'allow_growth': True}, {'gpu_memory_frac_for_testing': 0.5}
    more = {'gpu_memory_frac_for_testing': 1.5, 'use_unified_memory': True}
    used_before = ['--gpu_memory_frac_for_testing=0.5', 'before', 'new process']
    # The runs of a process, (settings, options or the facts of a refusal); without settings
    # TensorFlow is used.
    cases: dict[str, list[tuple[dict[str, Any] | None, Any]]] = {
        'none': [({}, both(False, 0))],
        'both': [(growing | half, both(True, 0.5))] * 2,
        'growth later': [({}, both(False, 0)), (growing, ['--allow_growth=True', 'new process'])],
        'more than there is': [(more, both(False, 1.5))],
        'another fraction': [
            (half, both(False, 0.5)),
            (more, ['testing=1.5', 'testing=0.5', 'new process']),
        ],
        'used before': [(None, 2), (half, used_before), (half, used_before)],
        'used before, to no harm': [(None, 2), ({}, both(False, 0))],
        # No GPU is opened, so the flag has no effect.
        'on the CPU': [({'device': 'cpu', **growing}, both(False, 0))],
    }
    settings = {name: [flags for flags, _ in runs] for name, runs in cases.items()}
    write_pynvml(tmp_path, 1)
    out = run_in_fork(CODE, tmp_path, json.dumps(settings), CUDA_VISIBLE_DEVICES=None)
    lines = [*map(json.loads, out.splitlines())]
    assert [name for name, *_ in lines] == [*cases]
    for name, results, is_eager in lines:
        # Eager execution in the process stays on.
        assert is_eager, name
        for result, (_, expected) in zip(results, cases[name], strict=True):
            if isinstance(result, str):
                check_line(result, *expected)
            else:
                assert result == expected, name

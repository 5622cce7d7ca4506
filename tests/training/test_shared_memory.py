"""Memory that several processes have open: who can open it, and what becomes of it when its maker ends."""

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import open_session
from training.memory_files import NoMemoryError, create_memory, open_memory
from training.variables import create_variable

pytestmark = pytest.mark.graph

ROOT = Path(__file__).resolve().parent.parent.parent
NUM_FLOATS = 5000
OTHER = """
import sys
from training.memory_files import create_memory
memory = create_memory({num_floats})
memory.all()[:] = 7
print(memory.path, memory.nonce, flush=True)
sys.stdin.read()
"""


@pytest.fixture(name='other')
def other_process() -> 'Iterator[tuple[subprocess.Popen[str], str, str]]':
    """A process that has made memory full of sevens, its path, and its nonce."""
    with subprocess.Popen(
        [sys.executable, '-c', OTHER.format(num_floats=NUM_FLOATS)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout
        path, nonce = process.stdout.readline().split()
        yield process, path, nonce
        process.kill()


def test_memory_of_another_process_outlives_it_where_it_is_open_and_then_cannot_be_opened(
    other: 'tuple[subprocess.Popen[str], str, str]',
) -> None:
    process, path, nonce = other
    with pytest.raises(NoMemoryError, match=path):
        open_memory(path, '00' * 16, NUM_FLOATS)
    mine = open_memory(path, nonce, NUM_FLOATS)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert set(mine.all()) == {7}
    with pytest.raises(NoMemoryError, match=path):
        open_memory(path, nonce, NUM_FLOATS)


def test_memory_that_cannot_be_had_is_an_error_that_says_how_much() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(NoMemoryError, match='4 MB'):
            create_memory(1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_python_that_lacks_the_function_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr('os.memfd_create')
    with pytest.raises(NoMemoryError, match='memfd_create'):
        create_memory(NUM_FLOATS)


def test_a_view_shows_what_others_write_and_no_operation_writes_into_it() -> None:
    """Operations reuse the memory of inputs that nothing else needs: a write into a view would end this process."""
    memory = create_memory(NUM_FLOATS)
    shared, view = memory.all(), memory.view(NUM_FLOATS)
    assert not view.flags.writeable
    with tf.Graph().as_default(), open_session(1) as session:
        variable = create_variable('w', [NUM_FLOATS], scope='v', device='/cpu:0')
        one, rate = tf.ones([NUM_FLOATS]), tf.constant(0.5)

        def read() -> Any:
            value = tf.numpy_function(lambda: view, [], tf.float32)
            value.set_shape(view.shape)
            return value

        results = [read() + one, 2 * read(), tf.add_n([read(), one]), -tf.reshape(read(), [2, -1]), tf.nn.relu(read())]
        assign = variable.assign(read())
        taken = variable.read_again()
        updates = [
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=one),
            tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=one),
        ]
        for number in (1, 2):
            shared[:] = number
            found = session.run(results)
            assert [value.flat[0] for value in found] == [number + 1, 2 * number, number + 1, -number, number]
            for update in updates:
                session.run(assign)
                session.run(update)
                assert session.run(taken)[0] < number
            assert {*shared} == {number}

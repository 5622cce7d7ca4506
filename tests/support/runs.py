"""Whole runs in this process, and what they leave: the steps, the output, checkpoints, and the
document of a result.
"""

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import numpy as np
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from tf_cnn.machine.process_environment import ProcessEnvironment
from tf_cnn.results import schema
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result, as_float
from tf_cnn.run.parsing import make_params
from tf_cnn.run.plan import Plan, make_plan
from tf_cnn.training.contents import CLASS_NAMES


def plan_of(**flags: Any) -> Plan:
    """Returns the plan of a run on the CPU."""
    plan = make_plan(make_params(device='cpu', **flags), ProcessEnvironment({}))
    assert isinstance(plan, Plan)
    return plan


class Ran(NamedTuple):
    """The result of a run, and what it printed on standard output and standard error."""

    result: Result
    out: str
    err: str

    @property
    def losses(self) -> list[float]:
        return [*map(as_float, self.result.steps.loss)]


def made(console: Console | None = None, **flags: Any) -> BenchmarkCNN:
    """Returns a run of LeNet on the CPU: 1 step to warm up, and 3 timed ones; flags override its
    settings.
    """
    steps = {} if flags.get('eval') else {'num_batches': 3, 'num_warmup_batches': 1}
    settings = {'model': 'lenet', 'device': 'cpu', 'batch_size': 4, **steps, **flags}
    return BenchmarkCNN(make_params(**settings), console or Console(io.StringIO(), io.StringIO()))


def ran(**flags: Any) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    result = made(Console(out, err), **flags).run()
    return Ran(result, out.getvalue(), err.getvalue())


def losses(**flags: Any) -> list[float]:
    return ran(**flags).losses


def document_in(path: Path) -> dict[str, Any]:
    """Returns the document of a result, which must be true to its schema."""
    document: dict[str, Any] = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads(schema.FILE.read_text(encoding='utf-8'))).validate(
        document
    )
    return document


def values_in(checkpoint: str | Path) -> dict[str, np.ndarray]:
    """Returns the variables in a checkpoint, or in the latest one of a folder, by name."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name != CLASS_NAMES
    }

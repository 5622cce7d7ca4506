"""Runs the program from Python, in this process, and reads results and checkpoints.

Flags are written as on a command line; values that a test computes may follow by name.
"""

import io
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import numpy as np
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import make_params, split_argv
from tf_cnn.plan.plan import Plan, make_plan
from tf_cnn.results import schema
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result, as_float
from tf_cnn.training.contents import IMAGES_PER_STEP

# ---- from Python, in this process ----------------------------------------------------------------


def params_of(flags: str = '', /, **values: Any) -> Params:
    """Returns the settings of a command line; values by name win, and a path is text."""
    texts = {name: str(value) for name, value in values.items() if isinstance(value, Path)}
    return make_params(**{**split_argv(shlex.split(flags)), **values, **texts})


def plan_of(flags: str = '', environ: Mapping[str, str] | None = None, **values: Any) -> Plan:
    """Returns the plan of a run on the CPU."""
    plan = make_plan(
        params_of(f'--device=cpu {flags}', **values), ProcessEnvironment(environ or {})
    )
    assert isinstance(plan, Plan)
    return plan


class BenchmarkRun(NamedTuple):
    """The result of a run, its standard output and its standard error."""

    result: Result
    out: str
    err: str

    @property
    def losses(self) -> list[float]:
        return [*map(as_float, self.result.steps.loss)]


def make_benchmark(flags: str = '', console: Console | None = None, **values: Any) -> BenchmarkCNN:
    """Returns a run of LeNet on the CPU with 1 warm-up step and 3 timed steps.

    Flags override these settings.
    """
    steps = '--num_batches=3 --num_warmup_batches=1'
    if values.get('eval') or '--eval' in flags.split():
        steps = ''
    params = params_of(f'--model=lenet --device=cpu --batch_size=4 {steps} {flags}', **values)
    return BenchmarkCNN(params, console=console or Console(io.StringIO(), io.StringIO()))


def run_benchmark(flags: str = '', /, **values: Any) -> BenchmarkRun:
    out, err = io.StringIO(), io.StringIO()
    benchmark = make_benchmark(flags, Console(out, err), **values)
    benchmark.run()
    return BenchmarkRun(benchmark.result, out.getvalue(), err.getvalue())


def losses(flags: str = '', /, **values: Any) -> list[float]:
    return run_benchmark(flags, **values).losses


# ---- results and checkpoints ---------------------------------------------------------------------


def document_in(path: Path) -> dict[str, Any]:
    """Returns the document of a result; fails unless it follows the schema."""
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
        if name != IMAGES_PER_STEP
    }

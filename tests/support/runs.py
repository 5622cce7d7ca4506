"""Runs the program, from Python or as a command, and reads what a run leaves.

Flags are written as on a command line; values that a test computes may follow by name.
"""

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from tests.support.programs import ROOT
from tf_cnn.machine.process_environment import ProcessEnvironment
from tf_cnn.results import schema
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result, as_float
from tf_cnn.run.params import Params
from tf_cnn.run.parsing import make_params, split_argv
from tf_cnn.run.plan import Plan, make_plan
from tf_cnn.training.contents import CLASS_NAMES

PROGRAM = (sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'))
Capture = pytest.CaptureFixture[str]


# ---- from Python, in this process ----------------------------------------------------------------


def params_of(flags: str = '', /, **values: Any) -> Params:
    """Returns the settings of a command line, and of values by name, which win; a path is text."""
    texts = {name: str(value) for name, value in values.items() if isinstance(value, Path)}
    return make_params(**{**split_argv(shlex.split(flags)), **values, **texts})


def plan_of(flags: str = '', environ: Mapping[str, str] | None = None, **values: Any) -> Plan:
    """Returns the plan of a run on the CPU."""
    plan = make_plan(
        params_of(f'--device=cpu {flags}', **values), ProcessEnvironment(environ or {})
    )
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


def made(flags: str = '', console: Console | None = None, **values: Any) -> BenchmarkCNN:
    """Returns a run of LeNet on the CPU: 1 step to warm up, and 3 timed ones; flags override its
    settings.
    """
    steps = '--num_batches=3 --num_warmup_batches=1'
    if values.get('eval') or '--eval' in flags.split():
        steps = ''
    params = params_of(f'--model=lenet --device=cpu --batch_size=4 {steps} {flags}', **values)
    return BenchmarkCNN(params, console or Console(io.StringIO(), io.StringIO()))


def ran(flags: str = '', /, **values: Any) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    result = made(flags, Console(out, err), **values).run()
    return Ran(result, out.getvalue(), err.getvalue())


def losses(flags: str = '', /, **values: Any) -> list[float]:
    return ran(flags, **values).losses


# ---- as a command --------------------------------------------------------------------------------


class Finished(NamedTuple):
    """The exit code of a command, what it wrote to standard output, and its lines on standard
    error.
    """

    code: int
    out: str
    err: list[str]

    @property
    def error(self) -> str:
        """The only error, which is the last line."""
        errors = [line for line in self.err if line.startswith('tf_cnn_benchmarks: error: ')]
        assert errors == self.err[-1:], self.err
        return errors[0]


def run(
    flags: str | Sequence[str],
    capfd: Capture | None = None,
    cwd: Path | None = None,
    **environ: str | None,
) -> Finished:
    """Runs the command: in this process if capfd is given, otherwise in one of its own.

    `cluster --workers=2 -- FLAGS` runs as a cluster. `environ` changes variables of the new
    process, or removes those that are None.
    """
    words = shlex.split(flags) if isinstance(flags, str) else [*flags]
    if not capfd:
        return run_process([*PROGRAM, *words], cwd, **environ)
    capfd.readouterr()
    code = tf_cnn_benchmarks.main(words)
    out, err = capfd.readouterr()
    assert 'Traceback' not in err
    return Finished(code, out, err.splitlines())


def run_python(code: str, *words: str, **environ: str | None) -> Finished:
    """Runs Python code in a process of its own, which finds the modules of the program."""
    done = run_process([sys.executable, '-c', code, *words], ROOT, **environ)
    assert done.code == 0, done.err
    return done


def run_process(
    command: Sequence[object],
    cwd: Path | None = None,
    deadline_secs: float = 120.0,
    /,
    **environ: str | None,
) -> Finished:
    merged = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2', **environ}
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        cwd=cwd,
        timeout=deadline_secs,
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in merged.items() if value is not None},
    )
    out, err = (text.decode(errors='backslashreplace') for text in (done.stdout, done.stderr))
    assert 'Traceback' not in err, err
    return Finished(done.returncode, out, err.splitlines())


# ---- what a run leaves ---------------------------------------------------------------------------


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

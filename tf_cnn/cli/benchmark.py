"""The program without a subcommand: runs one benchmark, alone or as one process of a cluster.

Does not import TensorFlow until the flags are checked.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from tf_cnn.machine import quiet
from tf_cnn.params import Params, parse_argv
from tf_cnn.params.result_flags import STDOUT
from tf_cnn.planning.environment import Environment
from tf_cnn.planning.make_plan import make_plan
from tf_cnn.planning.plan import ServerPlan
from tf_cnn.planning.this_process import THIS_PROCESS
from tf_cnn.results.console import Console
from tf_cnn.run.invocation import of_this_process
from tf_cnn.system.errors import format_flag


def main(argv: Sequence[str]) -> int:
    invocation = of_this_process(argv)
    parsed = parse_argv(argv)
    documents_only = parsed.params.result_file == STDOUT
    with (
        _own_stdout() as out,
        contextlib.closing(Console(out, sys.stderr, documents_only=documents_only)) as console,
    ):
        if parsed.params.repeat > 1:
            from tf_cnn.planning.make_plan import check_launch
            from tf_cnn.planning.outputs import check_file
            from tf_cnn.sweep.repeat import files_of_runs, repeat

            check_launch(parsed.params, alone=True)
            for path in files_of_runs(parsed.params):
                check_file('result_file', path)
            for line in parsed.warnings:
                console.warning(line)
            _note_default_model(console, parsed.params)
            return repeat(argv, parsed.params, console)
        console.phase('Importing TensorFlow')
        plan = make_plan(parsed.params, Environment())
        # Not earlier: an error about the flags is then a single line.
        for line in parsed.warnings:
            console.warning(line)
        console.close()
        quiet.started()
        if not isinstance(plan, ServerPlan):
            from benchmark_cnn import BenchmarkCNN

            _note_default_model(console, parsed.params)
            BenchmarkCNN(plan, console, invocation).run()
            return 0
        from tf_cnn.cluster.serve import run_server

        for line in plan.warnings:
            console.warning(line)
        processes = plan.processes
        assert processes.cluster
        THIS_PROCESS.apply(plan.session.process)
        run_server(
            processes.cluster,
            plan.session.config,
            settings=processes.settings,
            together=processes.together,
            connect=processes.connect,
            linger_secs=plan.linger_secs,
            console=console,
        )
    return 0


def _note_default_model(console: Console, params: Params) -> None:
    if 'model' not in params.given and not params.input_only and not params.exchange_bytes:
        console.note(
            f'{format_flag("model", params.model)} is the default and no real network: it does '
            'the least that a step can do; write --model=resnet50, or another one that the '
            'subcommand models lists'
        )


@contextlib.contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """Reserves standard output for results: all other output to it, also of native code, goes to
    standard error.
    """
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        # sys.stdout has no file descriptor, for example because a Python program captures it.
        out = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield out
        return
    out = os.fdopen(os.dup(descriptor), 'w', encoding=sys.stdout.encoding)
    os.dup2(sys.stderr.fileno(), descriptor)
    try:
        yield out
    finally:
        os.dup2(out.fileno(), descriptor)
        # Each line was flushed. Only a line that failed to be written can remain, and its error was
        # reported.
        with contextlib.suppress(OSError):
            out.close()

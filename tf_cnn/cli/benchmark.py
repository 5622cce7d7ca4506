"""The program without a subcommand: runs a benchmark, in one process or as a task of a cluster.

Does not import TensorFlow before the flags are checked.
"""

import contextlib
import sys
import time
from collections.abc import Sequence

from tf_cnn.machine import quiet
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import parse_argv, seconds_since_start
from tf_cnn.plan.plan import ServerPlan, make_plan
from tf_cnn.results.console import Console, reserve_stdout
from tf_cnn.system.errors import STDIO, format_flag


def main(argv: Sequence[str]) -> int:
    # The time to the first step begins with the process, which does nothing else.
    start_time = time.perf_counter() - seconds_since_start()
    arguments = parse_argv(argv)
    documents_only = arguments.params.results.result_file == STDIO
    with (
        reserve_stdout() as out,
        contextlib.closing(Console(out, sys.stderr, documents_only=documents_only)) as console,
    ):
        if arguments.params.results.repeat > 1 and not arguments.checks_only:
            from tf_cnn.lab.repeat import result_paths, run_repeats
            from tf_cnn.plan.outputs import check_file
            from tf_cnn.plan.plan import check_launch

            check_launch(arguments.params, is_single_process=True)
            for path in result_paths(arguments.params):
                check_file('result_file', path)
            for line in arguments.warnings:
                console.warning(line)
            _note_default_model(console, arguments.params)
            return run_repeats(argv, arguments.params, console)
        if arguments.absl_verbosity is not None:
            _set_absl_verbosity(arguments.absl_verbosity)
        console.phase('Importing TensorFlow')
        plan = make_plan(arguments.params, ProcessEnvironment())
        # Warnings come after the checks, so that an error about flags stands alone.
        for line in arguments.warnings:
            console.warning(line)
        console.close()
        if arguments.checks_only:
            for line in plan.warnings:
                console.warning(line)
            return 0
        quiet.end_quiet_start()
        from benchmark_cnn import BenchmarkCNN

        if not isinstance(plan, ServerPlan):
            _note_default_model(console, arguments.params)
        BenchmarkCNN(plan, console=console, argv=argv, start_time=start_time).run()
    return 0


def _set_absl_verbosity(level: int) -> None:
    from absl import flags, logging

    # Otherwise absl says that messages before the parsing of its flags go to standard error.
    flags.FLAGS.mark_as_parsed()
    flags.FLAGS.logtostderr = True
    logging.use_absl_handler()
    logging.set_verbosity(level)


def _note_default_model(console: Console, params: Params) -> None:
    if (
        'model' not in params.given_flags
        and not params.inputs.input_only
        and not params.run.exchange_bytes
    ):
        console.note(
            f'{format_flag("model", params.run.model)} is the default and not a real network: it '
            'does the least that a step can do; use --model=resnet50, or another model that the '
            'subcommand models lists'
        )

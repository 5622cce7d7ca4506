"""The command: flags in, exit code out. Without a word before the flags it runs a benchmark."""

import contextlib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TextIO

import flag_rules
import output_files
from cluster.members import Cluster, find_cluster, for_evaluator
from cluster.signals import Terminated
from errors import BenchmarkError, UsageError
from flag_help import WORDS, format_help
from flag_spec import nearest
from params import parse_argv

_HELP = ('--help', '-help', '-h', '--helpfull', '--helpshort')
_INTERRUPTED, _TERMINATED = 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code: 0, 1 for a fault while running, 2 for wrong use, 130 if interrupted,
    143 after SIGTERM.

    Args:
      argv: without the program's name; by default that of this process.
    """
    _open_closed_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    exit_code = _exit_code(words)
    if argv is None and (server := sys.modules.get('cluster.server')):
        server.leave(exit_code)
    return exit_code


def _open_closed_streams() -> None:
    """Has nobody read or write those of the standard streams that are closed (`>&-`), as Python does with None.

    Else the next file that is opened would get the number of one, and what native code prints would go there.
    """
    for name, mode in (('stdin', 'r'), ('stdout', 'w'), ('stderr', 'w')):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _exit_code(words: list[str]) -> int:
    try:
        return _tool(words)
    except BenchmarkError as error:
        if _is_verbose(words):
            traceback.print_exc()
        return _fail(str(error), error.exit_code)
    except Terminated:
        return _fail('stopped by SIGTERM', _TERMINATED)
    except KeyboardInterrupt:
        return _fail('interrupted', _INTERRUPTED)
    except BrokenPipeError:
        # Whoever read standard output has left, as `| head` does. Python would complain again when it flushes at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _tool(words: list[str]) -> int:
    if not words or words[0].startswith('-'):
        return _benchmark(words)
    name, *argv = words
    if name not in WORDS:
        near = nearest(name, WORDS)
        hint = f'did you mean {near}?' if near else f'flags look like --model=resnet50, words are: {", ".join(WORDS)}'
        raise UsageError(f'{name}: there is no such word; {hint}')
    return int(importlib.import_module(WORDS[name].module).main(argv))


def _benchmark(argv: list[str]) -> int:
    if any(word.split('=')[0] in _HELP for word in argv):
        print(format_help())
        return 0
    from reporting.console import Console

    # TensorFlow reads this when it is imported, which a --model_file may do; errors still come through.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    parsed = parse_argv(argv)
    params = for_evaluator(parsed.params, os.environ)
    cluster = find_cluster(params, os.environ)
    if cluster is None or cluster.job != 'ps':
        flag_rules.check_inputs(params)
    if not _is_server(cluster):
        output_files.check_outputs(params, is_chief=cluster is None or cluster.is_chief)
    with _own_stdout() as out:
        console = Console(out, sys.stderr)
        for line in parsed.warnings:
            console.warning(line)
        if cluster and _is_server(cluster):
            from cluster.serve import run_server
            from machine import server_config

            run_server(params, cluster, server_config(params, computes=cluster.job == 'worker'), console.warning)
        else:
            if params.eval:
                from evaluator import Evaluator

                Evaluator(params, console).run()
            else:
                from benchmark_cnn import BenchmarkCNN

                BenchmarkCNN(params, console=console).run()
    return 0


def _is_server(cluster: Cluster | None) -> bool:
    return cluster is not None and cluster.serves


@contextlib.contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """Standard output for results alone: what else the process writes there goes to standard error, native code too."""
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        # No file of the operating system, as where a Python program catches what is printed.
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
        # Each line was flushed. What is left is one that could not be written, which has been told.
        with contextlib.suppress(OSError):
            out.close()


def _is_verbose(argv: Sequence[str]) -> bool:
    # Not from Params: there are none if the flags are what is wrong.
    return any(word.lower() in ('--verbose', '-verbose', '--verbose=true', '--verbose=1') for word in argv)


def _fail(message: str, exit_code: int) -> int:
    from reporting.console import format_error

    print(format_error(message), file=sys.stderr)
    return exit_code


if __name__ == '__main__':
    sys.exit(main())

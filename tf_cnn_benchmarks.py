"""The command and the public Python names.

Without a subcommand the command runs a benchmark. Python code imports every name in __all__ from
here, in a checkout and in an installation. This loads only the modules that the name needs, and
TensorFlow only with them:

    from tf_cnn_benchmarks import BenchmarkCNN, make_params

    BenchmarkCNN(make_params(model='lenet', num_batches=50)).run()
"""

import os
import sys

# Before the imports below: older versions of Python can parse this file, but not those modules.
if sys.version_info < (3, 11):  # noqa: UP036
    version = '.'.join(map(str, sys.version_info[:2]))
    print(
        f'tf_cnn_benchmarks: error: {sys.executable} is Python {version}, and this program needs '
        '3.11, 3.12 or 3.13; start it with one of them, as in: python3.11 tf_cnn_benchmarks.py',
        file=sys.stderr,
    )
    sys.exit(2)

from pkgutil import resolve_name

from tf_cnn.system.signals import SIGNALS, Stopped

if __name__ == '__main__':
    # Before the other imports: during them a signal would end Python silently or with a traceback.
    SIGNALS.exit_on_signal()

import contextlib
import importlib
import importlib.metadata
import signal
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from tf_cnn.cli.subcommands import REMOVED, SUBCOMMANDS
from tf_cnn.graph.tensorflow_import import memory_limits
from tf_cnn.system.errors import (
    FULL_DISK_ERRORS,
    BenchmarkError,
    RunError,
    UsageError,
    format_error,
    format_warning,
    missing_package_message,
    nearest,
)

if TYPE_CHECKING:
    import benchmark_cnn
    import cnn_util
    from benchmark_cnn import BenchmarkCNN
    from models.registry import register_model
    from tf_cnn.managers.user_modes import register_variable_mgr
    from tf_cnn.plan.parsing import make_params
    from tf_cnn.results.document import Result, read_result
    from variable_mgr import (
        VariableMgr,
        VariableMgrCollectiveAllReduce,
        VariableMgrDistributedAllReduce,
        VariableMgrDistributedFetchFromPS,
        VariableMgrDistributedFetchFromStagedPS,
        VariableMgrDistributedReplicated,
        VariableMgrHorovod,
        VariableMgrIndependent,
        VariableMgrLocalFetchFromPS,
        VariableMgrLocalFetchFromStagedPS,
        VariableMgrLocalRelaxedReplicated,
        VariableMgrLocalReplicated,
    )

__all__ = [
    'BenchmarkCNN',
    'BenchmarkError',
    'Result',
    'RunError',
    'UsageError',
    'VariableMgr',
    'VariableMgrCollectiveAllReduce',
    'VariableMgrDistributedAllReduce',
    'VariableMgrDistributedFetchFromPS',
    'VariableMgrDistributedFetchFromStagedPS',
    'VariableMgrDistributedReplicated',
    'VariableMgrHorovod',
    'VariableMgrIndependent',
    'VariableMgrLocalFetchFromPS',
    'VariableMgrLocalFetchFromStagedPS',
    'VariableMgrLocalRelaxedReplicated',
    'VariableMgrLocalReplicated',
    'benchmark_cnn',
    'cnn_util',
    'main',
    'make_params',
    'read_result',
    'register_model',
    'register_variable_mgr',
]
# The modules of the public names, which are loaded on first use; some are modules themselves. The
# managers of the modes are in the module of VariableMgr.
_PUBLIC_NAMES = {
    'BenchmarkCNN': 'benchmark_cnn:BenchmarkCNN',
    'Result': 'tf_cnn.results.document:Result',
    'VariableMgr': 'variable_mgr:VariableMgr',
    'benchmark_cnn': 'benchmark_cnn:',
    'cnn_util': 'cnn_util:',
    'make_params': 'tf_cnn.plan.parsing:make_params',
    'read_result': 'tf_cnn.results.document:read_result',
    'register_model': 'models.registry:register_model',
    'register_variable_mgr': 'tf_cnn.managers.user_modes:register_variable_mgr',
}
# The modules and packages of the program, by their names in a checkout.
_MODULES = (
    'benchmark_cnn',
    'cnn_util',
    'models',
    'preprocessing',
    'tf_cnn',
    'tf_cnn_benchmarks',
    'variable_mgr',
)
# Libraries report a lack of memory by errors of several types, with these words.
_NO_MEMORY_ERRORS = ('failed to map segment', 'annot allocate memory', "can't start new thread")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
      argv: the arguments without the program's name; by default the arguments of this process.

    Returns:
      The exit code: 0; 1 for a fault while running; 2 for wrong use; 128 + n after signal n, such
        as 130 after Ctrl-C.
    """
    if argv is None:
        SIGNALS.exit_on_signal()
    if _open_closed_streams():
        reason = (
            'standard output is closed (>&-), so the result would be lost; redirect it by > FILE, '
            'or > /dev/null'
        )
        return _flush_stderr(_fail([reason], UsageError.exit_code))
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(argv, str) or not all(isinstance(argument, str) for argument in arguments):
        reason = f'main: it takes a list of texts, such as ["--model=lenet"], not {argv!r:.60}'
        return _flush_stderr(_fail([reason], UsageError.exit_code))
    exit_code = _flush_stderr(_run_and_report_errors(arguments))
    if argv is None:
        SIGNALS.ignore()
    if argv is None and (server := sys.modules.get('tf_cnn.cluster.server')):
        server.leave(exit_code)
    return exit_code


def _open_closed_streams() -> bool:
    """Replaces each closed stream (`>&-`) by one on /dev/null, and returns whether standard output
    was closed.

    Python represents a closed stream as None. The next file that is opened would get the stream's
    descriptor, and native code would then print into this file.
    """
    is_closed = sys.stdout is None
    for name, mode in (('stdin', 'r'), ('stdout', 'w'), ('stderr', 'w')):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    return is_closed


def _flush_stderr(exit_code: int) -> int:
    """Flushes standard error and returns the exit code. A full disk must not change the exit
    code.
    """
    try:
        sys.stderr.flush()
    except OSError:
        _redirect_to_null(sys.stderr)
    return exit_code


def _run_and_report_errors(arguments: list[str]) -> int:
    try:
        exit_code = _run_command(arguments)
        # Flushed here, so that a full disk is reported as an error of the run.
        sys.stdout.flush()
        return exit_code
    except BenchmarkError as error:
        if stop := _causing_signal(error):
            return _fail_for_signal(stop)
        if _is_verbose(arguments):
            traceback.print_exc()
        return _fail(error.lines, error.exit_code)
    except KeyboardInterrupt as interruption:
        return _fail_for_signal(
            interruption if isinstance(interruption, Stopped) else Stopped(signal.SIGINT)
        )
    except Exception as error:
        # A signal also makes native code, and writing to a closed terminal, raise other errors.
        if stop := _causing_signal(error) or SIGNALS.received:
            _redirect_to_null(sys.stdout)
            return _fail_for_signal(stop)
        return _report_error(error, is_verbose=_is_verbose(arguments))


def _fail_for_signal(stop: Stopped) -> int:
    return _fail([stop.reason], stop.exit_code)


def _report_error(error: Exception, *, is_verbose: bool) -> int:
    """Prints one line about an error of the system or its libraries, and returns the exit code.

    Raises any other error again.
    """
    if isinstance(error, BrokenPipeError):
        # The reader of standard output has exited, such as `| head`.
        _redirect_to_null(sys.stdout)
        return 1
    exit_code = RunError.exit_code
    if isinstance(error, ModuleNotFoundError) and error.name and not _is_program_module(error.name):
        line, exit_code = missing_package_message(error.name), UsageError.exit_code
    elif isinstance(error, OSError):
        # Such as standard output on a full disk, or a removed working directory.
        _redirect_to_null(sys.stdout)
        line = _describe_os_error(error)
    elif _is_out_of_memory(error) and not is_verbose:
        line = _describe_memory(error)
    else:
        raise error
    if is_verbose:
        traceback.print_exception(error)
    return _fail([line], exit_code)


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY_ERRORS)


def _describe_memory(error: BaseException) -> str:
    lines = [
        line.strip()
        for line in str(error).splitlines()
        if any(text in line for text in _NO_MEMORY_ERRORS)
    ]
    cause = lines[-1] if lines else type(error).__name__
    limits = memory_limits()
    advice = 'raise the limit' if limits else 'end other processes'
    return (
        f'{" and ".join(limits) or "out of memory"}: this process gets no more memory or threads '
        f'({cause}); {advice}'
    )


def _causing_signal(error: BaseException | None) -> Stopped | None:
    """Returns the signal that led to an error, if one did."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error if isinstance(error, Stopped) or error is None else Stopped(signal.SIGINT)


def _is_program_module(module: str) -> bool:
    """Returns whether a module belongs to this program."""
    return module.partition('.')[0] in _MODULES


def _describe_os_error(error: OSError) -> str:
    """Returns one line about an error of the operating system."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f'{os.fsdecode(error.filename)}: {reason}'
    try:
        os.getcwd()
    except OSError:
        return (
            'the working directory was removed; change to another folder, cd DIR, and start again'
        )
    return (
        f'standard output: {reason}'
        if error.errno in FULL_DISK_ERRORS
        else f'{type(error).__name__}: {reason}'
    )


def _redirect_to_null(stream: TextIO) -> None:
    """Redirects a stream to /dev/null, so that Python's flush at exit does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run_command(arguments: list[str]) -> int:
    # Imported late: this loads every flag, and SIGTERM is answered only once main has begun.
    from tf_cnn.flags.command_line import to_keyboard
    from tf_cnn.flags.spec import asks_for_help

    # A flag with a typographic dash is no subcommand; parse_argv refuses it.
    if arguments and not to_keyboard(arguments[0]).startswith('-'):
        name, *argv = arguments
        if name in REMOVED:
            raise UsageError(f'{name}: there is no such subcommand; see {REMOVED[name]}')
        if name not in SUBCOMMANDS:
            from models.registry import MODELS

            model = nearest(name, MODELS.list_models())
            suggestion = nearest(name, SUBCOMMANDS) or (model and f'--model={model}')
            hint = f'flags look like --model=resnet50, subcommands are: {", ".join(SUBCOMMANDS)}'
            raise UsageError(
                f'{name}: there is no such subcommand; '
                f'{f"did you mean {suggestion}?" if suggestion else hint}'
            )
    elif {'--version', '-V'} & {*arguments}:
        name, argv = 'version', []
    elif asks_for_help(arguments):
        from tf_cnn.cli.help import print_requested_help

        return print_requested_help(arguments)
    else:
        name, argv = '', arguments
    from tf_cnn.machine.quiet import quiet_start

    if not name:
        _check_memory_limits()
    user_variables = {*os.environ}
    # TensorFlow would write settings of Keras to the home directory.
    os.environ.setdefault('KERAS_HOME', os.devnull)
    with quiet_start(verbose=_is_verbose(arguments)):
        # These run commands of other programs, with the variables of the shell.
        if name in ('compare', 'sweep', 'cluster'):
            for variable in os.environ.keys() - user_variables:
                del os.environ[variable]
        command = resolve_name(f'tf_cnn.cli.{name or "benchmark"}:main')
        return int(command(argv))


def _check_memory_limits() -> None:
    """Warns about a limit on memory: TensorFlow's native code would crash, often without a line.

    Raises:
      UsageError: TensorFlow cannot even start.
    """
    for limit, can_start in memory_limits().items():
        advice = (
            f'run {limit.rpartition(" ")[0]} unlimited before the command, or ask the batch '
            'system for more'
        )
        if not can_start:
            raise UsageError(f'{limit}: TensorFlow cannot start with so little memory; {advice}')
        line = f'{limit}: where TensorFlow needs more, it may end without a message; {advice}'
        print(format_warning(line), file=sys.stderr, flush=True)


def _is_verbose(arguments: Sequence[str]) -> bool:
    # Read from the arguments, since there are no Params if the flags are wrong.
    return any(
        argument.lower() in ('--verbose', '-verbose', '--verbose=true', '--verbose=1')
        for argument in arguments
    )


def _fail(messages: Sequence[str], exit_code: int) -> int:
    # A log on a full disk does not change the exit code.
    with contextlib.suppress(OSError):
        for message in messages:
            print(format_error(message), file=sys.stderr)
    return exit_code


def __getattr__(name: str) -> Any:
    if name == '__version__':
        return importlib.metadata.version('tf_cnn_benchmarks')
    if name not in __all__ and not name.startswith('VariableMgr'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    row = 'VariableMgr' if name.startswith('VariableMgr') else name
    module, _, attribute = _PUBLIC_NAMES[row].partition(':')
    if module not in sys.modules:
        from tf_cnn.machine.quiet import quiet_start

        # BenchmarkCNN imports TensorFlow.
        with quiet_start(verbose=False):
            importlib.import_module(module)
    return getattr(sys.modules[module], name) if attribute else sys.modules[module]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, '__version__'})


if __name__ == '__main__':
    sys.exit(main())

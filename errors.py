"""The two ways a command ends badly, and the exit code of each."""


class BenchmarkError(Exception):
    """An error that is told in one line, without a traceback."""

    exit_code: int


class UsageError(BenchmarkError):
    """Wrong use: found before the run. The line names the flag, its value, why, and what to write instead."""

    exit_code = 2


class RunError(BenchmarkError):
    """A fault during the run: data, disk, network. The line names the file, record, host or task, then the cause."""

    exit_code = 1
    # What was measured before a run failed, a reporting.result.Result.
    result: object = None

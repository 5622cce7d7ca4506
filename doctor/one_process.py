"""Runs checks in a process of their own: `one_process.py REQUEST`, started by doctor/check_runner.py.

REQUEST is a JSON object: the names of checks, num_gpus, expects_gpu and time_limit. The process writes lines of JSON to
its standard output: for each check {"doing": TEXT} any number of times, and then {"end": NAME, "verdict": ...,
"log_end": the size of the log, a file that is its standard error}. It ends after the first verdict that is wrong, since
that failure may disturb the other checks. All other output of it and its libraries goes to standard error.
"""

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from doctor.check_table import Check
    from doctor.verdicts import Context


def main(find_check: 'Callable[[str], Check] | None' = None) -> None:
    """Runs the checks of the request.

    Args:
      find_check: returns the check of a name; by default that of the table.
    """
    folder = Path(__file__).resolve().parent
    # Import from the folder of the program instead of that of this file.
    sys.path[:] = [str(folder.parent), *(path for path in sys.path if path != str(folder))]
    from doctor.check_table import CHECKS
    from doctor.verdicts import Context

    find_check = find_check or {check.name: check for check in CHECKS}.__getitem__
    # Write no core dump: crashes are expected here, and the log contains their stacks.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    out = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    request = json.loads(sys.argv[1])

    def doing(text: str) -> None:
        _send(out, doing=text)

    context = Context(request['num_gpus'], request['expects_gpu'], request['time_limit'], doing)
    for name in request['checks']:
        verdict = _examine(context, find_check(name))
        sys.stderr.flush()
        _send(out, end=name, verdict=verdict, log_end=os.fstat(2).st_size)
        if verdict['outcome'] == 'wrong':
            return


def _examine(context: 'Context', check: 'Check') -> dict[str, Any]:
    from doctor.verdicts import wrong
    from errors import BenchmarkError

    try:
        verdict = check.run(context)
    except BenchmarkError as error:
        verdict = wrong(str(error))
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or ['no message']
        verdict = wrong(f'{type(error).__name__}: {lines[0]}', 'report it with the output of doctor --json')
    document: dict[str, Any] = verdict.as_document()
    return document


def _send(out: TextIO, **message: Any) -> None:
    print(json.dumps(message, default=str), file=out, flush=True)


if __name__ == '__main__':
    main()

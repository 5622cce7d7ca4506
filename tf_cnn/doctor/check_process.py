"""Runs one family of the checks of `doctor` in this process: `python -m tf_cnn.doctor.check_process
FAMILY FINDINGS`.

Writes lines of JSON to the file FINDINGS: first the names of the checks, then each finding as soon
as its check has ended. So doctor knows which check crashed or hung; FINDINGS.stacks then has the
stacks of all threads.
"""

import faulthandler
import importlib
import json
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_cnn.machine.findings import Finding

# The families in order, and the modules with their checks.
FAMILIES: Mapping[str, str] = {
    'gpu': 'tf_cnn.doctor.checks',
    'tensorflow': 'tf_cnn.doctor.checks',
    'all_reduce': 'tf_cnn.doctor.sums',
}


def main() -> None:
    import msgspec

    from tf_cnn.graph.tensorflow_import import import_tensorflow

    family, path = sys.argv[1:]
    # Crashes are expected here, and SIGTERM after the time limit.
    stacks = Path(f'{path}.stacks').open('w')  # noqa: SIM115  # open until the process ends
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGTERM, stacks, chain=True)
    # No core dumps.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if family == 'all_reduce':
        # Skips Keras, which halves the import.
        import_tensorflow()
    checks = {
        f'{family}/{name}': run
        for name, run in importlib.import_module(FAMILIES[family]).FAMILIES[family].items()
    }
    with Path(path).open('w', encoding='utf-8') as file:
        print(json.dumps(list(checks)), file=file, flush=True)
        for name, run in checks.items():
            finding = msgspec.structs.replace(_run_check(run), name=name)
            print(msgspec.json.encode(finding, enc_hook=str).decode(), file=file, flush=True)


def _run_check(check: 'Callable[[], Finding]') -> 'Finding':
    from tf_cnn.machine.findings import WRONG, Finding
    from tf_cnn.system.errors import BenchmarkError

    try:
        return check()
    except BenchmarkError as error:
        return Finding(WRONG, str(error))
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or ['no message']
        return Finding(
            WRONG,
            f'{type(error).__name__}: {lines[0]}',
            'report it with the output of doctor --json',
        )


if __name__ == '__main__':
    main()

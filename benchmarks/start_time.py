"""Measures the start: seconds from the start of a process to its first step, compared with `import tensorflow`.

    python benchmarks/start_time.py --rounds=7

Each case runs in a new process, in turns. The clock starts before the process does, and stops when the line about the
first step arrives; there is no warm-up step. Batches are small, so that arithmetic does not matter: one image, or
--global_batch_size where one and several towers are compared.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.turns import PROGRAM, ROOT, Measure, make_parser, print_report, run_script, take_turns
from errors import RunError

_IMPORT = 'import tensorflow'
# The beginning of the line about the first timed step, and the line that the other cases print.
_FIRST_STEP = '1\timages/sec:'
_DONE = 'done'


def _cases(model: str, num_towers: int, global_batch_size: int) -> dict[str, list[str]]:
    """Returns the command of each case, by name."""

    def python(code: str) -> list[str]:
        return [sys.executable, '-c', f'{code}; print("{_DONE}")']

    run = [*PROGRAM, '--device=cpu', '--num_warmup_batches=0', '--num_batches=1']
    several = [*run, f'--model={model}', f'--num_gpus={num_towers}', f'--batch_size={global_batch_size // num_towers}']
    return {
        _IMPORT: python(_IMPORT),
        # The import of TensorFlow alone, without packages that it imports if they are installed.
        'without Keras': python('from machine.tensorflow_import import import_tensorflow; import_tensorflow()'),
        'trivial': [*run, '--model=trivial', '--batch_size=1'],
        model: [*run, f'--model={model}', '--batch_size=1'],
        f'{model}, 1 tower': [*run, f'--model={model}', f'--batch_size={global_batch_size}'],
        f'{model}, {num_towers} towers': several,
        f'{model}, {num_towers} towers, replicated': [*several, '--variable_update=replicated'],
    }


def seconds_to_first_step(command: Sequence[str]) -> float:
    """Runs a command, and returns the seconds until the line that ends the measurement.

    Raises:
      RunError: the process failed, or ended without that line.
    """
    environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2'}
    began, found = time.perf_counter(), None
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        for line in process.stdout:
            if found is None and line.startswith((_FIRST_STEP, _DONE)):
                found = time.perf_counter() - began
        errors = process.stderr.read()
    if found is None or process.returncode:
        raise RunError(f'{" ".join(command)}: exit code {process.returncode}\n{errors}')
    return found


def main() -> int:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--towers', type=int, default=8)
    parser.add_argument('--global_batch_size', type=int, default=8, help='for the cases of one and several towers')
    args = parser.parse_args()
    cases = _cases(args.model, args.towers, args.global_batch_size)
    one = f'{args.model}, 1 tower'
    pairs = [(name, one if 'towers' in name else _IMPORT) for name in cases if name != _IMPORT]
    turns = take_turns(
        {name: functools.partial(seconds_to_first_step, command) for name, command in cases.items()},
        args.rounds,
        lambda seconds: f'{seconds:.2f} s',
    )
    return print_report(turns, [Measure[float]('s to the first step', lambda seconds: seconds)], pairs)


if __name__ == '__main__':
    run_script(main)

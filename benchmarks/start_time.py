"""Measures the seconds from the start of a process to its first step.

    python -m benchmarks.start_time --rounds=7

The cases alternate, each time in a new process; `import tensorflow` is the baseline. The clock
starts before the process, and stops when the line of the first step arrives. There is no warm-up
step. Batches are small, so that arithmetic does not matter: one image, or --global_batch_size to
compare one tower with several.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.turns import ROOT, Numbers, make_parser, print_report, run_in_turns, run_script
from tf_cnn.sweep.runner import PROGRAM
from tf_cnn.system.errors import RunError

_IMPORT = 'import tensorflow'
# The beginning of the line of the first timed step, and the line that the imports print.
_FIRST_STEP = '1\timages/sec:'
_DONE = 'done'


def _cases(model: str, num_towers: int, global_batch_size: int) -> dict[str, list[str]]:
    def python(code: str) -> list[str]:
        return [sys.executable, '-c', f'{code}; print("{_DONE}")']

    run = [*PROGRAM, '--device=cpu', '--num_warmup_batches=0', '--num_batches=1']
    several = [
        *run,
        f'--model={model}',
        f'--num_gpus={num_towers}',
        f'--batch_size={global_batch_size // num_towers}',
    ]
    return {
        _IMPORT: python(_IMPORT),
        # The import of TensorFlow without the optional packages that it imports.
        'without Keras': python(
            'from tf_cnn.graph.tensorflow_import import import_tensorflow; import_tensorflow()'
        ),
        'trivial': [*run, '--model=trivial', '--batch_size=1'],
        model: [*run, f'--model={model}', '--batch_size=1'],
        f'{model}, 1 tower': [*run, f'--model={model}', f'--batch_size={global_batch_size}'],
        f'{model}, {num_towers} towers': several,
        f'{model}, {num_towers} towers, replicated': [*several, '--variable_update=replicated'],
    }


def time_to_first_step(command: Sequence[str]) -> Numbers:
    """Runs a command, and returns the seconds until its first step, or until its import is done."""
    environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2'}
    start, seconds = time.perf_counter(), None
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            if seconds is None and line.startswith((_FIRST_STEP, _DONE)):
                seconds = time.perf_counter() - start
    if seconds is None or process.returncode:
        raise RunError(f'{" ".join(command)}: exit code {process.returncode}; see its error above')
    return {'s to the first step': seconds}


def main() -> int:
    parser = make_parser(__doc__, rounds=5, towers=8, global_batch_size=8)
    parser.add_argument(
        '--model', default='resnet50', help='the network to measure besides trivial'
    )
    args = parser.parse_args()
    cases = _cases(args.model, args.towers, args.global_batch_size)
    single_tower = f'{args.model}, 1 tower'
    pairs = [
        (name, single_tower if 'towers' in name else _IMPORT) for name in cases if name != _IMPORT
    ]
    measurements = {
        name: functools.partial(time_to_first_step, command) for name, command in cases.items()
    }
    return print_report(run_in_turns(measurements, args.rounds), pairs)


if __name__ == '__main__':
    run_script(main)

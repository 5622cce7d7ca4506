"""Measures the seconds from the start of a process to its first step.

    python -m benchmarks.start_time --rounds=7

The cases are compared with `import tensorflow`, or with one tower, each time in a new process that
ends after the line of its first step; so its wall time counts. There is no warm-up step. Batches
are small, so that arithmetic does not matter: one image, or --global_batch_size to compare one
tower with several. `python -m benchmarks.start_time -- COMMAND` is a run of one case.
"""

import subprocess
import sys
from collections.abc import Sequence

_IMPORT = 'import tensorflow'
# The beginning of the line of the first timed step, and the line that the imports print.
_FIRST_STEP = '1\timages/sec:'
_DONE = 'done'


def _cases(
    program: Sequence[str], model: str, num_towers: int, global_batch_size: int
) -> dict[str, list[str]]:
    def python(code: str) -> list[str]:
        return [sys.executable, '-c', f'{code}; print("{_DONE}")']

    run = [*program, '--device=cpu', '--num_warmup_batches=0', '--num_batches=1']
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


def run_to_first_step(command: Sequence[str]) -> int:
    """Runs a command until its first step, or until its import is done; returns the exit code."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith((_FIRST_STEP, _DONE)):
                process.kill()
                return 0
    return process.returncode or 1


def main() -> int:
    if sys.argv[1:2] == ['--']:
        # Imports nothing else, since its own start counts, too.
        return run_to_first_step(sys.argv[2:])
    from benchmarks.comparing import compare_pairs, make_parser
    from tf_cnn.system.place import PROGRAM

    parser = make_parser(__doc__, rounds=5, towers=8, global_batch_size=8)
    parser.add_argument(
        '--model', default='resnet50', help='the network to measure besides trivial'
    )
    args = parser.parse_args()
    cases = _cases(PROGRAM, args.model, args.towers, args.global_batch_size)
    single_tower = f'{args.model}, 1 tower'
    pairs = [
        (name, single_tower if 'towers' in name else _IMPORT) for name in cases if name != _IMPORT
    ]
    start = [sys.executable, '-m', 'benchmarks.start_time', '--']
    commands = {name: [*start, *command] for name, command in cases.items()}
    return compare_pairs(commands, pairs, args, rate=None)


if __name__ == '__main__':
    sys.exit(main())

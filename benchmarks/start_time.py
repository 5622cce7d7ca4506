"""The start: seconds from the start of a process to the end of its first step, over those of `import tensorflow`.

    python benchmarks/start_time.py --rounds=7

Each case runs in a process of its own, all in turns, so that a noisy machine disturbs all alike. The clock starts
before the process does, and stops when the line about the first step arrives; there is no warm-up step. Batches are
small, so that arithmetic does not count: one image, or --global_batch_size where one and several towers are compared.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_RUN = [str(_ROOT / 'tf_cnn_benchmarks.py'), '--device=cpu', '--num_warmup_batches=0', '--num_batches=1']
_IMPORT = 'import tensorflow'
# The line about the first timed step, and what the other cases print.
_FIRST_STEP = '1\timages/sec:'
_DONE = 'done'


def _cases(model: str, num_towers: int, global_batch_size: int) -> dict[str, list[str]]:
    """The arguments of Python for each case, by its name."""
    batch, share = f'--batch_size={global_batch_size}', f'--batch_size={global_batch_size // num_towers}'
    towers = [f'--num_gpus={num_towers}', share]
    return {
        _IMPORT: ['-c', f'{_IMPORT}; print("{_DONE}")'],
        # What is left of the import if nothing installed beside TensorFlow counts.
        'without Keras': [
            '-c',
            f'from hardware.tensorflow_import import import_tensorflow; import_tensorflow(); print("{_DONE}")',
        ],
        'trivial': [*_RUN, '--model=trivial', '--batch_size=1'],
        model: [*_RUN, f'--model={model}', '--batch_size=1'],
        f'{model}, 1 tower': [*_RUN, f'--model={model}', batch],
        f'{model}, {num_towers} towers': [*_RUN, f'--model={model}', *towers],
        f'{model}, {num_towers} towers, replicated': [
            *_RUN,
            f'--model={model}',
            *towers,
            '--variable_update=replicated',
        ],
    }


def _seconds_to_first_step(arguments: Sequence[str]) -> float:
    """Runs Python with these arguments, and returns the seconds until the line that ends the measurement.

    Raises:
      RuntimeError: the process ended without that line.
    """
    environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2'}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    found = None
    with process:
        for line in process.stdout:
            if found is None and line.startswith((_FIRST_STEP, _DONE)):
                found = time.perf_counter() - began
        errors = process.stderr.read() if process.stderr else ''
    if found is None or process.returncode:
        raise RuntimeError(f'{" ".join(arguments)}: exit code {process.returncode}\n{errors}')
    return found


def _describe(values: Sequence[float]) -> str:
    """The median with the quartiles."""
    if len(values) == 1:
        return f'{values[0]:.2f}'
    lower, middle, upper = statistics.quantiles(values, n=4, method='inclusive')
    return f'{middle:.2f} ({lower:.2f} to {upper:.2f})'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--towers', type=int, default=8)
    parser.add_argument('--global_batch_size', type=int, default=8, help='for the cases of one and several towers')
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    cases = _cases(args.model, args.towers, args.global_batch_size)
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(args.rounds):
        # Each case comes first equally often.
        for name in [*cases][number % len(cases) :] + [*cases][: number % len(cases)]:
            seconds[name].append(_seconds_to_first_step(cases[name]))
        print(f'round {number + 1}:', ', '.join(f'{found[-1]:.2f}' for found in seconds.values()), 's', flush=True)
    print('\nmedian (quartiles)\tseconds\tratio, round by round')
    for name, found in seconds.items():
        base = f'{args.model}, 1 tower' if 'towers' in name else _IMPORT
        ratios = [own / first for own, first in zip(found, seconds[base], strict=True)]
        print(f'{name}\t{_describe(found)}\t{_describe(ratios)} of {base}')
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""The batch script with which Slurm starts a cluster. Does not import TensorFlow."""

import shlex
from collections.abc import Sequence

from cluster.hosts import Command
from cluster.layout import Layout

_COLUMNS = 100


def batch_script(layout: Layout, argv: Sequence[str], commands: Sequence[Command], *, name: str, num_gpus: int) -> str:
    """Returns the script for sbatch: the hosts of the layout, and as many processes of each kind.

    Slurm numbers the processes from the first host on, and the program takes its role from its number: the first ones
    are the parameter servers, the next ones workers. A controller needs the addresses of all.

    Args:
      argv: the command line of the run, without the flags that describe a cluster.
      commands: the processes.
      name: what Slurm calls the job.
      num_gpus: how many GPUs of each node to ask for; 0 for none.
    """
    num_ps = sum(command.name.startswith('ps ') for command in commands)
    flags = [f'--num_ps={num_ps}'] if num_ps else []
    if any(command.name.startswith('controller') for command in commands):
        flags = [word for word in commands[-1].argv if word.startswith(('--controller_host=', '--worker_hosts='))]
    gpus = [f'#SBATCH --gres=gpu:{num_gpus}'] if num_gpus else []
    words = ['srun', '--distribution=block', '--kill-on-bad-exit=1', *argv, *flags]
    lines = [
        '#!/bin/bash',
        f'#SBATCH --job-name={name}',
        f'#SBATCH --nodelist={",".join(name.rpartition("@")[2] for name in layout.names)}',
        f'#SBATCH --nodes={len(layout.names)}',
        f'#SBATCH --ntasks={len(commands)}',
        *gpus,
        '',
        *_wrapped([shlex.quote(word) for word in words]),
    ]
    return '\n'.join(lines) + '\n'


def _wrapped(words: Sequence[str]) -> list[str]:
    lines = ['']
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > _COLUMNS:
            lines[-1] += ' \\'
            lines.append('  ')
        lines[-1] += word if not lines[-1].strip() else f' {word}'
    return lines

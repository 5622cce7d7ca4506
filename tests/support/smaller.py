"""Adapts command lines that were written for other machines to this one, by visible rules."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from params import SPECS
from params.file_flags import Output, outputs_that_are

PROGRAM = re.compile(r'(.*/)?tf_cnn_benchmarks(\.py|:\w+)?')
_PATHS = {*outputs_that_are(*Output), 'eval_dir', 'benchmark_log_dir'} & {*SPECS, 'benchmark_log_dir'}


@dataclass(frozen=True)
class Line:
    """A command line: the words before the program (variables, a launcher), and its arguments."""

    before: tuple[str, ...]
    argv: tuple[str, ...]

    @property
    def launcher(self) -> str:
        """The word that starts the program: python, mpirun, horovodrun, ...; empty if it is started directly."""
        return next((word for word in self.before if not re.fullmatch(r'[A-Z_]+=.*', word)), '')


def split(text: str) -> Line | None:
    """Splits a shell line; returns None if it does not run this program. Ignores everything after > or |."""
    words = shlex.split(text, comments=True)
    at = next((index for index, word in enumerate(words) if PROGRAM.fullmatch(word)), None)
    if at is None:
        return None
    argv = words[at + 1 :]
    end = next((index for index, word in enumerate(argv) if word in ('>', '|', '&&', '2>', '&')), len(argv))
    return Line(tuple(words[:at]), tuple(argv[:end]))


def joined(argv: Sequence[str]) -> list[str]:
    """Writes --flag value as --flag=value."""
    found: list[str] = []
    for word in argv:
        if not word.startswith('-') and found and '=' not in found[-1]:
            found[-1] += f'={word}'
        else:
            found.append(word)
    return found


def fit(argv: Sequence[str], data: Path, outputs: Path, *, keep_devices: bool = False) -> list[str]:
    """Returns the flags of a run for a machine without GPUs and without the original machine's folders.

    - GPUs become as many virtual devices of the CPU, which also stores the variables.
    - NCCL, which works between GPUs, becomes ring sums.
    - --num_intra_threads and --xla are left out: TensorFlow keeps their values from the first run of a process.
    - Data are read from `data`/imagenet or `data`/cifar10, and files are written below `outputs`.

    Args:
      argv: the flags, without a subcommand.
      data: the folder of the data.
      outputs: the folder of written files.
      keep_devices: whether to skip the first rule.
    """
    found = []
    given = dict(word.lstrip('-').partition('=')[::2] for word in joined(argv))
    for word in joined(argv):
        name, equals, value = word.lstrip('-').partition('=')
        is_gpu = name == 'device' or (name == 'local_parameter_device' and value.lower() == 'gpu')
        if is_gpu and not keep_devices:
            continue
        if name in ('use_nccl', 'num_intra_threads', 'xla', 'xla_compile'):
            continue
        if name == 'all_reduce_spec':
            value = re.sub('nccl(/xring)?', 'xring', value)
        if value and name == 'data_dir':
            value = str(data / ('cifar10' if 'cifar' in given.get('data_name', value) else 'imagenet'))
        if value and name in _PATHS:
            value = str(outputs / Path(value).name)
        found.append(f'--{name}{equals}{value}')
    return found if keep_devices else [*found, '--device=cpu']

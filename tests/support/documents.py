"""README.md and docs/ as tests read them: shell lines, examples in Python, and command lines fitted
to this machine.
"""

import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from tests.support.programs import ROOT
from tf_cnn.flags.spec import Output
from tf_cnn.plan.params import SPECS, output_flags


def python_block(page: str, file: str = '') -> str:
    """Returns the only example in Python of a page, or the one that begins with the name of a
    file.
    """
    head, text = re.escape(f'# {file}\n') if file else '', (ROOT / 'docs' / page).read_text()
    (block,) = re.findall(rf'^```python\n({head}.*?)^```$', text, flags=re.M | re.S)
    return str(block)


# ---- command lines -------------------------------------------------------------------------------
# Adapts those that were written for other machines to this one, by visible rules.

_PROGRAM = re.compile(r'(.*/)?tf_cnn_benchmarks(\.py|:\w+)?')
_PATHS = {name for name in output_flags(*Output) if name in SPECS} | {
    'eval_dir',
    'benchmark_log_dir',
}


def split_line(text: str) -> list[str] | None:
    """Returns the arguments of this program in a shell line, up to > or |; None if the line does
    not run it.
    """
    words = shlex.split(text, comments=True)
    at = next((index for index, word in enumerate(words) if _PROGRAM.fullmatch(word)), None)
    if at is None:
        return None
    ends = ('>', '|', '&&', '2>', '&')
    return [*itertools.takewhile(lambda word: word not in ends, words[at + 1 :])]


def fit(argv: Sequence[str], data: Path, outputs: Path, *, keep_devices: bool = False) -> list[str]:
    """Returns the flags of a run for a machine without GPUs and without the original machine's
    folders.

    - GPUs become as many virtual devices of the CPU, which also stores the variables; not with
      keep_devices.
    - NCCL, which works between GPUs, becomes ring sums.
    - --num_intra_threads and --xla are left out: TensorFlow keeps their values from the first run
      of a process.
    - Data are read from `data`/imagenet or `data`/cifar10, and files are written below `outputs`.
    """
    words: list[str] = []
    for word in argv:
        if not word.startswith('-') and words and '=' not in words[-1]:
            words[-1] += f'={word}'
        else:
            words.append(word)
    flags = [] if keep_devices else ['--device=cpu']
    pairs = [word.lstrip('-').partition('=') for word in words]
    data_name = {name: value for name, _, value in pairs}.get('data_name')
    for name, equals, value in pairs:
        is_gpu = name == 'device' or (name == 'local_parameter_device' and value.lower() == 'gpu')
        if is_gpu and not keep_devices:
            continue
        if name in ('use_nccl', 'num_intra_threads', 'xla', 'xla_compile'):
            continue
        if name == 'all_reduce_spec':
            value = re.sub('nccl(/xring)?', 'xring', value)
        if value and name == 'data_dir':
            value = str(data / ('cifar10' if 'cifar' in (data_name or value) else 'imagenet'))
        if value and name in _PATHS:
            value = str(outputs / Path(value).name)
        flags.append(f'--{name}{equals}{value}')
    return flags

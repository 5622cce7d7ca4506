"""`completion`: the script, read by a real bash, completes subcommands, flags, values and files."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import tf_cnn_benchmarks
from params.all_reduce_spec import ALGORITHMS
from params.modes import MODES
from tests.support.programs import terminal

pytestmark = pytest.mark.unit

ROOT = Path(tf_cnn_benchmarks.__file__).parent
PROGRAM = 'tf_cnn_benchmarks'
# Bash has split the words at the equal sign; the last word is the one to complete.
CASES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    'part of a subcommand': (['rec'], ['records']),
    'flag with a value': (['--variable_u'], ['--variable_update=']),
    'switch': (['--forward'], ['--forward_only']),
    'switch turned off': (['--nodistorti'], ['--nodistortions']),
    'modes': (['--variable_update', '=', ''], [*MODES]),
    'value of a switch': (['--eval', '=', 't'], ['true']),
    'number': (['--num_gpus', '=', ''], []),
    'algorithms': (['--all_reduce_spec', '=', ''], [*ALGORITHMS]),
    'after another flag': (['--num_gpus', '=', '2', '--xl'], ['--xla']),
    'flag of a subcommand': (['records', '--inp'], ['--input=']),
    'not a flag of this subcommand': (['records', '--batch_s'], []),
    'flags after --': (['cluster', '--workers', '=', '2', '--', '--optimiz'], ['--optimizer=']),
    'values after --': (['sweep', '--', '--optimizer', '=', 'lar'], ['lars']),
    'flag to be told of': (['help', 'kmp_b'], ['kmp_blocktime']),
    'model to be listed': (['models', 'vgg1'], ['vgg11', 'vgg16', 'vgg19']),
    'all flags': (['help', 'all'], ['all', 'all_reduce_spec', 'allow_growth', 'allreduce_merge_scope']),
    'sweep that comes with the program': (['sweep', 'ba'], ['batch_sizes']),
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the scripts, the program in bin/, a file and a folder with spaces in their names."""
    made = tmp_path_factory.mktemp('shells')
    (made / 'a file').touch()
    (made / 'a folder').mkdir()
    (made / 'bin').mkdir()
    program = made / 'bin' / PROGRAM
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "tf_cnn_benchmarks.py"} "$@"\n')
    program.chmod(0o755)
    done = subprocess.run([program, 'completion', 'bash'], capture_output=True, text=True, check=True, timeout=60)
    (made / 'script.bash').write_text(done.stdout)
    return made


def test_bash_completes_each_case(folder: Path) -> None:
    lines = ['source ./script.bash']
    for name, (words, _) in CASES.items():
        array = ' '.join(f"'{word}'" for word in [PROGRAM, *words])
        lines += [f'COMP_WORDS=({array}) COMP_CWORD={len(words)}', '_tf_cnn_benchmarks']
        lines.append(f'for reply in "${{COMPREPLY[@]}}"; do printf "%s\\t%s\\n" "{name}" "$reply"; done')
    done = subprocess.run(
        ['bash', '-u', '-c', '\n'.join(lines)], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ''
    found: dict[str, list[str]] = {name: [] for name in CASES}
    for line in done.stdout.splitlines():
        name, reply = line.split('\t')
        found[name].append(reply)
    assert {name: sorted(replies) for name, replies in found.items()} == {
        name: sorted(replies) for name, (_, replies) in CASES.items()
    }


def test_bash_completes_what_is_typed(folder: Path) -> None:
    with terminal(['bash', '--norc', '--noprofile', '-i'], cwd=folder, columns=400, PS1='$ ') as bash:
        bash.type('source ./script.bash; echo read$((1))\n')
        bash.read('read1')
        # Whatever is completed is printed, instead of being run. The value of a flag follows it at once.
        bash.type(f'{PROGRAM}() {{ printf "<%s>" "$@"; echo; }}\n')
        bash.type(f'{PROGRAM} --variable_u\tdistributed_r\t --forward_o\t --data_dir=a\\ fo\t\n')
        bash.read('<--variable_update=distributed_replicated><--forward_only><--data_dir=a folder/>')

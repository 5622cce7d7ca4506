"""`completion`: the scripts, read by real shells, complete subcommands, flags, values and files."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import tf_cnn_benchmarks
from commands.completion import SHELLS
from commands.subcommands import SUBCOMMANDS
from models.registry import MODELS
from params import SPECS
from params.all_reduce_spec import ALGORITHMS
from params.modes import MODES
from tests.support.outputs import check_line
from tests.support.programs import terminal

pytestmark = pytest.mark.unit

ROOT = Path(tf_cnn_benchmarks.__file__).parent
PROGRAM = 'tf_cnn_benchmarks'
# Bash has split the words at the equal sign; the last word is the one to complete.
CASES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    'subcommands': ([''], [*SUBCOMMANDS]),
    'part of a subcommand': (['rec'], ['records']),
    'flag with a value': (['--variable_u'], ['--variable_update=']),
    'switch': (['--forward'], ['--forward_only']),
    'switch turned off': (['--nodistorti'], ['--nodistortions']),
    'no answer to a question': (['--nohel'], []),
    'modes': (['--variable_update', '=', ''], [*MODES]),
    'value after a space': (['--precision', 'b'], ['bf16']),
    'value of a switch': (['--eval', '=', 't'], ['true']),
    'no value of a switch after a space': (['--eval', 'tr'], []),
    'number': (['--num_gpus', '=', ''], []),
    'models': (['--model', '=', 'resnet11'], MODELS.list_models('resnet11*')),
    'algorithms': (['--all_reduce_spec', '=', ''], [*ALGORITHMS]),
    'word that is not split': (['--optimizer=ad'], ['--optimizer=adam']),
    'file': (['--data_dir', '=', 'a f'], ['a file', 'a folder']),
    'after another flag': (['--num_gpus', '=', '2', '--xl'], ['--xla']),
    'flag of a subcommand': (['records', '--inp'], ['--input=']),
    'not a flag of this subcommand': (['records', '--batch_s'], []),
    'files of a subcommand': (['report', 'a fo'], ['a folder']),
    'no argument': (['cluster', ''], []),
    'flags after --': (['cluster', '--workers', '=', '2', '--', '--optimiz'], ['--optimizer=']),
    'values after --': (['sweep', '--', '--optimizer', '=', 'lar'], ['lars']),
    'flag to be told of': (['help', 'kmp_b'], ['kmp_blocktime']),
    'original flag to be told of': (['help', 'mk'], ['mkl']),
    'model to be listed': (['models', 'vgg1'], ['vgg11', 'vgg16', 'vgg19']),
    'shells': (['completion', ''], [*SHELLS]),
    'all flags': (['help', 'all'], ['all', 'all_reduce_spec', 'allow_growth', 'allreduce_merge_scope']),
    'sweep that comes with the program': (['sweep', 'ba'], ['batch_sizes']),
    'sweeps and files': (['sweep', 'a'], ['all_models', 'a file', 'a folder']),
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
    for shell in SHELLS:
        done = subprocess.run([program, 'completion', shell], capture_output=True, text=True, check=True, timeout=60)
        (made / f'script.{shell}').write_text(done.stdout)
    return made


@pytest.fixture(scope='module')
def of_bash(folder: Path) -> dict[str, list[str]]:
    """What bash completes in each case."""
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
    return found


@pytest.mark.parametrize('name', CASES)
def test_bash_completes(of_bash: dict[str, list[str]], name: str) -> None:
    assert sorted(of_bash[name]) == sorted(CASES[name][1])


def test_bash_completes_what_is_typed(folder: Path) -> None:
    with terminal(['bash', '--norc', '--noprofile', '-i'], cwd=folder, columns=400, PS1='$ ') as bash:
        bash.type('source ./script.bash; echo read$((1))\n')
        bash.read('read1')
        # Whatever is completed is printed, instead of being run. The value of a flag follows it at once.
        bash.type(f'{PROGRAM}() {{ printf "<%s>" "$@"; echo; }}\n')
        bash.type(f'{PROGRAM} --variable_u\tdistributed_r\t --forward_o\t --data_dir=a\\ fo\t\n')
        bash.read('<--variable_update=distributed_replicated><--forward_only><--data_dir=a folder/>')


@pytest.mark.skipif(shutil.which('zsh') is None, reason='zsh is not installed')
def test_zsh_completes_what_is_typed(folder: Path) -> None:
    with terminal(['zsh', '-f', '-i'], cwd=folder, columns=400) as zsh:
        zsh.type('autoload -U compinit; compinit -u -D; source ./script.zsh; echo read$((1))\n')
        zsh.read('read1')
        zsh.type(f'{PROGRAM}() {{ printf "<%s>" "$@"; echo; }}\n')
        zsh.type(f'{PROGRAM} --variable_u\tdistributed_r\t --forward_o\t --data_dir=a\\ fo\t\n')
        # It takes back the slash at the end of a line.
        zsh.read('<--variable_update=distributed_replicated><--forward_only><--data_dir=a folder>')
        zsh.type(f'{PROGRAM} reco\t --inp\ta\\ fo\t\n')
        zsh.read('<records><--input=a folder>')
        zsh.type(f'{PROGRAM} cluster --workers=2 -- --optimizer=lar\t\n')
        zsh.read('<cluster><--workers=2><--><--optimizer=lars>')
        zsh.type(f'{PROGRAM} help kmp_b\t\n')
        zsh.read('<help><kmp_blocktime>')
        zsh.type(f'{PROGRAM} sweep ba\t a\\ fo\t\n')
        zsh.read('<sweep><batch_sizes><a folder>')


@pytest.mark.skipif(shutil.which('fish') is None, reason='fish is not installed')
@pytest.mark.parametrize(
    ('typed', 'completed'),
    [
        ('reco', 'records'),
        ('--variable_u', '--variable_update'),
        ('--variable_update=distributed_r', '--variable_update=distributed_replicated'),
        ('--nodistorti', '--nodistortions'),
        ('records --inp', '--input'),
        ('help kmp_b', 'kmp_blocktime'),
        ('sweep ba', 'batch_sizes'),
    ],
)
def test_fish_completes(folder: Path, typed: str, completed: str) -> None:
    script = f'source ./script.fish; complete -C "{PROGRAM} {typed}"'
    environ = {**os.environ, 'HOME': str(folder), 'XDG_CONFIG_HOME': str(folder)}
    done = subprocess.run(
        ['fish', '-c', script], cwd=folder, env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert [line.partition('\t')[0] for line in done.stdout.splitlines()] == [completed]


@pytest.mark.parametrize('shell', SHELLS)
def test_a_script_knows_every_flag_and_subcommand(folder: Path, shell: str) -> None:
    text = (folder / f'script.{shell}').read_text()
    assert [name for name in (*SPECS, *SUBCOMMANDS) if name not in text] == []
    # The first lines say how to use it.
    assert any(f'{PROGRAM} completion {shell}' in line for line in text.splitlines()[:2])


def test_an_unknown_shell_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert tf_cnn_benchmarks.main(['completion', 'bsh']) == 2
    check_line(capsys.readouterr().err, 'bsh', 'bash')
    assert tf_cnn_benchmarks.main(['completion', 'tcl']) == 2
    check_line(capsys.readouterr().err, 'tcl', *SHELLS)

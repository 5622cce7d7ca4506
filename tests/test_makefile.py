"""The files around the program: `make install`, continuous integration, forms, the citation."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.outputs import check_line
from tests.support.programs import ROOT
from tf_cnn.results import VERSION

pytestmark = pytest.mark.unit


def link_project(folder: Path) -> Path:
    """Links the files that the Makefile reads into a folder, where make makes its own."""
    for name in ('Makefile', 'setup.py', 'pyproject.toml', 'deploy'):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.surroundings
@pytest.mark.parametrize(('has_driver', 'extras'), [(False, 'dev'), (True, 'dev,cuda')])
def test_make_install_adds_the_libraries_of_cuda_if_there_is_a_driver(tmp_path, has_driver, extras):
    if has_driver:
        (tmp_path / 'nvidiactl').touch()
    # Prints the commands of an installation from nothing.
    command = [
        'make',
        '--dry-run',
        '--always-make',
        'install',
        'NVIDIA_DRIVER=version nvidiactl',
    ]
    environment = {
        name: value for name, value in os.environ.items() if name not in ('EXTRAS', 'MAKEFLAGS')
    }
    process = subprocess.run(
        command,
        cwd=link_project(tmp_path),
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert {*re.findall(r"--editable '\.\[(.+?)\]'", process.stdout)} == {extras}


@pytest.mark.surroundings
def test_make_install_names_large_packages_while_it_installs_and_fails_with_pip(tmp_path):
    venv, go_on = link_project(tmp_path) / '.venv', tmp_path / 'go_on'
    (venv / 'bin').mkdir(parents=True)
    (venv / 'bin/pip').touch()
    lines = [
        'Collecting tensorflow==2.21.0',
        '  Downloading tensorflow-2.21.0-cp311-cp311-manylinux.whl (572.6 MB)',
        '  Using cached absl_py-2.4.0-py3-none-any.whl (135 kB)',
    ]
    printed = '\n'.join(lines)
    (tmp_path / 'pip.sh').write_text(
        f"echo '{printed}'; until [ -e go_on ]; do sleep 0.05; done\n"
        "echo 'Installing collected packages: a, b'; exit $FAULT\n"
    )
    command = ['make', '--no-print-directory', '--old-file=setup.py', 'install', 'PIP=sh pip.sh']
    for fault in (0, 7):
        go_on.unlink(missing_ok=True)
        with subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, 'FAULT': str(fault)},
        ) as process:
            assert process.stdout
            assert 'installing' in process.stdout.readline()
            # While pip waits.
            assert process.stdout.readline() == 'make:   tensorflow, 572.6 MB\n'
            go_on.touch()
            output = process.stdout.read()
        assert (process.returncode == 0) == (fault == 0)
        assert (venv / '.installed').exists() == (fault == 0)
        assert 'unpacking' in output
        assert 'absl' not in output
        (venv / '.installed').unlink(missing_ok=True)


def test_a_python_without_ensurepip_is_refused_with_the_package_that_has_it(tmp_path):
    (tmp_path / 'ensurepip.py').write_text('raise ImportError')
    python = Path(sys.executable).with_name('python3')
    command = ['make', '--no-print-directory', f'PYTHON={python}', 'install']
    process = subprocess.run(
        command,
        cwd=link_project(tmp_path),
        capture_output=True,
        text=True,
        env={**os.environ, 'PYTHONPATH': str(tmp_path)},
    )
    message, end = process.stderr.splitlines()
    check_line(message, 'make: python3 cannot make .venv', 'apt install python3-venv')
    assert 'Error 1' in end
    assert not (tmp_path / '.venv').exists()


@pytest.mark.parametrize(
    ('code', 'has_driver', 'settings'),
    [('onednn_off', False, 'false,true'), ('onednn_off', True, None), ('too_short', False, None)],
)
def test_make_bench_trains_with_and_without_onednn_where_the_modes_ran_without(
    tmp_path, code, has_driver, settings
):
    # Writes its flags to a file, and for the modes a result with this warning.
    program, results = tmp_path / 'program.sh', 'data/modes/results'
    program.write_text(
        f'echo "$@" >> flags; case "$*" in *modes.toml*) mkdir -p {results}; '
        f'echo \'"{code}"\' > {results}/1.json;; esac'
    )
    files = ['--old-file=.venv/.installed', '--old-file=data/.records-complete']
    variables = ['RUN=sh program.sh', f'NVIDIA_DRIVER={"." if has_driver else "none"}']
    command = ['make', f'--makefile={ROOT}/Makefile', *files, 'bench', *variables]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    _, training, report = (tmp_path / 'flags').read_text().splitlines()
    assert '--model=resnet50' in training
    assert re.findall(r'--grid=onednn=(\S+)', training) == ([settings] if settings else [])
    assert 'report data/resnet50 data/modes' in report


@pytest.mark.parametrize('package', ['tensorflow', 'tensorflow-cpu'])
def test_a_variable_chooses_the_tensorflow_without_gpus(package):
    setup = 'run_setup("setup.py", stop_after="init")'
    code = (
        'import setuptools; from distutils.core import run_setup; '
        f'print(*{setup}.extras_require["dev"])'
    )
    environment, command = (
        {**os.environ, 'TENSORFLOW_PACKAGE': package},
        [sys.executable, '-c', code],
    )
    process = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment
    )
    assert re.findall(r'tensorflow[\w-]*', process.stdout) == [package]


# ---- the rule of the environment -----------------------------------------------------------------


# Stand-ins for Python. The supported one records its arguments.
UNSUPPORTED = '#!/bin/sh\nexit 1\n'
SUPPORTED = '#!/bin/sh\n[ "$1" = -c ] || echo "$0 $*" >> calls\n'


def make_venv(folder: Path, programs: dict[str, str], *arguments: str) -> tuple[Any, list[str]]:
    """Runs the rule of the environment with these programs; returns the process and its calls."""
    shutil.copy(ROOT / 'Makefile', folder)
    for name, text in programs.items():
        path = folder / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    process = subprocess.run(
        [str(shutil.which('make')), '--silent', *arguments, '.venv/bin/pip'],
        cwd=folder,
        env={'PATH': f'{folder}/bin', 'SHELL': '/bin/sh'},
        capture_output=True,
        text=True,
        timeout=60,
    )
    calls = folder / 'calls'
    text = calls.read_text() if calls.exists() else ''
    return process, text.replace(f'{folder}/bin/', '').split()


@pytest.mark.parametrize(
    ('programs', 'arguments', 'call'),
    [
        (['python3', 'python3.13'], [], ['python3', '-m', 'venv', '.venv']),
        (['python3.12', 'python3.11'], [], ['python3.12', '-m', 'venv', '.venv']),
        (['mine'], ['PYTHON=mine'], ['mine', '-m', 'venv', '.venv']),
        (['uv'], [], ['uv', 'venv', '--quiet', '--seed', '--python=3.13', '.venv']),
    ],
)
def test_the_first_supported_python_makes_the_environment(programs, arguments, call, tmp_path):
    stand_ins = {'python3': UNSUPPORTED, **dict.fromkeys(programs, SUPPORTED)}
    process, calls = make_venv(tmp_path, stand_ins, *arguments)
    assert (process.returncode, calls) == (0, call)


@pytest.mark.parametrize('name', ['python3', 'mine'])
def test_an_unsupported_python_is_named_with_what_to_do(name, tmp_path):
    programs = {name: UNSUPPORTED}
    arguments = []
    if name == 'mine':
        # No other Python replaces the chosen one.
        programs |= {'python3.12': SUPPORTED, 'uv': SUPPORTED}
        arguments = ['PYTHON=mine']
    process, calls = make_venv(tmp_path, programs, *arguments)
    assert process.returncode != 0
    assert calls == []
    assert f'PYTHON={name}: it must be a Python from 3.11 to 3.13' in process.stderr
    assert 'PYTHON=python3.12' in process.stderr


def test_continuous_integration_runs_commands_that_exist():
    workflow = yaml.safe_load((ROOT / '.github' / 'workflows' / 'ci.yml').read_text())
    steps = [step for job in workflow['jobs'].values() for step in job['steps']]
    commands = '\n'.join(step['run'] for step in steps if 'run' in step)
    assert 'bash .ci/run' in commands
    targets = {words[1] for line in commands.splitlines() if (words := line.split())[0] == 'make'}
    assert targets
    makefile = (ROOT / 'Makefile').read_text()
    assert [target for target in targets if f'\n{target}:' not in makefile] == []


def test_the_citation_has_the_version():
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert citation['version'] == VERSION

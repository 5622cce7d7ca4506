"""The files around the program: `make install`, continuous integration, forms, the citation."""

import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.programs import ROOT
from tf_cnn.results import VERSION

pytestmark = pytest.mark.unit

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

"""`make install` adds TensorFlow's libraries for GPUs if NVIDIA's driver is there."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.programs import ROOT

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(('has_driver', 'extras'), [(False, 'dev'), (True, 'dev,cuda')])
def test_make_install_adds_the_libraries_of_cuda_if_there_is_a_driver(tmp_path, has_driver, extras):
    driver = tmp_path / 'nvidiactl'
    if has_driver:
        driver.touch()
    # Prints the commands of an installation from nothing.
    command = [
        'make',
        '--dry-run',
        '--always-make',
        'install',
        f'NVIDIA_DRIVER={tmp_path}/version {driver}',
    ]
    environment = {
        name: value for name, value in os.environ.items() if name not in ('EXTRAS', 'MAKEFLAGS')
    }
    process = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment
    )
    assert {*re.findall(r"--editable '\.\[(.+?)\]'", process.stdout)} == {extras}


def test_make_install_names_large_packages_while_it_installs_and_fails_with_pip(tmp_path):
    venv, go_on, pip = tmp_path / 'venv', tmp_path / 'go_on', tmp_path / 'pip.sh'
    (venv / 'bin').mkdir(parents=True)
    (venv / 'bin/pip').touch()
    lines = [
        'Collecting tensorflow==2.21.0',
        '  Downloading tensorflow-2.21.0-cp311-cp311-manylinux.whl (572.6 MB)',
        '  Using cached absl_py-2.4.0-py3-none-any.whl (135 kB)',
    ]
    printed = '\n'.join(lines)
    pip.write_text(
        f"echo '{printed}'; until [ -e {go_on} ]; do sleep 0.05; done\n"
        "echo 'Installing collected packages: a, b'; exit $FAULT\n"
    )
    variables = [f'VENV={venv}', f'PIP=sh {pip}']
    command = ['make', '--no-print-directory', '--old-file=setup.py', 'install', *variables]
    for fault in (0, 7):
        go_on.unlink(missing_ok=True)
        with subprocess.Popen(
            command,
            cwd=ROOT,
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

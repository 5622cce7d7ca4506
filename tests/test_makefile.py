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

"""What `make install` installs: with the driver of NVIDIA, TensorFlow's libraries for GPUs as
well.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.support.programs import ROOT

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(('has_driver', 'extras'), [(False, 'dev'), (True, 'dev,cuda')])
def test_make_install_adds_the_libraries_of_cuda_where_there_is_a_driver(
    tmp_path, has_driver, extras
):
    driver = tmp_path / 'nvidiactl'
    if has_driver:
        driver.touch()
    # What would be run if nothing were there yet.
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
    ran = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment
    )
    assert {*re.findall(r"--editable '\.\[(.+?)\]'", ran.stdout)} == {extras}


@pytest.mark.parametrize('package', ['tensorflow', 'tensorflow-cpu'])
def test_the_tensorflow_without_gpus_is_installed_where_it_is_asked_for(package):
    setup = 'run_setup("setup.py", stop_after="init")'
    code = (
        'import setuptools; from distutils.core import run_setup; '
        f'print(*{setup}.extras_require["dev"])'
    )
    environment, command = (
        {**os.environ, 'TENSORFLOW_PACKAGE': package},
        [sys.executable, '-c', code],
    )
    ran = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment
    )
    assert re.findall(r'tensorflow[\w-]*', ran.stdout) == [package]

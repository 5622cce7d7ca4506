"""Any fault of a --model_file or --variable_mgr_file becomes one line that names its place."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.outputs import check_error, check_line
from tests.support.programs import ROOT, run_main

pytestmark = [
    pytest.mark.graph,
    pytest.mark.usefixtures('forget_modes', 'forget_models', 'same_path'),
]

_FILES = re.split(r'(?m)^=== ', (ROOT / 'tests' / 'data' / 'user_files.txt').read_text())[1:]
_FLAGS = ['--device=cpu', '--batch_size=4', '--num_batches=2', '--num_warmup_batches=0']
_MANAGER = """\
from tf_cnn_benchmarks import VariableMgrLocalReplicated, register_variable_mgr
@register_variable_mgr('mine', summary='Ours.')
class Mine(VariableMgrLocalReplicated):
    pass
"""


@pytest.fixture
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the folders of users' files from sys.path afterwards."""
    monkeypatch.setattr(sys, 'path', list(sys.path))


def flags_of(path: Path, name: str) -> list[str]:
    if name.startswith('manager'):
        return [f'--variable_mgr_file={path}', '--variable_update=mine', '--model=lenet', *_FLAGS]
    return [f'--model_file={path}', '--model=mine', *_FLAGS]


@pytest.mark.parametrize('file', _FILES, ids=lambda file: file.partition(':')[0])
def test_a_fault_of_a_users_file_is_one_line_that_names_it(file, tmp_path):
    header, _, content = file.partition('\n')
    name, _, expectation = header.partition(': ')
    exit_code, *facts = expectation.partition(' | flags: ')[0].split(' | ')
    modules = content.replace('SIXTY_THOUSAND_TERMS', ' + '.join(['1'] * 60_000)).split('### ')
    for module in [f'mine.py\n{modules[0]}', *modules[1:]]:
        path, _, text = module.partition('\n')
        (tmp_path / path).write_text(text)
    flags = flags_of(tmp_path / 'mine.py', name)
    more_flags = expectation.partition(' | flags: ')[2].split()
    _, err = run_main(*flags, *more_flags, code=int(exit_code))
    place = 'interrupted' if exit_code == '130' else f'error: {flags[0]}'
    check_error(err, place, *facts)


@pytest.mark.parametrize('fault', ['def f(:', '1 / 0', '    x = 1 / 0', '    create = None'])
def test_a_file_can_be_corrected(fault, tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f'{_MANAGER}{fault}\n')
    run_main(*flags_of(path, 'manager'), code=2)
    path.write_text(_MANAGER)
    assert 'Variables:   mine\n' in run_main(*flags_of(path, 'manager'))[0]


def test_verbose_adds_the_traceback(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text('1 / 0\n')
    out, err = run_main(*flags_of(path, 'model'), '--verbose', code=2)
    assert (out, err[:9]) == ('', 'Traceback')
    check_line(err.splitlines()[-1], f'--model_file={path}, line 1: ZeroDivisionError')

"""A --model_file and a --variable_mgr_file that cannot be run are refused by file and line."""

import sys
from pathlib import Path

import pytest

from tests.support.outputs import check_error, check_line
from tests.support.programs import run_main

pytestmark = [
    pytest.mark.graph,
    pytest.mark.usefixtures('forget_modes', 'forget_models', 'same_path'),
]

_FLAGS = ['--device=cpu', '--batch_size=4', '--num_batches=2', '--num_warmup_batches=0']
_MODEL = """\
from tf_cnn_benchmarks import register_model
def mine(cnn, images, num_classes): {body}
register_model('mine', mine, image_size={size})
"""
_MANAGER = """\
from tf_cnn_benchmarks import VariableMgrLocalReplicated, register_variable_mgr
@register_variable_mgr({arguments})
class Mine(VariableMgrLocalReplicated):
    pass
"""
_GOOD = _MANAGER.format(arguments="'mine', summary='Ours.'")
_BESIDE = 'def divide():\n    1 /\n'
# Files, and what the error names.
_MODEL_FILES = {
    'x = 1': 'register_model',
    'x = (\n': 'line 1: SyntaxError',
    'x = 1\0': 'null bytes',
    '\nimport nothing': "line 2: ModuleNotFoundError: No module named 'nothing'",
    "import json\njson.loads('{')": 'line 2: JSONDecodeError',
    'raise SystemExit(3)': 'line 1: SystemExit: 3',
    "raise ValueError('first\\nsecond')": 'line 1: ValueError: first second',
    'import user_beside': 'line 1: SyntaxError: invalid syntax (user_beside.py, line 2)',
    _MODEL.format(body='pass', size=0): 'line 3: ValueError: image_size=0',
    _MODEL.format(body='pass', size="'8'"): 'line 3: TypeError',
}
_MANAGER_FILES = {
    'x = 1': 'register_variable_mgr',
    f'{_GOOD}1 / 0': 'line 5: ZeroDivisionError',
    **{
        _MANAGER.format(arguments=arguments): f'line 2: {error}'
        for arguments, error in (
            ("'a,b', summary='A.'", "ValueError: 'a,b'"),
            ("'mine', summary='A.', topologies=['ps']", "ValueError: topologies: ['ps']"),
            ("'mine', summary='A.', parameter_device='gpu'", 'ValueError: parameter_device'),
            (
                "'mine', summary='A.', topologies=['peers'], always_synchronous=False",
                'ValueError: always_synchronous=False',
            ),
            ("'mine'", 'TypeError'),
            ("'replicated', summary='A.'", 'ValueError: replicated'),
        )
    },
}


@pytest.fixture
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the folders of users' files from sys.path afterwards."""
    monkeypatch.setattr(sys, 'path', list(sys.path))


def flags_of(path: Path, flag: str) -> list[str]:
    model = ['--model=mine'] if flag == 'model_file' else ['--variable_update=mine']
    return [f'--{flag}={path}', *model, *_FLAGS]


@pytest.mark.parametrize(
    ('flag', 'content', 'fact'),
    [
        *(('model_file', *row) for row in _MODEL_FILES.items()),
        *(('variable_mgr_file', *row) for row in _MANAGER_FILES.items()),
    ],
)
def test_a_file_that_fails_is_one_line_that_names_it(flag, content, fact, tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(content)
    (tmp_path / 'user_beside.py').write_text(_BESIDE)
    _, err = run_main(*flags_of(path, flag), code=2)
    check_error(err, f'--{flag}={path}', fact)


def test_a_file_can_be_corrected(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f'{_GOOD}1 / 0\n')
    for _ in range(2):
        run_main(*flags_of(path, 'variable_mgr_file'), code=2)
    path.write_text(_GOOD)
    assert 'Variables:   mine\n' in run_main(*flags_of(path, 'variable_mgr_file'))[0]


def test_a_fault_after_the_file_has_run_is_a_traceback(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(_MODEL.format(body='1 / 0', size=8))
    with pytest.raises(ZeroDivisionError) as caught:
        run_main(*flags_of(path, 'model_file'))
    last_frame = caught.traceback[-1]
    assert (last_frame.path, last_frame.lineno + 1) == (path, 2)


def test_verbose_adds_the_traceback(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text('1 / 0\n')
    out, err = run_main(*flags_of(path, 'model_file'), '--verbose', code=2)
    assert (out, err[:9]) == ('', 'Traceback')
    check_line(err.splitlines()[-1], f'--model_file={path}, line 1: ZeroDivisionError')

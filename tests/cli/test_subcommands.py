"""What is the same in every subcommand: its help, its errors and its paths."""

import importlib
import re
from typing import Any

import pytest

from models.registry import MODELS
from tests.support.programs import run, run_main
from tf_cnn.cli.help_text import describe_flag, format_help, format_page
from tf_cnn.cli.options import Declaration
from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.flags.spec import specs_of

pytestmark = pytest.mark.unit

DECLARATIONS: dict[str, Declaration[Any]] = {
    name: importlib.import_module(f'tf_cnn.cli.{name}').DECLARATION for name in SUBCOMMANDS
}


def printed(*argv: str) -> str:
    out, err = run_main(*argv)
    assert err == ''
    return out.removesuffix('\n')


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_a_subcommand_prints_its_help_in_every_spelling(name):
    text = printed(name, '--help')
    usage = f'usage: tf_cnn_benchmarks {name} {DECLARATIONS[name].usage}'.rstrip()
    assert text.startswith(f'{usage}\n')
    assert f'\n  tf_cnn_benchmarks {name}' in text
    listed = re.findall(r'^  --(?:\[no\])?(\w+)', text, re.MULTILINE)
    assert listed == [*specs_of(DECLARATIONS[name].options)]
    assert text == printed('help', name) == printed(f'--help={name}')


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_all_mistakes_are_reported_together_each_in_a_line(name):
    specs = specs_of(DECLARATIONS[name].options).values()
    switches = [spec.name for spec in specs if spec.type is bool]
    wrong = [
        '--zzqq',
        *(f'--no{switch}=1' for switch in switches),
        *(f'--{switch}=x' for switch in switches),
    ]
    out, err = run_main(name, *wrong, code=2)
    assert out == ''
    start = 'tf_cnn_benchmarks: error: '
    told = [line.removeprefix(start).partition(':')[0] for line in err.splitlines()]
    assert sorted(told) == sorted(wrong)


def test_no_subcommand_forgets_to_close_a_file():
    finished = run('models lenet', PYTHONWARNINGS='error')
    assert (finished.code, finished.err) == (0, '')


@pytest.mark.parametrize('empty', ['', "''"])
def test_a_flag_with_an_empty_value_is_refused(empty):
    flags = {name: specs_of(DECLARATIONS[name].options) for name in SUBCOMMANDS}
    for name in filter(flags.get, flags):
        wrong = [f'--{flag}={empty}' for flag in flags[name]]
        _, err = run_main(name, *wrong, code=2)
        told = re.findall('^tf_cnn_benchmarks: error: (.*): it has no value', err, re.MULTILINE)
        assert told == wrong, name


def test_paths_may_begin_with_the_home_directory(monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    for name, argv, positional in (
        ('compare', ['~/a.json', 'b~.json'], ('/home/me/a.json', 'b~.json')),
        ('report', ['~/results', '--output=~/page.html'], ('/home/me/results',)),
        ('sweep', ['~/modes.toml'], ('/home/me/modes.toml',)),
        ('models', ['~*'], ('~*',)),
    ):
        assert DECLARATIONS[name].parse(argv).positional == positional
    options = DECLARATIONS['report'].parse(['x', '--output=~/page.html']).options
    assert options.output == '/home/me/page.html'


def test_the_help_of_the_program_is_printed_in_every_spelling():
    for argv in (['help'], ['--help'], ['--help=true'], ['-h'], ['--help', '--model=lenet']):
        assert printed(*argv) == format_help()
    for argv in (['help', 'all'], ['--help=all']):
        assert printed(*argv) == format_help(MODELS.list_models())
    assert f'{printed("help", "--markdown")}\n' == format_page()


def test_a_flag_is_described_in_every_spelling():
    for name in ('batch_size', 'mkl', 'use_nccl', 'eval'):
        for argv in (['help', name], ['help', f'--{name}'], [f'--help={name}']):
            assert printed(*argv) == describe_flag(name)

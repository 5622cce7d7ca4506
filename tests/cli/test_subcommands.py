"""What is the same in every subcommand: its help, its errors and its paths."""

import importlib
import re
from typing import Any

import pytest

from models.registry import MODELS
from tf_cnn.cli.help_text import describe_flag, format_help, format_page
from tf_cnn.cli.options import Declaration
from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.flags.spec import specs_of
from tf_cnn_benchmarks import main

pytestmark = pytest.mark.unit

DECLARATIONS: dict[str, Declaration[Any]] = {
    name: importlib.import_module(f'tf_cnn.cli.{name}').DECLARATION for name in SUBCOMMANDS
}


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ''
    return out.removesuffix('\n')


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_a_subcommand_prints_its_help_in_every_spelling(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, name, '--help')
    assert text.startswith(
        f'usage: tf_cnn_benchmarks {name} {SUBCOMMANDS[name].usage}'.rstrip() + '\n'
    )
    assert f'\n  tf_cnn_benchmarks {name}' in text
    assert [*re.findall(r'^  --(?:\[no\])?(\w+)', text, re.MULTILINE)] == [
        *specs_of(DECLARATIONS[name].options)
    ]
    assert text == printed(capsys, 'help', name) == printed(capsys, f'--help={name}')


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_all_mistakes_are_told_at_once_each_in_a_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    switches = [spec for spec in specs_of(DECLARATIONS[name].options).values() if spec.type is bool]
    wrong = [
        '--zzqq',
        *(f'--no{spec.name}=1' for spec in switches),
        *(f'--{spec.name}=x' for spec in switches),
    ]
    assert main([name, *wrong]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    lines = [
        line.removeprefix('tf_cnn_benchmarks: error: ').partition(':')[0]
        for line in err.splitlines()
    ]
    assert sorted(lines) == sorted(wrong)


@pytest.mark.parametrize(
    'name', [name for name in SUBCOMMANDS if specs_of(DECLARATIONS[name].options)]
)
@pytest.mark.parametrize('empty', ['', "''"])
def test_a_flag_with_an_empty_value_is_refused(
    name: str, empty: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [f'--{flag}={empty}' for flag in specs_of(DECLARATIONS[name].options)]
    assert main([name, *wrong]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if 'it has no value' in line]
    assert [line.partition(': it has')[0] for line in lines] == [
        f'tf_cnn_benchmarks: error: {flag}' for flag in wrong
    ]


def test_paths_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('HOME', '/home/me')
    for name, argv, positional in (
        ('compare', ['~/a.json', 'b~.json'], ('/home/me/a.json', 'b~.json')),
        ('report', ['~/results', '--output=~/page.html'], ('/home/me/results',)),
        ('sweep', ['~/modes.toml'], ('/home/me/modes.toml',)),
        ('models', ['~*'], ('~*',)),
    ):
        assert DECLARATIONS[name].parse(argv).positional == positional
    assert (
        DECLARATIONS['report'].parse(['x', '--output=~/page.html']).options.output
        == '/home/me/page.html'
    )


def test_the_help_of_the_program_is_printed_in_every_spelling(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for argv in (['help'], ['--help'], ['--help=true'], ['-h'], ['--help', '--model=lenet']):
        assert printed(capsys, *argv) == format_help(SUBCOMMANDS)
    for argv in (['help', 'all'], ['--help=all']):
        assert printed(capsys, *argv) == format_help(SUBCOMMANDS, MODELS.list_models())
    assert f'{printed(capsys, "help", "--markdown")}\n' == format_page()


@pytest.mark.parametrize('name', ['batch_size', 'mkl', 'use_nccl', 'eval'])
def test_a_flag_is_told_in_every_spelling(capsys: pytest.CaptureFixture[str], name: str) -> None:
    expected = describe_flag(name)
    for argv in (['help', name], ['help', f'--{name}'], [f'--help={name}']):
        assert printed(capsys, *argv) == expected

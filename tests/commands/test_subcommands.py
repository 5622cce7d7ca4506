"""Each row of the table of subcommands has a module that declares the same, and each module of one has a row."""

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any, cast

import pytest

import commands
from commands.options import Declaration
from commands.subcommands import LEFT, SUBCOMMANDS
from params.spec import specs_of
from tests.support.outputs import check_line
from tf_cnn_benchmarks import main

pytestmark = pytest.mark.unit

ROOT = Path(commands.__file__).parent.parent


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_the_module_of_a_subcommand_declares_what_the_table_says(name: str) -> None:
    declaration = importlib.import_module(f'commands.{name}').DECLARATION
    assert isinstance(declaration, Declaration)
    assert (declaration.name, declaration.usage) == (name, SUBCOMMANDS[name].usage)


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_a_subcommand_prints_its_help_and_ends_with_exit_code_0(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.import_module(f'commands.{name}').main(['--help']) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f'usage: tf_cnn_benchmarks {name} {SUBCOMMANDS[name].usage}'.rstrip() + '\n')
    assert err == ''
    assert main([name, '--help']) == 0
    assert capsys.readouterr() == (out, '')
    flags = re.findall(r'^  --(?:\[no\])?(\w+)', out, re.MULTILINE)
    assert {*flags} >= {*specs_of(_declaration(name).options)}


def test_every_module_of_a_subcommand_is_in_the_table() -> None:
    modules = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    # What runs without a subcommand, and how a subcommand declares its options.
    assert modules - {'benchmark', 'for_python', 'options', 'subcommands'} == {*SUBCOMMANDS}


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_all_mistakes_are_told_at_once_each_in_a_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    switches = [spec for spec in specs_of(_declaration(name).options).values() if spec.type is bool]
    wrong = ['--zzqq', *(f'--no{spec.name}=1' for spec in switches), *(f'--{spec.name}=x' for spec in switches)]
    assert main([name, *wrong]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    lines = [line.removeprefix('tf_cnn_benchmarks: error: ') for line in err.splitlines()]
    assert len(lines) == len(wrong)
    for word in wrong:
        assert any(line.startswith(f'{word}:') for line in lines), (word, lines)


@pytest.mark.parametrize('left', LEFT)
def test_what_left_is_unknown_and_says_what_to_use_instead(left: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(left.split()) == 2
    check_line(capsys.readouterr().err, left.split()[-1], LEFT[left])


def _declaration(name: str) -> Declaration[Any]:
    return cast('Declaration[Any]', importlib.import_module(f'commands.{name}').DECLARATION)


def test_paths_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('HOME', '/home/me')
    for name, argv, positional in (
        ('checkpoint', ['~/run'], ('/home/me/run',)),
        ('compare', ['~/a.json', 'b~.json'], ('/home/me/a.json', 'b~.json')),
        ('report', ['~/results', '--output=~/page.html'], ('/home/me/results',)),
        ('sweep', ['~/modes.toml'], ('/home/me/modes.toml',)),
        ('models', ['~*'], ('~*',)),
    ):
        assert _declaration(name).parse(argv).positional == positional
    assert _declaration('report').parse(['x', '--output=~/page.html']).options.output == '/home/me/page.html'
    assert _declaration('records').parse(['--check=~/shards']).options.check == '/home/me/shards'

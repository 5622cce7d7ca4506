"""`help`, `--help=FLAG` and `--help FLAG`: --help, one flag with its whole description, or the help of a subcommand."""

from pathlib import Path

import pytest

import tf_cnn_benchmarks
from commands import records
from commands.subcommands import SUBCOMMANDS
from params.descriptions import describe_flag
from params.help_text import format_description, format_help, format_page
from tests.support.outputs import check_line

pytestmark = pytest.mark.unit

ROOT = Path(tf_cnn_benchmarks.__file__).parent


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert tf_cnn_benchmarks.main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ''
    return out.removesuffix('\n')


def test_the_help_of_the_program_is_printed_in_every_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (['help'], ['--help'], ['--help=true'], ['-h'], ['--help', '--model=lenet']):
        assert printed(capsys, *argv) == format_help(SUBCOMMANDS)
    for argv in (['help', 'all'], ['--help=all'], ['--help', 'all']):
        assert printed(capsys, *argv) == format_help(SUBCOMMANDS, everything=True)


@pytest.mark.parametrize('name', ['batch_size', 'mkl', 'use_nccl', 'eval'])
def test_a_flag_is_told_in_every_spelling(capsys: pytest.CaptureFixture[str], name: str) -> None:
    expected = format_description(describe_flag(name))
    for argv in (['help', name], ['help', f'--{name}'], [f'--help={name}'], ['--help', name], ['-h', name]):
        assert printed(capsys, *argv) == expected


def test_a_subcommand_prints_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (['help', 'records'], ['--help=records'], ['records', '--help']):
        assert printed(capsys, *argv) == records.DECLARATION.format_help()


def test_the_page_of_flags_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert f'{printed(capsys, "help", "--markdown")}\n' == format_page()


@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        (['help', 'batchsize'], ['batchsize', 'batch_size']),
        (['--help=recrods'], ['recrods', 'records']),
        (['--help', 'x\ny'], ['--help=']),
        (['help', 'batch_size', '--markdown'], ['--markdown', 'batch_size']),
    ],
)
def test_wrong_use_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], facts: list[str]) -> None:
    assert tf_cnn_benchmarks.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ''
    check_line(err, *facts)

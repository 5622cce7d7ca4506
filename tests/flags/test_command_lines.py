"""Command lines from other people's documents and scripts, in command_lines.txt: each gets the
answer noted there.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from tests.support.documents import fit, split_line
from tests.support.programs import run_main
from tf_cnn.machine.this_process import ProcessEnvironment, ThisProcess
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.plan.plan import make_plan
from tf_cnn.system.errors import UsageError

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('same_environment')]

TEXT = Path(__file__).with_name('command_lines.txt').read_text(encoding='utf-8')
SHORT = ['--num_batches=2', '--num_warmup_batches=1', '--batch_size=2']


class Row(NamedTuple):
    """A line of the table. answer: 'plan', 'run', or the flag that is refused."""

    source: str
    answer: str
    argv: list[str]


def read_table() -> Iterator[Row]:
    source = ''
    for line in TEXT.splitlines():
        if heading := re.fullmatch(r'\[(.+)\]', line):
            source = heading[1]
        elif line and not line.startswith('#'):
            answer, _, text = line.partition(' | ')
            argv = split_line(text)
            assert argv, text
            yield Row(source, answer.strip().removeprefix('no '), argv)


TABLE = list(read_table())


def test_each_command_line_gets_its_answer(data, tmp_path):
    assert len(TABLE) >= 60
    wrong = []
    for number, line in enumerate(TABLE):
        # --eval needs a checkpoint.
        (tmp_path / f'{number}/checkpoints').mkdir(parents=True)
        (tmp_path / f'{number}/checkpoints/model.ckpt-1.index').touch()
        argv = fit(line.argv, data, tmp_path / str(number))
        if '--variable_update=horovod' in argv:
            # It needs Horovod and its launcher to be planned. The flags are checked all the same.
            argv[argv.index('--variable_update=horovod')] = '--variable_update=replicated'
            assert parse_argv(line.argv).params.variables.variable_update == 'horovod'
        try:
            # Each line in a process of its own, which imports TensorFlow when the line is planned.
            with mock.patch.object(ProcessEnvironment, 'has_tensorflow', new=False):
                make_plan(parse_argv(argv).params, ProcessEnvironment({}, ThisProcess({})))
            answer = 'plan'
        except UsageError as error:
            answer = str(error)
        expected = 'plan' if line.answer == 'run' else line.answer
        if not re.match(rf'{expected}\b', answer):
            wrong.append(f'{answer}\n  {line.source}\n  {" ".join(argv)}')
    assert not wrong, '\n'.join(wrong)


@pytest.mark.long
@pytest.mark.parametrize(
    'model',
    # Networks that take seconds to build have tests of their own.
    [['--model=lenet'], pytest.param([], id='as published', marks=pytest.mark.all_modes)],
)
def test_some_command_lines_run(model, data, tmp_path):
    lines = [line for line in TABLE if line.answer == 'run']
    assert len(lines) >= 4
    for line in lines:
        # All lines run in this process, which has imported TensorFlow: too late for --mkl.
        flags = [flag for flag in fit(line.argv, data, tmp_path) if not flag.startswith('--mkl')]
        out, _ = run_main(*flags, *SHORT, *model)
        assert len(re.findall(r'^total images/sec: \d+\.\d\d$', out, re.MULTILINE)) == 1

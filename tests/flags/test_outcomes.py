"""Random settings get the answers that are stored in outcomes.jsonl: refusals, warnings, or none.

Each line of the file is a setting and its answer: the arguments, the environment variables, and the
lines of the refusal ('refused') or of the warnings before TensorFlow starts ('warnings').

    python -m tests.flags.test_outcomes

stores the answers again, after a change that means to change some of them; read the difference.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tf_cnn.machine.this_process import ProcessEnvironment, ThisProcess
from tf_cnn.plan import plan
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.system.errors import BenchmarkError

pytestmark = pytest.mark.unit

FILE = Path(__file__).with_name('outcomes.jsonl')


class _TensorFlowStartsError(BaseException):
    """Takes the place of the start of TensorFlow."""


@contextlib.contextmanager
def empty_host() -> Iterator[Path]:
    """Enters an empty working directory on a host without GPUs; yields it."""

    def stop(*arguments: Any) -> None:
        *_, warnings = arguments
        raise _TensorFlowStartsError(warnings)

    # Other tests of this process may have imported TensorFlow.
    is_fresh = mock.patch.object(ProcessEnvironment, 'has_tensorflow', False)
    with (
        tempfile.TemporaryDirectory() as home,
        contextlib.chdir(home),
        mock.patch.dict(os.environ, {'HOME': home}),
        mock.patch.object(plan, 'choose_start', stop),
        is_fresh,
    ):
        variables = dict(os.environ)
        yield Path(home)
        assert os.environ == variables


def answer(argv: Sequence[str], environ: Mapping[str, str], home: Path) -> dict[str, list[str]]:
    """Returns the answer to a setting on this host."""
    try:
        parsed = parse_argv(argv)
        environment = ProcessEnvironment(environ, ThisProcess(dict(environ)), home)
        plan.make_plan(parsed.params, environment)
    except _TensorFlowStartsError as start:
        lines = {'warnings': [*parsed.warnings, *start.args[0]]}
    except BenchmarkError as error:
        lines = {'refused': list(error.lines)}
    # Folders for outputs.
    for name in os.listdir(home):
        shutil.rmtree(home / name)
    return {
        kind: sorted(line.replace(os.path.realpath(home), 'HOME') for line in texts)
        for kind, texts in lines.items()
    }


def read_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text(encoding='utf-8').splitlines()]


@pytest.mark.parametrize('part', range(8))
def test_random_settings_get_the_stored_answers(part):
    rows = read_rows()
    assert len(rows) >= 2000
    different = {}
    with empty_host() as home:
        for row in rows[part::8]:
            actual = answer(row['argv'], row['environ'], home)
            expected = {kind: row[kind] for kind in ('refused', 'warnings') if kind in row}
            if actual != expected:
                different[' '.join(row['argv'])] = (expected, actual)
    assert not different


if __name__ == '__main__':
    with empty_host() as home:
        rows = [
            {key: row[key] for key in ('argv', 'environ')}
            | answer(row['argv'], row['environ'], home)
            for row in read_rows()
        ]
    FILE.write_text(''.join(f'{json.dumps(row)}\n' for row in rows), encoding='utf-8')

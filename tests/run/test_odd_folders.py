"""Folders with names that shells and parsers trip over."""

from pathlib import Path

import pytest

from tests.run.test_bad_input import run_command
from tests.support.outputs import check_line

pytestmark = [pytest.mark.graph, pytest.mark.long, pytest.mark.usefixtures('forget_models')]

_RUN = ['--model=lenet', '--device=cpu', '--batch_size=2', '--num_batches=2', '--num_warmup_batches=0']


def test_training_goes_on_and_is_evaluated_in_a_folder_of_any_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / 'a blank, a line\nbreak, "quotes\', é and {x}$HOME;#'
    for last_step in (2, 4):
        code, _, lines = run_command(capfd, *_RUN, f'--train_dir={folder}')
        assert code == 0, lines
        assert (folder / f'model.ckpt-{last_step}.index').exists()
    code, out, lines = run_command(capfd, *_RUN, '--eval', f'--train_dir={folder}')
    assert code == 0, lines
    (accuracy,) = (line for line in out.splitlines() if line.startswith('Accuracy @ 1 = '))
    check_line(accuracy, 'Accuracy @ 5 = ', '[4 examples]')

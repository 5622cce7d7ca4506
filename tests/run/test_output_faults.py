"""A fault of an output ends a run, and saves its training first."""

import io
import os
import shutil
import threading

import pytest

from tests.support.outputs import failed
from tests.support.runs import document_in, make_benchmark
from tf_cnn.results.console import Console
from tf_cnn.training.checkpoint_files import checkpoint_step, latest_checkpoint

pytestmark = [pytest.mark.graph, pytest.mark.long]

FLAGS = '--num_batches=100000 --display_every=1'


def test_the_reader_of_standard_output_may_leave_at_any_step(tmp_path):
    pipe, process_end = os.pipe()

    def read() -> None:
        with os.fdopen(pipe) as lines:
            for line in lines:
                if line.startswith('5\t'):
                    return

    reader = threading.Thread(target=read)
    reader.start()
    with pytest.raises(BrokenPipeError), os.fdopen(process_end, 'w') as out:
        make_benchmark(FLAGS, Console(out, io.StringIO()), train_dir=tmp_path).run()
    reader.join()
    # One warm-up step and the five steps that were printed.
    assert checkpoint_step(latest_checkpoint(str(tmp_path)) or '') >= 6


def test_a_document_whose_reader_has_left_is_written_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipe, process_end = os.pipe()
    os.close(pipe)
    out = os.fdopen(process_end, 'w')
    console = Console(out, io.StringIO(), documents_only=True)
    benchmark = make_benchmark('--num_batches=2', console, result_file='-')
    with pytest.raises(BrokenPipeError), out:
        benchmark.run()
    assert not [*tmp_path.iterdir()]


def test_a_log_on_a_full_disk_ends_the_run_after_its_training_is_saved(tmp_path):
    (tmp_path / 'logs').mkdir()
    (tmp_path / 'logs/metric.log').symlink_to('/dev/full')
    benchmark = make_benchmark(FLAGS, train_dir=tmp_path, benchmark_log_dir=tmp_path / 'logs')
    with failed('--benchmark_log_dir=', 'metric.log cannot be written'):
        benchmark.run()
    assert checkpoint_step(latest_checkpoint(str(tmp_path)) or '') >= 2


@pytest.mark.parametrize('is_replaced', [False, True])
def test_folders_that_vanish_during_a_run_are_made_again_or_the_working_folder_serves(
    is_replaced, tmp_path, monkeypatch
):
    """A file in the place of a folder stands for a disk that is mounted anew."""
    (tmp_path / 'here').mkdir()
    monkeypatch.chdir(tmp_path / 'here')
    train_dir, results = tmp_path / 'train', tmp_path / 'results'
    benchmark = make_benchmark(train_dir=train_dir, result_file=results / 'r.json')

    def run() -> None:
        for number, _ in enumerate(benchmark.steps()):
            if number:
                continue
            for folder in (train_dir, results):
                shutil.rmtree(folder)
                if is_replaced:
                    folder.touch()

    if not is_replaced:
        run()
        assert document_in(results / 'r.json')['complete']
        assert latest_checkpoint(str(train_dir)) == f'{train_dir}/model.ckpt-4'
        return
    with failed(f'--train_dir={train_dir}', 'model.ckpt-4 cannot be written'):
        run()
    (folder,) = (tmp_path / 'here').glob('train_dir-*')
    assert latest_checkpoint(str(folder)) == f'{folder}/model.ckpt-4'
    assert document_in(tmp_path / 'here/r.json')['exit_status']['exit_code'] == 1

"""A fault of an output ends a run, and saves its training first."""

import io
import os
import threading

import pytest

from tests.support.outputs import failed
from tests.support.runs import make_benchmark
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


def test_a_log_on_a_full_disk_ends_the_run_after_its_training_is_saved(tmp_path):
    (tmp_path / 'logs').mkdir()
    (tmp_path / 'logs/metric.log').symlink_to('/dev/full')
    benchmark = make_benchmark(FLAGS, train_dir=tmp_path, benchmark_log_dir=tmp_path / 'logs')
    with failed('--benchmark_log_dir=', 'metric.log cannot be written'):
        benchmark.run()
    assert checkpoint_step(latest_checkpoint(str(tmp_path)) or '') >= 2

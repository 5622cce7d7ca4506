"""Full disks and damaged or vanishing data end runs in time, with an error that names them and
without damaged files. Odd file names work.
"""

import io
import json
import os
import shlex
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.files import file_size_limit, quoted, write_files
from tests.support.images import encoded, example, header_of, write_shard
from tests.support.outputs import check_error, check_line, failed
from tests.support.programs import run, run_main
from tests.support.runs import document_in, make_benchmark
from tf_cnn.inputs.layout import shard_name
from tf_cnn.results.console import Console
from tf_cnn.run.session import Stepper
from tf_cnn.run.shard_faults import explain_fault
from tf_cnn.training.checkpoint_files import checkpoint_step, latest_checkpoint

pytestmark = [pytest.mark.graph, pytest.mark.long, pytest.mark.usefixtures('forget_models')]


_RUN = '--model=trivial --device=cpu --batch_size=2 --num_batches=4 --num_warmup_batches=0'


# ---- full disks, as a limit of file sizes --------------------------------------------------------


def test_summaries_that_cannot_be_written_end_the_run(tmp_path):
    # The summary has the graph, of 57 KB.
    flags = f'{_RUN} --save_summaries_steps=1 --summary_verbosity=1'
    with file_size_limit(30_000):
        _, err = run_main(*flags.split(), f'--train_dir={tmp_path}', code=1)
    check_error(err, f'--train_dir={tmp_path}')


def test_records_fails_if_its_shards_do_not_fit_on_the_disk(tmp_path):
    noise = np.random.default_rng(1).integers(0, 256, [200, 200, 3], np.uint8)
    write_files(tmp_path, {f'photos/a/{number}.jpg': encoded(noise) for number in range(4)})
    shards = tmp_path / 'shards'
    files = [f'--input={tmp_path}/photos', f'--output={shards}']
    command = ['records', *files, '--shards=1', '--num_processes=1']
    with file_size_limit(60_000):
        out, err = run_main(*command, code=1)
    assert out == ''
    check_error(err, f'--output={shards}')
    assert list(shards.iterdir()) == []
    run_main(*command)


@pytest.mark.parametrize(
    ('flag', 'name'),
    [
        ('trace_file', 'file'),
        ('graph_file', 'file'),
        ('tfprof_file', 'file'),
        ('partitioned_graph_file_prefix', 'part'),
        ('profile_dir', 'profile'),
    ],
)
def test_a_file_about_a_run_that_does_not_fit_leaves_nothing_and_keeps_the_old_file(
    flag, name, tmp_path
):
    (tmp_path / 'file').write_text('of an earlier run')
    steps = '--profile_steps=2,3' if flag == 'profile_dir' else ''
    with file_size_limit(2_000):
        flags = f'{_RUN} --num_warmup_batches=1 {steps}'
        _, err = run_main(*flags.split(), f'--{flag}={tmp_path}/{name}', code=1)
    check_error(err, f'--{flag}={tmp_path}/{name}')
    assert (tmp_path / 'file').read_text() == 'of an earlier run'
    assert [path.name for path in tmp_path.rglob('*') if path.is_file()] == ['file']


# ---- files that change ---------------------------------------------------------------------------


JPEG = encoded(np.full([40, 50, 3], 99, np.uint8))
RECORD, LARGE_LABEL = example(JPEG, 1), example(JPEG, 1001)


def replace_by_garbage(shard: Path) -> None:
    garbage = shard.with_name('garbage')
    garbage.write_bytes(bytes(range(256)) * 100)
    garbage.rename(shard)


def spoil_record_10(shard: Path, start: int, spoiled: bytes) -> None:
    # Each record has 16 bytes around it.
    content, at = bytearray(shard.read_bytes()), start + 10 * (len(RECORD) + 16)
    content[at : at + len(spoiled)] = spoiled
    shard.write_bytes(content)


def leave_7_bytes(shard: Path) -> None:
    """Leaves no whole record; a run must not wait for one."""
    for other in {*shard.parent.iterdir()} - {shard}:
        other.unlink()
    os.truncate(shard, 7)


CHECK = ['--data_dir={folder}', 'records', '--check={folder}']
# (step, change, facts) by name. The first shard changes after this step, and the error has the
# facts. TensorFlow does not name the shard of a bad record.
CHANGES: dict[str, tuple[int, Callable[[Path], object], list[str]]] = {
    'a large label': (
        0,
        lambda shard: write_shard(shard, [RECORD] * 40 + [LARGE_LABEL]),
        CHECK,
    ),
    'a length of 2^60': (
        0,
        lambda shard: spoil_record_10(shard, 0, header_of(2**60)),
        ['{shard}', 'record 10', 'length'],
    ),
    'a wrong byte': (0, lambda shard: spoil_record_10(shard, 50, b'????'), CHECK),
    'a piece of a header': (0, leave_7_bytes, ['{shard}', 'record 0', '7 bytes']),
    'all are deleted': (10, lambda shard: shutil.rmtree(shard.parent), ['{shard}', *CHECK]),
    'garbage takes its place': (10, replace_by_garbage, CHECK),
    'one is deleted': (10, Path.unlink, ['{shard}', 'removed']),
    'one is emptied': (10, lambda shard: os.truncate(shard, 0), ['{shard}', 'size']),
}


@pytest.mark.parametrize('name', CHANGES)
def test_a_run_ends_when_shards_are_damaged_or_change(name, tmp_path):
    (shard, *_), (last_step, change, facts) = write_shards(tmp_path / 'shards'), CHANGES[name]
    if not last_step:
        change(shard)
    with failed(*(fact.format(shard=shard, folder=shard.parent) for fact in facts)):
        flags = '--model=linear_on_records --noenable_optimizations --num_batches=200'
        flags += ' --num_warmup_batches=0'
        for step in make_benchmark(flags, data_dir=shard.parent).steps():
            if step.index == last_step:
                change(shard)


def test_shards_that_were_read_into_memory_may_be_removed(tmp_path):
    shard, *_ = write_shards(tmp_path / 'shards')
    flags = '--model=linear_on_records --input_pipeline=device --augmentation=none --num_batches=2'
    benchmark = make_benchmark(flags, data_dir=shard.parent)
    for _ in benchmark.steps():
        shard.unlink(missing_ok=True)
    assert benchmark.result.is_complete


def test_bad_data_ends_a_process_with_exit_code_1_and_its_name(tmp_path):
    """The process ends while threads of TensorFlow read and decode."""
    shard, *_ = write_shards(tmp_path / 'shards')
    write_shard(shard, [RECORD] * 40 + [example(b'not an image at all', 1)])
    process = run(f'{_RUN} --num_batches=200 --data_dir={quoted(shard.parent)}')
    assert process.code == 1
    check_error(process.err, f'--data_dir={shard.parent}', 'JPEG', 'records', '--check=')


@pytest.mark.parametrize(
    ('has_shards', 'error'),
    [
        (False, tf.errors.InvalidArgumentError(None, None, 'not a number')),
        (True, tf.errors.AbortedError(None, None, 'not a number')),
    ],
    ids=['synthetic images', 'no error of a record'],
)
def test_records_are_not_blamed_where_none_can_be_the_cause(has_shards, error, tmp_path):
    (shard, *_) = write_shards(tmp_path / 'shards')
    plan = make_benchmark(data_dir=shard.parent if has_shards else None).plan
    line = explain_fault(error, plan, is_evaluating=False)
    assert line == f'{type(error).__name__}: not a number'


@pytest.mark.parametrize('flag', ['eval_batch_size', 'batch_size'])
def test_out_of_memory_names_the_batch_size_of_its_phase(flag):
    plan = make_benchmark(f'--{flag}=5 --eval_during_training_every_n_steps=1').plan
    fault = tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating a tensor')
    line = explain_fault(fault, plan, is_evaluating=flag == 'eval_batch_size')
    check_line(line, f'--{flag}=5: out of memory')


def write_shards(folder: Path) -> list[Path]:
    folder.mkdir()
    shards = [folder / shard_name('train', number, 3) for number in range(3)]
    for shard in shards:
        write_shard(shard, [RECORD] * 40)
    return shards


NAME = 'a blank, a line\nbreak, "quotes\', é, 日本 and {x}$HOME;#'
MODEL = """
from models.registry import register_model
def network(cnn, x, num_classes):
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')
register_model('mine', network, image_size=8)
"""


def test_files_may_have_any_name_and_a_run_needs_neither_home_nor_utf_8_output(tmp_path):
    folder = tmp_path / NAME
    shards = write_shards(tmp_path / 'shards')[0].parent.rename(folder)
    (folder / 'mine {model}.py').write_text(MODEL)
    # Braces are the fields of result files.
    result = tmp_path / 'result é "\'\n 日本.json'
    files = [f'--model_file={folder}/mine {{model}}.py', f'--train_dir={folder}/trained']
    flags = [*_RUN.split(), '--model=mine', *files]
    read = [*flags, f'--data_dir={shards}', f'--result_file={result}']
    process = run(shlex.join(read), HOME=None, USER=None, LOGNAME=None, PYTHONIOENCODING='ascii')
    assert process.code == 0, process.err
    assert 'total images/sec: ' in process.out
    assert json.loads(result.read_text())
    # Training goes on from these files, and evaluation reads them.
    run_main(*flags)
    assert (folder / 'trained' / 'model.ckpt-8.index').exists()
    out, _ = run_main(*flags, '--eval')
    assert out.count('[8 examples]') == 1


# ---- a GPU that is newer than the kernels of TensorFlow ------------------------------------------


@pytest.mark.parametrize('error', ['CUDA_ERROR_INVALID_PTX', 'CUDA_ERROR_INVALID_HANDLE'])
def test_a_kernel_that_the_driver_cannot_load_ends_the_run_with_what_to_use(error):
    message = f"'cuLaunchKernel(function, gridX, ...)' failed with '{error}'"
    fault = tf.errors.InternalError(None, None, message)
    with (
        mock.patch.object(Stepper, 'run', side_effect=fault),
        failed(error, 'TensorFlow 2.21', 'docs/gpu.md', '--device=cpu'),
    ):
        make_benchmark(_RUN).run()


# ---- outputs that vanish -------------------------------------------------------------------------


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

"""Every kind of wrong use and of bad data, given to the command: its exit code and its one line."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf_cnn_benchmarks
from records.layout import shard_name
from tests.support.images import claiming, encoded, example, header_of, write_cifar, write_shard
from tests.support.outputs import check_line

pytestmark = [pytest.mark.graph, pytest.mark.long, pytest.mark.usefixtures('forget_models')]

ROOT = Path(tf_cnn_benchmarks.__file__).parent
IMAGE = np.full([40, 50, 3], 99, np.uint8)
JPEG = encoded(IMAGE)
GOOD = example(JPEG, 1)
_QUICK = ['--model=lenet', '--device=cpu', '--batch_size=4', '--num_batches=200', '--num_warmup_batches=1']


Capture = pytest.CaptureFixture[str]


def run_command(capfd: Capture, *flags: str) -> tuple[int, str, list[str]]:
    """The command's exit code, what it and native code wrote to standard output, and its lines of standard error."""
    capfd.readouterr()
    code = tf_cnn_benchmarks.main(flags)
    out, err = capfd.readouterr()
    assert 'Traceback' not in err
    return code, out, err.splitlines()


def run_process(*flags: str) -> tuple[int, str, list[str]]:
    """The same of a process of its own."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), *flags],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2'},
    )
    assert 'Traceback' not in ran.stderr, ran.stderr
    return ran.returncode, ran.stdout, ran.stderr.splitlines()


def the_error(lines: list[str]) -> str:
    errors = [line for line in lines if line.startswith('tf_cnn_benchmarks: error: ')]
    assert len(errors) == 1, lines
    assert lines[-1] == errors[0]
    return errors[0]


WRONG_USE = {
    'shards without a record': (['--data_dir={tmp}/no_records'], ['--data_dir={tmp}/no_records', ' 1 ']),
    'unwritable trace': (['--trace_file={tmp}/others/a.txt/t.json'], ['--trace_file={tmp}/others/a.txt/t.json']),
    'a label that CIFAR-10 does not have': (
        ['--model=probe', '--model_file={tmp}/probe.py', '--data_dir={tmp}/cifar'],
        ['data_batch_2.bin', 'image 1', '10'],
    ),
    'a model that does not build': (
        ['--model=wrong', '--model_file={tmp}/probe.py', '--batch_size=2'],
        ['--model_file={tmp}/probe.py, line 7'],
    ),
    'checkpoints that are to be evaluated in a file': (
        ['--eval', '--train_dir={tmp}/probe.py', '--eval_interval_secs=1'],
        ['--train_dir={tmp}/probe.py'],
    ),
}
PROBE = """\
from models.registry import register_model

def probe(cnn, x, num_classes):
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')

def wrong(cnn, x, num_classes):
    return cnn.conv(cnn.flatten(x), 8, 3, 'conv')

register_model('probe', probe, data_set='cifar10', image_size=32)
register_model('wrong', wrong, image_size=8)
"""
NEEDS_NO_GPU = {
    'several GPUs where there is none': (['--num_gpus=4'], ['--num_gpus=4', '--device=cpu']),
    'more GPUs than there are': (['--device=gpu', '--num_gpus=2'], ['GPU', '--device=cpu']),
}


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp('bad_input')
    (tmp / 'others').mkdir()
    (tmp / 'no_records').mkdir()
    (tmp / 'no_records' / 'train-00000-of-00001').touch()
    (tmp / 'others' / 'a.txt').write_text('no shard')
    (tmp / 'cifar').mkdir()
    write_cifar(tmp / 'cifar', np.zeros([10, 32, 32, 3], np.uint8), np.array([0, 1, 2, 10, *range(6)]))
    (tmp / 'probe.py').write_text(PROBE)
    return tmp


@pytest.mark.parametrize('case', WRONG_USE)
def test_wrong_use_ends_before_the_run_with_exit_code_2(case: str, folders: Path, capfd: Capture) -> None:
    check_wrong_use(*WRONG_USE[case], folders, capfd)


@pytest.mark.skipif(bool(tf.config.list_physical_devices('GPU')), reason='tells what happens where there is no GPU')
@pytest.mark.parametrize('case', NEEDS_NO_GPU)
def test_gpus_that_are_not_there_end_the_run_with_exit_code_2(case: str, folders: Path, capfd: Capture) -> None:
    check_wrong_use(*NEEDS_NO_GPU[case], folders, capfd)


def check_wrong_use(flags: list[str], expected: list[str], folders: Path, capfd: Capture) -> None:
    code, out, lines = run_command(capfd, *(flag.format(tmp=folders) for flag in flags))
    assert code == 2, lines
    assert out == ''
    check_line(the_error(lines), *(fact.format(tmp=folders) for fact in expected))


def write_shards(folder: Path, bad: bytes | None = None) -> Path:
    """Two shards of 40 good records each; returns the second, which ends with the bad record if there is one."""
    write_shard(folder / shard_name('train', 0, 2), [GOOD] * 40)
    second = folder / shard_name('train', 1, 2)
    write_shard(second, [GOOD] * 40 + ([] if bad is None else [bad]))
    return second


def test_a_good_folder_runs(tmp_path: Path, capfd: Capture) -> None:
    write_shards(tmp_path)
    code, out, lines = run_command(capfd, *_QUICK, f'--data_dir={tmp_path}')
    assert code == 0, lines
    assert out.splitlines()[-2].startswith('total images/sec: ')


@pytest.mark.parametrize(
    ('fault', 'expected'),
    [
        ('garbage', ['record 40', 'JPEG']),
        ('label', ['record 40', '1001']),
        ('JPEG bomb', ['record 40', '60000 x 60000']),
        ('truncated', ['record 39']),
        ('huge length', ['record 10', 'length']),
        ('cut in its first header', ['record 0', '7 bytes']),
        ('corrupt', ['record 10']),
    ],
)
def test_bad_data_ends_the_run_with_exit_code_1_and_is_named(
    fault: str, expected: list[str], tmp_path: Path, capfd: Capture
) -> None:
    shard = write_bad_shards(tmp_path, fault)
    code, _, lines = run_command(capfd, *_QUICK, f'--data_dir={tmp_path}')
    assert code == 1, lines
    check_line(the_error(lines), shard.name, *expected)


def test_bad_data_ends_a_process_with_exit_code_1_and_is_named(tmp_path: Path) -> None:
    """Threads of TensorFlow that read or decode are under way when it ends."""
    shard = write_bad_shards(tmp_path, 'garbage')
    code, _, lines = run_process(*_QUICK, f'--data_dir={tmp_path}')
    assert code == 1, lines
    check_line(the_error(lines), shard.name, 'record 40', 'JPEG')


def test_a_run_does_not_wait_for_a_shard_without_a_whole_header(tmp_path: Path, capfd: Capture) -> None:
    shard = tmp_path / shard_name('train', 0, 1)
    shard.write_bytes(header_of(100)[:7])
    code, out, lines = run_command(capfd, *_QUICK, f'--data_dir={tmp_path}')
    assert (code, 'Step' in out) == (1, False), lines
    check_line(the_error(lines), shard.name, 'record 0', '7 bytes')


def labelled(**kind: Any) -> bytes:
    """A good record but for its label."""
    record = tf.train.Example.FromString(GOOD)
    record.features.feature['image/class/label'].CopyFrom(tf.train.Feature(**kind))
    return bytes(record.SerializeToString())


def write_bad_shards(folder: Path, fault: str) -> Path:
    """Two shards; returns the second, which has the fault."""
    bad = {
        'garbage': example(b'not an image at all', 1),
        'label': example(JPEG, 1001),
        'JPEG bomb': example(claiming(JPEG, 60_000, 60_000), 1),
    }.get(fault)
    shard = write_shards(folder, bad)
    if fault == 'truncated':
        os.truncate(shard, shard.stat().st_size - 100)
    if fault == 'cut in its first header':
        os.truncate(shard, 7)
    if fault == 'huge length':
        before, at = shard.read_bytes(), 10 * (len(GOOD) + 16)
        shard.write_bytes(before[:at] + header_of(2**60) + before[at + 12 :])
    if fault == 'corrupt':
        content = bytearray(shard.read_bytes())
        content[10 * (len(GOOD) + 16) + 50] ^= 1  # each record has 16 bytes around it
        shard.write_bytes(content)
    return shard


def test_a_shard_that_cannot_be_read_is_named(tmp_path: Path, capfd: Capture) -> None:
    shard = write_shards(tmp_path)
    shard.chmod(0)
    if os.access(shard, os.R_OK):
        # The superuser can read it, but not a shard that is a folder.
        shard.unlink()
        shard.mkdir()
    code, _, lines = run_command(capfd, *_QUICK, f'--data_dir={tmp_path}')
    assert code == 2, lines
    check_line(the_error(lines), shard.name)

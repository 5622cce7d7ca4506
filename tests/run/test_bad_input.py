"""Every kind of wrong use and of bad data, given to the command: its exit code and its one line."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from records.layout import shard_name
from tests.support.images import claiming, encoded, example, header_of, write_cifar, write_shard
from tests.support.outputs import check_line
from tests.support.programs import Capture, run_command, run_process, the_error

pytestmark = [pytest.mark.graph, pytest.mark.long, pytest.mark.usefixtures('forget_models')]

JPEG = encoded(np.full([40, 50, 3], 99, np.uint8))
GOOD = example(JPEG, 1)
_QUICK = ['--model=lenet', '--device=cpu', '--batch_size=4', '--num_batches=200', '--num_warmup_batches=1']

WRONG_USE = {
    'shards without a record': (['--data_dir={tmp}/no_records'], ['--data_dir={tmp}/no_records', ' 1 ']),
    'unwritable trace': (['--trace_file={tmp}/a.txt/t.json'], ['--trace_file={tmp}/a.txt/t.json']),
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
    'several GPUs where there is none': (['--num_gpus=4'], ['--num_gpus=4', '--device=cpu']),
    'more GPUs than there are': (['--device=gpu', '--num_gpus=2'], ['GPU', '--device=cpu']),
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


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp('bad_input')
    (tmp / 'no_records').mkdir()
    (tmp / 'no_records' / 'train-00000-of-00001').touch()
    (tmp / 'a.txt').touch()
    write_cifar(tmp / 'cifar', np.zeros([10, 32, 32, 3], np.uint8), np.array([0, 1, 2, 10, *range(6)]))
    (tmp / 'probe.py').write_text(PROBE)
    return tmp


@pytest.mark.parametrize('case', WRONG_USE)
def test_wrong_use_ends_before_the_run_with_exit_code_2(case: str, folders: Path, capfd: Capture) -> None:
    if '--num_gpus' in str(WRONG_USE[case]) and tf.config.list_physical_devices('GPU'):
        pytest.skip('tells what happens where there is no GPU')
    flags, expected = ([text.format(tmp=folders) for text in texts] for texts in WRONG_USE[case])
    code, out, lines = run_command(capfd, *flags)
    assert (code, out) == (2, ''), lines
    check_line(the_error(lines), *expected)


@pytest.mark.parametrize(
    ('fault', 'expected'),
    [
        ('label', ['record 40', '1001']),
        ('JPEG bomb', ['record 40', 'JPEG']),
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


def write_bad_shards(folder: Path, fault: str) -> Path:
    """Two shards of 40 good records each; returns the second, which has the fault."""
    bad = {
        'garbage': [example(b'not an image at all', 1)],
        'label': [example(JPEG, 1001)],
        'JPEG bomb': [example(claiming(JPEG, 60_000, 60_000), 1)],
    }.get(fault, [])
    first, shard = (folder / shard_name('train', number, 2) for number in range(2))
    write_shard(first, [GOOD] * 40)
    write_shard(shard, [GOOD] * 40 + bad)
    if fault == 'truncated':
        os.truncate(shard, shard.stat().st_size - 100)
    if fault == 'cut in its first header':
        # A run without any whole record must not wait for one.
        first.unlink()
        os.truncate(shard, 7)
    content, at = bytearray(shard.read_bytes()), 10 * (len(GOOD) + 16)  # each record has 16 bytes around it
    if fault == 'huge length':
        content[at : at + 12] = header_of(2**60)
    if fault == 'corrupt':
        content[at + 50] ^= 1
    shard.write_bytes(content)
    return shard
